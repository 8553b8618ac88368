//! `agent.toml`: this host's name, paths, keys and allow-list. All faults are reported at once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use events::HostName;
use events::key::{PublicKey, SecretKey};
use serde::Deserialize;

/// The configuration as loaded, keys included.
#[derive(Debug)]
pub struct Config {
    /// This host, as enrolled.
    pub host: HostName,
    /// Where `ledger.db` lives.
    pub state_dir: PathBuf,
    /// Where things are on this machine.
    pub paths: Paths,
    /// The backplane's file.
    pub backplane: PathBuf,
    /// Signs results.
    pub host_key: SecretKey,
    /// Commands signed with any of these are taken.
    pub function_keys: Vec<PublicKey>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    host: HostName,
    state_dir: PathBuf,
    paths: Paths,
    queue: RawQueue,
    keys: RawKeys,
    #[serde(default)]
    server: RawServer,
    allow: Allow,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawQueue {
    backplane: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKeys {
    host: PathBuf,
    functions: Vec<toml::Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    #[serde(default = "listen")]
    listen: SocketAddr,
}

impl Default for RawServer {
    fn default() -> Self {
        Self { listen: listen() }
    }
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
    /// All faults found.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let one = |text: String| ConfigError { faults: vec![text] };
        let text = std::fs::read_to_string(path)
            .map_err(|error| one(format!("{}: {error}", path.display())))?;
        let line_of = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
        let raw: Raw = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(span.start));
            one(format!("{}:{line}: {}", path.display(), error.message()))
        })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut faults = Vec::new();
        let mut fault =
            |line: usize, text: String| faults.push(format!("{}:{line}: {text}", path.display()));
        let host_key = read_key(&folder.join(&raw.keys.host))
            .map_err(|text| fault(1, text))
            .ok();
        let mut function_keys = Vec::new();
        for key in &raw.keys.functions {
            match PublicKey::parse(key.get_ref()) {
                Ok(key) => function_keys.push(key),
                Err(error) => fault(
                    line_of(key.span().start),
                    format!("keys.functions: {error}"),
                ),
            }
        }
        if raw.keys.functions.is_empty() {
            fault(
                1,
                "keys.functions: at least one key is needed, or no command can be trusted"
                    .to_owned(),
            );
        }
        if !raw.server.listen.ip().is_loopback() {
            fault(
                1,
                "server.listen: must be a loopback address; this host opens no inbound port"
                    .to_owned(),
            );
        }
        match host_key {
            Some(host_key) if faults.is_empty() => Ok(Self {
                host: raw.host,
                state_dir: folder.join(raw.state_dir),
                backplane: folder.join(raw.queue.backplane),
                paths: raw.paths,
                host_key,
                function_keys,
                listen: raw.server.listen,
                allow: raw.allow,
            }),
            _ => Err(ConfigError { faults }),
        }
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
