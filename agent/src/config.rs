//! `agent.toml`: this host's name, paths, keys and allow-list. All faults are reported at once.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use events::HostName;
use events::key::{PublicKey, SecretKey};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, ValueDeserializer};

use crate::keys::Trust;
use crate::queue::{Queue, Sqs};

/// The configuration as loaded, keys included.
#[derive(Debug)]
pub struct Config {
    /// This host, as enrolled.
    pub host: HostName,
    /// Where `ledger.db` lives.
    pub state_dir: PathBuf,
    /// Where things are on this machine.
    pub paths: Paths,
    /// How long the kernel may take for one attribute write before its GPU counts as stuck.
    pub write_deadline: Duration,
    /// Where commands come from and results go.
    pub queue: Queue,
    /// Signs results.
    pub host_key: SecretKey,
    /// What commands are trusted by.
    pub trust: Trust,
    /// `/healthz` and `/status`; loopback.
    pub listen: SocketAddr,
    /// What this host executes, whatever a command says.
    pub allow: Allow,
}

/// Where things are on this machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paths {
    /// Prefix of `/sys`, `/proc/driver` and `/dev` for everything about GPUs.
    #[serde(default = "slash")]
    pub root: PathBuf,
    /// NVML's library.
    #[serde(default = "nvml")]
    pub nvml: PathBuf,
    /// Socket through which attributes are written instead of files under `root`.
    #[serde(default)]
    pub attributes: Option<PathBuf>,
    /// Where control groups are mounted.
    #[serde(default = "cgroup")]
    pub cgroup: PathBuf,
    /// The kernel's `/proc`.
    #[serde(default = "proc")]
    pub proc: PathBuf,
}

/// The host's own allow-list: a stolen signing key cannot exceed it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allow {
    /// Operations by name.
    pub operations: Vec<String>,
    /// Modes by name.
    pub modes: Vec<String>,
    /// Tenants, or `*`.
    pub tenants: Vec<String>,
    /// Whether `if_busy: force` is carried out: it takes partitions away from those who have them.
    #[serde(default)]
    pub force: bool,
}

fn slash() -> PathBuf {
    "/".into()
}

fn nvml() -> PathBuf {
    "libnvidia-ml.so.1".into()
}

fn cgroup() -> PathBuf {
    "/sys/fs/cgroup".into()
}

fn proc() -> PathBuf {
    "/proc".into()
}

fn listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9478))
}

/// A VM's start can hold a device for 25 s.
fn write_deadline_s() -> u64 {
    30
}

/// Seconds that make sense: no healthy write takes as long as the first, nobody waits for the last.
const WRITE_DEADLINE_S: RangeInclusive<u64> = 1..=600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKernel {
    #[serde(default = "write_deadline_s")]
    write_deadline_s: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEmbedded {
    backplane: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKeys {
    host: PathBuf,
    #[serde(default)]
    functions: Vec<toml::Spanned<String>>,
    #[serde(default)]
    root: Option<toml::Spanned<String>>,
    #[serde(default)]
    keyset: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    #[serde(default = "listen")]
    listen: SocketAddr,
}

/// Everything wrong with a configuration, one `file:line: text` each.
#[derive(Debug, thiserror::Error)]
#[error("{}", faults.join("\n"))]
pub struct ConfigError {
    /// The faults.
    pub faults: Vec<String>,
}

impl Config {
    /// Reads `agent.toml` and the key files that it names.
    ///
    /// # Errors
    /// The faults of all sections.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let failed = |text: String| ConfigError { faults: vec![text] };
        let text = std::fs::read_to_string(path)
            .map_err(|error| failed(format!("{}: {error}", path.display())))?;
        let mut document = Document {
            path,
            text: &text,
            faults: Vec::new(),
        };
        let config = document.parse().and_then(|table| document.config(table));
        match config {
            Some(config) if document.faults.is_empty() => Ok(config),
            _ => Err(ConfigError {
                faults: document.faults,
            }),
        }
    }
}

/// The text being read, with what was found wrong so far.
struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    faults: Vec<String>,
}

impl<'a> Document<'a> {
    fn fault(&mut self, offset: usize, text: &str) {
        let line = 1 + self.text[..offset.min(self.text.len())]
            .matches('\n')
            .count();
        self.faults
            .push(format!("{}:{line}: {text}", self.path.display()));
    }

