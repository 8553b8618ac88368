//! `gpuhook-agent`: the daemon of a GPU host, and what its operator asks it.

use std::io::{IsTerminal, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agent::{Config, Ends, Host};
use anyhow::{Context, Result, bail};
use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, QueueName, SystemClock};
use clap::{Args, Parser, Subcommand};
use events::outcome::HealthCheck;
use serde_json::Value;

/// The agent of a GPU host: takes signed commands from its queue, makes and removes partitions,
/// reports what it read back.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent until SIGTERM.
    Run(At),
    /// Show what the running agent holds beside what the hardware has.
    Status(Ask),
    /// Check what start-up needs, and say what to do about what is missing. Changes nothing.
    Doctor(Ask),
}

#[derive(Debug, Args)]
struct At {
    /// The agent's configuration.
    #[arg(
        long,
        env = "GPUHOOK_AGENT_CONFIG",
        default_value = "/etc/gpuhook/agent.toml"
    )]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct Ask {
    #[command(flatten)]
    at: At,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(at) => run(&at),
        Command::Status(ask) => status(&ask),
        Command::Doctor(ask) => doctor(&ask),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(at: &At) -> Result<ExitCode> {
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.init()
    } else {
        builder.json().init()
    }
    let config = Config::load(&at.config)?;
    let host = Host::new(&config.paths);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?;
    runtime.block_on(async {
        let backplane = SqliteBackplane::open(&config.backplane, Arc::clone(&clock))?;
        let receiver = Arc::new(backplane.receiver(&QueueName::Commands(config.host.clone())));
        let ends = Ends::of(&host, receiver, Arc::new(backplane), clock);
        let running = agent::start(config, ends).await?;
        // Without a supervisor that asked for it there is nobody to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .context("watch for SIGTERM")?;
        tokio::select! {
            _ = terminate.recv() => {}
            interrupted = tokio::signal::ctrl_c() => interrupted.context("watch for SIGINT")?,
        }
        running.shutdown().await;
        Ok(ExitCode::SUCCESS)
    })
}

fn doctor(ask: &Ask) -> Result<ExitCode> {
    let config = Config::load(&ask.at.config)?;
    let checks = agent::doctor::run(&config, &Host::new(&config.paths));
    if ask.json {
        println!("{}", serde_json::to_string_pretty(&checks)?);
    } else {
        for HealthCheck {
            name,
            passed,
            detail,
        } in &checks
        {
            println!(
                "{} {name:<8} {detail}",
                if *passed { "ok  " } else { "FAIL" }
            );
        }
    }
    Ok(if checks.iter().all(|check| check.passed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn status(ask: &Ask) -> Result<ExitCode> {
    let config = Config::load(&ask.at.config)?;
    let status = get(&config, "/status")?;
    if ask.json {
        println!("{status:#}");
    } else {
        print(&status);
    }
    Ok(if status["healthy"] == true {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One request to the agent's own server on loopback: not worth an HTTP client.
fn get(config: &Config, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(config.listen)
        .with_context(|| format!("connect to {}: is the agent running?", config.listen))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nhost: agent\r\n\r\n")?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .context("read the agent's answer")?;
    let Some((_, body)) = text.split_once("\r\n\r\n") else {
        bail!("the agent's answer is not HTTP")
    };
    serde_json::from_str(body).context("read the agent's answer")
}

fn print(status: &Value) {
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    println!(
        "host {}  limits: {}  last poll {} s ago",
        text(&status["host"]),
        text(&status["limits"]),
        status["seconds_since_poll"]
    );
    for list in ["faults", "drift"] {
        for line in status[list].as_array().into_iter().flatten() {
            println!("{list}: {}", text(line));
        }
    }
    let allocations = status["allocations"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for gpu in status["inventory"]["gpus"].as_array().into_iter().flatten() {
        println!(
            "\n{}  {}  {}",
            text(&gpu["pci"]),
            text(&gpu["name"]),
            text(&gpu["uuid"])
        );
        if let Some(reason) = gpu["unavailable"].as_str() {
            println!("  unavailable: {reason}");
        }
        for partition in gpu["partitions"].as_array().into_iter().flatten() {
            let owner = &partition["owner"];
            let key = allocations
                .iter()
                .find(|allocation| allocation["id"] == owner["allocation"]);
            let whose = key.map_or_else(
                || "foreign: counted, never touched".to_owned(),
                |allocation| {
                    let lease = allocation["expires_at"]
                        .as_i64()
                        .and_then(|at| jiff::Timestamp::from_second(at).ok());
                    let until = lease
                        .map_or_else(|| "until released".to_owned(), |at| format!("until {at}"));
                    format!(
                        "{} of {}, {until}, {}",
                        text(&allocation["spec"]["key"]),
                        text(&owner["tenant"]),
                        text(&allocation["phase"])
                    )
                },
            );
            let used = if partition["in_use"] == true {
                ", in use"
            } else {
                ""
            };
            println!(
                "  {}  {}  {whose}{used}",
                text(&partition["id"]),
                text(&partition["profile"])
            );
        }
    }
}
