//! Which keys commands may be signed with, as hosts are told: numbered, signed by an offline root key
//! that each host pins at its enrolment. Its version only grows, so that nobody can bring back a key that
//! was retired.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::envelope::{self, EnvelopeError};
use crate::key::{KeyError, PublicKey, SecretKey};

/// DSSE payload type of [`Keyset`].
pub const KEYSET_TYPE: &str = "application/vnd.gpuhook.keyset.v1+json";

/// Keys of one set: one in use, one that follows it, and room for a mishap.
pub const MAX_KEYS: usize = 8;

/// The keys that a host trusts from now on, and no others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keyset {
    /// Version of this shape: 1.
    pub v: u32,
    /// Grows with every set.
    pub version: u64,
    /// When it was signed, Unix seconds; for people.
    pub iat: i64,
    /// Public keys, `whpk_…`, at least one and at most eight.
    pub keys: Vec<String>,
}

/// Why a keyset is refused.
#[derive(Debug, thiserror::Error)]
pub enum KeysetError {
    /// Not signed by the root, or no keyset.
    #[error("keyset cannot be trusted")]
    Envelope(#[from] EnvelopeError),
    /// Made by a newer program.
    #[error("keyset has shape {0}, and this program reads 1")]
    Shape(u32),
    /// Empty, or larger than any sensible one.
    #[error("keyset has {0} keys, and must have 1 to {MAX_KEYS}")]
    Count(usize),
    /// One of its keys is unusable.
    #[error("key {place} of the keyset is unusable")]
    Key {
        /// Which, from 0.
        place: usize,
        /// Why.
        #[source]
        source: KeyError,
    },
    /// An earlier one, or another one of the same version.
    #[error("keyset {offered} does not follow keyset {known}: versions only grow")]
    Older {
        /// The version in use.
        known: u64,
        /// The version offered.
        offered: u64,
    },
}

/// A keyset that its root has signed, with its keys ready for use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKeyset {
    /// Its version.
    pub version: u64,
    /// Its keys.
    pub keys: Vec<PublicKey>,
}

impl TrustedKeyset {
    /// Opens a signed keyset.
    ///
    /// # Errors
    /// See [`KeysetError`].
    pub fn open(text: &str, root: &PublicKey) -> Result<Self, KeysetError> {
        let keyset: Keyset = envelope::open(text, KEYSET_TYPE, std::slice::from_ref(root))?;
        if keyset.v != 1 {
            return Err(KeysetError::Shape(keyset.v));
        }
        if keyset.keys.is_empty() || keyset.keys.len() > MAX_KEYS {
            return Err(KeysetError::Count(keyset.keys.len()));
        }
        let parse = |(place, text): (usize, &String)| {
            PublicKey::parse(text).map_err(|source| KeysetError::Key { place, source })
        };
        let keys = keyset.keys.iter().enumerate().map(parse);
        Ok(Self {
            version: keyset.version,
            keys: keys.collect::<Result<_, _>>()?,
        })
    }

    /// Whether this one may replace `known`. The same one again changes nothing and is no fault.
    ///
    /// # Errors
    /// [`KeysetError::Older`].
    pub fn succeeds(&self, known: &Self) -> Result<bool, KeysetError> {
        if self == known {
            return Ok(false);
        }
        if self.version > known.version {
            return Ok(true);
        }
        Err(KeysetError::Older {
            known: known.version,
            offered: self.version,
        })
    }
}

/// Signs a keyset.
///
/// # Errors
/// It cannot be serialised.
pub fn seal(
    version: u64,
    iat: i64,
    keys: &[PublicKey],
    root: &SecretKey,
) -> Result<String, serde_json::Error> {
    let keyset = Keyset {
        v: 1,
        version,
        iat,
        keys: keys.iter().map(ToString::to_string).collect(),
    };
    envelope::seal(&keyset, KEYSET_TYPE, root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public() -> PublicKey {
        SecretKey::generate().unwrap().public()
    }

    fn signed(keyset: &serde_json::Value, root: &SecretKey) -> String {
        envelope::seal(keyset, KEYSET_TYPE, root).unwrap()
    }

    #[test]
    fn a_keyset_is_opened_under_its_root_alone() {
        let (root, key) = (SecretKey::generate().unwrap(), public());
        let text = seal(3, 1_780_000_000, &[key], &root).unwrap();
        let opened = TrustedKeyset::open(&text, &root.public()).unwrap();
        assert_eq!((opened.version, &opened.keys[..]), (3, &[key][..]));
        let forged = TrustedKeyset::open(&text, &public());
        assert!(
            matches!(forged, Err(KeysetError::Envelope(EnvelopeError::Untrusted))),
            "{forged:?}"
        );
        let other = envelope::seal(&1, "application/vnd.gpuhook.command.v1+json", &root).unwrap();
        assert!(matches!(
            TrustedKeyset::open(&other, &root.public()),
            Err(KeysetError::Envelope(EnvelopeError::WrongType { .. }))
        ));
    }

    #[test]
    fn what_the_root_signed_by_mistake_is_refused_too() {
        let root = SecretKey::generate().unwrap();
        let key = public().to_string();
        let nine = vec![key.clone(); 9];
        let small = "whpk_AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        for (keyset, expect) in [
            (
                serde_json::json!({"v": 2, "version": 1, "iat": 0, "keys": [key]}),
                "shape 2",
            ),
            (
                serde_json::json!({"v": 1, "version": 1, "iat": 0, "keys": []}),
                "has 0 keys",
            ),
            (
                serde_json::json!({"v": 1, "version": 1, "iat": 0, "keys": nine}),
                "has 9 keys",
            ),
            (
                serde_json::json!({"v": 1, "version": 1, "iat": 0, "keys": [key, small]}),
                "key 1",
            ),
            (
                serde_json::json!({"v": 1, "version": -1, "iat": 0, "keys": [key]}),
                "trusted",
            ),
            (
                serde_json::json!({"v": 1, "version": 1, "iat": 0, "keys": [key], "more": 1}),
                "trusted",
            ),
        ] {
            let error = TrustedKeyset::open(&signed(&keyset, &root), &root.public()).unwrap_err();
            assert!(error.to_string().contains(expect), "{keyset}: {error}");
        }
    }

    #[test]
    fn versions_only_grow() {
        let (first, second) = (public(), public());
        let known = TrustedKeyset {
            version: 5,
            keys: vec![first],
        };
        let of = |version, key| TrustedKeyset {
            version,
            keys: vec![key],
        };
        assert!(of(6, second).succeeds(&known).unwrap());
        assert!(of(9, first).succeeds(&known).unwrap());
        assert!(!of(5, first).succeeds(&known).unwrap());
        for (version, key) in [(5, second), (4, first), (0, second)] {
            let refused = of(version, key).succeeds(&known);
            assert!(
                matches!(refused, Err(KeysetError::Older { known: 5, .. })),
                "{refused:?}"
            );
        }
    }
}
