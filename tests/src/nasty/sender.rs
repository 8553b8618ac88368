//! Senders: what they know, and webhooks as they sign them.

use std::sync::Arc;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::SecretKey;
use ring::hmac;

use super::wire::Request;

/// A webhook that is accepted and becomes one command in the host's queue.
pub(super) const GOOD: &str = r#"{"op":"inspect","target":{"host":"gpu-1"}}"#;
/// The API key of `POST /vgpu`.
pub(super) const API_KEY: &str = "key_0123456789abcdefghijklmnop";
/// A bearer token of tenant `acme`.
pub(super) const TOKEN: &str = "gpht_acme_0123456789abcdefghij";

/// What senders sign with.
pub(super) enum Key {
    /// v1, under a secret that is known by its name.
    V1(&'static str),
    /// v1a.
    V1a(SecretKey),
}

impl Key {
    /// A fresh v1a key.
    pub(super) fn generate() -> Result<Self> {
        Ok(Self::V1a(SecretKey::generate()?))
    }

    /// What the front door is given.
    pub(super) fn verifier(&self) -> String {
        match self {
            Self::V1(name) => format!("whsec_{}", STANDARD.encode(secret(name))),
            Self::V1a(key) => key.public().to_string(),
        }
    }

    /// The bytes of a signature.
    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::V1(name) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, &secret(name));
                hmac::sign(&key, message).as_ref().to_vec()
            }
            Self::V1a(key) => key.sign(message).to_vec(),
        }
    }

    /// The tag of its entries.
    pub(super) fn tag(&self) -> &'static str {
        match self {
            Self::V1(_) => "v1",
            Self::V1a(_) => "v1a",
        }
    }
}

fn secret(name: &str) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA256, name.as_bytes())
        .as_ref()
        .to_vec()
}

/// A webhook, correctly signed over whatever it holds.
#[derive(Clone)]
pub(super) struct Webhook {
    pub(super) key: Arc<Key>,
    pub(super) source: &'static str,
    pub(super) id: Vec<u8>,
    pub(super) timestamp: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl Webhook {
    pub(super) fn id(mut self, id: impl Into<Vec<u8>>) -> Self {
        self.id = id.into();
        self
    }

    pub(super) fn timestamp(mut self, timestamp: impl Into<Vec<u8>>) -> Self {
        self.timestamp = timestamp.into();
        self
    }

    pub(super) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn under(mut self, key: Key) -> Self {
        self.key = Arc::new(key);
        self
    }

    /// The signature's bytes.
    pub(super) fn mac(&self) -> Vec<u8> {
        let parts: [&[u8]; 5] = [&self.id, b".", &self.timestamp, b".", &self.body];
        self.key.sign(&parts.concat())
    }

    /// The entry of the signature header.
    pub(super) fn entry(&self) -> String {
        format!("{},{}", self.key.tag(), STANDARD.encode(self.mac()))
    }

    /// The request.
    pub(super) fn request(&self) -> Request {
        let path = format!("/v1/hooks/{}", self.source);
        Request::new("POST", &path, self.body.clone())
            .with("content-type", "application/json")
            .with("webhook-id", self.id.clone())
            .with("webhook-timestamp", self.timestamp.clone())
            .with("webhook-signature", self.entry())
    }
}

/// A request of the API-key door.
pub(super) fn keyed(body: &str) -> Request {
    Request::new("POST", "/vgpu", body)
        .with("content-type", "application/json")
        .with("x-api-key", API_KEY)
}

/// A request of a read door.
pub(super) fn reading(path: &str) -> Request {
    Request::new("GET", path, "").with("authorization", format!("Bearer {TOKEN}"))
}
