//! A front door as `gpuhook up` makes it: configuration from files, embedded backplane, real socket.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use backplane::sqlite::SqliteBackplane;
use backplane::store::{OperationRecord, Settlement};
use backplane::{Clock, Message, QueueName, Reads, Receiver, Store};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::command::COMMAND_TYPE;
use events::inventory::HostInventory;
use events::key::SecretKey;
use events::result::{EventData, EventKind, HostEvent};
use events::{Command, HostName, OperationId, TenantName, envelope};
use function::{App, Backplane, Config};
use ring::hmac;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::board;
use crate::client::{Answer, Request};
use crate::log;
use crate::spy::{Spy, StillClock};

/// Where the clock stands.
pub(crate) const NOW: i64 = 1_700_000_000;
/// The API key of `POST /vgpu`.
pub(crate) const API_KEY: &str = "key_0123456789abcdefghijklmnop";
/// Bearer tokens, and their tenants.
pub(crate) const TOKEN: &str = "gpht_acme_0123456789abcdefghij";
pub(crate) const READER: &str = "gpht_reader_0123456789abcdefgh";
pub(crate) const RIVAL: &str = "gpht_rival_0123456789abcdefghi";

pub(crate) struct Machine {
    pub(crate) address: SocketAddr,
    pub(crate) spy: Arc<Spy>,
    pub(crate) app: Arc<App>,
    pub(crate) clock: Arc<StillClock>,
    public_key: events::key::PublicKey,
    sequence: AtomicI64,
    shutdown: watch::Sender<bool>,
    server: JoinHandle<()>,
    pub(crate) folder: tempfile::TempDir,
}

fn secret_bytes(name: &str) -> [u8; 32] {
    ring::digest::digest(&ring::digest::SHA256, name.as_bytes())
        .as_ref()
        .try_into()
        .unwrap()
}

/// The text of a source's secret.
pub(crate) fn whsec(name: &str) -> String {
    format!("whsec_{}", STANDARD.encode(secret_bytes(name)))
}

/// A v1 signature as a sender makes it.
pub(crate) fn sign(name: &str, id: &[u8], timestamp: &[u8], body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret_bytes(name));
    let signed = [id, b".", timestamp, b".", body].concat();
    format!("v1,{}", STANDARD.encode(hmac::sign(&key, &signed)))
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn configure(folder: &Path) {
    let host = SecretKey::generate().unwrap();
    write(folder, "host.whsk", &host.expose());
    let host = host.public();
    write(
        folder,
        "function.whsk",
        &SecretKey::generate().unwrap().expose(),
    );
    for name in ["ci", "next", "rival", "nobody", "pooled"] {
        write(folder, name, &whsec(name));
    }
    write(folder, "api.key", API_KEY);
    let hash = |token: &str| {
        hex::encode(ring::digest::digest(
            &ring::digest::SHA256,
            token.as_bytes(),
        ))
    };
    let source = |name: &str, tenant: &str, rest: &str| {
        format!(
            "[[source]]\nname = \"{name}\"\ntenant = \"{tenant}\"\npreset = \"standard-webhooks\"\n{rest}\n"
        )
    };
    let token = |name: &str, tenant: &str, token: &str, roles: &str| {
        format!(
            "[[token]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{}\"\n{roles}\n",
            hash(token)
        )
    };
    let text = [
        "[signing]\nkey_file = \"function.whsk\"\n[store]\npath = \"backplane.db\"\n".to_owned(),
        source("ci", "acme", "secrets = [\"file:ci\", \"file:next\"]\nroles = [\"operator\"]\ndefault_target = { host = \"gpu-1\" }"),
        source("rival", "rival", "secrets = [\"file:rival\"]\nroles = [\"operator\"]\ndefault_target = { host = \"gpu-1\" }"),
        source("nobody", "acme", "secrets = [\"file:nobody\"]\nroles = [\"nobody\"]\ndefault_target = { host = \"gpu-1\" }"),
        source("pooled", "acme", "secrets = [\"file:pooled\"]\nroles = [\"admin\"]\ndefault_target = { pool = \"default\" }"),
        "[[source]]\nname = \"seed\"\ntenant = \"acme\"\npreset = \"api-key\"\nsecrets = [\"file:api.key\"]\nroles = [\"operator\"]\ndefault_target = { host = \"gpu-1\" }\n".to_owned(),
        token("ops", "acme", TOKEN, "roles = [\"operator\"]"),
        token("reader", "acme", READER, ""),
        token("rival", "rival", RIVAL, "roles = [\"operator\"]"),
        format!("[[host]]\nname = \"gpu-1\"\npools = [\"default\"]\npublic_key = \"{host}\"\n"),
        format!("[[host]]\nname = \"gpu-2\"\npools = [\"default\", \"silent\"]\npublic_key = \"{host}\"\n"),
    ]
    .concat();
    write(folder, "gpuhook.toml", &text);
}

impl Machine {
    /// A door whose host `gpu-1` has reported two empty T4s, and `gpu-2` nothing yet.
    pub(crate) async fn start() -> Self {
        let machine = Self::silent().await;
        machine.observe(board::inventory(&machine.host())).await;
        machine
    }

    /// A door whose hosts have reported nothing yet.
    pub(crate) async fn silent() -> Self {
        Self::with(|_| {}).await
    }

