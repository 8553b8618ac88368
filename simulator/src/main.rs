//! `gpuhook-simulator`: one simulated NVIDIA host per process.

use clap::Parser;

/// Simulates one NVIDIA host: its kernel, its driver and its files
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    arguments: simulator::Arguments,
}

fn main() -> anyhow::Result<()> {
    Ok(simulator::run_command(&Cli::parse().arguments)?)
}
