//! `gpuhook-agent`: the daemon of a GPU host, and what its operator asks it.

use std::io::{IsTerminal, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agent::attributes::WriteArguments;
use agent::keys::Keys;
use agent::ledger::Ledger;
use agent::{Config, Ends, Host};
use anyhow::{Context, Result, bail};
use backplane::{Clock, SystemClock};
use clap::{Args, Parser, Subcommand};
use events::envelope;
use events::holdings::{HOLDINGS_TYPE, Holdings};
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
    /// List GPUs that a failed roll-back put out of use, or take one back into use. The agent must be
    /// stopped: its ledger has one user.
    Quarantine(Quarantine),
    /// Rebuild a ledger that was lost, from what `gpuhook host holdings` wrote on the front door's side.
    ///
    /// Allocations that the hardware still has are this host's again; those that it lacks are made again
    /// at the next start; partitions that the statement does not know stay foreign.
    Rebuild(Rebuild),
    /// Make this host's keys, on this host: the one that signs results, and one for AWS with the request for
    /// its certificate. What is there stays.
    #[cfg(feature = "sqs")]
    Enrol(Enrol),
    /// One kernel write, in a process of its own, as the agent starts it.
    #[command(hide = true)]
    WriteAttribute(WriteArguments),
}

#[cfg(feature = "sqs")]
#[derive(Debug, Args)]
struct Enrol {
    /// The host's name, as `gpuhook host add` is given it.
    #[arg(long)]
    host: events::HostName,
    /// Folder of the host's files.
    #[arg(long, default_value = "/etc/gpuhook")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct Quarantine {
    #[command(flatten)]
    at: At,
    /// The GPU to take back, once what its reason names has been seen to.
    #[arg(long, value_name = "GPU-UUID")]
    clear: Option<events::GpuUuid>,
}

#[derive(Debug, Args)]
struct Rebuild {
    #[command(flatten)]
    at: At,
    /// The signed statement.
    file: PathBuf,
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
        Command::Quarantine(quarantine) => self::quarantine(&quarantine),
        Command::Rebuild(rebuild) => self::rebuild(&rebuild),
        #[cfg(feature = "sqs")]
        Command::Enrol(enrol) => self::enrol(&enrol),
        Command::WriteAttribute(arguments) => Ok(arguments.run()),
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
    let host = Host::new(&config);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?;
    runtime.block_on(async {
        let is_first = !config.state_dir.join("ledger.db").exists();
        let queue = config
            .queue
            .open(&config.host, Arc::clone(&clock), is_first)
            .await?;
        let ends = Ends::of(&host, queue.receiver, queue.sender, clock);
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

#[cfg(feature = "sqs")]
fn enrol(ask: &Enrol) -> Result<ExitCode> {
    let enrolled = agent::enrolment::enrol(&ask.out, &ask.host)?;
    println!("{}", enrolled.public_key);
    eprintln!(
        "the line above is the public key of {host}; where the installation is administered:\n  gpuhook host add {host} --pool POOL --public-key {key}\n  gpuhook ca sign {request}     (or the platform's own authority, then docs/hosts.md)",
        host = ask.host,
        key = enrolled.public_key,
        request = enrolled.request.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn doctor(ask: &Ask) -> Result<ExitCode> {
    let config = Config::load(&ask.at.config)?;
    let checks = agent::doctor::run(&config, &Host::new(&config));
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
fn quarantine(ask: &Quarantine) -> Result<ExitCode> {
    let config = Config::load(&ask.at.config)?;
    let ledger = Ledger::open(&config.state_dir, &config.host)?;
    if let Some(gpu) = &ask.clear {
        if !ledger.clear_quarantine(gpu)? {
            bail!("{gpu} is not out of use");
        }
        println!("{gpu} is in use again");
        return Ok(ExitCode::SUCCESS);
    }
    let quarantines = ledger.quarantines()?;
    if quarantines.is_empty() {
        println!("every GPU is in use");
    }
    for (gpu, reason) in quarantines {
        println!("{gpu}: {reason}");
    }
    Ok(ExitCode::SUCCESS)
}

fn rebuild(ask: &Rebuild) -> Result<ExitCode> {
    let config = Config::load(&ask.at.config)?;
    let text = std::fs::read_to_string(&ask.file)
        .with_context(|| format!("read {}", ask.file.display()))?;
    let keys = Keys::open(&config.trust, &config.state_dir)?.now().keys;
    let holdings: Holdings = envelope::open(text.trim_end(), HOLDINGS_TYPE, &keys)
        .with_context(|| format!("{} cannot be trusted", ask.file.display()))?;
    if holdings.v != 1 || holdings.aud != config.host {
        bail!(
            "{} is version {} and for host {}; this is host {} and reads version 1",
            ask.file.display(),
            holdings.v,
            holdings.aud,
            config.host
        );
    }
    std::fs::create_dir_all(&config.state_dir)
        .with_context(|| format!("make {}", config.state_dir.display()))?;
    agent::ledger::rebuild(&config.state_dir, &holdings)?;
    println!(
        "rebuilt {} with {} allocations and {} open operations, as the front door knew them at {}; start the agent, then see `gpuhook-agent status`",
        config.state_dir.join("ledger.db").display(),
        holdings.allocations.len(),
        holdings.operations.len(),
        jiff::Timestamp::from_second(holdings.iat).unwrap_or_default(),
    );
    Ok(ExitCode::SUCCESS)
}

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
            print_partition(partition, &allocations);
        }
    }
}

/// What is where, whose, since when and until when.
fn print_partition(partition: &Value, allocations: &[Value]) {
    let owner = &partition["owner"];
    let key = allocations
        .iter()
        .find(|allocation| allocation["id"] == owner["allocation"]);
    let nobodys = if partition["spare"] == true {
        "spare: of the layout, for whoever comes"
    } else {
        "foreign: counted, never touched"
    };
    let whose = key.map_or_else(
        || nobodys.to_owned(),
        |allocation| {
            let lease = allocation["expires_at"]
                .as_i64()
                .and_then(|at| jiff::Timestamp::from_second(at).ok());
            let until =
                lease.map_or_else(|| "until released".to_owned(), |at| format!("until {at}"));
            let since = partition["since"].as_i64();
            let since = since
                .and_then(|at| jiff::Timestamp::from_second(at).ok())
                .map_or_else(String::new, |at| format!(" since {at}"));
            format!(
                "{} of {}{since}, {until}, {}",
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
    let slices = &partition["slices"];
    let place = slices["start"].as_u64().zip(slices["size"].as_u64());
    // As `nvidia-smi mig -lgi` has it: first slice and how many.
    let place = place.map_or_else(
        || text(&partition["id"]),
        |(start, size)| format!("slices {start}:{size}"),
    );
    println!("  {place}  {}  {whose}{used}", text(&partition["profile"]));
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
