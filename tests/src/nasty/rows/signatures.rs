//! Rows 1 to 14: the signature header, in both schemes, and the API key.

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};

use super::{Row, row};
use crate::nasty::sender::{self, API_KEY, GOOD, Webhook};
use crate::nasty::trial::{Trial, UNAUTHENTICATED};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(1, "no signature header", "401", missing),
    row(2, "signature header present and empty", "401", empty),
    row(3, "`v1` without comma, `v1,`, `,abc`", "401", incomplete),
    row(
        4,
        "10,000 entries in the list",
        "401, at most 16 entries are looked at; 431 beyond 64 KiB of head",
        many,
    ),
    row(5, "unknown version only", "401", unknown_version),
    row(
        6,
        "tag in upper case",
        "401, tags match exactly",
        upper_case_tag,
    ),
    row(7, "base64url alphabet", "401", url_safe),
    row(8, "unpadded and double-padded base64", "401", padding),
    row(
        9,
        "non-zero trailing bits in the base64",
        "401",
        trailing_bits,
    ),
    row(
        10,
        "white space or a newline inside the base64",
        "401; a newline ends the header, 400",
        white_space,
    ),
    row(
        11,
        "hexadecimal in upper case where lower is usual",
        "read as bytes, odd lengths and other digits refused; hex MACs come with the GitHub preset, until then 401",
        hexadecimal,
    ),
    row(
        12,
        "truncated or lengthened MAC",
        "401, the length is exact",
        truncated,
    ),
    row(13, "`v1,<good>,junk`", "401", junk),
    row(
        14,
        "signature header twice, or joined by a comma",
        "401",
        twice,
    ),
];

/// Sends what `spoil` makes of a good signature, in both schemes.
fn spoilt(trial: &mut Trial<'_>, name: &str, spoil: impl Fn(&Webhook) -> Vec<u8>) {
    for webhook in trial.both() {
        let request = webhook
            .request()
            .replacing("webhook-signature", spoil(&webhook));
        let name = format!("{name} ({})", webhook.key.tag());
        trial.refused(name, &request, 401, UNAUTHENTICATED);
    }
}

/// An entry of these bytes in that encoding.
fn entry(webhook: &Webhook, encoded: &str) -> Vec<u8> {
    format!("{},{encoded}", webhook.key.tag()).into_bytes()
}

fn missing(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        for gone in ["webhook-signature", "webhook-timestamp", "webhook-id"] {
            let name = format!("no {gone} ({})", webhook.key.tag());
            trial.refused(name, &webhook.request().without(gone), 401, UNAUTHENTICATED);
        }
    }
    let keyless = sender::keyed("{}").without("x-api-key");
    trial.refused("no API key", &keyless, 401, UNAUTHENTICATED);
    Ok(())
}

fn empty(trial: &mut Trial<'_>) -> Result<()> {
    spoilt(trial, "empty", |_| Vec::new());
    spoilt(trial, "spaces", |_| b"   ".to_vec());
    let empty = sender::keyed("{}").replacing("x-api-key", "");
    trial.refused("empty API key", &empty, 401, UNAUTHENTICATED);
    Ok(())
}

fn incomplete(trial: &mut Trial<'_>) -> Result<()> {
    for text in [
        "v1", "v1a", "v1,", "v1a,", ",", ",abc", "v1 ,abc", "v1;abc", "abc",
    ] {
        spoilt(trial, text, |_| text.into());
    }
    spoilt(trial, "tag cut off", |webhook| {
        STANDARD.encode(webhook.mac()).into()
    });
    Ok(())
}

