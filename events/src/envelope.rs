//! DSSE envelopes: the signed bytes are the bytes that travel, in base64, so no canonical form of
//! JSON is needed and nothing that a queue does to characters can break a signature.
//!
//! ```text
//! PAE = "DSSEv1" SP len(type) SP type SP len(payload) SP payload      (lengths in bytes, decimal)
//! ```
//! Source: secure-systems-lab/dsse, protocol.md. `keyid` is an unauthenticated hint and only logged.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::key::{PublicKey, SecretKey};

/// Bytes of one envelope, well under a queue's limit of 256 KiB and far above any command.
pub const MAX_ENVELOPE: usize = 192 * 1024;

/// More signatures than this are not looked at.
const MAX_SIGNATURES: usize = 8;

/// A DSSE envelope as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Envelope {
    /// Base64 of the signed bytes.
    pub payload: String,
    /// What the payload is; part of what is signed.
    #[serde(rename = "payloadType")]
    pub payload_type: String,
    /// One or more signatures, any of which may verify.
    pub signatures: Vec<Signature>,
}

/// One signature of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Signature {
    /// Hint for people; never trusted.
    #[serde(default)]
    pub keyid: String,
    /// Base64 of the Ed25519 signature over the PAE.
    pub sig: String,
}

/// Why an envelope is refused.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// Not JSON of an envelope, or too large.
    #[error("not a DSSE envelope")]
    Malformed,
    /// Of another type than expected.
    #[error("envelope is not of type {expected}")]
    WrongType {
        /// The type expected.
        expected: &'static str,
    },
    /// No signature verifies under any of the keys.
    #[error("no signature verifies under a trusted key")]
    Untrusted,
    /// Signed, but not what its type says: the signer is newer or broken.
    #[error("signed payload cannot be read")]
    Payload(#[source] serde_json::Error),
}

/// The pre-authentication encoding: what is signed.
#[must_use]
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "DSSEv1 {} {payload_type} {} ",
        payload_type.len(),
        payload.len()
    )
    .into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// Signs `value` and returns the envelope's JSON, which is ASCII throughout.
///
/// # Errors
/// `value` cannot be serialised.
pub fn seal<T: Serialize>(
    value: &T,
    payload_type: &'static str,
    key: &SecretKey,
) -> Result<String, serde_json::Error> {
    let payload = serde_json::to_vec(value)?;
    let signature = key.sign(&pae(payload_type, &payload));
    serde_json::to_string(&Envelope {
        payload: STANDARD.encode(&payload),
        payload_type: payload_type.to_owned(),
        signatures: vec![Signature {
            keyid: key.public().id(),
            sig: STANDARD.encode(signature),
        }],
    })
}

/// What an envelope says that it holds, before anything is verified: to choose how to open it.
#[must_use]
pub fn claimed_type(text: &str) -> Option<String> {
    if text.len() > MAX_ENVELOPE {
        return None;
    }
    let envelope: Envelope = serde_json::from_str(text).ok()?;
    Some(envelope.payload_type)
}

/// Verifies an envelope under any of `keys` and only then reads its payload.
///
/// # Errors
/// See [`EnvelopeError`].
pub fn open<T: DeserializeOwned>(
    text: &str,
    payload_type: &'static str,
    keys: &[PublicKey],
) -> Result<T, EnvelopeError> {
    let payload = open_bytes(text, payload_type, keys)?;
    serde_json::from_slice(&payload).map_err(EnvelopeError::Payload)
}

/// Verifies an envelope under any of `keys` and returns its payload's exact bytes.
///
/// # Errors
/// See [`EnvelopeError`].
pub fn open_bytes(
    text: &str,
    payload_type: &'static str,
    keys: &[PublicKey],
) -> Result<Vec<u8>, EnvelopeError> {
    if text.len() > MAX_ENVELOPE || !text.trim_ascii_start().starts_with('{') {
        return Err(EnvelopeError::Malformed);
    }
    let envelope: Envelope = serde_json::from_str(text).map_err(|_| EnvelopeError::Malformed)?;
    if envelope.payload_type != payload_type {
        return Err(EnvelopeError::WrongType {
            expected: payload_type,
        });
    }
    let payload = STANDARD
        .decode(&envelope.payload)
        .map_err(|_| EnvelopeError::Malformed)?;
    let signed = pae(payload_type, &payload);
    let verified = envelope
        .signatures
        .iter()
        .take(MAX_SIGNATURES)
        .any(|signature| {
            let bytes = STANDARD.decode(&signature.sig);
            bytes.is_ok_and(|bytes| keys.iter().any(|key| key.verifies(&signed, &bytes)))
        });
    if verified {
        Ok(payload)
    } else {
        Err(EnvelopeError::Untrusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "application/vnd.gpuhook.test.v1+json";

    #[test]
    fn sealed_values_open_under_their_key_only() {
        let (key, other) = (
            SecretKey::generate().unwrap(),
            SecretKey::generate().unwrap(),
        );
        let text = seal(&serde_json::json!({"a": 1}), TYPE, &key).unwrap();
        assert!(text.is_ascii());
        let value: serde_json::Value = open(&text, TYPE, &[other.public(), key.public()]).unwrap();
        assert_eq!(value["a"], 1);
        assert!(matches!(
            open_bytes(&text, TYPE, &[other.public()]),
            Err(EnvelopeError::Untrusted)
        ));
        assert!(matches!(
            open_bytes(&text, "x", &[key.public()]),
            Err(EnvelopeError::WrongType { .. })
        ));
        assert!(matches!(
            open_bytes("{}", TYPE, &[key.public()]),
            Err(EnvelopeError::Malformed)
        ));
        assert!(matches!(
            open_bytes("[]", TYPE, &[key.public()]),
            Err(EnvelopeError::Malformed)
        ));
    }

    #[test]
    fn any_flipped_bit_of_the_payload_is_refused() {
        let key = SecretKey::generate().unwrap();
        let text = seal(&serde_json::json!({"a": 1}), TYPE, &key).unwrap();
        let envelope: Envelope = serde_json::from_str(&text).unwrap();
        let payload = STANDARD.decode(&envelope.payload).unwrap();
        for bit in 0..payload.len() * 8 {
            let mut changed = payload.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let forged = Envelope {
                payload: STANDARD.encode(&changed),
                ..envelope.clone()
            };
            let text = serde_json::to_string(&forged).unwrap();
            assert!(
                open_bytes(&text, TYPE, &[key.public()]).is_err(),
                "bit {bit}"
            );
        }
    }
}
