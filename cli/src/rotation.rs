//! `gpuhook key rotate`: another key for signing commands, with an overlap in which hosts trust both.
//!
//! ```text
//! init     keyset 1 = {current}                     hosts are enrolled with it and with the root's public key
//! prepare  keyset n+1 = {current, next}, told       next lies ready beside the current key
//! activate the function signs with next             the old key lies aside
//! retire   keyset n+2 = {current}, told             the old key is worth nothing any more
//! ```
//! Each step may be done again: it changes nothing and tells the hosts once more.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use backplane::{Clock, Outgoing, QueueName, Sender, SystemClock};
use clap::{Args, ValueEnum};
use events::HostName;
use events::key::{PublicKey, SecretKey};
use events::keyset::{self, TrustedKeyset};

use crate::cloud::InstallationArgs;
use crate::data::Data;

/// The newest keyset of a configuration folder.
pub(crate) const KEYSET: &str = "keys/keyset.json";
/// Public half of the root.
pub(crate) const ROOT: &str = "keys/root.whpk";
/// The key that follows.
const NEXT: &str = "keys/function-next.whsk";
/// The key that was replaced.
const OLD: &str = "keys/function-old.whsk";

/// Arguments of `gpuhook key rotate`.
#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    /// What to do: init once, then prepare, activate and retire at each rotation; tell repeats the newest
    /// keyset to every host.
    #[arg(value_enum)]
    step: Step,
    /// The offline root key, made by `gpuhook key new`. Keep it off this machine between rotations.
    #[arg(long, value_name = "FILE")]
    root: Option<PathBuf>,
    /// The folder of gpuhook.toml.
    #[arg(long, env = "GPUHOOK_DATA", default_value = ".")]
    data: PathBuf,
    /// Tell the hosts of this installation on AWS instead of the one host of this machine.
    #[arg(long)]
    aws: bool,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// One step of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Make the first keyset, of the key in use.
    Init,
    /// Make the next key and have hosts trust both.
    Prepare,
    /// Sign with the next key from now on.
    Activate,
    /// Have hosts trust the key in use alone.
    Retire,
    /// Tell the newest keyset again.
    Tell,
}

/// Runs a step.
pub(crate) fn run(args: &RotateArgs) -> Result<()> {
    let data = Data::locate(Some(args.data.clone()), false)?;
    let config = function::Config::load(&data.config())?;
    let signing_file = signing_file(&data)?;
    let key = config
        .signing_key
        .as_ref()
        .context("no signing key")?
        .public();
    match args.step {
        Step::Init => {
            init(args, &data, &[key])?;
            println!(
                "enrol hosts with keys.root and keys.keyset instead of keys.functions: docs/keys.md"
            );
            return Ok(());
        }
        Step::Prepare => {
            let next = next(&data)?;
            change(args, &data, &[key, next])?;
        }
        Step::Activate => return activate(args, &data, &signing_file, key),
        Step::Retire => {
            if data.path(NEXT).exists() {
                bail!(
                    "a next key is prepared and not in use yet: `gpuhook key rotate activate` first"
                );
            }
            change(args, &data, &[key])?;
        }
        Step::Tell => {}
    }
    let (text, newest) = newest(&data)?;
    let told = tell(args, &config, &data, &text, newest.version)?;
    println!(
        "keyset {} of {} keys is told to {}",
        newest.version,
        newest.keys.len(),
        told.join(", ")
    );
    if args.step == Step::Prepare {
        println!("once every host shows it (gpuhook-agent status): `gpuhook key rotate activate`");
    }
    Ok(())
}

/// The newest keyset, as signed and as read.
fn newest(data: &Data) -> Result<(String, TrustedKeyset)> {
    let root = std::fs::read_to_string(data.path(ROOT))
        .context("read keys/root.whpk: `gpuhook key rotate init` first")?;
    let root = PublicKey::parse(root.trim_end()).context("read keys/root.whpk")?;
    let text = std::fs::read_to_string(data.path(KEYSET)).context("read keys/keyset.json")?;
    let text = text.trim_end().to_owned();
    let newest = TrustedKeyset::open(&text, &root).context("keys/keyset.json")?;
    Ok((text, newest))
}

fn root(args: &RotateArgs) -> Result<SecretKey> {
    let path = args
        .root
        .as_ref()
        .context("--root names the root key, which signs keysets")?;
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    SecretKey::parse(&text).with_context(|| format!("read {}", path.display()))
}

fn init(args: &RotateArgs, data: &Data, keys: &[PublicKey]) -> Result<()> {
    if data.path(KEYSET).exists() {
        let (_, newest) = newest(data)?;
        println!("there is keyset {} already", newest.version);
        return Ok(());
    }
    let root = root(args)?;
    let text = keyset::seal(1, SystemClock.now_s(), keys, &root)?;
    data.replace(ROOT, &format!("{}\n", root.public()))?;
    data.replace(KEYSET, &format!("{text}\n"))?;
    println!("keyset 1, trusted under root {}", root.public());
    Ok(())
}

