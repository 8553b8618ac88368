//! Random faults: one machine in one process, driven through its real doors by a seeded script of
//! mixed operations, while queue, store, driver, kernel, clocks and the host itself fail. Afterwards
//! everything is healed, and hardware, ledger, store and what callers were told have to agree.
//!
//! A seed fixes the script and, for each place that can fail, the sequence of its failures; threads
//! interleave as they like. Each seed runs in a process of its own, so that what it leaks is seen.

mod dice;

mod clock;

mod flaky;

mod machine;

mod script;

mod callers;

mod faults;

mod judge;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// Drive a machine at random while everything around it fails.
#[derive(Debug, Parser)]
#[command(name = "gpuhook-chaos")]
pub struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Steps of each seed's script.
    #[arg(long, default_value_t = 90)]
    steps: u64,
    /// Seeds at the same time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Play this one seed here and now, and tell each step: how a failure is repeated.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: say only how it ended.
    #[arg(long, requires = "seed", hide = true)]
    quiet: bool,
}

/// Runs the seeds and prints what came of them.
///
/// # Errors
/// A seed ended with something wrong.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(seed) = arguments.seed {
        return play(seed, arguments.steps, arguments.quiet);
    }
    let seeds: Vec<_> = (arguments.first..arguments.first + arguments.seeds).collect();
    let mut failed = Vec::new();
    for batch in seeds.chunks(arguments.jobs.max(1)) {
        let running: Vec<_> = batch
            .iter()
            .map(|seed| Ok((*seed, start(*seed, arguments.steps)?)))
            .collect::<Result<_>>()?;
        for (seed, mut child) in running {
            let output = child.stdout.take().context("its output is a pipe")?;
            let lines: Vec<_> = BufReader::new(output).lines().collect::<Result<_, _>>()?;
            lines.iter().for_each(|line| println!("{line}"));
            if !child.wait()?.success() {
                println!(
                    "seed {seed} FAILED; repeat it with `cargo xtask chaos --seed {seed} --steps {}`",
                    arguments.steps
                );
                failed.push(seed);
            }
        }
    }
    println!(
        "chaos: {} seeds × {} steps, {} with violations",
        seeds.len(),
        arguments.steps,
        failed.len()
    );
    ensure!(
        failed.is_empty(),
        "seeds {failed:?} ended with something wrong"
    );
    Ok(())
}

fn start(seed: u64, steps: u64) -> Result<std::process::Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "--quiet",
        "--seed",
        &seed.to_string(),
        "--steps",
        &steps.to_string(),
    ]);
    command
        .stdout(Stdio::piped())
        .spawn()
        .context("start a process for a seed")
}

fn play(seed: u64, steps: u64, quiet: bool) -> Result<()> {
    let began = std::time::Instant::now();
    if !quiet && let Ok(filter) = tracing_subscriber::EnvFilter::try_from_default_env() {
        tracing_subscriber::fmt().with_env_filter(filter).init();
    }
    let leaks = judge::Leaks::before();
    let mut script = script::Script::begin(seed, !quiet)?;
    for _ in 0..steps {
        script.step()?;
    }
    let (mut violations, tally) = script.end()?;
    violations.extend(leaks.after());
    for violation in &violations {
        println!("seed {seed}: VIOLATION {violation}");
    }
    println!(
        "seed {seed}: {tally}, {} violations, {:.1} s",
        violations.len(),
        began.elapsed().as_secs_f64()
    );
    ensure!(
        violations.is_empty(),
        "seed {seed} ended with something wrong"
    );
    Ok(())
}
