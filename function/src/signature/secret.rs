//! What a source is verified with. Read strictly and in one way only: a secret that two programs
//! decode differently costs its owner hours (field F29).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::{KeyError, PublicKey};
use ring::hmac;
use zeroize::Zeroizing;

/// Bytes of the shortest v1 secret (Standard Webhooks 1.0: 24 to 64 random bytes).
const MIN_BYTES: usize = 24;

/// Secrets that documentation and test suites print (webhook facts §1.3): everybody has them.
const PUBLISHED: [&str; 2] = [
    "C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
];

/// Why a text is no secret. No variant holds any of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Nothing, or white space.
    #[error("is empty")]
    Empty,
    /// White space at an end or within.
    #[error("contains white space")]
    WhiteSpace,
    /// A signature's tag pasted with it.
    #[error("begins with v1, - leave that out, a secret begins with whsec_")]
    Tagged,
    /// The secret half of a v1a pair.
    #[error("is a whsk_ secret key - its public half, whpk_, is what verifies")]
    SecretKey,
    /// No known prefix.
    #[error("must begin with whsec_ (v1) or whpk_ (v1a)")]
    Prefix,
    /// `-` or `_` in the base64.
    #[error("is in the url-safe base64 alphabet; standard base64 is expected")]
    UrlSafe,
    /// Base64 whose padding was lost.
    #[error("is base64 without its padding")]
    Unpadded,
    /// Not base64 at all.
    #[error("is not standard base64 after its prefix")]
    Encoding,
    /// Too few bytes.
    #[error("holds only {0} bytes, at least 24 are needed")]
    Short(usize),
    /// Too few characters.
    #[error("has only {0} characters, at least 24 are needed")]
    ShortText(usize),
    /// Not a value that an HTTP header can carry.
    #[error("contains characters other than printable ASCII")]
    NotPrintable,
    /// Known to everybody.
    #[error("is published in documentation and known to everybody")]
    Published,
    /// A public key that cannot be used.
    #[error("cannot be used: {0}")]
    Key(#[source] KeyError),
}

/// One secret of a `standard-webhooks` source.
#[derive(Debug)]
pub struct WebhookSecret {
    /// Where it was read from, for people and logs: `file:secrets/demo.whsec`.
    pub name: String,
    /// What it verifies.
    pub(super) kind: Kind,
}

/// v1 or v1a.
#[derive(Debug)]
pub(super) enum Kind {
    /// HMAC-SHA256.
    V1(hmac::Key),
    /// Ed25519.
    V1a(PublicKey),
}

impl WebhookSecret {
    /// Reads `whsec_…` or `whpk_…`.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn parse(name: &str, text: &str) -> Result<Self, SecretError> {
        let kind = match text.strip_prefix("whpk_") {
            Some(_) => PublicKey::parse(text).map(Kind::V1a).map_err(key_error)?,
            None => Kind::V1(v1_key(text)?),
        };
        Ok(Self {
            name: name.to_owned(),
            kind,
        })
    }

    /// Reads a secret without refusing published ones: for tests against published vectors only.
    ///
    /// # Errors
    /// See [`SecretError`].
    #[doc(hidden)]
    pub fn parse_published(name: &str, text: &str) -> Result<Self, SecretError> {
        let kind = match text.strip_prefix("whpk_") {
            Some(_) => PublicKey::parse_published(text)
                .map(Kind::V1a)
                .map_err(key_error)?,
            None => Kind::V1(hmac::Key::new(hmac::HMAC_SHA256, &v1_bytes(text)?)),
        };
        Ok(Self {
            name: name.to_owned(),
            kind,
        })
    }

    /// A secret that nobody has: what unknown sources are verified with, at the same cost.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn decoy() -> Result<Self, ring::error::Unspecified> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new())?;
        Ok(Self {
            name: "decoy".to_owned(),
            kind: Kind::V1(key),
        })
    }
}

/// The secret in a file's text: one line break at its end does not count, since editors and shells
/// put it there. Whatever else is white space is part of a secret that was pasted wrongly.
#[must_use]
pub fn in_file(text: &str) -> &str {
    let line = text.strip_suffix('\n').unwrap_or(text);
    line.strip_suffix('\r').unwrap_or(line)
}

