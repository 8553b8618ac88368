//! The caller's own endpoint: takes callbacks over TLS, keeps them as they came, and checks both
//! signatures over the exact bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::PublicKey;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use crate::site::Site;

/// Bodies are a few KiB.
const MAX_BODY: usize = 1 << 20;

/// One callback as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callback {
    /// `webhook-id`.
    pub id: String,
    /// The body, byte for byte.
    pub body: String,
    /// Whether both v1 and v1a verified.
    pub verified: bool,
}

impl Callback {
    /// The body, read.
    #[must_use]
    pub fn event(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// A running receiver; it ends when dropped.
pub struct Receiver {
    shared: Arc<Shared>,
    port: u16,
}

struct Shared {
    callbacks: Mutex<Vec<Callback>>,
    arrived: Condvar,
    refusing: AtomicBool,
    stopping: AtomicBool,
    v1: ring::hmac::Key,
    v1a: PublicKey,
}

impl Receiver {
    /// Starts the receiver of a site.
    ///
    /// # Errors
    /// Its port is taken, or its certificate cannot be read.
    pub fn start(site: &Site) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certificate = CertificateDer::from_pem_file(site.folder.join("receiver.pem"))?;
        let key = PrivateKeyDer::from_pem_file(site.folder.join("receiver.key"))?;
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let config = Arc::new(config);
        let port = site.receiver_port;
        let listener = TcpListener::bind(("127.0.0.1", port))
            .with_context(|| format!("listen on port {port}"))?;
        let shared = Arc::new(Shared {
            callbacks: Mutex::default(),
            arrived: Condvar::new(),
            refusing: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            v1: site.callback.clone(),
            v1a: site.callback_public,
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, config) = (Arc::clone(&serving), Arc::clone(&config));
                // A sender that died in the middle of a request is what trials are about.
                std::thread::spawn(move || shared.serve(stream, config).ok());
            }
        });
        Ok(Self { shared, port })
    }

    /// From now on every callback is answered 503 (and not kept), or taken again.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, Ordering::SeqCst);
    }

    /// Everything received so far.
    #[must_use]
    pub fn callbacks(&self) -> Vec<Callback> {
        self.shared.lock().clone()
    }

    /// Waits until a callback satisfies `wanted`; false after `timeout`.
    #[must_use]
    pub fn wait_for(&self, timeout: Duration, wanted: impl Fn(&Callback) -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let mut callbacks = self.shared.lock();
        while !callbacks.iter().any(&wanted) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            callbacks = self
                .shared
                .arrived
                .wait_timeout(callbacks, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = std::net::TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Callback>> {
        self.callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(
        &self,
        mut stream: std::net::TcpStream,
        config: Arc<rustls::ServerConfig>,
    ) -> Result<()> {
        let mut session = rustls::ServerConnection::new(config)?;
        let mut tls = BufReader::new(rustls::Stream::new(&mut session, &mut stream));
        let (mut id, mut timestamp, mut signature, mut length) =
            (String::new(), String::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            tls.read_line(&mut line)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "webhook-id" => id = value.to_owned(),
                "webhook-timestamp" => timestamp = value.to_owned(),
                "webhook-signature" => signature = value.to_owned(),
                "content-length" => length = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        let mut body = vec![0; length.min(MAX_BODY)];
        tls.read_exact(&mut body)?;
        let refusing = self.refusing.load(Ordering::SeqCst);
        if !refusing {
            let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", &body].concat();
            self.lock().push(Callback {
                verified: self.verifies(&signed, &signature),
                id,
                body: String::from_utf8_lossy(&body).into_owned(),
            });
            self.arrived.notify_all();
        }
        let status = if refusing {
            "503 Service Unavailable"
        } else {
            "204 No Content"
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        tls.get_mut().write_all(answer.as_bytes())?;
        drop(tls);
        session.send_close_notify();
        rustls::Stream::new(&mut session, &mut stream).flush()?;
        Ok(())
    }

    fn verifies(&self, signed: &[u8], header: &str) -> bool {
        let valid = |scheme: &str, verify: &dyn Fn(&[u8]) -> bool| {
            header
                .split(' ')
                .filter_map(|entry| entry.split_once(','))
                .filter(|(tag, _)| *tag == scheme)
                .any(|(_, text)| STANDARD.decode(text).is_ok_and(|bytes| verify(&bytes)))
        };
        valid("v1", &|bytes| {
            ring::hmac::verify(&self.v1, signed, bytes).is_ok()
        }) && valid("v1a", &|bytes| self.v1a.verifies(signed, bytes))
    }
}