fn many(trial: &mut Trial<'_>) -> Result<()> {
    spoilt(trial, "10,000 short ones", |_| "v1, ".repeat(10_000).into());
    spoilt(trial, "a good one in the 17th place", |webhook| {
        format!("{}{}", "v2,AAAA ".repeat(16), webhook.entry()).into()
    });
    spoilt(trial, "600 wrong ones of full length", |webhook| {
        entry(
            webhook,
            &format!("{} ", STANDARD.encode(vec![0; webhook.mac().len()])),
        )
        .repeat(600)
    });
    for webhook in trial.both() {
        let sixteen = format!("{}{}", "v2,AAAA ".repeat(15), webhook.entry());
        let request = webhook.request().replacing("webhook-signature", sixteen);
        trial.accepted("a good one in the 16th place", &request);
        let endless = webhook
            .request()
            .replacing("webhook-signature", "v1,AAAA ".repeat(10_000));
        trial.bare("10,000 of 8 bytes", &endless.bytes(), 431);
    }
    Ok(())
}

fn unknown_version(trial: &mut Trial<'_>) -> Result<()> {
    for tag in ["v2", "v0", "v1b", "v11", "v", ""] {
        spoilt(trial, tag, |webhook| {
            format!("{tag},{}", STANDARD.encode(webhook.mac())).into()
        });
    }
    // The right bytes under the other scheme's tag.
    spoilt(trial, "the other scheme's tag", |webhook| {
        let other = if webhook.key.tag() == "v1" {
            "v1a"
        } else {
            "v1"
        };
        format!("{other},{}", STANDARD.encode(webhook.mac())).into()
    });
    for webhook in trial.both() {
        let request = webhook.request();
        let both = format!("v2,AAAA {}", webhook.entry());
        trial.accepted(
            "beside a good one",
            &request.replacing("webhook-signature", both),
        );
    }
    Ok(())
}

fn upper_case_tag(trial: &mut Trial<'_>) -> Result<()> {
    spoilt(trial, "upper case", |webhook| {
        webhook.entry().replacen('v', "V", 1).into()
    });
    Ok(())
}

fn url_safe(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        // Until the signature has characters in which the alphabets differ.
        let differing = (0..200)
            .map(|number| webhook.clone().id(format!("url_{number}")))
            .find(|webhook| {
                let encoded = STANDARD.encode(webhook.mac());
                encoded.contains('+') && encoded.contains('/')
            })
            .context("no signature has + and /")?;
        let encoded = entry(&differing, &URL_SAFE.encode(differing.mac()));
        let request = differing.request().replacing("webhook-signature", encoded);
        let name = format!("url-safe ({})", webhook.key.tag());
        trial.refused(name, &request, 401, UNAUTHENTICATED);
        trial.accepted("the same in the standard alphabet", &differing.request());
    }
    Ok(())
}

fn padding(trial: &mut Trial<'_>) -> Result<()> {
    spoilt(trial, "unpadded", |webhook| {
        entry(webhook, &STANDARD_NO_PAD.encode(webhook.mac()))
    });
    for more in ["=", "==", "===="] {
        spoilt(trial, &format!("{more} more"), |webhook| {
            format!("{}{more}", webhook.entry()).into()
        });
    }
    Ok(())
}

/// The last character before the padding carries bits that no byte takes.
fn with_stray_bit(encoded: &str) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = encoded.trim_end_matches('=').as_bytes().to_vec();
    let padding = encoded.len() - bytes.len();
    if let Some(last) = bytes.last_mut() {
        let at = ALPHABET.iter().position(|byte| byte == last);
        *last = ALPHABET[at.unwrap_or_default() ^ 1];
    }
    format!("{}{}", String::from_utf8_lossy(&bytes), "=".repeat(padding))
}

fn trailing_bits(trial: &mut Trial<'_>) -> Result<()> {
    spoilt(trial, "one stray bit", |webhook| {
        entry(webhook, &with_stray_bit(&STANDARD.encode(webhook.mac())))
    });
    Ok(())
}

fn white_space(trial: &mut Trial<'_>) -> Result<()> {
    for (name, space) in [("space", " "), ("tab", "\t"), ("two spaces", "  ")] {
        spoilt(trial, name, |webhook| {
            let encoded = STANDARD.encode(webhook.mac());
            let (left, right) = encoded.split_at(20);
            entry(webhook, &format!("{left}{space}{right}"))
        });
    }
    spoilt(trial, "space after the comma", |webhook| {
        webhook.entry().replacen(',', ", ", 1).into()
    });
    for webhook in trial.both() {
        for (name, newline) in [
            ("LF", "\n"),
            ("CR", "\r"),
            ("CR LF", "\r\n"),
            ("folded", "\r\n "),
        ] {
            let broken = webhook.entry().replacen(',', &format!(",AAAA{newline}"), 1);
            let request = webhook.request().replacing("webhook-signature", broken);
            trial.bare(name, &request.bytes(), 400);
        }
    }
    Ok(())
}

