//! A real `gpuhook-agent run` over a simulated host: commands go in through the backplane's file,
//! results come out of it, and the process can be killed and started again.

use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, Outgoing, QueueName, Receiver, Sender, SystemClock};
use events::command::COMMAND_TYPE;
use events::envelope::{open, seal};
use events::key::SecretKey;
use events::result::RESULT_TYPE;
use events::{Command, ResultEvent};
use serde_json::Value;
use simulator::{Client, HostDescription, Simulator};

use crate::{DEADLINE, PROGRAM};

const HOST: &str = "gpu-1";

pub(crate) struct Daemon {
    pub(crate) client: Client,
    pub(crate) simulator: Simulator,
    process: Option<Child>,
    backplane: SqliteBackplane,
    function: SecretKey,
    host: SecretKey,
    events: Vec<ResultEvent>,
    commands: u128,
    runtime: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// A running agent on a host with two T4, whose kernel has `write_deadline_s` for a write.
    pub(crate) fn start(write_deadline_s: u64) -> Self {
        Self::start_on("two-t4", write_deadline_s)
    }

    /// A running agent on the builtin host `name`.
    pub(crate) fn start_on(name: &str, write_deadline_s: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().join("host");
        let simulator = Simulator::start(HostDescription::builtin(name).unwrap(), &host).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let file = folder.path().join("backplane.db");
        let (function, key) = (
            SecretKey::generate().unwrap(),
            SecretKey::generate().unwrap(),
        );
        let backplane = runtime
            .block_on(async { SqliteBackplane::create_or_open(&file, clock) })
            .unwrap();
        let mut daemon = Self {
            client: Client::connect(simulator.dir()).unwrap(),
            simulator,
            process: None,
            backplane,
            function,
            host: key,
            events: Vec::new(),
            commands: 0,
            runtime,
            folder,
        };
        daemon.configure(write_deadline_s);
        daemon.run();
        daemon
    }

    fn configure(&self, write_deadline_s: u64) {
        let folder = self.folder.path();
        private(&folder.join("host.whsk"), &self.host.expose());
        // What is configured by a file cannot ask for port 0 and be found there.
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let text = format!(
            r#"
host = "{HOST}"
state_dir = "agent"
[paths]
root = "{root}"
nvml = "{nvml}"
attributes = "{socket}"
cgroup = "{none}"
[kernel]
write_deadline_s = {write_deadline_s}
[queue]
backplane = "backplane.db"
[keys]
host = "host.whsk"
functions = ["{function}"]
[server]
listen = "{listen}"
[allow]
operations = ["allocate", "renew", "release", "inspect", "partition", "resize"]
modes = ["vgpu", "mig"]
tenants = ["*"]
"#,
            root = self.simulator.root().display(),
            nvml = self.simulator.library().display(),
            socket = self.simulator.socket().display(),
            none = folder.join("no-groups").display(),
            function = self.function.public(),
            listen = port.local_addr().unwrap(),
        );
        private(&self.config(), &text);
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("agent.toml")
    }

    /// Everything that the agent keeps.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    /// Starts the agent, and waits for its first look at the host.
    pub(crate) fn run(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("agent.log"))
            .unwrap();
        let process = Process::new(PROGRAM)
            .args(["run", "--config"])
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        self.status_when("its first look", |status| status["inventory"].is_object());
    }

    /// `kill -9`. Returns once the process has gone for good.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        let end = Instant::now() + DEADLINE;
        while process.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "SIGKILL does not end the agent");
            std::thread::yield_now();
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Sends a signed command.
    pub(crate) fn send(&mut self, revision: u64, operation: &str) -> Command {
        self.commands += 1;
        let id = |space: u128| {
            uuid::Uuid::from_u128(0x0194_0000_0000_7000_8000 << 48 | space | self.commands)
        };
        let now_s = SystemClock.now_s();
        let command = Command {
            v: 1,
            op_id: events::OperationId(id(0)),
            delivery_id: events::DeliveryId(id(1 << 32)),
            tenant: "acme".parse().unwrap(),
            source: "ci".parse().unwrap(),
            aud: HOST.parse().unwrap(),
            revision,
            iat: now_s,
            exp: now_s + 900,
            operation: serde_json::from_str(operation).unwrap(),
            traceparent: None,
        };
        let message = Outgoing {
            group: command.op_id.to_string(),
            dedup: command.op_id.to_string(),
            body: seal(&command, COMMAND_TYPE, &self.function).unwrap(),
        };
        let queue = QueueName::Commands(command.aud.clone());
        self.runtime
            .block_on(self.backplane.send(&queue, message))
            .unwrap();
        command
    }

    /// Sends a command and waits for its end.
    pub(crate) fn done(&mut self, revision: u64, operation: &str) -> ResultEvent {
        let command = self.send(revision, operation);
        self.end_of(&command)
    }

    pub(crate) fn end_of(&mut self, command: &Command) -> ResultEvent {
        self.event("the operation's end", |event| {
            event.data.op_id == Some(command.op_id)
                && event.kind.state().is_some_and(|state| state.is_final())
        })
    }

    /// The first event, verified under the host's key, that is `wanted`.
    pub(crate) fn event(
        &mut self,
        what: &str,
        wanted: impl Fn(&ResultEvent) -> bool,
    ) -> ResultEvent {
        let end = Instant::now() + DEADLINE;
        let receiver = self.backplane.receiver(&QueueName::Results);
        loop {
            if let Some(event) = self.events.iter().find(|event| wanted(event)) {
                return event.clone();
            }
            assert!(
                Instant::now() < end,
                "waited in vain for {what}: {:#?}\n{}",
                self.events,
                self.log()
            );
            let wait = Duration::from_millis(200);
            let received = self.runtime.block_on(receiver.receive(wait)).unwrap();
            if let Some(message) = received {
                let event = open(&message.body, RESULT_TYPE, &[self.host.public()]).unwrap();
                self.events.push(event);
                self.runtime
                    .block_on(receiver.ack(&message.receipt))
                    .unwrap();
            }
        }
    }

    pub(crate) fn events(&self) -> &[ResultEvent] {
        &self.events
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("agent.log")).unwrap()
    }

    /// What the operator is told, once it is as `wanted`.
    pub(crate) fn status_when(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + DEADLINE;
        loop {
            let asked = Process::new(PROGRAM)
                .args(["status", "--json", "--config"])
                .arg(self.config())
                .output()
                .unwrap();
            let status = serde_json::from_slice(&asked.stdout).unwrap_or(Value::Null);
            if wanted(&status) {
                return status;
            }
            let process = self.process.as_mut().unwrap();
            assert_eq!(process.try_wait().unwrap(), None, "the agent has ended");
            assert!(
                Instant::now() < end,
                "waited in vain for {what}: {status:#}\n{}",
                self.log()
            );
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ours, and nothing of it is needed any more; what it wrote goes with the folder.
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn private(path: &Path, text: &str) {
    let mut options = std::fs::File::options();
    let options = options.write(true).create_new(true).mode(0o600);
    std::io::Write::write_all(&mut options.open(path).unwrap(), text.as_bytes()).unwrap();
}
