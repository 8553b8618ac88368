//! Nasty inputs: every row of the table of inputs that a public webhook endpoint gets sooner or
//! later, sent byte for byte over TCP to a front door that runs as `gpuhook up` runs it. Each answer
//! is compared with the documented one, and queue, operations, allocations and deliveries are
//! compared before and after: what is refused must leave no trace.
//!
//! Rows keep the numbers of that table (webhook facts §10). What is missing is not HTTP's: 55 and 56
//! are about Lambda events, 58 about the edge in front.

mod machine;

mod outage;

mod rows;

mod sender;

mod table;

mod trial;

mod wire;

use anyhow::{Result, ensure};
use clap::Parser;

use machine::Machine;
use rows::Row;
use trial::{Strangers, Trial, Verdict};

/// Send every nasty input to a real front door, and check its answer and that it left no trace.
#[derive(Debug, Parser)]
#[command(name = "gpuhook-nasty")]
pub struct Arguments {
    /// Only this row.
    #[arg(long)]
    only: Option<u8>,
    /// Print every case of every row.
    #[arg(long)]
    verbose: bool,
    /// Expect the wrong things, and fail unless each is noticed.
    #[arg(long, conflicts_with_all = ["only", "verbose"])]
    prove: bool,
}

/// A row and what came of its cases.
#[derive(Clone)]
struct Tried {
    row: &'static Row,
    verdicts: Vec<Verdict>,
}

/// Tries the rows and prints them as a table.
///
/// # Errors
/// Something was answered otherwise than it should be, or left a trace; or no door could be started.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.prove {
        return rows::proof::run();
    }
    let chosen = |row: &&Row| arguments.only.is_none_or(|only| only == row.number);
    // The slow row waits for the door's real deadlines, beside the others and at a door of its own.
    let (slow, quick): (Vec<&Row>, Vec<&Row>) =
        rows::all().filter(chosen).partition(|row| row.is_slow);
    ensure!(
        !slow.is_empty() || !quick.is_empty(),
        "there is no such row"
    );
    let mut tried = std::thread::scope(|scope| {
        let slow = scope.spawn(|| try_rows(&slow));
        let quick = try_rows(&quick);
        let slow = slow.join().expect("a trial records its failures");
        quick.and_then(|quick| Ok([quick, slow?].concat()))
    })?;
    tried.sort_by_key(|tried| tried.row.number);
    table::print(&tried, arguments.verbose);
    let cases = tried
        .iter()
        .map(|tried| tried.verdicts.len())
        .sum::<usize>();
    let wrong = tried
        .iter()
        .flat_map(|tried| &tried.verdicts)
        .filter(|verdict| !verdict.faults.is_empty())
        .count();
    println!("nasty: {} rows, {cases} cases, {wrong} wrong", tried.len());
    ensure!(wrong == 0, "{wrong} cases are not as documented");
    Ok(())
}

fn try_rows(rows: &[&'static Row]) -> Result<Vec<Tried>> {
    let mut machine = Machine::start()?;
    let mut strangers = Strangers::new();
    let mut tried = Vec::new();
    for row in rows {
        tried.push(try_row(row, &mut machine, &mut strangers));
    }
    Ok(tried)
}

fn try_row(row: &'static Row, machine: &mut Machine, strangers: &mut Strangers) -> Tried {
    let mut trial = Trial {
        machine,
        strangers,
        verdicts: Vec::new(),
    };
    if let Err(error) = (row.run)(&mut trial) {
        let fault = vec!["the row was not tried to its end".to_owned()];
        trial.observed(
            "the trial itself",
            "no failure",
            format!("{error:#}"),
            fault,
        );
    }
    Tried {
        row,
        verdicts: trial.verdicts,
    }
}
