//! A callback receiver behind real TLS. It speaks HTTP by hand, so that it can also speak it badly.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use backplane::Clock;
use backplane::store::DueCallback;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::{PublicKey, SecretKey};
use function::callback::Callbacks;
use function::callback::address::AllowPrivate;
use function::callback::endpoint::{Endpoint, EndpointSettings};
use function::callback::exchange::Limits;
use function::callback::resolver::Resolver;
use function::callback::trust::Trust;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use ring::hmac;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The name that receivers have a certificate for.
pub(crate) const NAME: &str = "hooks.test";
/// 2023-11-14, far from the machine's own clock.
pub(crate) const NOW_MS: i64 = 1_700_000_000_000;

/// Short enough for tests, long enough for a loaded machine to answer a good receiver.
pub(crate) const LIMITS: Limits = Limits {
    connect: Duration::from_secs(3),
    tls: Duration::from_secs(5),
    total: Duration::from_secs(10),
};

/// One authority for all receivers of a test process.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer }
    })
}

pub(crate) fn ca_pem() -> Vec<u8> {
    authority().issuer.pem().into_bytes()
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    /// The only value of a header.
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut values = self.headers.iter().filter(|(key, _)| key == name);
        let (_, value) = values.next().unwrap_or_else(|| panic!("no header {name}"));
        assert!(values.next().is_none(), "{name} comes twice");
        value
    }
}

/// What a receiver does once it has read a request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Writes this and closes.
    Text(String),
    /// Writes this, then one byte every 20 ms for ever.
    Drip(String),
    /// Writes this, then as much as is taken.
    Flood(String),
}

/// An answer of a status without a body.
pub(crate) fn status(code: u16) -> Answer {
    Answer::Text(format!(
        "HTTP/1.1 {code} Status\r\ncontent-length: 0\r\n\r\n"
    ))
}

/// A running receiver; gone when dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) written: Arc<AtomicUsize>,
    received: Arc<Mutex<Vec<Received>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// Answers request number n, counted from 0, with `answer(n)`.
    pub(crate) async fn start(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_as(NAME, answer).await
    }

    /// With a certificate for `name`.
    pub(crate) async fn start_as(
        name: &str,
        answer: impl Fn(usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let acceptor = acceptor(name);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (connections, written) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let answer = Arc::new(answer);
        let task = tokio::spawn({
            let (received, connections) = (received.clone(), connections.clone());
            let written = written.clone();
            async move {
                let mut serving = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    connections.fetch_add(1, Ordering::SeqCst);
                    let (acceptor, answer) = (acceptor.clone(), answer.clone());
                    let (received, written) = (received.clone(), written.clone());
                    serving.spawn(async move {
                        // Peers that hang up are what some tests are about.
                        let _ = serve(stream, acceptor, &*answer, &received, &written).await;
                    });
                }
            }
        });
        Self {
            address,
            connections,
            written,
            received,
            task,
        }
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn acceptor(name: &str) -> TlsAcceptor {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority().issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    answer: &(impl Fn(usize) -> Answer + ?Sized),
    received: &Mutex<Vec<Received>>,
    written: &AtomicUsize,
) -> io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let request = read(&mut stream).await?;
    let number = {
        let mut received = received.lock().unwrap();
        received.push(request);
        received.len() - 1
    };
    match answer(number) {
        Answer::Text(text) => stream.write_all(text.as_bytes()).await?,
        Answer::Drip(text) => {
            stream.write_all(text.as_bytes()).await?;
            let mut drop = tokio::time::interval(Duration::from_millis(20));
            loop {
                drop.tick().await;
                stream.write_all(b"x").await?;
                stream.flush().await?;
            }
        }
        Answer::Flood(text) => {
            stream.write_all(text.as_bytes()).await?;
            loop {
                written.fetch_add(stream.write(&[b'x'; 4096]).await?, Ordering::SeqCst);
            }
        }
    }
    stream.shutdown().await
}

async fn read(stream: &mut TlsStream<TcpStream>) -> io::Result<Received> {
    let mut bytes = Vec::new();
    let head = loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break String::from_utf8(bytes.drain(..end + 4).collect()).unwrap();
        }
    };
    let mut lines = head.trim_end().split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.unwrap().1.parse().unwrap();
    while bytes.len() < length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    assert_eq!(bytes.len(), length, "nothing follows the body");
    Ok(Received {
        line,
        headers,
        body: bytes,
    })
}

/// Resolves every name to what the test says, and counts how often it was asked.
pub(crate) struct FakeResolver {
    answers: Vec<Vec<SocketAddr>>,
    pub(crate) asked: AtomicUsize,
}

