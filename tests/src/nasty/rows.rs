//! The rows, in rooms by what of a request is nasty.

mod signatures;

mod identity;

mod carriers;

mod framing;

mod slow;

mod bodies;

mod places;

mod deliveries;

mod trouble;

pub(super) mod proof;

use anyhow::Result;

use super::trial::Trial;

/// One row.
pub(super) struct Row {
    /// Its number in the table (webhook facts §10).
    pub(super) number: u8,
    /// What is sent.
    pub(super) input: &'static str,
    /// The documented answer.
    pub(super) expected: &'static str,
    /// Whether it waits for deadlines.
    pub(super) is_slow: bool,
    /// Tries its cases.
    pub(super) run: fn(&mut Trial<'_>) -> Result<()>,
}

/// Every row, by number.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    [
        signatures::ROWS,
        identity::ROWS,
        carriers::ROWS,
        framing::ROWS,
        slow::ROWS,
        bodies::ROWS,
        places::ROWS,
        deliveries::ROWS,
        trouble::ROWS,
    ]
    .into_iter()
    .flatten()
}

const fn row(
    number: u8,
    input: &'static str,
    expected: &'static str,
    run: fn(&mut Trial<'_>) -> Result<()>,
) -> Row {
    Row {
        number,
        input,
        expected,
        is_slow: false,
        run,
    }
}
