//! The callback receiver of a simulated machine: what an integrator's endpoint has to do.
//!
//! It verifies each callback over the exact bytes received, v1 with the shared secret and v1a with
//! the public key, and answers 401 otherwise.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::PublicKey;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use ring::hmac;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::data::Data;
use crate::{setup, webhook};

/// Callbacks are a few KiB; this bounds what a stranger on the port can make us hold.
const MAX_BODY: usize = 256 * 1024;
/// Verified callbacks waiting to be printed; more are verified and not shown.
const BACKLOG: usize = 256;

/// One verified callback.
#[derive(Debug, Clone)]
pub(super) struct Callback {
    /// Its body.
    pub(super) event: serde_json::Value,
    /// Schemes that verified, such as `v1+v1a`.
    pub(super) schemes: String,
}

struct Keys {
    secret: hmac::Key,
    public: PublicKey,
}

/// Starts the receiver; verified callbacks arrive on the channel.
pub(super) async fn start(data: &Data) -> Result<mpsc::Receiver<Callback>> {
    let keys = Arc::new(Keys {
        secret: webhook::key(&data.secret("secrets/callback.whsec")?)?,
        public: PublicKey::parse(&data.secret("keys/callback.whpk")?)?,
    });
    let certificate = CertificateDer::from_pem_file(data.path("keys/receiver.pem"))
        .context("read the receiver's certificate")?;
    let key = PrivateKeyDer::from_pem_file(data.path("keys/receiver.key"))
        .context("read the receiver's key")?;
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()?
    .with_no_client_auth()
    .with_single_cert(vec![certificate], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(setup::RECEIVER).await.with_context(|| {
        format!(
            "listen on {} for callbacks: is another `gpuhook up --simulate` running?",
            setup::RECEIVER
        )
    })?;
    let (sender, receiver) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, keys, sender) = (acceptor.clone(), Arc::clone(&keys), sender.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = hyper::service::service_fn(move |request| {
                    let (keys, sender) = (Arc::clone(&keys), sender.clone());
                    async move { Ok::<_, Infallible>(receive(request, &keys, &sender).await) }
                });
                let mut http = hyper::server::conn::http1::Builder::new();
                // A peer that goes away mid-request is the sender's to retry.
                let _ = http
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    Ok(receiver)
}

async fn receive(
    request: Request<Incoming>,
    keys: &Keys,
    sender: &mpsc::Sender<Callback>,
) -> Response<Empty<Bytes>> {
    let answer = |status| {
        let mut response = Response::new(Empty::new());
        *response.status_mut() = status;
        response
    };
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return answer(StatusCode::PAYLOAD_TOO_LARGE);
    };
    let body = body.to_bytes();
    let header = |name: &str| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let signed = webhook::signed_content(header("webhook-id"), header("webhook-timestamp"), &body);
    let schemes = verified(keys, &signed, header("webhook-signature"));
    let Ok(event) = serde_json::from_slice(&body) else {
        return answer(StatusCode::BAD_REQUEST);
    };
    if schemes.is_empty() {
        return answer(StatusCode::UNAUTHORIZED);
    }
    // A full backlog only means that nobody prints it: the callback was received.
    let _ = sender.try_send(Callback {
        event,
        schemes: schemes.join("+"),
    });
    answer(StatusCode::NO_CONTENT)
}

fn verified(keys: &Keys, signed: &[u8], header: &str) -> Vec<&'static str> {
    let valid = |scheme: &'static str| {
        header
            .split(' ')
            .filter_map(|entry| entry.split_once(','))
            .any(|(tag, signature)| {
                let bytes = STANDARD.decode(signature).unwrap_or_default();
                tag == scheme
                    && match scheme {
                        "v1" => hmac::verify(&keys.secret, signed, &bytes).is_ok(),
                        _ => keys.public.verifies(signed, &bytes),
                    }
            })
    };
    ["v1", "v1a"]
        .into_iter()
        .filter(|scheme| valid(scheme))
        .collect()
}