fn hexadecimal(trial: &mut Trial<'_>) -> Result<()> {
    spoilt(trial, "lower case", |webhook| {
        entry(webhook, &hex::encode(webhook.mac()))
    });
    spoilt(trial, "upper case", |webhook| {
        entry(webhook, &hex::encode_upper(webhook.mac()))
    });
    spoilt(trial, "as GitHub has it", |webhook| {
        format!("sha256={}", hex::encode(webhook.mac())).into()
    });
    // Where this door reads hexadecimal: hashes of tokens, which its configuration has in upper case.
    let answer = trial
        .send(&sender::reading("/v1/operations").bytes())?
        .0
        .answers;
    let status = answer.first().map_or(0, |answer| answer.status);
    let fault = (status != 200).then(|| status.to_string());
    trial.holds("token whose hash is configured in upper case", "200", fault);
    for (name, hash) in [
        ("odd length", "a".repeat(63)),
        ("no hexadecimal", "g".repeat(64)),
    ] {
        let block = format!("[[token]]\nname = \"x\"\ntenant = \"acme\"\nsha256 = \"{hash}\"\n");
        trial.misconfigured(name, &block, "token.sha256");
    }
    Ok(())
}

fn truncated(trial: &mut Trial<'_>) -> Result<()> {
    for length in [0, 8, 31] {
        spoilt(trial, &format!("first {length} bytes"), |webhook| {
            entry(webhook, &STANDARD.encode(&webhook.mac()[..length]))
        });
    }
    spoilt(trial, "one byte short", |webhook| {
        let mac = webhook.mac();
        entry(webhook, &STANDARD.encode(&mac[..mac.len() - 1]))
    });
    spoilt(trial, "one byte more", |webhook| {
        entry(webhook, &STANDARD.encode([webhook.mac(), vec![0]].concat()))
    });
    spoilt(trial, "one bit other", |webhook| {
        let mut mac = webhook.mac();
        mac[0] ^= 1;
        entry(webhook, &STANDARD.encode(mac))
    });
    for length in [8, API_KEY.len() - 1] {
        let short = sender::keyed(GOOD).replacing("x-api-key", &API_KEY[..length]);
        trial.refused(
            format!("first {length} of the API key"),
            &short,
            401,
            UNAUTHENTICATED,
        );
    }
    Ok(())
}

fn junk(trial: &mut Trial<'_>) -> Result<()> {
    spoilt(trial, "after a comma", |webhook| {
        format!("{},junk", webhook.entry()).into()
    });
    spoilt(trial, "at its end", |webhook| {
        format!("{}junk", webhook.entry()).into()
    });
    spoilt(trial, "not ASCII", |webhook| {
        format!("{}\u{e9}", webhook.entry()).into()
    });
    Ok(())
}

fn twice(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        let again = webhook.request().with("webhook-signature", webhook.entry());
        trial.refused("the same again", &again, 401, UNAUTHENTICATED);
        let after = webhook.request().with("webhook-signature", "v1,AAAA");
        trial.refused("a wrong one after it", &after, 401, UNAUTHENTICATED);
        let case = webhook.request().with("Webhook-Signature", webhook.entry());
        trial.refused("again in other case", &case, 401, UNAUTHENTICATED);
    }
    spoilt(trial, "joined as a gateway does", |webhook| {
        format!("{},{}", webhook.entry(), webhook.entry()).into()
    });
    let again = sender::keyed(GOOD).with("x-api-key", API_KEY);
    trial.refused("API key twice", &again, 401, UNAUTHENTICATED);
    Ok(())
}
