//! One HTTPS exchange with a receiver: resolve, judge, connect to exactly what was judged, post,
//! read little. No redirects, no proxies, no decompression, no connection kept; each part and the
//! whole have a deadline, the trickle of a body included.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::address::may_connect;
use super::endpoint::{Destination, DestinationHost, Endpoint};
use super::resolver::Resolver;

/// Bytes of a response's head.
const MAX_HEAD: usize = 16 * 1024;
/// Fields of a response's head.
const MAX_FIELDS: usize = 100;
/// Bytes of a response's body that are read, and thrown away, before we hang up.
const MAX_BODY: usize = 4 * 1024;
/// Addresses tried, of those that a name has.
const MAX_ADDRESSES: usize = 4;

/// Deadlines of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Resolving, and each connection.
    pub connect: Duration,
    /// The TLS handshake.
    pub tls: Duration,
    /// Everything, the answer's body included.
    pub total: Duration,
}

impl Default for Limits {
    /// Webhook facts §8; the total is within what the Standard Webhooks specification asks for.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            tls: Duration::from_secs(5),
            total: Duration::from_secs(15),
        }
    }
}

/// Why there was no answer. No text of these holds anything of a URL's path, a header or a body.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The name has no address now.
    #[error("host does not resolve")]
    Resolve(#[source] io::Error),
    /// An answer of the resolver is denied, so all of them are.
    #[error("host resolves to {0}, which callbacks may not reach")]
    Denied(IpAddr),
    /// The name resolves to nothing.
    #[error("host has no addresses")]
    NoAddress,
    /// No connection.
    #[error("no connection")]
    Connect(#[source] io::Error),
    /// No TLS.
    #[error("no TLS")]
    Tls(#[source] io::Error),
    /// Not HTTP, or cut off.
    #[error("no HTTP answer")]
    Http(#[source] hyper::Error),
    /// A part took too long.
    #[error("{0} took too long")]
    Timeout(&'static str),
}

/// Posts `request` and returns the head of the answer. A body that trickles, or has no end, does not
/// unsay the status before it; it only ends with the deadline or the cap, whichever is first.
pub(super) async fn post(
    endpoint: &Endpoint,
    resolver: &dyn Resolver,
    limits: &Limits,
    request: Request<Full<Bytes>>,
) -> Result<hyper::http::response::Parts, ExchangeError> {
    let deadline = Instant::now() + limits.total;
    // Dropped, and so aborted, with this function.
    let mut driver = JoinSet::new();
    let answer = async {
        let stream = connect(endpoint, resolver, limits).await?;
        send(stream, request, &mut driver).await
    };
    let answer = timeout_at(deadline, answer)
        .await
        .map_err(|_| ExchangeError::Timeout("the exchange"))??;
    let (head, body) = answer.into_parts();
    let _ = timeout_at(deadline, drain(body)).await;
    Ok(head)
}

async fn connect(
    endpoint: &Endpoint,
    resolver: &dyn Resolver,
    limits: &Limits,
) -> Result<TlsStream<TcpStream>, ExchangeError> {
    let destination = endpoint.destination();
    let addresses = timeout(limits.connect, resolve(destination, resolver))
        .await
        .map_err(|_| ExchangeError::Timeout("resolving the host"))??;
    // One denied answer condemns all: a name that mixes them is up to something, and which one would
    // be taken is luck.
    let denied = addresses
        .iter()
        .find(|address| !may_connect(**address, &endpoint.allow_private));
    if let Some(address) = denied {
        return Err(ExchangeError::Denied(address.ip()));
    }
    let stream = connect_to(&addresses, limits.connect).await?;
    let tls = TlsConnector::from(endpoint.tls.clone());
    timeout(
        limits.tls,
        tls.connect(destination.server_name.clone(), stream),
    )
    .await
    .map_err(|_| ExchangeError::Timeout("the TLS handshake"))?
    .map_err(ExchangeError::Tls)
}

async fn resolve(
    destination: &Destination,
    resolver: &dyn Resolver,
) -> Result<Vec<SocketAddr>, ExchangeError> {
    match &destination.host {
        DestinationHost::Address(address) => Ok(vec![SocketAddr::new(*address, destination.port)]),
        DestinationHost::Name(name) => {
            let resolved = resolver.resolve(name, destination.port).await;
            let mut addresses = resolved.map_err(ExchangeError::Resolve)?;
            // The port is ours to say, whatever a resolver puts there.
            for address in &mut addresses {
                address.set_port(destination.port);
            }
            Ok(addresses)
        }
    }
}

/// Connects to the first of the addresses that answers.
async fn connect_to(addresses: &[SocketAddr], each: Duration) -> Result<TcpStream, ExchangeError> {
    let mut last = ExchangeError::NoAddress;
    for address in addresses.iter().take(MAX_ADDRESSES) {
        match timeout(each, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = ExchangeError::Connect(error),
            Err(_) => last = ExchangeError::Timeout("connecting"),
        }
    }
    Err(last)
}

async fn send(
    stream: TlsStream<TcpStream>,
    request: Request<Full<Bytes>>,
    driver: &mut JoinSet<()>,
) -> Result<Response<Incoming>, ExchangeError> {
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELDS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(ExchangeError::Http)?;
    driver.spawn(async move {
        // Its error is also that of the request.
        let _ = connection.await;
    });
    sender
        .send_request(request)
        .await
        .map_err(ExchangeError::Http)
}

/// Reads what a polite receiver sends, so that it need not see a reset.
async fn drain(mut body: Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > MAX_BODY {
            return;
        }
    }
}
