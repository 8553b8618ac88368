//! `gpuhook verify`: explains why a captured webhook does or does not verify.
//!
//! It tries the mistakes that people make (webhook facts §1.2) and names the one that fits. It never
//! prints an expected signature: one product's error reply did, and copying it back made the next
//! call succeed (adnanh/webhook#85).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use clap::Args;
use events::key::PublicKey;
use ring::hmac;

use crate::webhook;

/// Explain why a webhook's signature matches or does not.
///
/// HEADERS is a file with one `name: value` per line, as captured; BODY the exact bytes. A callback
/// of gpuhook itself can be checked in the same way.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// File with the headers, one `name: value` per line.
    #[arg(long)]
    headers: PathBuf,
    /// File with the body, byte for byte.
    #[arg(long)]
    body: PathBuf,
    /// File with the whsec_ secret (checks v1 signatures).
    #[arg(long, required_unless_present = "public_key")]
    secret_file: Option<PathBuf>,
    /// The whpk_ public key (checks v1a signatures).
    #[arg(long)]
    public_key: Option<String>,
    /// Judge the timestamp as of this time, Unix seconds; now by default.
    #[arg(long)]
    now: Option<i64>,
    /// Seconds that the timestamp may be off, either way.
    #[arg(long, default_value_t = 300)]
    tolerance: i64,
}

/// A captured webhook.
struct Capture {
    id: String,
    timestamp: String,
    signature: String,
    body: Vec<u8>,
}

/// What checks signatures of one scheme.
enum Verifier {
    V1(hmac::Key),
    V1a(PublicKey),
}

impl Verifier {
    fn tag(&self) -> &'static str {
        match self {
            Self::V1(_) => "v1",
            Self::V1a(_) => "v1a",
        }
    }

    fn matches(&self, signed: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::V1(key) => hmac::verify(key, signed, signature).is_ok(),
            Self::V1a(key) => key.verifies(signed, signature),
        }
    }
}

/// Runs `gpuhook verify`. Fails unless the webhook would be accepted.
pub(crate) fn run(args: &VerifyArgs) -> Result<()> {
    let capture = capture(&args.headers, &args.body)?;
    let secret = args
        .secret_file
        .as_deref()
        .map(webhook::read_secret)
        .transpose()?;
    let verifier = match (&secret, &args.public_key) {
        (Some(secret), _) => Verifier::V1(webhook::key(secret)?),
        (None, Some(key)) => Verifier::V1a(PublicKey::parse(key)?),
        (None, None) => bail!("give --secret-file or --public-key"),
    };
    let now = args
        .now
        .unwrap_or_else(|| jiff::Timestamp::now().as_second());
    let mut reasons = header_faults(&capture, now, args.tolerance);
    if signature_matches(&verifier, &capture, &capture.timestamp, &capture.body) {
        println!("the {} signature matches", verifier.tag());
    } else {
        println!(
            "no {} signature matches; the body has {} bytes, SHA-256 {}",
            verifier.tag(),
            capture.body.len(),
            digest(&capture.body)
        );
        reasons.push(why(
            &verifier,
            &capture,
            secret.as_ref().map(|secret| secret.as_str()),
        ));
    }
    if reasons.is_empty() {
        println!("this webhook would be accepted");
        return Ok(());
    }
    for reason in &reasons {
        println!("- {reason}");
    }
    bail!("this webhook would be refused with 401")
}

fn capture(headers: &Path, body: &Path) -> Result<Capture> {
    let text =
        std::fs::read_to_string(headers).with_context(|| format!("read {}", headers.display()))?;
    let header = |wanted: &str| {
        let mut values = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim()
                .eq_ignore_ascii_case(wanted)
                .then(|| value.trim_matches([' ', '\t', '\r']).to_owned())
        });
        let first = values
            .next()
            .with_context(|| format!("{} has no {wanted} header", headers.display()))?;
        if values.next().is_some() {
            bail!("{wanted} stands twice; such a request is refused")
        } else {
            Ok(first)
        }
    };
    Ok(Capture {
        id: header("webhook-id")?,
        timestamp: header("webhook-timestamp")?,
        signature: header("webhook-signature")?,
        body: std::fs::read(body).with_context(|| format!("read {}", body.display()))?,
    })
}

