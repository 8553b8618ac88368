//! Ed25519 keys: secrets that wipe themselves, public keys that are safe to verify with.
//!
//! `ring` accepts small-order public keys, under which forged signatures verify (webhook facts
//! §5.4, measured), so they are refused here, once, at load. Keys that were published in
//! documentation are refused too: everybody has their secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

/// Why a text is not a usable key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The prefix is missing or of another kind of key.
    #[error("key must start with {0}")]
    Prefix(&'static str),
    /// Not standard, padded base64 of the right length.
    #[error("key must be standard base64 of {0} bytes after its prefix")]
    Encoding(&'static str),
    /// A point under which forgeries verify.
    #[error("public key has small order")]
    SmallOrder,
    /// y is not below the field's prime.
    #[error("public key is not in canonical form")]
    NonCanonical,
    /// The public half does not belong to the seed.
    #[error("public half of the key does not match its seed")]
    Mismatch,
    /// A key from public documentation or test vectors.
    #[error("key is published in documentation and known to everybody")]
    Published,
    /// The system's random generator failed.
    #[error("no randomness from the system")]
    Randomness,
}

/// An Ed25519 public key that passed the checks of this module. Spelt `whpk_<base64>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

/// The prime 2^255 - 19, little endian.
const PRIME: [u8; 32] = {
    let mut prime = [0xff; 32];
    prime[0] = 0xed;
    prime[31] = 0x7f;
    prime
};

/// The eight points of small order; test vector ED25519-SMALL-ORDER.
const SMALL_ORDER: [&str; 8] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
];

/// Public keys whose secrets are printed in documentation (webhook facts §1.3, SW-C).
const PUBLISHED: [&str; 1] = ["1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="];

impl PublicKey {
    /// Reads `whpk_<base64>`.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let key = Self::parse_published(text)?;
        if PUBLISHED.contains(&STANDARD.encode(key.0).as_str()) {
            Err(KeyError::Published)
        } else {
            Ok(key)
        }
    }

    /// Reads a key without refusing published ones: for tests against published vectors only.
    ///
    /// # Errors
    /// See [`KeyError`].
    #[doc(hidden)]
    pub fn parse_published(text: &str) -> Result<Self, KeyError> {
        let text = text
            .strip_prefix("whpk_")
            .ok_or(KeyError::Prefix("whpk_"))?;
        let bytes = STANDARD
            .decode(text)
            .map_err(|_| KeyError::Encoding("32"))?;
        Self::from_bytes(bytes.try_into().map_err(|_| KeyError::Encoding("32"))?)
    }

    /// Checks raw bytes.
    ///
    /// # Errors
    /// [`KeyError::SmallOrder`] or [`KeyError::NonCanonical`].
    pub fn from_bytes(bytes: [u8; 32]) -> Result<Self, KeyError> {
        if SMALL_ORDER.contains(&hex::encode(bytes).as_str()) {
            return Err(KeyError::SmallOrder);
        }
        let mut y = bytes;
        y[31] &= 0x7f;
        if y.iter().rev().ge(PRIME.iter().rev()) {
            return Err(KeyError::NonCanonical);
        }
        Ok(Self(bytes))
    }

    /// Whether `signature` is this key's over `message`.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0)
            .verify(message, signature)
            .is_ok()
    }

    /// A short name for logs and DSSE's `keyid`: the first 16 hexadecimal digits of the key's SHA-256.
    #[must_use]
    pub fn id(&self) -> String {
        hex::encode(&ring::digest::digest(&ring::digest::SHA256, &self.0).as_ref()[..8])
    }
}

impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "whpk_{}", STANDARD.encode(self.0))
    }
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// An Ed25519 secret key. Spelt `whsk_<base64 of seed and public half>`; never printed by `Debug`.
pub struct SecretKey {
    pair: Ed25519KeyPair,
    seed: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

impl SecretKey {
    /// A fresh key.
    ///
    /// # Errors
    /// [`KeyError::Randomness`].
    pub fn generate() -> Result<Self, KeyError> {
        let random = ring::rand::SystemRandom::new();
        let mut seed = Zeroizing::new([0; 32]);
        ring::rand::SecureRandom::fill(&random, seed.as_mut()).map_err(|_| KeyError::Randomness)?;
        Self::from_seed(seed)
    }

