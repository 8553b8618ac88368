//! The Standard Webhooks signature of one attempt: made afresh each time, over the bytes sent.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::SecretKey;
use ring::hmac;

/// The `webhook-signature` header: one `v1` entry per secret, one `v1a` entry per key, so that a
/// receiver accepts throughout a rotation (Standard Webhooks 1.0, "Signature scheme").
#[must_use]
pub fn header(
    secrets: &[hmac::Key],
    keys: &[SecretKey],
    id: &str,
    timestamp_s: i64,
    body: &[u8],
) -> String {
    let mut signed = format!("{id}.{timestamp_s}.").into_bytes();
    signed.extend_from_slice(body);
    let v1 = secrets
        .iter()
        .map(|secret| format!("v1,{}", STANDARD.encode(hmac::sign(secret, &signed))));
    let v1a = keys
        .iter()
        .map(|key| format!("v1a,{}", STANDARD.encode(key.sign(&signed))));
    v1.chain(v1a).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors SW-B and SW-C of webhook facts §1.3, as other people's libraries publish them.
    #[test]
    fn published_vectors_are_reproduced() {
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let key = SecretKey::parse_published(
            "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
        )
        .unwrap();
        let header = header(
            &[secret],
            &[key],
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(
            header,
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= \
             v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
        );
    }
}