/// The key that follows, made at the first call.
fn next(data: &Data) -> Result<PublicKey> {
    if !data.path(NEXT).exists() {
        let key = SecretKey::generate()?;
        data.write_new(NEXT, &format!("{}\n", key.expose().as_str()))?;
    }
    Ok(SecretKey::parse(&data.secret(NEXT)?)?.public())
}

/// A keyset of just these keys: the newest if it is that, else another.
fn change(args: &RotateArgs, data: &Data, keys: &[PublicKey]) -> Result<()> {
    let (_, newest) = newest(data)?;
    if newest.keys == keys {
        return Ok(());
    }
    let root = root(args)?;
    let version = newest.version + 1;
    let text = keyset::seal(version, SystemClock.now_s(), keys, &root)?;
    // The root given must be the one that hosts have pinned.
    let expected = std::fs::read_to_string(data.path(ROOT)).context("read keys/root.whpk")?;
    if expected.trim_end() != root.public().to_string() {
        bail!(
            "--root is not the root of this folder's keysets (keys/root.whpk): hosts would refuse what it signs"
        );
    }
    data.replace(KEYSET, &format!("{text}\n"))
}

/// The next key takes the place of the one in use, if hosts were told to trust it.
fn activate(args: &RotateArgs, data: &Data, signing_file: &str, key: PublicKey) -> Result<()> {
    let _ = args;
    if !data.path(NEXT).exists() {
        println!("nothing is prepared; the key in use is {key}");
        return Ok(());
    }
    let next = next(data)?;
    let (_, newest) = newest(data)?;
    if !newest.keys.contains(&next) {
        bail!("hosts were not told of the next key yet: `gpuhook key rotate prepare` first");
    }
    let (old, fresh) = (data.secret(signing_file)?, data.secret(NEXT)?);
    data.replace(OLD, &format!("{}\n", old.as_str()))?;
    data.replace(signing_file, &format!("{}\n", fresh.as_str()))?;
    std::fs::remove_file(data.path(NEXT)).context("put the next key away")?;
    println!(
        "commands are signed with {next} from now on: restart `gpuhook up`, or `gpuhook config push`; after 15 minutes, when no command of the old key is under way: `gpuhook key rotate retire`"
    );
    Ok(())
}

/// Where gpuhook.toml has its signing key.
fn signing_file(data: &Data) -> Result<String> {
    let text = std::fs::read_to_string(data.config()).context("read gpuhook.toml")?;
    let table: toml::Table = text.parse().context("parse gpuhook.toml")?;
    let file = table
        .get("signing")
        .and_then(|signing| signing.get("key_file")?.as_str());
    Ok(file
        .context("gpuhook.toml has no signing.key_file")?
        .to_owned())
}

fn tell(
    args: &RotateArgs,
    config: &function::Config,
    data: &Data,
    text: &str,
    version: u64,
) -> Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?;
    runtime.block_on(async {
        if args.aws {
            return tell_installation(args, text, version).await;
        }
        let store = data.store_path(config)?;
        let queue =
            backplane::sqlite::SqliteBackplane::open(store, std::sync::Arc::new(SystemClock))?;
        let hosts: Vec<_> = config.hosts.iter().map(|host| host.host.clone()).collect();
        send(&queue, &hosts, text, version).await
    })
}

#[cfg(feature = "aws")]
async fn tell_installation(args: &RotateArgs, text: &str, version: u64) -> Result<Vec<String>> {
    use backplane::Reads;
    use backplane::aws::{QueueUrls, SqsSender};
    let installation = crate::cloud::Installation::open(&args.installation).await?;
    let hosts = installation.store()?.hosts().await?;
    let hosts: Vec<_> = hosts.into_iter().map(|view| view.record.host).collect();
    let urls = QueueUrls::Installation {
        base: installation.output("QueueBase")?.to_owned(),
        prefix: installation.prefix()?.to_owned(),
    };
    send(
        &SqsSender::new(&installation.aws, urls),
        &hosts,
        text,
        version,
    )
    .await
}

#[cfg(not(feature = "aws"))]
async fn tell_installation(args: &RotateArgs, _: &str, _: u64) -> Result<Vec<String>> {
    let _ = &args.installation;
    crate::cloud::not_built()
}

/// Puts the keyset into the queue of each host; the names of those hosts.
async fn send(
    sender: &dyn Sender,
    hosts: &[HostName],
    text: &str,
    version: u64,
) -> Result<Vec<String>> {
    for host in hosts {
        let message = Outgoing {
            group: "keyset".to_owned(),
            dedup: format!("keyset-{version}"),
            body: text.to_owned(),
        };
        let sent = sender
            .send(&QueueName::Commands(host.clone()), message)
            .await;
        sent.with_context(|| {
            format!("tell host {host}; doing this again tells those that were not told")
        })?;
    }
    Ok(hosts.iter().map(ToString::to_string).collect())
}
