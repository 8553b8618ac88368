//! The steps of an enrolment; each may be done again.

use anyhow::{Context, Result, bail};
use backplane::Store;
use backplane::store::HostRecord;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::key::{PublicKey, SecretKey};

use super::AddArgs;
use crate::cloud::{Installation, secrets, stack};
use crate::config::FUNCTION_KEY;
use crate::data::Data;
use crate::rotation;

/// The one description of a host's queues.
const TEMPLATE: &str = include_str!("../../../../infra/host.yaml");

/// What the host needs to know of itself.
struct Files {
    agent_toml: String,
    /// The first keyset, where the installation has a root.
    keyset: Option<String>,
    /// Its secret key, if it was made here.
    key: Option<String>,
}

pub(super) async fn enrol(args: &AddArgs) -> Result<()> {
    if args.host.as_str().ends_with("-dlq") {
        bail!(
            "a host may not be named like the dead letters of another: {} ends in -dlq",
            args.host
        );
    }
    let installation = Installation::open(&args.installation).await?;
    let trust = trust(&installation).await?;
    let prefix = installation.prefix()?.to_owned();
    let stack_name = format!("{prefix}-host-{}", args.host);
    let operator = match &args.operator {
        Some(operator) => operator.clone(),
        None => caller(&installation).await?,
    };
    let parameters = [
        ("Prefix", prefix.as_str()),
        ("Host", args.host.as_str()),
        ("WebhookRoleArn", installation.output("WebhookRoleArn")?),
        ("SweepRoleArn", installation.output("SweepRoleArn")?),
        ("OperatorArn", operator.as_str()),
        (
            "AlarmTopicArn",
            args.alarm_topic.as_deref().unwrap_or_default(),
        ),
    ];
    if args.print {
        print_plan(args, &stack_name, &parameters);
        return Ok(());
    }
    let outputs =
        stack::ensure(&installation.formation, &stack_name, TEMPLATE, &parameters).await?;
    let queue = outputs.get("CommandsQueueUrl");
    let queue =
        queue.with_context(|| format!("stack {stack_name} has no output CommandsQueueUrl"))?;
    let data = Data::locate(Some(args.out.join(args.host.as_str())), false)?;
    let (public_key, key) = host_key(args, &data)?;
    let record = HostRecord {
        host: args.host.clone(),
        pools: args.pools.clone(),
        public_key,
    };
    installation.store()?.put_host(record).await?;
    let agent_toml = agent_toml(&installation, args, queue, &trust)?;
    data.replace("agent.toml", &agent_toml)?;
    let keyset = match trust {
        Trust::Function(_) => None,
        Trust::Root { keyset, .. } => {
            data.replace("keyset.json", &keyset)?;
            Some(keyset)
        }
    };
    let policy = outputs
        .get("AgentPolicyArn")
        .map(String::as_str)
        .unwrap_or_default();
    println!(
        "host {} is enrolled: stack {stack_name}, files in {}\nits agent may be given {policy}, or one role for all hosts: docs/hosts.md\n",
        args.host,
        data.root().display()
    );
    println!(
        "{}",
        paste(&Files {
            agent_toml,
            keyset,
            key
        })
    );
    Ok(())
}

/// What the host trusts commands by.
enum Trust {
    /// The key in use; rotating it means configuring every host.
    Function(PublicKey),
    /// The root, and the newest keyset that it signed.
    Root { root: PublicKey, keyset: String },
}

/// As `gpuhook config push` left it.
async fn trust(installation: &Installation) -> Result<Trust> {
    let files = secrets::read(installation, "config").await?;
    let parse = |path: &str| {
        let text = files.get(path)?;
        Some(PublicKey::parse(text.trim_end()).with_context(|| format!("read {path}")))
    };
    if let (Some(root), Some(keyset)) = (parse(rotation::ROOT), files.get(rotation::KEYSET)) {
        return Ok(Trust::Root {
            root: root?,
            keyset: keyset.to_string(),
        });
    }
    let key = parse(FUNCTION_KEY);
    let key =
        key.context("the installation has no configuration yet: `gpuhook config push` first")?;
    Ok(Trust::Function(key?))
}

/// The caller's role or user, as policies name it.
async fn caller(installation: &Installation) -> Result<String> {
    let client = aws_sdk_sts::Client::new(installation.aws.sdk_config());
    let identity = client.get_caller_identity().send().await;
    let identity = identity
        .map_err(|error| anyhow::anyhow!("{}", aws_sdk_sts::error::DisplayErrorContext(&error)));
    let arn = identity
        .context("ask who is calling")?
        .arn
        .unwrap_or_default();
    Ok(principal(&arn))
}

