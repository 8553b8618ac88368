//! `gpuhook up`: front door, workers and agent in one process, over one durable file.
//!
//! Bring-up is linear: data folder, simulated host, backplane, function, agent; each step uses what
//! the one before made, and taking down goes the other way.

mod demo;

mod machine;

mod receiver;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::data::{self, Data};
use crate::setup;
use crate::simulated_host::SimulatedHost;
use machine::Machine;

/// How long stopping waits for the first webhook's allocation to be released.
const UNDO: Duration = Duration::from_secs(5);

/// Run everything on this machine: front door, workers and agent in one process.
///
/// Without a configuration it makes one in its data folder, with fresh keys and secrets, and says
/// where. With --simulate the GPUs are those of a simulated host, and a first webhook shows the path.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Use a simulated GPU host: a built-in name (two-t4, t4) or a description file.
    #[arg(long, value_name = "HOST", num_args = 0..=1, default_missing_value = "two-t4")]
    simulate: Option<String>,
    /// Data folder; the user's own data directory by default.
    #[arg(long, env = "GPUHOOK_DATA")]
    data: Option<PathBuf>,
    /// Address of the front door in a configuration made now.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: String,
    /// With --simulate: do not send a first webhook.
    #[arg(long)]
    no_demo: bool,
}

/// Runs `gpuhook up` until SIGINT or SIGTERM.
pub(crate) fn run(args: &UpArgs) -> Result<()> {
    let data = Data::locate(args.data.clone(), args.simulate.is_some())?;
    log_to_stderr();
    if !data.config().exists() {
        data::create_private(data.root())?;
        setup::write(&data, &args.listen, args.simulate.is_some())?;
        println!(
            "made a configuration with fresh keys and secrets in {}",
            data.root().display()
        );
    }
    // A process of its own, started while this one has a single thread.
    let simulated = args
        .simulate
        .as_deref()
        .map(|host| SimulatedHost::start(host, &data.path(setup::SIMULATED)))
        .transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?;
    runtime.block_on(serve(&data, simulated.is_some(), !args.no_demo))
}

async fn serve(data: &Data, simulated: bool, demo: bool) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
    let has_receiver = simulated && data.path("keys/receiver.key").exists();
    let mut callbacks = if has_receiver {
        Some(receiver::start(data).await?)
    } else {
        None
    };
    let machine = Machine::start(data).await?;
    println!(
        "front door at {}, data in {}",
        machine.base(),
        data.root().display()
    );
    let shown = match &mut callbacks {
        Some(callbacks) if demo => {
            machine.wait_for_inventory().await?;
            Some(demo::run(data, machine.base(), callbacks).await?)
        }
        _ => None,
    };
    if simulated {
        say_what_next(data, machine.base())?;
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = show(&mut callbacks) => {}
    }
    println!("stopping");
    if let Some(key) = shown {
        let undone = tokio::time::timeout(UNDO, demo::undo(data, machine.base(), &key)).await;
        if !matches!(undone, Ok(Ok(()))) {
            println!("{key} could not be released; its lease ends by itself");
        }
    }
    machine.stop().await;
    Ok(())
}

/// Prints callbacks as they come, for as long as there is somebody who reads.
async fn show(callbacks: &mut Option<tokio::sync::mpsc::Receiver<receiver::Callback>>) {
    let Some(callbacks) = callbacks else {
        return std::future::pending().await;
    };
    while let Some(callback) = callbacks.recv().await {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
        let (kind, key) = (
            text(&callback.event["type"]),
            text(&callback.event["data"]["key"]),
        );
        println!(
            "callback {kind} for {key}, signatures {} verified",
            callback.schemes
        );
    }
    std::future::pending().await
}

fn say_what_next(data: &Data, base: &str) -> Result<()> {
    let key = data.path("secrets/api.key");
    let token = data.path("secrets/bearer.token");
    let here = std::env::current_exe().context("find this program")?;
    println!(
        r#"It stays up until Ctrl-C. Your next webhook, in another terminal:

  curl -sS {base}/vgpu -H "X-API-KEY: $(cat {key})" -H 'content-type: application/json' -d '{{"gpu_id":1,"vgpu_type":"T4-8Q"}}'

What is where:

  curl -sS {base}/v1/allocations -H "Authorization: Bearer $(cat {token})"

Or signed as of Standard Webhooks, waiting for the result:

  {here} send --data {data} '{{"op":"allocate","key":"job-7","target":{{"host":"{host}","gpu":1}},"profile":"T4-8Q"}}'
"#,
        key = key.display(),
        token = token.display(),
        here = here.display(),
        data = data.root().display(),
        host = setup::HOST,
    );
    Ok(())
}

/// Warnings only on a terminal, so that a newcomer sees the path and not its plumbing; JSON with one
/// line per transition when nobody looks. RUST_LOG overrides both.
fn log_to_stderr() {
    let terminal = std::io::stderr().is_terminal();
    let level = if terminal { "warn" } else { "info" };
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| level.into());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if terminal {
        builder.init()
    } else {
        builder.json().init()
    }
}

/// Whether a path has a file beside it whose name is longer by `suffix`.
fn has_beside(path: &Path, suffix: &str) -> bool {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    Path::new(&name).exists()
}
