//! The program: `gpuhook-simulator`, and whoever else exposes it as a subcommand.

use std::{
    io::{self, Read, Write},
    path::PathBuf,
    sync::mpsc,
    thread,
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    description::{DescriptionError, HostDescription},
    simulator::{Simulator, StartError},
};

/// Arguments of the program.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The host: a description (HOST.toml) or the name of a builtin one (t4, two-t4, t4-legacy, v100, mixed, a30, a100-40, a100-80, h100, h200)
    #[arg(long, value_name = "HOST")]
    pub host: String,
    /// The directory in which the host is rendered
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// The built NVML library; found beside the program if not given
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// Stop when standard input ends: the host goes when its parent goes
    #[arg(long)]
    pub until_stdin_closes: bool,
}

/// Why the program ends with a failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// No such host.
    #[error("no host to simulate")]
    Host(#[from] DescriptionError),
    /// It does not come up.
    #[error("the simulated host does not come up")]
    Start(#[from] StartError),
    /// Signals or standard output do not work.
    #[error("cannot run as a program")]
    Process(#[from] io::Error),
}

/// Boots the host, prints `ready DIR`, and serves until SIGTERM, SIGINT or, if asked for, the end of standard input.
/// Call it before other threads exist: it takes over both signals of the process.
///
/// # Errors
/// See [`CommandError`].
pub fn run_command(arguments: &Arguments) -> Result<(), CommandError> {
    let (ended, end) = mpsc::channel();
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let host = HostDescription::find(&arguments.host)?;
    let simulator = match &arguments.library {
        Some(library) => Simulator::start_with_library(host, &arguments.dir, library)?,
        None => Simulator::start(host, &arguments.dir)?,
    };
    let handle = signals.handle();
    let waiter = thread::spawn({
        let ended = ended.clone();
        move || {
            if signals.forever().next().is_some() {
                let _ = ended.send(());
            }
        }
    });
    if arguments.until_stdin_closes {
        thread::spawn(move || {
            // What it says is of no interest; an unreadable one has ended too.
            let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
            let _ = ended.send(());
        });
    } else {
        drop(ended);
    }
    let mut out = io::stdout().lock();
    writeln!(out, "ready {}", arguments.dir.display())?;
    out.flush()?;
    drop(out);
    let _ = end.recv();
    handle.close();
    let _ = waiter.join();
    simulator.shutdown();
    Ok(())
}
