//! The table as people read it.

use super::Tried;
use super::trial::Verdict;

/// Prints a line per row, with its worst case; every case where asked for.
pub(super) fn print(tried: &[Tried], verbose: bool) {
    for Tried { row, verdicts } in tried {
        let wrong: Vec<_> = verdicts
            .iter()
            .filter(|one| !one.faults.is_empty())
            .collect();
        let verdict = if wrong.is_empty() { "ok" } else { "WRONG" };
        println!("{:>2}  {verdict:<5}  {}", row.number, row.input);
        println!("           expected: {}", row.expected);
        println!("           seen:     {}", seen(verdicts));
        let shown = if verbose {
            verdicts.iter().collect()
        } else {
            wrong
        };
        shown.into_iter().for_each(print_case);
    }
}

fn print_case(verdict: &Verdict) {
    let Verdict {
        name,
        expected,
        seen,
        faults,
    } = verdict;
    let word = if faults.is_empty() { "ok" } else { "WRONG" };
    println!("      {word:<5}  {name}: expected {expected}, seen {seen}");
    for fault in faults {
        println!("             {fault}");
    }
}

/// What was seen, and how often each.
fn seen(verdicts: &[Verdict]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for verdict in verdicts {
        match counts.iter_mut().find(|(seen, _)| *seen == verdict.seen) {
            Some((_, count)) => *count += 1,
            None => counts.push((&verdict.seen, 1)),
        }
    }
    let times = |(seen, count): (&str, usize)| match count {
        1 => seen.to_owned(),
        count => format!("{seen} ({count}x)"),
    };
    counts.into_iter().map(times).collect::<Vec<_>>().join("; ")
}
