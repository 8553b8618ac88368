//! One GPU host under test: its agent, started and stopped at will, and the function's side of it.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent::config::{Allow, Paths};
use agent::{Config, Ends, Running};
use backplane::Clock;
use events::command::COMMAND_TYPE;
use events::envelope::{open, seal};
use events::key::SecretKey;
use events::result::RESULT_TYPE;
use events::{Command, PartitionId, ResultEvent};

use crate::fake::{Boundary, GPU, Hands, ManualClock, Queues, State};

const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const NOW_S: i64 = 1_796_000_000;

pub(crate) struct Machine {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) hands: Arc<Hands>,
    pub(crate) function: SecretKey,
    host: Arc<SecretKey>,
    folder: tempfile::TempDir,
    running: Option<Running>,
}

impl Machine {
    pub(crate) async fn start() -> Self {
        Self::start_stopping_at(None).await
    }

    /// With its ledger in `folder`.
    pub(crate) async fn start_in(folder: tempfile::TempDir) -> Self {
        Self::start_with(None, folder).await
    }

    pub(crate) async fn start_stopping_at(boundary: Option<Boundary>) -> Self {
        Self::start_with(boundary, tempfile::tempdir().unwrap()).await
    }

    async fn start_with(boundary: Option<Boundary>, folder: tempfile::TempDir) -> Self {
        let state = Arc::default();
        let mut machine = Self {
            hands: Hands::new(&state, boundary),
            state,
            queues: Arc::default(),
            clock: Arc::new(ManualClock {
                wall_ms: AtomicI64::new(NOW_S * 1000),
                elapsed_ms: AtomicI64::new(0),
            }),
            function: SecretKey::generate().unwrap(),
            host: Arc::new(SecretKey::generate().unwrap()),
            folder,
            running: None,
        };
        machine.run().await;
        machine
    }

    async fn run(&mut self) {
        let own = |text: &str| vec![text.to_owned()];
        let config = Config {
            host: "gpu-1".parse().unwrap(),
            state_dir: self.folder.path().join("agent"),
            paths: Paths {
                root: "/".into(),
                nvml: "none".into(),
                attributes: None,
                cgroup: "/none".into(),
                proc: "/proc".into(),
            },
            write_deadline: DEADLINE,
            queue: agent::queue::Queue::Embedded {
                backplane: "/none".into(),
            },
            host_key: SecretKey::parse(&self.host.expose()).unwrap(),
            trust: agent::keys::Trust::Fixed(vec![self.function.public()]),
            listen: ([127, 0, 0, 1], 0).into(),
            allow: Allow {
                operations: ["allocate", "renew", "release", "inspect", "reset"]
                    .map(str::to_owned)
                    .to_vec(),
                modes: own("vgpu"),
                tenants: own("acme"),
                force: false,
            },
        };
        let ends = Ends {
            receiver: self.queues.clone(),
            sender: self.queues.clone(),
            partitioner: self.hands.clone(),
            limiter: self.hands.clone(),
            clock: self.clock.clone(),
            checks: Arc::new(Vec::new),
        };
        self.running = Some(agent::start(config, ends).await.unwrap());
    }

    /// A clean stop and another start.
    pub(crate) async fn restart(&mut self) {
        self.running.take().unwrap().shutdown().await;
        self.run().await;
    }

    /// What a power cut leaves: the ledger as it lies on the disk and the hardware as it is. The old
    /// agent hangs in its effect and its queues are nobody's.
    pub(crate) async fn restart_after_crash(&mut self) {
        let hangs = || self.hands.hangs().then_some(());
        self.until("the agent to hang at its boundary", hangs).await;
        let disk = tempfile::tempdir().unwrap();
        copy(
            &self.folder.path().join("agent"),
            &disk.path().join("agent"),
        );
        // Dropping it would wait for nobody: its worker never comes back.
        std::mem::forget(self.running.take());
        std::mem::forget(std::mem::replace(&mut self.folder, disk));
        self.hands = Hands::new(&self.state, None);
        self.queues = Arc::default();
        self.run().await;
    }

