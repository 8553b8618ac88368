//! An error with everything that caused it, in one line: neither logs nor rows keep sources.

use std::error::Error;

/// `error: its cause: the cause of that`.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