/// A session's role: `arn:aws:sts::1:assumed-role/NAME/SESSION` is a session of `arn:aws:iam::1:role/…NAME`,
/// whose path the session does not tell.
fn principal(arn: &str) -> String {
    let parts: Vec<_> = arn.splitn(6, ':').collect();
    match parts.as_slice() {
        [arn, partition, "sts", _, account, resource] => {
            let name = resource.strip_prefix("assumed-role/").unwrap_or_default();
            let name = name.split('/').next().unwrap_or_default();
            format!("{arn}:{partition}:iam::{account}:role/*{name}")
        }
        _ => arn.to_owned(),
    }
}

/// The key that the host signs with: given, made before, or made now.
fn host_key(args: &AddArgs, data: &Data) -> Result<(String, Option<String>)> {
    if let Some(given) = &args.public_key {
        let key = PublicKey::parse(given).context("--public-key")?;
        return Ok((key.to_string(), None));
    }
    const FILE: &str = "host.whsk";
    if !data.path(FILE).exists() {
        let key = SecretKey::generate()?;
        data.write_new(FILE, &format!("{}\n", key.expose().as_str()))?;
    }
    let text = data.secret(FILE)?;
    let key = SecretKey::parse(&text).with_context(|| format!("read {FILE}"))?;
    Ok((
        key.public().to_string(),
        Some(format!("{}\n", text.as_str())),
    ))
}

fn agent_toml(
    installation: &Installation,
    args: &AddArgs,
    queue: &str,
    trust: &Trust,
) -> Result<String> {
    let trust = match trust {
        Trust::Function(key) => format!("functions = [\"{key}\"]"),
        Trust::Root { root, .. } => format!("root = \"{root}\"\nkeyset = \"keyset.json\""),
    };
    Ok(format!(
        r#"# Made by `gpuhook host add`. See docs/configuration.md for every key.

host = "{host}"
state_dir = "/var/lib/gpuhook"

[paths]
root = "/"
nvml = "libnvidia-ml.so.1"

[queue]
commands_url = "{queue}"
results_url = "{results}"
region = "{region}"

[keys]
host = "host.whsk"
{trust}

[server]
listen = "127.0.0.1:9478"

# This host's own allow-list: a signed command cannot exceed it.
[allow]
# "partition" (a whole GPU's layout) and "resize" are left out: add them where they are wanted.
operations = ["allocate", "renew", "release", "inspect"]
modes = ["vgpu", "mig"]
tenants = ["*"]
"#,
        host = args.host,
        results = installation.output("ResultsQueueUrl")?,
        region = installation.output("Region")?,
    ))
}

/// One command for the host's shell.
fn paste(files: &Files) -> String {
    let mut script =
        String::from("umask 077; mkdir -p /etc/gpuhook /var/lib/gpuhook; cd /etc/gpuhook; ");
    let mut put = |name: &str, text: &str| {
        script.push_str(&format!(
            "echo {} | base64 -d > {name}; ",
            STANDARD.encode(text)
        ));
    };
    put("agent.toml", &files.agent_toml);
    if let Some(keyset) = &files.keyset {
        put("keyset.json", keyset);
    }
    let note = match &files.key {
        Some(key) => {
            put("host.whsk", key);
            "paste this on the host; it carries the host's secret key, so over a safe channel and into no file:"
        }
        None => "paste this on the host, whose key is in /etc/gpuhook/host.whsk:",
    };
    script.push_str("gpuhook-agent doctor");
    format!("{note}\n\nsudo sh -c '{script}'")
}

fn print_plan(args: &AddArgs, stack_name: &str, parameters: &[(&str, &str)]) {
    let pools: Vec<_> = args.pools.iter().map(ToString::to_string).collect();
    println!("stack {stack_name}, of infra/host.yaml:");
    for (key, value) in parameters {
        println!("  {key} = {value}");
    }
    for line in TEMPLATE.lines().skip_while(|line| *line != "Resources:") {
        if let Some(kind) = line.trim().strip_prefix("Type: AWS::") {
            println!("  creates {kind}");
        }
    }
    println!(
        "host {} in pools {} with its public key",
        args.host,
        pools.join(", ")
    );
    println!(
        "files {}/{}/: agent.toml, host.whsk unless --public-key is given",
        args.out.display(),
        args.host
    );
    println!("nothing was created");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_known_by_its_role() {
        for (arn, expect) in [
            (
                "arn:aws:sts::1:assumed-role/Admin/me",
                "arn:aws:iam::1:role/*Admin",
            ),
            (
                "arn:aws-cn:sts::1:assumed-role/A/b",
                "arn:aws-cn:iam::1:role/*A",
            ),
            ("arn:aws:iam::1:user/me", "arn:aws:iam::1:user/me"),
            ("arn:aws:iam::1:root", "arn:aws:iam::1:root"),
        ] {
            assert_eq!(principal(arn), expect);
        }
    }
}