    /// Reads `whsk_<base64>` of 64 bytes (seed and public half) or of 32 (seed alone).
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let key = Self::parse_published(text)?;
        PublicKey::parse(&key.public.to_string())?;
        Ok(key)
    }

    /// Reads a key without refusing published ones: for tests against published vectors only.
    ///
    /// # Errors
    /// See [`KeyError`].
    #[doc(hidden)]
    pub fn parse_published(text: &str) -> Result<Self, KeyError> {
        let text = text
            .trim_ascii_end()
            .strip_prefix("whsk_")
            .ok_or(KeyError::Prefix("whsk_"))?;
        let bytes = Zeroizing::new(
            STANDARD
                .decode(text)
                .map_err(|_| KeyError::Encoding("64"))?,
        );
        let (seed, public) = match bytes.len() {
            32 => (&bytes[..], None),
            64 => (&bytes[..32], Some(&bytes[32..])),
            _ => return Err(KeyError::Encoding("64")),
        };
        let seed = Zeroizing::new(seed.try_into().map_err(|_| KeyError::Encoding("64"))?);
        let key = Self::from_seed(seed)?;
        if public.is_some_and(|public| public != key.public.0) {
            Err(KeyError::Mismatch)
        } else {
            Ok(key)
        }
    }

    fn from_seed(seed: Zeroizing<[u8; 32]>) -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_ref())
            .map_err(|_| KeyError::Encoding("64"))?;
        let public = pair
            .public_key()
            .as_ref()
            .try_into()
            .map_err(|_| KeyError::Encoding("64"))?;
        Ok(Self {
            public: PublicKey::from_bytes(public)?,
            pair,
            seed,
        })
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let signature = self.pair.sign(message);
        signature
            .as_ref()
            .try_into()
            .expect("an Ed25519 signature has 64 bytes")
    }

    /// The text form, for writing to a key file of mode 0600 and nowhere else.
    #[must_use]
    pub fn expose(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.seed.to_vec());
        bytes.extend_from_slice(&self.public.0);
        Zeroizing::new(format!("whsk_{}", STANDARD.encode(bytes.as_slice())))
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretKey(of {})", self.public)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED_SECRET: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";

    #[test]
    fn small_order_and_non_canonical_keys_are_refused() {
        for text in SMALL_ORDER {
            let bytes: [u8; 32] = hex::decode(text).unwrap().try_into().unwrap();
            assert_eq!(
                PublicKey::from_bytes(bytes),
                Err(KeyError::SmallOrder),
                "{text}"
            );
        }
        for first in 0xed..=0xff_u8 {
            for last in [0x7f, 0xff] {
                let mut bytes = [0xff; 32];
                (bytes[0], bytes[31]) = (first, last);
                assert_eq!(
                    PublicKey::from_bytes(bytes),
                    Err(KeyError::NonCanonical),
                    "{first:x}..{last:x}"
                );
            }
        }
    }

    #[test]
    fn published_keys_load_only_through_the_test_door() {
        assert_eq!(
            SecretKey::parse(PUBLISHED_SECRET).unwrap_err(),
            KeyError::Published
        );
        let key = SecretKey::parse_published(PUBLISHED_SECRET).unwrap();
        assert_eq!(key.public().to_string(), format!("whpk_{}", PUBLISHED[0]));
        assert_eq!(
            PublicKey::parse(&key.public().to_string()),
            Err(KeyError::Published)
        );
    }

    #[test]
    fn keys_round_trip_and_never_print_their_secret() {
        let key = SecretKey::generate().unwrap();
        let again = SecretKey::parse(&key.expose()).unwrap();
        assert!(
            PublicKey::parse(&key.public().to_string())
                .unwrap()
                .verifies(b"m", &again.sign(b"m"))
        );
        assert!(!key.public().verifies(b"n", &again.sign(b"m")));
        assert!(!format!("{key:?}").contains(key.expose().as_str()));
        for bad in [
            "",
            "whsk_",
            "whpk_AAAA",
            "whsk_AAAA",
            "whsk_!!",
            &key.expose()[5..],
        ] {
            assert!(SecretKey::parse(bad).is_err(), "{bad}");
        }
    }
}