    /// Where everything of it lies.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        self.running.as_ref().unwrap().status()
    }

    /// A signed command number `n` for this host.
    pub(crate) fn command(&self, n: u128, revision: u64, operation: &str) -> Command {
        let id = |n: u128| uuid::Uuid::from_u128(0x0194_0000_0000_7000_8000_0000_0000_0000 + n);
        let now_s = self.clock.now_s();
        Command {
            v: 1,
            op_id: events::OperationId(id(n)),
            delivery_id: events::DeliveryId(id(n + 1000)),
            tenant: "acme".parse().unwrap(),
            source: "ci".parse().unwrap(),
            aud: "gpu-1".parse().unwrap(),
            revision,
            iat: now_s,
            exp: now_s + 900,
            operation: serde_json::from_str(operation).unwrap(),
            traceparent: None,
        }
    }

    pub(crate) fn send(&self, command: &Command) {
        self.queues
            .put(seal(command, COMMAND_TYPE, &self.function).unwrap());
    }

    /// Sends a command and waits for its end.
    pub(crate) async fn done(&self, n: u128, revision: u64, operation: &str) -> ResultEvent {
        let command = self.command(n, revision, operation);
        self.send(&command);
        self.end_of(&command).await
    }

    /// Results so far, each verified under the host's key.
    pub(crate) fn events(&self) -> Vec<ResultEvent> {
        let key = [self.host.public()];
        self.queues
            .results()
            .iter()
            .map(|message| open(&message.body, RESULT_TYPE, &key).unwrap())
            .collect()
    }

    pub(crate) fn ends_of(&self, command: &Command) -> Vec<ResultEvent> {
        let is_end = |event: &ResultEvent| {
            event.data.op_id == Some(command.op_id)
                && event.kind.state().is_some_and(|state| state.is_final())
        };
        self.events().into_iter().filter(is_end).collect()
    }

    pub(crate) async fn end_of(&self, command: &Command) -> ResultEvent {
        self.until("the operation's end", || self.ends_of(command).pop())
            .await
    }

    /// Waits until `look` sees something.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            assert!(
                Instant::now() < end,
                "waited in vain for {what}; events: {:#?}",
                self.events()
            );
            self.queues.change().await;
        }
    }

    /// Time passes.
    pub(crate) fn pass_s(&self, seconds: i64) {
        self.set_clock_by_s(seconds);
        self.clock
            .elapsed_ms
            .fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    /// Somebody sets the clock.
    pub(crate) fn set_clock_by_s(&self, seconds: i64) {
        self.clock
            .wall_ms
            .fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    /// Waits until the reconciler has looked at the host again.
    pub(crate) async fn looked(&self) {
        let seen = self.state.lock().unwrap().looks;
        self.until("another look", || {
            (self.state.lock().unwrap().looks > seen + 3).then_some(())
        })
        .await;
    }

    pub(crate) fn partitions(&self) -> Vec<PartitionId> {
        self.state
            .lock()
            .unwrap()
            .partitions
            .keys()
            .copied()
            .collect()
    }

    pub(crate) fn effects(&self) -> u32 {
        self.state.lock().unwrap().effects
    }

    /// A partition that somebody else made.
    pub(crate) fn add_foreign(&self) -> PartitionId {
        let id = PartitionId(uuid::Uuid::from_u128(0xf0e1));
        self.state
            .lock()
            .unwrap()
            .partitions
            .insert(id, ("T4-4Q".parse().unwrap(), Vec::new()));
        id
    }

    pub(crate) fn dead_letters(&self) -> i64 {
        self.looked_up("SELECT COUNT(*) FROM dead_letters")
            .remove(0)
    }

    pub(crate) fn quarantines(&self) -> Vec<String> {
        self.looked_up("SELECT gpu FROM quarantine ORDER BY gpu")
    }

    /// The ledger is locked by its agent; what it holds is read from a copy.
    fn looked_up<T: rusqlite::types::FromSql>(&self, sql: &str) -> Vec<T> {
        let copied = tempfile::tempdir().unwrap();
        copy(&self.folder.path().join("agent"), copied.path());
        let connection = rusqlite::Connection::open(copied.path().join("ledger.db")).unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }
}

/// An allocate for the GPU, with more fields.
pub(crate) fn allocate(more: &str) -> String {
    format!(
        r#"{{"op":"allocate","key":"k","target":{{"host":"gpu-1","gpu":"{GPU}"}},"profile":"T4-4Q","mode":"vgpu"{more}}}"#
    )
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}