fn header_faults(capture: &Capture, now: i64, tolerance: i64) -> Vec<String> {
    let mut faults = Vec::new();
    let text = capture.timestamp.as_str();
    let plain = (1..=11).contains(&text.len())
        && !text.starts_with('0')
        && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<i64>() {
        Ok(_) if text.len() == 13 && text.bytes().all(|b| b.is_ascii_digit()) => {
            faults.push(
                "webhook-timestamp looks like milliseconds; it must be whole seconds".to_owned(),
            );
        }
        Ok(at) if plain && now - at > tolerance => {
            faults.push(format!("webhook-timestamp is {} s old; at most {tolerance} s are allowed: sign each attempt afresh", now - at));
        }
        Ok(at) if plain && at - now > tolerance => {
            faults.push(format!("webhook-timestamp is {} s ahead; at most {tolerance} s are allowed: check the clocks", at - now));
        }
        Ok(_) if plain => {}
        _ => faults.push("webhook-timestamp must be Unix seconds in plain digits".to_owned()),
    }
    if capture.id.contains('.')
        || capture.id.is_empty()
        || capture.id.len() > 256
        || !capture.id.bytes().all(|b| b.is_ascii_graphic())
    {
        faults.push(
            "webhook-id must be 1 to 256 printable ASCII characters without spaces or '.'"
                .to_owned(),
        );
    }
    faults
}

fn signature_matches(verifier: &Verifier, capture: &Capture, timestamp: &str, body: &[u8]) -> bool {
    let signed = webhook::signed_content(&capture.id, timestamp, body);
    entries(capture, verifier.tag()).any(|signature| verifier.matches(&signed, &signature))
}

fn entries<'a>(capture: &'a Capture, tag: &'a str) -> impl Iterator<Item = Vec<u8>> + 'a {
    let entries = capture
        .signature
        .split(' ')
        .filter_map(|entry| entry.split_once(','));
    entries
        .filter(move |(scheme, _)| *scheme == tag)
        .filter_map(|(_, text)| STANDARD.decode(text).ok())
}

/// The mistake that fits, or what to compare when none does.
fn why(verifier: &Verifier, capture: &Capture, secret: Option<&str>) -> String {
    let tag = verifier.tag();
    let texts: Vec<_> = capture
        .signature
        .split(' ')
        .filter_map(|entry| entry.split_once(','))
        .filter(|(scheme, _)| *scheme == tag)
        .collect();
    if texts.is_empty() {
        return format!(
            "webhook-signature has no entry that starts with '{tag},' (exactly so, lower case)"
        );
    }
    if entries(capture, tag).next().is_none() {
        let lenient = texts
            .iter()
            .any(|(_, text)| URL_SAFE.decode(text).is_ok() || STANDARD_NO_PAD.decode(text).is_ok());
        let hint = if lenient {
            "it is url-safe or unpadded"
        } else {
            "it is not base64 at all"
        };
        return format!("the signature must be standard, padded base64; {hint}");
    }
    let matches =
        |timestamp: &str, body: &[u8]| signature_matches(verifier, capture, timestamp, body);
    let trimmed = capture.body.trim_ascii_end();
    if trimmed.len() < capture.body.len() && matches(&capture.timestamp, trimmed) {
        return "the signature is for the body without its trailing newline or spaces: sign the exact bytes you send".to_owned();
    }
    if matches(&capture.timestamp, &[&capture.body, &b"\n"[..]].concat()) {
        return "the signature is for the body with a trailing newline: sign the exact bytes you send".to_owned();
    }
    for (body, form) in rewrites(&capture.body) {
        if matches(&capture.timestamp, &body) {
            return format!(
                "the signature is for a re-serialised body ({form}): sign and send the same bytes"
            );
        }
    }
    if let (Some(secret), Verifier::V1(_)) = (secret, verifier) {
        for (key, form) in [
            (secret, "the secret's text with its whsec_ prefix"),
            (
                secret.trim_start_matches("whsec_"),
                "the secret's text after whsec_",
            ),
        ] {
            let raw = Verifier::V1(hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()));
            if signature_matches(&raw, capture, &capture.timestamp, &capture.body) {
                return format!(
                    "the sender uses {form} as the key; it must be base64-decoded first"
                );
            }
        }
        let body_only =
            entries(capture, tag).any(|signature| verifier.matches(&capture.body, &signature));
        if body_only {
            return "the signature is for the body alone; it must be for id, '.', timestamp, '.', body".to_owned();
        }
    }
    "nothing common fits: compare the key, the webhook-id and the body's length and SHA-256 with the sender's".to_owned()
}

