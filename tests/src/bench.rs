//! Benchmarks, run by hand: figures and ratios of one run on one machine, never a test.

mod http;

mod stand_in;

mod coldstart;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measures parts of gpuhook beside a yardstick, in one run.
#[derive(Debug, Parser)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Cold starts of the functions: from exec to the first poll for an event, and from the first event
    /// to its answer, against a stub of Lambda's runtime API and a stand-in for AWS over TLS.
    Coldstart {
        /// Folder of the release binaries: webhook, results, deliver, sweep.
        #[arg(long)]
        functions: PathBuf,
        /// The yardstick: lambda/examples/hello.rs, built the same way.
        #[arg(long)]
        hello: PathBuf,
        /// Starts of each.
        #[arg(long, default_value_t = 15)]
        spawns: usize,
    },
}

/// Runs a benchmark and prints its table.
///
/// # Errors
/// Something does not start or answer.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.bench {
        Bench::Coldstart {
            functions,
            hello,
            spawns,
        } => coldstart::run(functions, hello, *spawns),
    }
}
