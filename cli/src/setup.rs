//! Makes the configuration of a machine that has none: fresh keys, fresh secrets, loopback only.

use anyhow::{Context, Result};
use events::key::SecretKey;
use events::{HostName, TenantName};

use crate::data::Data;
use crate::{token, webhook};

/// The tenant, source, pool and callback of a fresh configuration.
pub(crate) const NAME: &str = "demo";
/// The host of a fresh configuration.
pub(crate) const HOST: &str = "laptop";
/// Where the callback receiver of a simulated machine listens.
pub(crate) const RECEIVER: &str = "127.0.0.1:8443";
/// Folder of the simulated host's files.
pub(crate) const SIMULATED: &str = "simulated-host";

/// Writes everything that `gpuhook up` needs. Nothing that exists is overwritten; `gpuhook.toml` is
/// written last, so that a setup cut short is done again in an empty folder, never half used.
pub(crate) fn write(data: &Data, listen: &str, simulated: bool) -> Result<()> {
    let tenant: TenantName = NAME.parse()?;
    let host: HostName = HOST.parse()?;
    let (function, agent) = (SecretKey::generate()?, SecretKey::generate()?);
    secret(data, "keys/function.whsk", &function.expose())?;
    secret(data, "keys/host.whsk", &agent.expose())?;
    secret(data, "secrets/webhook.whsec", &webhook::new_secret()?)?;
    secret(data, "secrets/api.key", &token::generate()?.0)?;
    let (bearer, hash) = token::generate()?;
    secret(data, "secrets/bearer.token", &bearer)?;
    data.write_new("policy.cedar", function::policy::DEFAULT_POLICY)?;
    data.write_new(
        "agent.toml",
        &agent_toml(data, &host, &function, simulated)?,
    )?;
    let callback = if simulated {
        callback(data)?
    } else {
        String::new()
    };
    let toml = gpuhook_toml(listen, &tenant, &host, &agent, &hash, simulated);
    data.write_new("gpuhook.toml", &format!("{toml}{callback}"))
}

fn secret(data: &Data, relative: &str, text: &str) -> Result<()> {
    data.write_new(relative, &format!("{text}\n"))
}

fn gpuhook_toml(
    listen: &str,
    tenant: &TenantName,
    host: &HostName,
    agent: &SecretKey,
    hash: &str,
    simulated: bool,
) -> String {
    let callbacks = if simulated {
        format!("callbacks = [\"{NAME}\"]\n")
    } else {
        String::new()
    };
    format!(
        r#"# Made by `gpuhook up`. Paths are relative to this file; secrets are in files of mode 0600.
# See docs/configuration.md for every key.

[server]
listen = "{listen}"

[signing]
key_file = "keys/function.whsk"

[store]
path = "backplane.db"

[policy]
file = "policy.cedar"

# POST /v1/hooks/{NAME}, signed as of Standard Webhooks.
[[source]]
name = "{NAME}"
tenant = "{tenant}"
preset = "standard-webhooks"
secrets = ["file:secrets/webhook.whsec"]
roles = ["operator"]
default_target = {{ host = "{host}" }}
{callbacks}
# POST /vgpu with the header X-API-KEY.
[[source]]
name = "{NAME}-vgpu"
tenant = "{tenant}"
preset = "api-key"
secrets = ["file:secrets/api.key"]
roles = ["operator"]
default_target = {{ host = "{host}" }}
{callbacks}
# Reads status, and may release: Authorization: Bearer <content of secrets/bearer.token>.
{token}
[[host]]
name = "{host}"
pools = ["default"]
public_key = "{public}"
"#,
        token = token::block(tenant, "local", hash, &["operator".to_owned()]),
        public = agent.public(),
    )
}

fn agent_toml(
    data: &Data,
    host: &HostName,
    function: &SecretKey,
    simulated: bool,
) -> Result<String> {
    let folder = data.path(SIMULATED);
    let folder = folder
        .to_str()
        .context("the data folder's path is not UTF-8")?;
    let quoted = |path: &str| toml::Value::from(path).to_string();
    let (root, nvml, attributes) = if simulated {
        (
            quoted(&format!("{folder}/root")),
            quoted(&format!("{folder}/lib/libnvidia-ml.so.1")),
            format!("attributes = {}\n", quoted(&format!("{folder}/sim.sock"))),
        )
    } else {
        (quoted("/"), quoted("libnvidia-ml.so.1"), String::new())
    };
    Ok(format!(
        r#"# Made by `gpuhook up`. Paths are relative to this file.

host = "{host}"
state_dir = "agent"

[paths]
root = {root}
nvml = {nvml}
{attributes}cgroup = "/sys/fs/cgroup"
proc = "/proc"

[queue]
backplane = "backplane.db"

[keys]
host = "keys/host.whsk"
functions = ["{function}"]

[server]
listen = "127.0.0.1:9478"

# This host's own allow-list: a signed command cannot exceed it.
[allow]
# "partition" (a whole GPU's layout) and "resize" are left out: add them where they are wanted.
operations = ["allocate", "renew", "release", "inspect"]
modes = ["vgpu", "mig"]
tenants = ["*"]
"#,
        function = function.public(),
    ))
}

/// The receiver of a simulated machine: its TLS certificate, its secrets, and the endpoint's block.
fn callback(data: &Data) -> Result<String> {
    let signing = SecretKey::generate()?;
    secret(data, "keys/callback.whsk", &signing.expose())?;
    secret(data, "keys/callback.whpk", &signing.public().to_string())?;
    secret(data, "secrets/callback.whsec", &webhook::new_secret()?)?;
    let certified =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()])
            .context("make the receiver's certificate")?;
    data.write_new("keys/receiver.pem", &certified.cert.pem())?;
    data.write_new("keys/receiver.key", &certified.signing_key.serialize_pem())?;
    let (address, port) = RECEIVER.split_once(':').context("receiver address")?;
    Ok(format!(
        r#"
# Results are posted here, signed with v1 and v1a. Private addresses are refused unless listed.
[[callback]]
name = "{NAME}"
url = "https://{RECEIVER}/callbacks"
secrets = ["file:secrets/callback.whsec"]
key_files = ["keys/callback.whsk"]
ca_file = "keys/receiver.pem"
allow_private = [{{ cidr = "{address}/32", port = {port} }}]
"#
    ))
}