/// Other serialisations of the same JSON that senders sign by mistake.
fn rewrites(body: &[u8]) -> Vec<(Vec<u8>, &'static str)> {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else {
        return Vec::new();
    };
    let minified = value.to_string();
    let mut forms = vec![(
        serde_json::to_vec_pretty(&value).unwrap_or_default(),
        "indented",
    )];
    // Python's json.dumps puts a space after ',' and ':' outside strings.
    let mut spaced = String::with_capacity(minified.len() * 2);
    let (mut quoted, mut escaped) = (false, false);
    for c in minified.chars() {
        spaced.push(c);
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        if !quoted && matches!(c, ',' | ':') {
            spaced.push(' ');
        }
    }
    forms.push((minified.into_bytes(), "without spaces"));
    forms.push((spaced.into_bytes(), "with spaces after ',' and ':'"));
    forms
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(ring::digest::digest(&ring::digest::SHA256, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// field F29: what the front door refuses as a secret is refused here for the same reason, and
    /// what it takes is decoded to the same key.
    #[test]
    fn secrets_are_read_by_the_front_doors_rule() {
        let folder = tempfile::tempdir().unwrap();
        let whole = STANDARD.encode([0xfb; 32]);
        let good = format!("whsec_{whole}");
        let signed = webhook::sign(&webhook::key(&good).unwrap(), "msg", 1_700_000_000, b"{}");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let headers = format!(
            "webhook-id: msg\nwebhook-timestamp: 1700000000\nwebhook-signature: {}\n",
            signed.signature
        );
        let verify = |secret: &str| {
            run(&VerifyArgs {
                headers: write("headers", &headers),
                body: write("body", "{}"),
                secret_file: Some(write("secret", secret)),
                public_key: None,
                now: Some(1_700_000_000),
                tolerance: 300,
            })
        };
        for text in [good.clone(), format!("{good}\n"), format!("{good}\r\n")] {
            verify(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        }
        for (text, reason) in [
            (String::new(), "is empty"),
            ("   ".to_owned(), "is empty"),
            ("whsec_".to_owned(), "is empty"),
            (format!("{good}\n\n"), "contains white space"),
            (format!("{good} "), "contains white space"),
            ("v1,whsec_AAAA".to_owned(), "begins with v1,"),
            (good.trim_end_matches('=').to_owned(), "without its padding"),
            (good.replace('+', "-").replace('/', "_"), "url-safe"),
            (format!("whsec_{}", STANDARD.encode([7; 8])), "only 8 bytes"),
            (whole.clone(), "must begin with whsec_"),
        ] {
            let error = verify(&text).unwrap_err().to_string();
            let known = error.starts_with("the secret ") && error.contains(reason);
            assert!(known && !error.contains(&whole[..8]), "{text:?}: {error}");
        }
    }
}