    fn parse(&mut self) -> Option<DeTable<'a>> {
        match DeTable::parse(self.text) {
            Ok(table) => Some(table.into_inner()),
            Err(error) => {
                self.fault(error.span().map_or(0, |span| span.start), error.message());
                None
            }
        }
    }

    /// One top-level key, taken out of the table. A section's own first fault is reported.
    fn take<T: DeserializeOwned>(
        &mut self,
        table: &mut DeTable<'a>,
        name: &str,
    ) -> Option<Spanned<T>> {
        let value = table.remove(name)?;
        let span = value.span();
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(read) => Some(Spanned::new(span, read)),
            Err(error) => {
                let at = error.span().map_or(span.start, |span| span.start);
                self.fault(at, &format!("{name}: {}", error.message()));
                None
            }
        }
    }

    fn require<T: DeserializeOwned>(
        &mut self,
        table: &mut DeTable<'a>,
        name: &str,
    ) -> Option<Spanned<T>> {
        if !table.contains_key(name) {
            self.fault(0, &format!("{name} is missing"));
            return None;
        }
        self.take(table, name)
    }

    fn config(&mut self, mut table: DeTable<'a>) -> Option<Config> {
        let host = self.require::<HostName>(&mut table, "host");
        let state_dir = self.require::<PathBuf>(&mut table, "state_dir");
        let paths = self.require::<Paths>(&mut table, "paths");
        let write_deadline = self.write_deadline(&mut table);
        let folder = self.path.parent().unwrap_or(Path::new(".")).to_owned();
        let queue = self.queue(&mut table, &folder);
        let keys = self.require::<RawKeys>(&mut table, "keys");
        let has_server = table.contains_key("server");
        let server = self.take::<RawServer>(&mut table, "server");
        let allow = self.require::<Allow>(&mut table, "allow");
        for (key, _) in table {
            self.fault(
                key.span().start,
                &format!("unknown key '{}'", key.get_ref()),
            );
        }
        let (host_key, trust) = self.keys(keys?, &folder);
        let listen = match server {
            Some(server) if !server.get_ref().listen.ip().is_loopback() => {
                let text =
                    "server.listen: must be a loopback address; this host opens no inbound port";
                self.fault(server.span().start, text);
                None
            }
            Some(server) => Some(server.into_inner().listen),
            None => (!has_server).then(listen),
        };
        Some(Config {
            host: host?.into_inner(),
            state_dir: folder.join(state_dir?.into_inner()),
            queue: queue?,
            paths: paths?.into_inner(),
            write_deadline: write_deadline?,
            host_key: host_key?,
            trust: trust?,
            listen: listen?,
            allow: allow?.into_inner(),
        })
    }

    /// Either the file of this machine, or SQS; what is there tells which.
    fn queue(&mut self, table: &mut DeTable<'a>, folder: &Path) -> Option<Queue> {
        let section = table.get("queue").map(|section| section.get_ref());
        let is_embedded = section
            .and_then(|section| section.as_table())
            .is_some_and(|section| section.contains_key("backplane"));
        if is_embedded {
            let embedded = self.require::<RawEmbedded>(table, "queue")?.into_inner();
            let backplane = folder.join(embedded.backplane);
            return Some(Queue::Embedded { backplane });
        }
        let sqs = self.require::<Sqs>(table, "queue")?;
        for fault in sqs.get_ref().faults() {
            self.fault(sqs.span().start, &format!("queue.{fault}"));
        }
        Some(Queue::Sqs(sqs.into_inner()))
    }

    fn write_deadline(&mut self, table: &mut DeTable<'a>) -> Option<Duration> {
        if !table.contains_key("kernel") {
            return Some(Duration::from_secs(write_deadline_s()));
        }
        let kernel = self.take::<RawKernel>(table, "kernel")?;
        let seconds = kernel.get_ref().write_deadline_s;
        if WRITE_DEADLINE_S.contains(&seconds) {
            return Some(Duration::from_secs(seconds));
        }
        let (least, most) = (WRITE_DEADLINE_S.start(), WRITE_DEADLINE_S.end());
        self.fault(
            kernel.span().start,
            &format!("kernel.write_deadline_s: must be from {least} to {most}"),
        );
        None
    }

    fn keys(
        &mut self,
        keys: Spanned<RawKeys>,
        folder: &Path,
    ) -> (Option<SecretKey>, Option<Trust>) {
        let at = keys.span().start;
        let keys = keys.into_inner();
        let host_key = read_key(&folder.join(&keys.host))
            .map_err(|text| self.fault(at, &format!("keys.host: {text}")))
            .ok();
        let mut parse = |name: &str, key: &toml::Spanned<String>| {
            PublicKey::parse(key.get_ref())
                .map_err(|error| self.fault(key.span().start, &format!("keys.{name}: {error}")))
                .ok()
        };
        let fixed = keys.functions.iter().map(|key| parse("functions", key));
        let fixed: Vec<_> = fixed.collect();
        let root = keys.root.as_ref().map(|key| parse("root", key));
        let trust = match (root, keys.keyset, fixed.is_empty()) {
            (Some(root), Some(keyset), true) => root.map(|root| Trust::Rooted {
                root,
                keyset: folder.join(keyset),
            }),
            (None, None, false) => fixed.into_iter().collect::<Option<_>>().map(Trust::Fixed),
            _ => {
                let text = "keys: give either functions, at least one key, or root and keyset; without either no command can be trusted";
                self.fault(at, text);
                None
            }
        };
        (host_key, trust)
    }
}

fn read_key(path: &Path) -> Result<SecretKey, String> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mode = std::fs::metadata(path)
        .map_err(failed)?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        return Err(format!(
            "{}: must be readable by its owner alone (mode {:o}): chmod 600",
            path.display(),
            mode & 0o777
        ));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    SecretKey::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}
