//! A folder with everything that one machine is configured by: keys, secrets, `gpuhook.toml`,
//! `agent.toml`, and the certificate of the receiver that stands for the caller's own endpoint.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::{PublicKey, SecretKey};

/// The enrolled host.
pub const HOST: &str = "gpu-1";
/// The source that webhooks are posted to.
pub const SOURCE: &str = "ci";

/// One configured machine.
pub struct Site {
    /// Everything is below it.
    pub folder: PathBuf,
    /// Tenant of the source; unique, so that allocation ids and control groups are nobody else's.
    pub tenant: String,
    /// Port of the front door.
    pub port: u16,
    /// Port of the agent's own server.
    pub agent_port: u16,
    /// Port of the receiver.
    pub receiver_port: u16,
    /// Signs webhooks.
    pub webhook: ring::hmac::Key,
    /// Bearer token of the read doors.
    pub token: String,
    /// Verifies callbacks' v1.
    pub callback: ring::hmac::Key,
    /// Verifies callbacks' v1a.
    pub callback_public: PublicKey,
}

impl Site {
    /// Writes a machine into `folder`, whose simulated host will be at `folder/host`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(folder: &Path, tenant: &str) -> Result<Self> {
        let [port, agent_port, receiver_port] = free_ports()?;
        let (function, host, callback_key) = (
            SecretKey::generate()?,
            SecretKey::generate()?,
            SecretKey::generate()?,
        );
        let (webhook, callback) = (random()?, random()?);
        let token = format!("gpht_{}", hex::encode(random()?));
        let site = Self {
            folder: folder.to_owned(),
            tenant: tenant.to_owned(),
            port,
            agent_port,
            receiver_port,
            webhook: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &webhook),
            token,
            callback: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &callback),
            callback_public: callback_key.public(),
        };
        site.secret("keys/function.whsk", &function.expose())?;
        site.secret("keys/host.whsk", &host.expose())?;
        site.secret("keys/callback.whsk", &callback_key.expose())?;
        site.secret("secrets/webhook.whsec", &whsec(&webhook))?;
        site.secret("secrets/callback.whsec", &whsec(&callback))?;
        let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        site.secret("receiver.pem", &certified.cert.pem())?;
        site.secret("receiver.key", &certified.signing_key.serialize_pem())?;
        site.secret("gpuhook.toml", &site.gpuhook_toml(&host.public()))?;
        site.secret("agent.toml", &site.agent_toml(&function.public()))?;
        Ok(site)
    }

    /// The simulated host's folder.
    #[must_use]
    pub fn host_folder(&self) -> PathBuf {
        self.folder.join("host")
    }

    fn secret(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        let parent = path.parent().context("a name has a folder")?;
        std::fs::create_dir_all(parent)?;
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        writeln!(file, "{text}").with_context(|| format!("write {}", path.display()))
    }

    fn gpuhook_toml(&self, host: &PublicKey) -> String {
        let Self {
            port,
            receiver_port,
            tenant,
            token,
            ..
        } = self;
        let hash = hex::encode(ring::digest::digest(
            &ring::digest::SHA256,
            token.as_bytes(),
        ));
        format!(
            r#"
[server]
listen = "127.0.0.1:{port}"
[signing]
key_file = "keys/function.whsk"
[store]
path = "backplane.db"
[[source]]
name = "{SOURCE}"
tenant = "{tenant}"
preset = "standard-webhooks"
secrets = ["file:secrets/webhook.whsec"]
roles = ["operator"]
default_target = {{ host = "{HOST}" }}
callbacks = ["receiver"]
[[token]]
tenant = "{tenant}"
name = "trial"
roles = ["operator"]
sha256 = "{hash}"
[[callback]]
name = "receiver"
url = "https://127.0.0.1:{receiver_port}/callbacks"
secrets = ["file:secrets/callback.whsec"]
key_files = ["keys/callback.whsk"]
ca_file = "receiver.pem"
allow_private = [{{ cidr = "127.0.0.1/32", port = {receiver_port} }}]
[[host]]
name = "{HOST}"
pools = ["default"]
public_key = "{host}"
"#
        )
    }

    fn agent_toml(&self, function: &PublicKey) -> String {
        let (host, port) = (self.host_folder(), self.agent_port);
        let host = host.display();
        format!(
            r#"
host = "{HOST}"
state_dir = "agent"
[paths]
root = "{host}/root"
nvml = "{host}/lib/libnvidia-ml.so.1"
attributes = "{host}/sim.sock"
cgroup = "/sys/fs/cgroup"
proc = "/proc"
[queue]
backplane = "backplane.db"
[keys]
host = "keys/host.whsk"
functions = ["{function}"]
[server]
listen = "127.0.0.1:{port}"
[allow]
operations = ["allocate", "renew", "release", "inspect"]
modes = ["vgpu"]
tenants = ["*"]
"#
        )
    }
}

/// Three ports that are free now; what is configured by a file cannot ask for port 0. They lie below
/// those that the kernel gives to outgoing connections, which would take one while its server is down,
/// and start at a place of this process's own.
fn free_ports() -> Result<[u16; 3]> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = u16::try_from(std::process::id() % 1000)? * 18;
    let mut ports = Vec::new();
    for _ in 0..18_000 {
        let port = 12_000 + (own + NEXT.fetch_add(1, Ordering::SeqCst)) % 18_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            ports.push(port);
        }
        if let [first, second, third] = ports[..] {
            return Ok([first, second, third]);
        }
    }
    anyhow::bail!("no port is free")
}

fn whsec(key: &[u8; 32]) -> String {
    format!("whsec_{}", STANDARD.encode(key))
}

fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| anyhow::anyhow!("no randomness from the system"))?;
    Ok(bytes)
}