impl FakeResolver {
    /// The same answer each time.
    pub(crate) fn always(addresses: &[SocketAddr]) -> Arc<Self> {
        Self::each(vec![addresses.to_vec()])
    }

    /// One answer after the other; the last one for ever.
    pub(crate) fn each(answers: Vec<Vec<SocketAddr>>) -> Arc<Self> {
        Arc::new(Self {
            answers,
            asked: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl Resolver for FakeResolver {
    async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(self.answers[asked.min(self.answers.len() - 1)].clone())
    }
}

/// A clock that only tests move.
#[derive(Default)]
pub(crate) struct FakeClock(Mutex<i64>);

impl FakeClock {
    pub(crate) fn at(now_ms: i64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(now_ms)))
    }

    pub(crate) fn set(&self, now_ms: i64) {
        *self.0.lock().unwrap() = now_ms;
    }
}

impl Clock for FakeClock {
    fn now_ms(&self) -> i64 {
        *self.0.lock().unwrap()
    }
}

/// The receiver's half of an endpoint's secrets.
pub(crate) struct Verifier {
    pub(crate) secrets: Vec<[u8; 32]>,
    pub(crate) key: PublicKey,
}

impl Verifier {
    /// Checks that every v1 secret and the v1a key signed exactly these bytes, and nothing else did.
    pub(crate) fn check(&self, request: &Received) {
        let (id, at) = (
            request.header("webhook-id"),
            request.header("webhook-timestamp"),
        );
        assert!(!id.contains('.'), "{id}");
        let mut signed = format!("{id}.{at}.").into_bytes();
        signed.extend_from_slice(&request.body);
        let entries: Vec<(&str, Vec<u8>)> = request
            .header("webhook-signature")
            .split(' ')
            .map(|entry| entry.split_once(',').unwrap())
            .map(|(tag, signature)| (tag, STANDARD.decode(signature).unwrap()))
            .collect();
        assert_eq!(entries.len(), self.secrets.len() + 1);
        for secret in &self.secrets {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
            let good = entries
                .iter()
                .filter(|(tag, _)| *tag == "v1")
                .any(|(_, signature)| hmac::verify(&key, &signed, signature).is_ok());
            assert!(good, "a v1 secret did not sign");
        }
        let (tag, signature) = entries.last().unwrap();
        assert!(*tag == "v1a" && self.key.verifies(&signed, signature));
    }
}

/// Settings of an endpoint at `url`, listed for loopback on `port`, with fresh secrets.
pub(crate) fn settings(name: &str, url: String, port: u16) -> (EndpointSettings, Verifier) {
    let secrets: Vec<[u8; 32]> = (1..=2).map(|n| [n; 32]).collect();
    let key = SecretKey::generate().unwrap();
    let verifier = Verifier {
        secrets: secrets.clone(),
        key: key.public(),
    };
    let settings = EndpointSettings {
        name: name.to_owned(),
        url,
        secrets: secrets
            .iter()
            .map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret))
            .collect(),
        keys: vec![key],
        ca_pem: Some(ca_pem()),
        allow_private: vec![AllowPrivate {
            cidr: "127.0.0.1/32".parse().unwrap(),
            port,
        }],
    };
    (settings, verifier)
}

/// An endpoint called `name` at [`NAME`].
pub(crate) fn endpoint(name: &str, port: u16) -> (Endpoint, Verifier) {
    let url = format!("https://{NAME}:{port}/cb?token=url-secret");
    let (settings, verifier) = settings(name, url, port);
    (Endpoint::new(settings, &Trust::load()).unwrap(), verifier)
}

/// One endpoint `demo` on `receiver`.
pub(crate) fn callbacks(receiver: &Receiver, limits: Limits) -> (Callbacks, Verifier) {
    let (endpoint, verifier) = endpoint("demo", receiver.address.port());
    let resolver = FakeResolver::always(&[receiver.address]);
    let clock = FakeClock::at(NOW_MS);
    (
        Callbacks::new(vec![endpoint], resolver, clock, limits),
        verifier,
    )
}

/// A first attempt for endpoint `demo`.
pub(crate) fn due() -> DueCallback {
    DueCallback {
        endpoint: "demo".to_owned(),
        webhook_id: "msg_a_1".to_owned(),
        body: r#"{"body":"body-secret","name":"Grüße 猫","f":1.0,"e":1e3,"n":{"a":{"b":[]}}}"#
            .to_owned(),
        attempts: 0,
    }
}
