//! Bearer secrets: API keys, and the tokens of the read doors. Both sides of a comparison go through
//! an HMAC under a key that only this process has, so that neither length nor content leaks in time.

use ring::digest::{SHA256, digest};
use ring::hmac;

use super::secret::SecretError;

/// Characters of the shortest API key.
const MIN_CHARACTERS: usize = 24;

/// Long enough to be taken for a key, and printed in documentation (webhook facts §1.3).
const PUBLISHED: [&str; 2] = [
    "8f742231b10e8888abcd99yyyzzz85a5",
    "It's a Secret to Everybody",
];

/// A bearer secret as its owner's hash.
#[derive(Debug)]
pub struct ApiKey {
    /// Where it was read from, for people and logs.
    pub name: String,
    digest: [u8; 32],
}

impl ApiKey {
    /// Reads a key: 24 or more printable ASCII characters.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn parse(name: &str, text: &str) -> Result<Self, SecretError> {
        if text.trim().is_empty() {
            return Err(SecretError::Empty);
        }
        if PUBLISHED.contains(&text) {
            return Err(SecretError::Published);
        }
        if text.contains(char::is_whitespace) {
            return Err(SecretError::WhiteSpace);
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(SecretError::NotPrintable);
        }
        if text.len() < MIN_CHARACTERS {
            return Err(SecretError::ShortText(text.len()));
        }
        Ok(Self::of_digest(name, sha256(text.as_bytes())))
    }

    /// A key of which only the SHA-256 is known.
    #[must_use]
    pub fn of_digest(name: &str, digest: [u8; 32]) -> Self {
        Self {
            name: name.to_owned(),
            digest,
        }
    }
}

/// Compares presented keys with known ones.
#[derive(Debug)]
pub struct Comparison(hmac::Key);

impl Comparison {
    /// With a fresh key.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new() -> Result<Self, ring::error::Unspecified> {
        hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new()).map(Self)
    }

    /// Whether `presented` is `known`.
    #[must_use]
    pub fn matches(&self, presented: &[u8], known: &ApiKey) -> bool {
        let tag = hmac::sign(&self.0, &known.digest);
        hmac::verify(&self.0, &sha256(presented), tag.as_ref()).is_ok()
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes)
        .as_ref()
        .try_into()
        .expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_themselves_and_nothing_else() {
        let key = ApiKey::parse("k", "key_0123456789abcdefghijkl").unwrap();
        let comparison = Comparison::new().unwrap();
        assert!(comparison.matches(b"key_0123456789abcdefghijkl", &key));
        for other in [
            "",
            "key_0123456789abcdefghijk",
            "key_0123456789abcdefghijkL",
            "key_0123456789abcdefghijkl ",
        ] {
            assert!(!comparison.matches(other.as_bytes(), &key), "{other:?}");
        }
        assert!(!format!("{key:?}").contains("key_0123"));
    }

    #[test]
    fn weak_keys_are_refused() {
        for (text, expect) in [
            ("", SecretError::Empty),
            (" \n", SecretError::Empty),
            ("short", SecretError::ShortText(5)),
            ("key with spaces that is long", SecretError::WhiteSpace),
            ("schlüssel_0123456789abcdef", SecretError::NotPrintable),
            ("8f742231b10e8888abcd99yyyzzz85a5", SecretError::Published),
        ] {
            assert_eq!(ApiKey::parse("k", text).err(), Some(expect), "{text:?}");
        }
    }
}
