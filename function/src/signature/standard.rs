//! Standard Webhooks 1.0, v1 and v1a, over the exact bytes and the exact header text.

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use super::refusal::{Header, Refusal};
use super::secret::{Kind, WebhookSecret};

/// Entries of one signature header that are looked at: with all secrets of a rotation tried on
/// each, this bounds the work that a stranger can cause.
const MAX_ENTRIES: usize = 16;
/// Characters of the longest id.
const MAX_ID: usize = 256;

/// A webhook whose signature and timestamp hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified<'a> {
    /// `webhook-id`; covered by the signature.
    pub id: &'a str,
    /// Name of the secret that verified, for the log: after a rotation it tells who still uses the
    /// old one.
    pub secret: &'a str,
}

/// Verifies one webhook. A timestamp exactly `tolerance_s` old or ahead is accepted, as reference
/// libraries have it.
///
/// # Errors
/// The first reason found. The timestamp's age is judged only once the signature holds.
pub fn verify<'a>(
    headers: &'a HeaderMap,
    body: &[u8],
    secrets: &'a [WebhookSecret],
    tolerance_s: i64,
    now_s: i64,
) -> Result<Verified<'a>, Refusal> {
    let Head {
        entries,
        id,
        timestamp,
        sent_s,
    } = read_head(headers)?;
    let mut signed = Vec::with_capacity(id.len() + timestamp.len() + 2 + body.len());
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        signed.extend_from_slice(part);
    }
    let secret = any_verifies(entries, &signed, secrets)?;
    let age_s = now_s.saturating_sub(sent_s);
    if age_s > tolerance_s {
        return Err(Refusal::Stale(age_s));
    }
    if age_s < -tolerance_s {
        return Err(Refusal::Future(-age_s));
    }
    Ok(Verified {
        id,
        secret: &secret.name,
    })
}

/// Looks for what no body can mend.
///
/// # Errors
/// What [`verify`] would find before it looks at the body.
pub fn check_head(headers: &HeaderMap) -> Result<(), Refusal> {
    read_head(headers).map(|_| ())
}

struct Head<'a> {
    entries: &'a [u8],
    id: &'a str,
    timestamp: &'a str,
    sent_s: i64,
}

fn read_head(headers: &HeaderMap) -> Result<Head<'_>, Refusal> {
    let entries = once(headers, Header::Signature)?;
    let timestamp = once(headers, Header::Timestamp)?;
    let id = check_id(once(headers, Header::Id)?)?;
    let (timestamp, sent_s) = check_timestamp(timestamp)?;
    Ok(Head {
        entries,
        id,
        timestamp,
        sent_s,
    })
}

/// The value of a header that must be there exactly once.
pub(crate) fn once(headers: &HeaderMap, header: Header) -> Result<&[u8], Refusal> {
    let mut values = headers.get_all(header.name()).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(Refusal::Missing(header)),
        (Some(value), None) if value.is_empty() && header == Header::Signature => {
            Err(Refusal::Missing(header))
        }
        (Some(value), None) => Ok(value.as_bytes()),
        (Some(_), Some(_)) => Err(Refusal::Repeated(header)),
    }
}

fn check_id(id: &[u8]) -> Result<&str, Refusal> {
    let printable = (1..=MAX_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(id).ok().filter(|_| printable);
    let text = text.ok_or(Refusal::MalformedId(Header::Id))?;
    if text.contains('.') {
        Err(Refusal::DottedId)
    } else {
        Ok(text)
    }
}

/// `^[1-9][0-9]{0,10}$`: a parser would also take `+1`, and other libraries take `1.0` (field F09).
fn check_timestamp(text: &[u8]) -> Result<(&str, i64), Refusal> {
    let digits =
        text.first().is_some_and(|first| *first != b'0') && text.iter().all(u8::is_ascii_digit);
    if digits && text.len() == 13 {
        return Err(Refusal::MillisecondTimestamp);
    }
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| digits && text.len() <= 11);
    let parsed = text.and_then(|text| text.parse().ok().map(|seconds| (text, seconds)));
    parsed.ok_or(Refusal::MalformedTimestamp)
}

/// Tries every secret on every entry without leaving early, so that the time taken tells nothing
/// about which of them matched.
fn any_verifies<'a>(
    entries: &[u8],
    signed: &[u8],
    secrets: &'a [WebhookSecret],
) -> Result<&'a WebhookSecret, Refusal> {
    let (mut well_formed, mut verified) = (false, None);
    for entry in entries.split(|byte| *byte == b' ').take(MAX_ENTRIES) {
        let Some((tag, presented)) = decode(entry) else {
            continue;
        };
        well_formed = true;
        for secret in secrets {
            let valid = match (&secret.kind, tag) {
                (Kind::V1(key), Tag::V1) => hmac::verify(key, signed, &presented).is_ok(),
                (Kind::V1a(key), Tag::V1a) => key.verifies(signed, &presented),
                (Kind::V1(_), Tag::V1a) | (Kind::V1a(_), Tag::V1) => false,
            };
            if valid {
                verified = Some(secret);
            }
        }
    }
    verified.ok_or(if well_formed {
        Refusal::Mismatch
    } else {
        Refusal::NoEntry
    })
}