/// Reads `whsec_…` as a v1 key, for verifying or for signing.
///
/// # Errors
/// See [`SecretError`].
pub fn v1_key(text: &str) -> Result<hmac::Key, SecretError> {
    let bytes = v1_bytes(text)?;
    if PUBLISHED.contains(&STANDARD.encode(bytes.as_slice()).as_str()) {
        return Err(SecretError::Published);
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

fn v1_bytes(text: &str) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    if text.trim().is_empty() {
        return Err(SecretError::Empty);
    }
    if text.contains(char::is_whitespace) {
        return Err(SecretError::WhiteSpace);
    }
    if text.starts_with("v1,") {
        return Err(SecretError::Tagged);
    }
    if text.starts_with("whsk_") {
        return Err(SecretError::SecretKey);
    }
    let encoded = text.strip_prefix("whsec_").ok_or(SecretError::Prefix)?;
    if encoded.is_empty() {
        return Err(SecretError::Empty);
    }
    if encoded.contains(['-', '_']) {
        return Err(SecretError::UrlSafe);
    }
    let bytes = Zeroizing::new(
        STANDARD
            .decode(encoded)
            .map_err(|_| encoding_error(encoded))?,
    );
    if bytes.len() < MIN_BYTES {
        return Err(SecretError::Short(bytes.len()));
    }
    Ok(bytes)
}

fn encoding_error(encoded: &str) -> SecretError {
    let padded = encoded.len().is_multiple_of(4) || encoded.contains('=');
    let alphabet = encoded
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'));
    if !padded && alphabet {
        SecretError::Unpadded
    } else {
        SecretError::Encoding
    }
}

fn key_error(error: KeyError) -> SecretError {
    match error {
        KeyError::Published => SecretError::Published,
        other => SecretError::Key(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// field F29: every way in which secrets are pasted wrongly has its own reason.
    #[test]
    fn badly_pasted_secrets_are_refused_with_the_reason() {
        let whole = STANDARD.encode([7_u8; 32]);
        let url_safe = STANDARD
            .encode([0xfb_u8; 32])
            .replace('+', "-")
            .replace('/', "_");
        for (text, expect) in [
            (format!("whsec_{whole}"), None),
            (String::new(), Some(SecretError::Empty)),
            ("  ".to_owned(), Some(SecretError::Empty)),
            ("whsec_".to_owned(), Some(SecretError::Empty)),
            (format!("whsec_{whole}\n"), Some(SecretError::WhiteSpace)),
            (format!(" whsec_{whole}"), Some(SecretError::WhiteSpace)),
            (format!("v1,whsec_{whole}"), Some(SecretError::Tagged)),
            (whole.clone(), Some(SecretError::Prefix)),
            (format!("WHSEC_{whole}"), Some(SecretError::Prefix)),
            (
                format!("whsec_{}", whole.trim_end_matches('=')),
                Some(SecretError::Unpadded),
            ),
            (format!("whsec_{url_safe}"), Some(SecretError::UrlSafe)),
            (
                format!("whsec_{}", STANDARD.encode([7_u8; 8])),
                Some(SecretError::Short(8)),
            ),
            (
                format!("whsec_{}", STANDARD.encode([7_u8; 23])),
                Some(SecretError::Short(23)),
            ),
            (format!("whsec_{}", STANDARD.encode([7_u8; 24])), None),
            ("whsec_AAAA".to_owned(), Some(SecretError::Short(3))),
            (format!("whsec_{whole}!"), Some(SecretError::Encoding)),
            (
                format!("whsec_{}", PUBLISHED[1]),
                Some(SecretError::Published),
            ),
            (format!("whsk_{whole}"), Some(SecretError::SecretKey)),
            (
                "whpk_AAAA".to_owned(),
                Some(SecretError::Key(KeyError::Encoding("32"))),
            ),
            (
                "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=".to_owned(),
                Some(SecretError::Published),
            ),
        ] {
            assert_eq!(WebhookSecret::parse("s", &text).err(), expect, "{text:?}");
        }
    }

    #[test]
    fn secrets_do_not_print_themselves() {
        let encoded = STANDARD.encode([7_u8; 32]);
        let secret = WebhookSecret::parse("file:s", &format!("whsec_{encoded}")).unwrap();
        let printed = format!("{secret:?}");
        assert!(
            !printed.contains(&encoded) && !printed.contains("[7, 7"),
            "{printed}"
        );
    }
}
