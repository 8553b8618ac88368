//! Crash trials: a real `gpuhook up` (front door, workers and agent) is killed at every durable step
//! it takes, before and after, and what it had not synced is lost with it. Then it is started again,
//! the sender repeats itself as senders do, and everything is compared: the simulated hardware, the
//! kernel's control groups, the store's answers and what callers were told.
//!
//! ```text
//! scenario ── prepare ── arm(n) ── act ──┬─▶ killed at point n ── start ── repeat ──┐
//!                                        └─▶ point n was never reached: all are done  ├─▶ judge
//!                                                                                     ┘
//! ```
//! One machine lives through all of it, so that a trial starts from what hundreds of crashes left.

mod control;

mod life;

mod scenario;

mod judge;

mod breakage;

mod flood;

mod silence;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::Parser;

use breakage::Breakage;
use life::Life;
use scenario::Scenario;

/// Kill a real gpuhook before and after every durable step, and look what came of it.
#[derive(Debug, Parser)]
#[command(name = "gpuhook-crash")]
pub struct Arguments {
    /// Only this scenario.
    #[arg(long)]
    only: Option<Scenario>,
    /// Try every Nth point.
    #[arg(long, default_value_t = 1)]
    stride: u64,
    /// First point to try.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Break something that must not be broken; the run then has to find violations.
    #[arg(long = "break")]
    breakage: Option<Breakage>,
    /// Break each thing in turn, and fail unless each is noticed.
    #[arg(long, conflicts_with_all = ["breakage", "only"])]
    prove: bool,
    /// Name the point of every trial.
    #[arg(long)]
    verbose: bool,
}

/// What a run found.
#[derive(Debug, Default)]
struct Tally {
    trials: u64,
    killed: BTreeMap<String, u64>,
    violations: Vec<String>,
}

/// Runs the trials and prints what came of them.
///
/// # Errors
/// A violation was found, or (with a breakage) none was.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.prove {
        return prove(arguments);
    }
    let mut tally = tally(arguments, arguments.breakage)?;
    if arguments.breakage.is_none() && arguments.only.is_none() {
        tally.violations.extend(flood::run()?);
        tally.violations.extend(silence::run()?);
    }
    for violation in &tally.violations {
        println!("VIOLATION {violation}");
    }
    println!(
        "crash: {} points killed at, {} violations",
        tally.trials,
        tally.violations.len()
    );
    match arguments.breakage {
        None => ensure!(tally.violations.is_empty(), "crashes left something wrong"),
        Some(breakage) => ensure!(!tally.violations.is_empty(), "{breakage:?} went unnoticed"),
    }
    Ok(())
}

/// Each deliberate breakage has to be noticed, or the trials prove nothing.
fn prove(arguments: &Arguments) -> Result<()> {
    for breakage in Breakage::ALL {
        let tally = tally(arguments, Some(breakage))?;
        let first = tally.violations.first();
        println!(
            "{breakage:?}: noticed after {} kills: {}",
            tally.trials,
            first
                .and_then(|violation| violation.lines().next())
                .unwrap_or("NOT NOTICED")
        );
        ensure!(first.is_some(), "{breakage:?} went unnoticed");
    }
    println!("crash: {} breakages, each noticed", Breakage::ALL.len());
    Ok(())
}

fn tally(arguments: &Arguments, breakage: Option<Breakage>) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut life = Life::begin(breakage)?;
    let chosen = Scenario::ALL
        .into_iter()
        .filter(|scenario| arguments.only.is_none_or(|only| only == *scenario));
    for scenario in chosen {
        let began = (tally.trials, std::time::Instant::now());
        let points = sweep(arguments, &mut life, scenario, &mut tally)?;
        if breakage.is_some() && !tally.violations.is_empty() {
            // A broken machine is not asked to stop in order.
            return Ok(tally);
        }
        println!(
            "{:<9} {points:>4} points, killed at {:>4} of them, {:.1} s",
            scenario.name(),
            tally.trials - began.0,
            began.1.elapsed().as_secs_f64()
        );
    }
    for (kind, count) in &tally.killed {
        println!("  {count:>4} × {kind}");
    }
    tally.violations.extend(judge::at_the_end(&mut life)?);
    Ok(tally)
}

/// Kills at one point after the other until a run passes the scenario's last. Returns how many there are.
fn sweep(
    arguments: &Arguments,
    life: &mut Life,
    scenario: Scenario,
    tally: &mut Tally,
) -> Result<u64> {
    let mut point = arguments.from;
    loop {
        let trial = scenario.try_at(life, point)?;
        if arguments.verbose {
            println!("{} {point}: {}", scenario.name(), trial.last_point);
        }
        for violation in trial.violations {
            tally.violations.push(format!(
                "{} at point {point} ({}): {violation}",
                scenario.name(),
                trial.last_point
            ));
        }
        if tally.violations.len() >= 20 || (life.is_broken() && !tally.violations.is_empty()) {
            return Ok(trial.points);
        }
        if !trial.killed {
            return Ok(trial.points);
        }
        tally.trials += 1;
        *tally.killed.entry(trial.last_point).or_default() += 1;
        point += arguments.stride;
    }
}
