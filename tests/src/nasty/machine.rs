//! The front door as `gpuhook up` makes it: configuration from files, embedded backplane, server on
//! a port of its own. Only the clock stands still, so that 300 s are 300 s.

use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::ops::Sub;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, QueueName, Reads, Receiver, SystemClock};
use events::key::SecretKey;
use events::{HostName, TenantName};
use function::{App, Backplane, Config};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::outage::Breakable;
use super::sender::{API_KEY, GOOD, Key, TOKEN, Webhook};

/// Tenants and hosts, all of which are looked through for traces.
const TENANTS: [&str; 2] = ["acme", "rival"];
const HOSTS: [&str; 2] = ["gpu-1", "vault"];
/// More than a run accepts.
const EVERYTHING: usize = 10_000;

/// Secrets of the source `rotating`, before and after its former one is taken out.
const BOTH: &str = r#""file:fresh", "file:former""#;
const FRESH: &str = r#""file:fresh""#;

/// Closes one host to one tenant, on top of the shipped policy.
const FORBID: &str = r#"
forbid (principal, action, resource == Host::"vault") when { context.tenant == "acme" };
"#;

/// Every trace that a request can leave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traces {
    /// Deliveries that the store took as new.
    pub(super) deliveries: usize,
    /// Operations that it has.
    pub(super) operations: usize,
    /// Allocations, pending or live.
    pub(super) allocations: usize,
    /// Messages that came out of the hosts' queues.
    pub(super) messages: usize,
}

impl Sub for Traces {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            deliveries: self.deliveries - other.deliveries,
            operations: self.operations - other.operations,
            allocations: self.allocations - other.allocations,
            messages: self.messages - other.messages,
        }
    }
}

/// A clock that stands at the moment of its making.
struct StillClock(i64);

impl Clock for StillClock {
    fn now_ms(&self) -> i64 {
        self.0
    }
}

/// A running front door.
pub(super) struct Machine {
    pub(super) address: SocketAddr,
    pub(super) backplane: Breakable,
    /// The v1a sender's.
    deploy: Arc<Key>,
    /// The hosts' public key; they say nothing here.
    host: String,
    folder: tempfile::TempDir,
    clock: Arc<StillClock>,
    /// Messages taken from the queues so far.
    messages: Cell<usize>,
    /// Webhooks made so far: each has an id of its own.
    webhooks: Cell<usize>,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
    runtime: Runtime,
}

impl Machine {
    pub(super) fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let folder = tempfile::tempdir()?;
        let deploy = Arc::new(Key::generate()?);
        write_secrets(&folder, &deploy)?;
        let clock = Arc::new(StillClock(SystemClock.now_ms()));
        let _inside = runtime.enter();
        let path = folder.path().join("backplane.db");
        let store = SqliteBackplane::create_or_open(&path, clock.clone())?;
        let backplane = Breakable::new(store);
        let host = SecretKey::generate()?.public().to_string();
        let config = load(&folder, &gpuhook_toml(BOTH, &host))?;
        let serving = serve(&runtime, config, &backplane, clock.clone())?;
        let (address, stop, server) = serving;
        Ok(Self {
            address,
            backplane,
            deploy,
            host,
            folder,
            clock,
            messages: Cell::new(0),
            webhooks: Cell::new(0),
            stop,
            server,
            runtime,
        })
    }

    /// Restarts the door without the rotating source's former secret.
    pub(super) fn rotate_out(&mut self) -> Result<()> {
        self.stop_server();
        let config = load(&self.folder, &gpuhook_toml(FRESH, &self.host))?;
        let clock = self.clock.clone();
        let serving = serve(&self.runtime, config, &self.backplane, clock)?;
        (self.address, self.stop, self.server) = serving;
        Ok(())
    }

    /// What loading a configuration with this block would say: every fault in words, or nothing.
    pub(super) fn faults_with(&self, block: &str) -> String {
        let text = gpuhook_toml(FRESH, &self.host) + block;
        match load(&self.folder, &text) {
            Ok(_) => String::new(),
            Err(error) => format!("{error:#}"),
        }
    }

    pub(super) fn now_s(&self) -> i64 {
        self.clock.now_s()
    }

    /// A webhook that is accepted, under an id of its own.
    pub(super) fn webhook(&self, source: &'static str) -> Webhook {
        let key = if source == "deploy" {
            Arc::clone(&self.deploy)
        } else {
            Arc::new(Key::V1(source))
        };
        let number = self.webhooks.get();
        self.webhooks.set(number + 1);
        Webhook {
            key,
            source,
            id: format!("msg_{number}").into(),
            timestamp: self.now_s().to_string().into(),
            body: GOOD.into(),
        }
    }

    /// All traces since the start. Takes what is in the queues.
    pub(super) fn traces(&self) -> Result<Traces> {
        let store = &self.backplane.inner;
        self.runtime.block_on(async {
            let mut traces = Traces {
                deliveries: self.backplane.accepted(),
                ..Traces::default()
            };
            for tenant in TENANTS {
                let tenant: TenantName = tenant.parse()?;
                let operations = store.operations(&tenant, None, EVERYTHING).await?;
                let allocations = store.allocations(&tenant, None, EVERYTHING).await?;
                traces.operations += operations.items.len();
                traces.allocations += allocations.items.len();
            }
            for host in HOSTS {
                let host: HostName = host.parse()?;
                let receiver = store.receiver(&QueueName::Commands(host));
                while let Some(message) = receiver.receive(Duration::ZERO).await? {
                    receiver.ack(&message.receipt).await?;
                    self.messages.set(self.messages.get() + 1);
                }
            }
            traces.messages = self.messages.get();
            Ok(traces)
        })
    }

    fn stop_server(&mut self) {
        // Nobody listens any more if it has ended by itself.
        let _ = self.stop.send(true);
        let _ = self.runtime.block_on(&mut self.server);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop_server();
    }
}

