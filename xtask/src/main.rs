//! Repository tasks. `cargo xtask` lists them.

mod ci;

mod emulator;

mod fire;

mod infra;

mod package;

mod tidy;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what tests need and run every check: what CI runs, and what to run before a commit.
    Ci(ci::CiArgs),
    /// Check the rules of the house that no compiler checks: arrows, headers, sizes, names.
    Tidy,
    /// Kill a real gpuhook before and after every durable step, and look what came of it.
    Crash(fire::FireArgs),
    /// Drive a machine at random while everything around it fails; a failing seed is repeated with --seed.
    Chaos(fire::FireArgs),
    /// Send every nasty input to a real front door, and check its answer and that it left no trace.
    Nasty(fire::FireArgs),
    /// Ask a real AWS account what emulators cannot settle, with your own credentials. Makes two queues and a
    /// table and removes them; `-- --stack NAME` asks the front door of an installation too.
    LiveAws(fire::FireArgs),
    /// Measure by hand, figures and ratios of one run: `cargo xtask bench coldstart`.
    Bench(fire::FireArgs),
    /// Build and synthesise what is deployed with SAM's and the CDK's own command lines; part of nightly.
    Deployable,
    /// The long forms of the same tests.
    Nightly,
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the repository");
    let result = match Cli::parse().task {
        Task::Ci(args) => ci::run(root, &args),
        Task::Tidy => tidy::run(root),
        Task::Crash(args) => fire::run(root, "gpuhook-crash", &args),
        Task::Chaos(args) => fire::run(root, "gpuhook-chaos", &args),
        Task::Nasty(args) => fire::run(root, "gpuhook-nasty", &args),
        Task::LiveAws(args) => ci::live_aws(root, args.arguments()),
        Task::Bench(args) => fire::bench(root, &args),
        Task::Deployable => infra::deployable(root),
        Task::Nightly => fire::nightly(root),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
