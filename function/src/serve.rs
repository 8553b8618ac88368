//! The server under `gpuhook up`: HTTP/1.1 on one listener, with a bound on everything that a
//! stranger can hold.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::App;
use crate::door::router;
use crate::framing::{self, Ambiguous};
use crate::shutdown::requested;

/// Connections at once; more wait in the listener's backlog.
const MAX_CONNECTIONS: usize = 512;
/// Longest that the head of a request may take, and an idle connection stay open.
const HEADER_READ: Duration = Duration::from_secs(5);
/// Bytes of the largest head; API Gateway passes 10 KiB.
const MAX_HEAD: usize = 64 * 1024;
/// How long requests under way may go on when the process stops.
const GRACE: Duration = Duration::from_secs(5);
/// Pause after the listener failed, which it does when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` becomes true or its sender is gone; then finishes what is under way.
pub async fn serve(listener: TcpListener, app: Arc<App>, mut shutdown: watch::Receiver<bool>) {
    let router = router(app);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = accept(&listener, &places);
        let (stream, place) = tokio::select! {
            biased;
            () = requested(&mut shutdown) => break,
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        let (service, shutdown) = (TowerToHyperService::new(router.clone()), shutdown.clone());
        connections.spawn(async move {
            let _place = place;
            serve_connection(stream, service, shutdown).await;
        });
    }
    drop(listener);
    let finish = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, finish).await.is_err() {
        connections.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, tokio::sync::OwnedSemaphorePermit) {
    let place = Arc::clone(places)
        .acquire_owned()
        .await
        .expect("this semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    service: TowerToHyperService<axum::Router>,
    mut shutdown: watch::Receiver<bool>,
) {
    // Answers are small and whole; waiting to fill a segment only delays them.
    let _ = stream.set_nodelay(true);
    let (stream, verdicts) = framing::watch(stream, MAX_HEAD);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        if verdicts.next_is_ambiguous() {
            request.extensions_mut().insert(Ambiguous);
        }
        service.call(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ)
        // The buffer's bound alone lets a head pass that comes in one piece.
        .max_header_size(MAX_HEAD)
        .max_buf_size(MAX_HEAD);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = requested(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}