    /// A door with something changed in its configuration.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        log::start();
        let folder = tempfile::tempdir().unwrap();
        configure(folder.path());
        let clock = Arc::new(StillClock(AtomicI64::new(NOW * 1000)));
        Self::open(folder, clock, 0, change).await
    }

    /// The process ends where it stands, and another one starts over the same files, with something
    /// changed in its configuration. Requests under way are never answered, and what [`Spy`] holds
    /// is never finished.
    pub(crate) async fn crash(self, change: impl FnOnce(&mut Config)) -> Self {
        self.server.abort();
        let sequence = self.sequence.load(Ordering::SeqCst);
        Self::open(self.folder, self.clock, sequence, change).await
    }

    async fn open(
        folder: tempfile::TempDir,
        clock: Arc<StillClock>,
        sequence: i64,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let file = folder.path().join("gpuhook.toml");
        let mut config = Config::load(&file).unwrap_or_else(|error| panic!("{error}"));
        change(&mut config);
        let as_clock: Arc<dyn Clock> = clock.clone();
        let spy = Spy::new(
            SqliteBackplane::create_or_open(config.store_path.as_ref().unwrap(), as_clock.clone())
                .unwrap(),
        );
        let public_key = config.signing_key.as_ref().unwrap().public();
        let backplane = Backplane {
            store: spy.clone(),
            reads: spy.clone(),
            sender: spy.clone(),
        };
        let app = Arc::new(App::new(config, backplane, as_clock).unwrap());
        app.enrol_hosts().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stop) = watch::channel(false);
        let server = tokio::spawn(function::serve(listener, app.clone(), stop));
        Self {
            address,
            spy,
            app,
            clock,
            public_key,
            sequence: AtomicI64::new(sequence),
            shutdown,
            server,
            folder,
        }
    }

    /// Stops the door and waits for it.
    pub(crate) async fn stop(self) {
        self.shutdown.send(true).unwrap();
        self.server.await.unwrap();
    }

    pub(crate) fn host(&self) -> HostName {
        "gpu-1".parse().unwrap()
    }

    fn next_sequence(&self) -> u64 {
        u64::try_from(self.sequence.fetch_add(1, Ordering::SeqCst) + 1).unwrap()
    }

    /// The host reports its inventory.
    pub(crate) async fn observe(&self, inventory: HostInventory) {
        let host = inventory.host.clone();
        let data = EventData {
            inventory: Some(inventory),
            ..EventData::default()
        };
        let event = board::event(
            &host,
            self.next_sequence(),
            EventKind::HostObserved,
            host.to_string(),
            None,
            data,
        );
        self.spy
            .settle(event, Vec::new(), self.clock.now_ms())
            .await
            .unwrap();
    }

    /// What the host reports when an operation succeeded, with the inventory after it.
    pub(crate) async fn success(&self, id: OperationId, inventory: HostInventory) -> HostEvent {
        let record = self.record(id).await;
        let outcome = board::success(&record.tenant, &record.operation);
        let data = board::ended(id, outcome, inventory);
        board::event(
            &self.host(),
            self.next_sequence(),
            EventKind::OperationSucceeded,
            id.to_string(),
            Some(record.tenant.clone()),
            data,
        )
    }

    /// The host reports that an operation succeeded.
    pub(crate) async fn succeed(&self, id: OperationId, inventory: HostInventory) {
        let event = self.success(id, inventory).await;
        let settled = self
            .spy
            .settle(event, Vec::new(), self.clock.now_ms())
            .await
            .unwrap();
        assert!(
            matches!(settled, Settlement::Applied(Some(_))),
            "{settled:?}"
        );
        self.app.changes.poke();
    }

    /// An operation of tenant `acme` or `rival`.
    pub(crate) async fn record(&self, id: OperationId) -> OperationRecord {
        for tenant in ["acme", "rival"] {
            let tenant: TenantName = tenant.parse().unwrap();
            if let Some(record) = self.spy.operation(&tenant, id).await.unwrap() {
                return record;
            }
        }
        panic!("no operation {id}")
    }

    /// The next command in the host's queue, verified; taken off the queue.
    pub(crate) async fn command(&self) -> Option<Command> {
        let message = self.message().await?;
        let command: Command =
            envelope::open(&message.body, COMMAND_TYPE, &[self.public_key]).unwrap();
        Some(command)
    }

    /// The next message, taken off the queue.
    pub(crate) async fn message(&self) -> Option<Message> {
        let receiver = self.spy.inner.receiver(&QueueName::Commands(self.host()));
        let message = receiver.receive(std::time::Duration::ZERO).await.unwrap()?;
        receiver.ack(&message.receipt).await.unwrap();
        Some(message)
    }

    /// A correctly signed webhook, now.
    pub(crate) fn signed(&self, source: &str, id: &str, body: &[u8]) -> Request {
        let timestamp = self.clock.now_s().to_string();
        let signature = sign(source, id.as_bytes(), timestamp.as_bytes(), body);
        Request::new("POST", &format!("/v1/hooks/{source}"), body)
            .with("content-type", "application/json")
            .with("webhook-id", id)
            .with("webhook-timestamp", timestamp)
            .with("webhook-signature", signature)
    }

    /// Posts a correctly signed webhook to `ci`.
    pub(crate) async fn post(&self, id: &str, body: &str) -> Answer {
        self.signed("ci", id, body.as_bytes())
            .send(self.address)
            .await
    }

    /// Reads with a bearer token.
    pub(crate) async fn get(&self, token: &str, path: &str) -> Answer {
        self.reading(token, path).send(self.address).await
    }

    pub(crate) fn reading(&self, token: &str, path: &str) -> Request {
        Request::new("GET", path, "").with("authorization", format!("Bearer {token}"))
    }
}

/// The id of the operation number `at` of an answer.
pub(crate) fn op_id(answer: &Answer, at: usize) -> OperationId {
    let id = answer.json()["operations"][at]["op_id"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer:?}"))
        .to_owned();
    id.parse().unwrap()
}