#[derive(Debug, Clone, Copy)]
enum Tag {
    V1,
    V1a,
}

/// `v1,<base64>`: exact tag, strict base64 (padded, standard alphabet, no stray bits), exact length.
fn decode(entry: &[u8]) -> Option<(Tag, Vec<u8>)> {
    let (tag, length, encoded) = match entry {
        [b'v', b'1', b',', encoded @ ..] => (Tag::V1, 32, encoded),
        [b'v', b'1', b'a', b',', encoded @ ..] => (Tag::V1a, 64, encoded),
        _ => return None,
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    (bytes.len() == length).then_some((tag, bytes))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const NOW: i64 = 1_700_000_000;

    struct Sender {
        key: hmac::Key,
        secret: WebhookSecret,
    }

    fn sender(fill: u8) -> Sender {
        let bytes = [fill; 32];
        let text = format!("whsec_{}", STANDARD.encode(bytes));
        Sender {
            key: hmac::Key::new(hmac::HMAC_SHA256, &bytes),
            secret: WebhookSecret::parse(&format!("s{fill}"), &text).unwrap(),
        }
    }

    impl Sender {
        fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
            let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat();
            format!("v1,{}", STANDARD.encode(hmac::sign(&self.key, &signed)))
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        map
    }

    fn check(id: &str, timestamp: &str, signature: &str) -> Result<String, Refusal> {
        let secrets = [sender(1).secret, sender(2).secret];
        let map = headers(&[
            ("webhook-id", id),
            ("webhook-timestamp", timestamp),
            ("webhook-signature", signature),
        ]);
        verify(&map, b"{}", &secrets, 300, NOW).map(|verified| verified.secret.to_owned())
    }

    /// field F31: any entry of any configured secret is enough; unknown tags are skipped.
    #[test]
    fn any_entry_under_any_secret_is_enough() {
        let time = NOW.to_string();
        let good = |fill| sender(fill).sign("msg", &time, b"{}");
        let bad = sender(9).sign("msg", &time, b"{}");
        for (signature, expect) in [
            (good(1), Ok("s1")),
            (good(2), Ok("s2")),
            (format!("{bad} {}", good(2)), Ok("s2")),
            (
                format!("v1a,{} v2,x {bad} {}", STANDARD.encode([0; 64]), good(1)),
                Ok("s1"),
            ),
            (format!("  {} ", good(1)), Ok("s1")),
            (bad.clone(), Err(Refusal::Mismatch)),
            (format!("{}{}", "v2,x ".repeat(15), good(1)), Ok("s1")),
            (
                format!("{}{}", "v2,x ".repeat(16), good(1)),
                Err(Refusal::NoEntry),
            ),
            (format!("{},junk", good(1)), Err(Refusal::NoEntry)),
            (good(1).replace("v1,", "V1,"), Err(Refusal::NoEntry)),
            (good(1).replace("v1,", "v1a,"), Err(Refusal::NoEntry)),
            (good(1).replace("v1,", "v1, "), Err(Refusal::NoEntry)),
            (
                good(1).trim_end_matches('=').to_owned(),
                Err(Refusal::NoEntry),
            ),
            (String::new(), Err(Refusal::Missing(Header::Signature))),
            ("é".to_owned(), Err(Refusal::NoEntry)),
        ] {
            assert_eq!(
                check("msg", &time, &signature),
                expect.map(str::to_owned),
                "{signature}"
            );
        }
    }

    /// field F09: correctly signed over whatever text is sent, and still only in-window integers.
    #[test]
    fn only_plain_seconds_within_the_tolerance_pass() {
        let at = |offset: i64| (NOW + offset).to_string();
        for (timestamp, expect) in [
            (at(0), None),
            (at(-300), None),
            (at(300), None),
            (at(-301), Some(Refusal::Stale(301))),
            (at(301), Some(Refusal::Future(301))),
            ("1".to_owned(), Some(Refusal::Stale(NOW - 1))),
            (
                "99999999999".to_owned(),
                Some(Refusal::Future(99_999_999_999 - NOW)),
            ),
            (format!("{NOW}000"), Some(Refusal::MillisecondTimestamp)),
            ("9".repeat(12), Some(Refusal::MalformedTimestamp)),
            ("9".repeat(20), Some(Refusal::MalformedTimestamp)),
            (format!("+{NOW}"), Some(Refusal::MalformedTimestamp)),
            (format!("0{NOW}"), Some(Refusal::MalformedTimestamp)),
            (format!(" {NOW}"), Some(Refusal::MalformedTimestamp)),
            (format!("{NOW}.5"), Some(Refusal::MalformedTimestamp)),
            ("-1".to_owned(), Some(Refusal::MalformedTimestamp)),
            ("0".to_owned(), Some(Refusal::MalformedTimestamp)),
            ("1e10".to_owned(), Some(Refusal::MalformedTimestamp)),
            ("abc".to_owned(), Some(Refusal::MalformedTimestamp)),
            (String::new(), Some(Refusal::MalformedTimestamp)),
            ("١٦١٤".to_owned(), Some(Refusal::MalformedTimestamp)),
        ] {
            let signature = sender(1).sign("msg", &timestamp, b"{}");
            assert_eq!(
                check("msg", &timestamp, &signature).err(),
                expect,
                "{timestamp:?}"
            );
        }
    }

    #[test]
    fn ids_are_printable_and_without_dots() {
        let time = NOW.to_string();
        let long = "x".repeat(256);
        for (id, expect) in [
            ("msg_1", None),
            (long.as_str(), None),
            ("", Some(Refusal::MalformedId(Header::Id))),
            ("a b", Some(Refusal::MalformedId(Header::Id))),
            ("\u{430}", Some(Refusal::MalformedId(Header::Id))),
            ("a.5", Some(Refusal::DottedId)),
        ] {
            let signature = sender(1).sign(id, &time, b"{}");
            assert_eq!(check(id, &time, &signature).err(), expect, "{id:?}");
        }
        let signature = sender(1).sign(&format!("{long}x"), &time, b"{}");
        assert_eq!(
            check(&format!("{long}x"), &time, &signature),
            Err(Refusal::MalformedId(Header::Id))
        );
    }

    #[test]
    fn headers_count_exactly_once() {
        let time = NOW.to_string();
        let signature = sender(1).sign("msg", &time, b"{}");
        let secrets = [sender(1).secret];
        let all = [
            ("webhook-id", "msg"),
            ("webhook-timestamp", time.as_str()),
            ("webhook-signature", signature.as_str()),
        ];
        assert!(verify(&headers(&all), b"{}", &secrets, 300, NOW).is_ok());
        for (at, header) in [Header::Id, Header::Timestamp, Header::Signature]
            .into_iter()
            .enumerate()
        {
            let twice = [&all[..], &all[at..=at]].concat();
            let missing = [&all[..at], &all[at + 1..]].concat();
            assert_eq!(
                verify(&headers(&twice), b"{}", &secrets, 300, NOW),
                Err(Refusal::Repeated(header))
            );
            assert_eq!(
                verify(&headers(&missing), b"{}", &secrets, 300, NOW),
                Err(Refusal::Missing(header))
            );
        }
    }

    /// Webhook facts §12.2.
    #[test]
    fn any_single_flipped_bit_is_refused() {
        let (time, body) = (NOW.to_string(), br#"{"op":"release","key":"k"}"#);
        let signature = sender(1).sign("msg", &time, body);
        let parts: [&[u8]; 4] = [b"msg", time.as_bytes(), signature.as_bytes(), body];
        let secrets = [sender(1).secret];
        let accepted = |parts: &[Vec<u8>]| {
            let mut map = HeaderMap::new();
            for (name, value) in ["webhook-id", "webhook-timestamp", "webhook-signature"]
                .into_iter()
                .zip(parts)
            {
                // What no header can carry never arrives.
                let Ok(value) = HeaderValue::from_bytes(value) else {
                    return false;
                };
                map.append(name, value);
            }
            verify(&map, &parts[3], &secrets, 300, NOW).is_ok()
        };
        assert!(accepted(&parts.map(<[u8]>::to_vec)));
        for (at, part) in parts.iter().enumerate() {
            for bit in 0..part.len() * 8 {
                let mut changed = parts.map(<[u8]>::to_vec);
                changed[at][bit / 8] ^= 1 << (bit % 8);
                assert!(!accepted(&changed), "part {at}, bit {bit}");
            }
        }
    }

    proptest::proptest! {
        /// Whatever a header holds, it is refused and never a panic.
        #[test]
        fn arbitrary_headers_are_refused(id in ".{0,40}", time in ".{0,20}", signature in "(v1a?,?[ A-Za-z0-9+/=,]{0,90} ?){0,20}") {
            let mut map = HeaderMap::new();
            for (name, value) in [("webhook-id", &id), ("webhook-timestamp", &time), ("webhook-signature", &signature)] {
                if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                    map.append(name, value);
                }
            }
            let refused = verify(&map, b"body", &[sender(1).secret], 300, NOW).is_err();
            proptest::prop_assert!(refused);
        }
    }
}
