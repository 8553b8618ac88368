//! `sim.sock`: accepts connections, reads one request a line, writes one answer a line. One thread per connection,
//! because a blocked write blocks its connection and nothing else.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::net::sockopt::socket_peercred;

use crate::{
    host::{Caller, Host},
    protocol::{Answer, MAX_LINE, Request},
};

/// Most connections at a time. A host has tens of clients; a runaway test must not take the machine's threads.
const MAX_CONNECTIONS: usize = 512;

/// The listening socket and everything accepted from it.
#[derive(Debug)]
pub(crate) struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    host: Host,
    stopping: AtomicBool,
    connections: Mutex<BTreeMap<u64, (UnixStream, JoinHandle<()>)>>,
}

impl Server {
    /// Serves `host` at `path`, which must not exist.
    pub(crate) fn start(host: Host, path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let shared = Arc::new(Shared {
            host,
            stopping: AtomicBool::new(false),
            connections: Mutex::new(BTreeMap::new()),
        });
        let acceptor = thread::Builder::new().name("sim-accept".into()).spawn({
            let shared = Arc::clone(&shared);
            move || accept(&shared, &listener)
        })?;
        Ok(Self {
            shared,
            path: path.to_owned(),
            acceptor: Some(acceptor),
        })
    }

    /// Ends every wait and connection, and waits for their threads. Doing it again does nothing.
    pub(crate) fn stop(&mut self) {
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.host.go_down();
        // Wakes the acceptor; if nobody can connect any more, it has ended already.
        let _ = UnixStream::connect(&self.path);
        let _ = acceptor.join();
        let connections = std::mem::take(
            &mut *self
                .shared
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for (stream, _) in connections.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for (_, thread) in connections.into_values() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    for (id, stream) in (1_u64..).zip(listener.incoming()) {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        // Descriptors or memory are short: this client gets nothing, the next one may.
        let Ok(stream) = stream else { continue };
        if let Err(error) = admit(shared, id, stream) {
            eprintln!("simulator: cannot serve a connection: {error}");
        }
    }
}

fn admit(shared: &Arc<Shared>, id: u64, stream: UnixStream) -> io::Result<()> {
    let mut connections = shared
        .connections
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    connections.retain(|_, (_, thread)| !thread.is_finished());
    if connections.len() >= MAX_CONNECTIONS {
        return Err(io::Error::other("too many connections"));
    }
    let credentials = socket_peercred(&stream)?;
    let is_root = credentials.uid.is_root() || credentials.uid == rustix::process::geteuid();
    let caller = Caller {
        connection: id,
        pid: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
        is_root,
    };
    let own = stream.try_clone()?;
    let thread = thread::Builder::new().name(format!("sim-{id}")).spawn({
        let shared = Arc::clone(shared);
        move || {
            // However the conversation ends, the client has gone.
            let _ = converse(&shared.host, caller, &own);
            shared.host.release_client(id);
            // The other handle of this socket stays until the next connection; the client should not wait for that.
            let _ = own.shutdown(Shutdown::Both);
        }
    })?;
    connections.insert(id, (stream, thread));
    Ok(())
}

fn converse(host: &Host, caller: Caller, stream: &UnixStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        let whole = line.last() == Some(&b'\n');
        let answer = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => host.answer(caller, request),
            Err(error) => Answer::Error(format!("not a request: {error}")),
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        (&mut &*stream).write_all(&text)?;
        if !whole {
            // Cut off or too long: where the next request begins cannot be known.
            return Ok(());
        }
    }
}
