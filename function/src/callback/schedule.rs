//! When a callback is tried again, and when it is given up. Pure: time and luck are arguments.

use backplane::store::Attempt;
use ring::digest;

/// Seconds before each attempt, about 28 hours in all: attempts spread from the blip of a
/// deployment to an outage over night (Svix's schedule, with a minute put in).
pub const DELAYS_S: [i64; 9] = [0, 5, 60, 300, 1_800, 7_200, 18_000, 36_000, 36_000];

/// Attempts at a receiver that says that the request is wrong: a deployment may have broken it for
/// a minute, more does not help.
const REFUSED_ATTEMPTS: u32 = 3;

/// What was heard of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// An answer.
    Status {
        /// Its HTTP status.
        code: u16,
        /// Its `Retry-After`, in seconds from now.
        retry_after_s: Option<i64>,
    },
    /// No answer, with the reason for people.
    Nothing(String),
}

/// What follows from attempt number `attempt`, counted from 1.
#[must_use]
pub fn decide(webhook_id: &str, attempt: u32, heard: &Heard, now_ms: i64) -> Attempt {
    let (reason, retry_after_s) = match heard {
        Heard::Nothing(reason) => (reason.clone(), None),
        Heard::Status { code, .. } if (200..300).contains(code) => return Attempt::Delivered,
        Heard::Status { code: 410, .. } => {
            return Attempt::Parked("410: the receiver wants no more of these".to_owned());
        }
        Heard::Status { code, .. } if (300..400).contains(code) => {
            return Attempt::Parked(format!("{code}: redirects are not followed"));
        }
        Heard::Status {
            code,
            retry_after_s,
        } => {
            let refused = (400..500).contains(code) && !matches!(code, 408 | 425 | 429);
            if refused && attempt >= REFUSED_ATTEMPTS {
                return Attempt::Parked(format!("{code} after {attempt} attempts"));
            }
            (format!("status {code}"), *retry_after_s)
        }
    };
    let next = usize::try_from(attempt)
        .ok()
        .and_then(|index| DELAYS_S.get(index));
    match next {
        Some(base_s) => {
            let delay_ms = delay_ms(webhook_id, attempt, *base_s, retry_after_s);
            Attempt::RetryAt(now_ms.saturating_add(delay_ms), reason)
        }
        None => Attempt::Parked(format!("{reason} after {attempt} attempts")),
    }
}

/// `Retry-After` counts within one to two times the base: an answer can neither hurry us nor
/// silence us for a year.
fn delay_ms(webhook_id: &str, attempt: u32, base_s: i64, retry_after_s: Option<i64>) -> i64 {
    match retry_after_s {
        Some(asked_s) => asked_s.clamp(base_s, base_s * 2) * 1_000,
        None => jittered_ms(webhook_id, attempt, base_s),
    }
}

/// Spreads attempts evenly over ±20 %, so that what failed together does not come back together.
/// A hash in place of a random number: the same callback is due at the same time on every replay.
fn jittered_ms(webhook_id: &str, attempt: u32, base_s: i64) -> i64 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(webhook_id.as_bytes());
    context.update(&attempt.to_be_bytes());
    let hash = context.finish();
    let luck = i64::from(u16::from_be_bytes([hash.as_ref()[0], hash.as_ref()[1]]));
    base_s * 800 + base_s * 400 * luck / i64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_700_000_000_000;

    fn status(code: u16) -> Heard {
        Heard::Status {
            code,
            retry_after_s: None,
        }
    }

    #[test]
    fn each_answer_has_its_consequence() {
        for (heard, retried_until) in [
            (status(200), 0),
            (status(204), 0),
            (status(299), 0),
            (status(301), 0),
            (status(302), 0),
            (status(307), 0),
            (status(308), 0),
            (status(410), 0),
            (status(400), 2),
            (status(401), 2),
            (status(404), 2),
            (status(413), 2),
            (status(408), 8),
            (status(425), 8),
            (status(429), 8),
            (status(500), 8),
            (status(503), 8),
            (status(599), 8),
            (Heard::Nothing("connection refused".to_owned()), 8),
        ] {
            for attempt in 1..=9 {
                let decided = decide("msg_a_1", attempt, &heard, NOW_MS);
                let retried = matches!(decided, Attempt::RetryAt(..));
                assert_eq!(retried, attempt <= retried_until, "{heard:?} {attempt}");
                let delivered = matches!(heard, Heard::Status { code: 200..300, .. });
                assert_eq!(decided == Attempt::Delivered, delivered, "{heard:?}");
            }
        }
    }

    #[test]
    fn delays_follow_the_table_within_a_fifth() {
        let mut spread = std::collections::BTreeSet::new();
        for attempt in 1..=8_u32 {
            let base_s = DELAYS_S[usize::try_from(attempt).unwrap()];
            for message in 0..200 {
                let id = format!("msg_{message}_1");
                let Attempt::RetryAt(at_ms, _) = decide(&id, attempt, &status(500), NOW_MS) else {
                    panic!("attempt {attempt} is not the last")
                };
                let delay_ms = at_ms - NOW_MS;
                assert!(
                    (base_s * 800..=base_s * 1_200).contains(&delay_ms),
                    "attempt {attempt}: {delay_ms} ms"
                );
                spread.insert((delay_ms - base_s * 800) * 9 / (base_s * 400));
                let again = decide(&id, attempt, &status(500), NOW_MS);
                assert_eq!(again, Attempt::RetryAt(at_ms, "status 500".to_owned()));
            }
        }
        assert!(spread.len() >= 9, "jitter fills its range: {spread:?}");
        assert_eq!(DELAYS_S.iter().sum::<i64>() / 3_600, 27);
    }

    #[test]
    fn retry_after_counts_within_one_and_two_times_the_base() {
        for (asked_s, expect_s) in [
            (0, 60),
            (59, 60),
            (90, 90),
            (120, 120),
            (i64::MAX, 120),
            (-1, 60),
        ] {
            let heard = Heard::Status {
                code: 429,
                retry_after_s: Some(asked_s),
            };
            let decided = decide("msg_a_1", 2, &heard, NOW_MS);
            assert_eq!(
                decided,
                Attempt::RetryAt(NOW_MS + expect_s * 1_000, "status 429".to_owned()),
                "{asked_s}"
            );
        }
    }
}