type Serving = (SocketAddr, watch::Sender<bool>, JoinHandle<()>);

fn serve(
    runtime: &Runtime,
    config: Config,
    backplane: &Breakable,
    clock: Arc<StillClock>,
) -> Result<Serving> {
    let shared = Arc::new(backplane.clone());
    let backplane = Backplane {
        store: shared.clone(),
        reads: shared.clone(),
        sender: shared,
    };
    let app = Arc::new(App::new(config, backplane, clock)?);
    runtime.block_on(app.enrol_hosts())?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let server = runtime.spawn(function::serve(listener, app, stopped));
    Ok((address, stop, server))
}

fn load(folder: &tempfile::TempDir, text: &str) -> Result<Config> {
    let path = write(folder, "gpuhook.toml", text)?;
    Ok(Config::load(&path)?)
}

fn write(folder: &tempfile::TempDir, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.path().join(name);
    fs::write(&path, text).with_context(|| format!("write {name}"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

fn write_secrets(folder: &tempfile::TempDir, deploy: &Key) -> Result<()> {
    write(folder, "function.whsk", &SecretKey::generate()?.expose())?;
    write(folder, "deploy", &deploy.verifier())?;
    for name in ["ci", "next", "rival", "nobody", "fresh", "former"] {
        write(folder, name, &Key::V1(name).verifier())?;
    }
    write(folder, "api.key", API_KEY)?;
    let policy = format!("{}{FORBID}", function::policy::DEFAULT_POLICY);
    write(folder, "policy.cedar", &policy).map(drop)
}

fn gpuhook_toml(rotating: &str, host: &str) -> String {
    let source = |name: &str, tenant: &str, role: &str, secrets: &str| {
        format!(
            "[[source]]\nname = \"{name}\"\ntenant = \"{tenant}\"\npreset = \"standard-webhooks\"\nroles = [\"{role}\"]\nsecrets = [{secrets}]\ndefault_target = {{ host = \"gpu-1\" }}\n"
        )
    };
    // Upper case: hexadecimal is read as bytes.
    let hash = ring::digest::digest(&ring::digest::SHA256, TOKEN.as_bytes());
    let hash = hex::encode_upper(hash);
    [
        "[signing]\nkey_file = \"function.whsk\"\n[store]\npath = \"backplane.db\"\n[policy]\nfile = \"policy.cedar\"\n".to_owned(),
        source("ci", "acme", "operator", "\"file:ci\", \"file:next\""),
        source("deploy", "acme", "operator", "\"file:deploy\""),
        source("rival", "rival", "operator", "\"file:rival\""),
        source("nobody", "acme", "nobody", "\"file:nobody\""),
        source("rotating", "acme", "operator", rotating),
        "[[source]]\nname = \"seed\"\ntenant = \"acme\"\npreset = \"api-key\"\nroles = [\"operator\"]\nsecrets = [\"file:api.key\"]\ndefault_target = { host = \"gpu-1\" }\n".to_owned(),
        format!("[[token]]\nname = \"ops\"\ntenant = \"acme\"\nsha256 = \"{hash}\"\n"),
        HOSTS.map(|name| format!("[[host]]\nname = \"{name}\"\npools = [\"default\"]\npublic_key = \"{host}\"\n")).concat(),
    ]
    .concat()
}
