//! A webhook as a sender makes it: Standard Webhooks v1 over the exact bytes.

use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use function::signature::secret::{in_file, v1_key};
use ring::hmac;
use zeroize::Zeroizing;

/// Headers of a signed webhook.
pub(crate) struct Signed {
    /// `webhook-id`.
    pub(crate) id: String,
    /// `webhook-timestamp`.
    pub(crate) timestamp: String,
    /// `webhook-signature`.
    pub(crate) signature: String,
}

/// Signs `body` as of `now_s`.
pub(crate) fn sign(key: &hmac::Key, id: &str, now_s: i64, body: &[u8]) -> Signed {
    let mac = hmac::sign(key, &signed_content(id, &now_s.to_string(), body));
    Signed {
        id: id.to_owned(),
        timestamp: now_s.to_string(),
        signature: format!("v1,{}", STANDARD.encode(mac)),
    }
}

/// `id "." timestamp "." body`: what both v1 and v1a sign.
pub(crate) fn signed_content(id: &str, timestamp: &str, body: &[u8]) -> Vec<u8> {
    [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat()
}

/// The key of a `whsec_` secret, by the rule that the front door and the callbacks have too.
pub(crate) fn key(secret: &str) -> Result<hmac::Key> {
    v1_key(secret).map_err(|error| anyhow::anyhow!("the secret {error}"))
}

/// The secret in a file, by the front door's rule for files.
pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let text = Zeroizing::new(text);
    Ok(Zeroizing::new(in_file(&text).to_owned()))
}

/// A fresh `whsec_…` secret of 32 bytes.
pub(crate) fn new_secret() -> Result<Zeroizing<String>> {
    Ok(Zeroizing::new(format!(
        "whsec_{}",
        STANDARD.encode(random::<32>()?.as_slice())
    )))
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>> {
    let mut bytes = Zeroizing::new([0; N]);
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), bytes.as_mut())
        .map_err(|_| anyhow::anyhow!("no randomness from the system"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vector SW-B of the Standard Webhooks libraries.
    #[test]
    fn the_published_vector_is_reproduced() {
        let published = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = sign(
            &hmac::Key::new(hmac::HMAC_SHA256, &published),
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(
            signed.signature,
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }
}
