//! What AWS's clocks say: the `Date` of every response, and what follows from errors about credentials.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeDeserializationInterceptorContextRef, FinalizerInterceptorContextRef,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;
use aws_smithy_types::date_time::Format;

use super::credentials::Renewing;
use crate::clock::{Clock, SystemClock};

/// No response was seen yet.
const UNKNOWN: i64 = i64::MIN;

/// By how much AWS's clock is ahead of this machine's, as the last response had it; clones share it.
#[derive(Debug, Clone)]
pub struct ServerClock {
    ahead_ms: Arc<AtomicI64>,
}

impl Default for ServerClock {
    fn default() -> Self {
        Self {
            ahead_ms: Arc::new(AtomicI64::new(UNKNOWN)),
        }
    }
}

impl ServerClock {
    /// By how much AWS's clock is ahead, to the second that `Date` has; `None` before any response.
    #[must_use]
    pub fn ahead_ms(&self) -> Option<i64> {
        let ahead_ms = self.ahead_ms.load(Ordering::Relaxed);
        (ahead_ms != UNKNOWN).then_some(ahead_ms)
    }

    /// Unix milliseconds now by AWS's clock, or by this machine's before any response.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        SystemClock
            .now_ms()
            .saturating_add(self.ahead_ms().unwrap_or(0))
    }

    fn hear(&self, date: &str) {
        let Ok(date) = aws_smithy_types::DateTime::from_str(date, Format::HttpDate) else {
            return;
        };
        let ahead_ms = date.secs().saturating_mul(1000) - SystemClock.now_ms();
        // `Date` has whole seconds: within one of them the clocks agree.
        let ahead_ms = if (-1000..=1000).contains(&ahead_ms) {
            0
        } else {
            ahead_ms
        };
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
    }
}

/// Listens to every response of a client.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) clock: ServerClock,
    pub(super) credentials: Renewing,
}

/// Error codes after which other credentials are worth a try.
const STALE_CREDENTIALS: [&str; 4] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
];

impl Intercept for Listener {
    fn name(&self) -> &'static str {
        "gpuhook-listener"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date") {
            self.clock.hear(date);
        }
        Ok(())
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(Err(error)) = context.output_or_error() else {
            return Ok(());
        };
        let text = error.as_operation_error().map(|error| format!("{error:?}"));
        let is_stale = text.is_some_and(|text| {
            STALE_CREDENTIALS
                .iter()
                .any(|code| text.contains(&format!("\"{code}\"")))
        });
        if is_stale {
            self.credentials.forget();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_of_a_response_tells_the_skew() {
        let clock = ServerClock::default();
        assert_eq!(clock.ahead_ms(), None);
        for bad in ["", "yesterday", "Wed, 21 Oct 2015 25:28:00 GMT"] {
            clock.hear(bad);
            assert_eq!(clock.ahead_ms(), None, "{bad}");
        }
        clock.hear("Wed, 21 Oct 2015 07:28:00 GMT");
        let ahead_ms = clock.ahead_ms().unwrap();
        assert!(ahead_ms < -3_000_000, "{ahead_ms}");
        let shown_s = clock.now_ms().div_euclid(1000);
        assert!((shown_s - 1_445_412_480).abs() <= 1, "{shown_s}");
        let now = aws_smithy_types::DateTime::from(std::time::SystemTime::now());
        clock.hear(&now.fmt(Format::HttpDate).unwrap());
        assert_eq!(
            clock.ahead_ms(),
            Some(0),
            "within the second that a date has"
        );
    }
}
