//! `Prefer: wait=N` (RFC 7240): how long a caller would like to wait for final states.

use std::time::Duration;

use axum::http::HeaderMap;

/// A little under the 29 s and 30 s after which gateways give up (webhook facts §2).
const MAX_WAIT_S: u64 = 25;

/// The wait asked for, capped; none for whatever is not a plain number.
pub(super) fn wait(headers: &HeaderMap) -> Duration {
    let values = headers
        .get_all("prefer")
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split(','));
    let seconds = preferences.find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let wait = name.trim().eq_ignore_ascii_case("wait");
        wait.then(|| value.trim().trim_matches('"').parse::<u32>().ok())?
    });
    Duration::from_secs(seconds.map_or(0, |seconds| u64::from(seconds).min(MAX_WAIT_S)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_and_capped() {
        for (value, expect) in [
            ("wait=10", 10),
            ("respond-async, Wait = 5; x=y", 5),
            ("wait=\"7\"", 7),
            ("wait=100000", 25),
            ("wait=-1", 0),
            ("wait=1.5", 0),
            ("wait", 0),
            ("", 0),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", value.parse().unwrap());
            assert_eq!(wait(&headers).as_secs(), expect, "{value:?}");
        }
    }
}
