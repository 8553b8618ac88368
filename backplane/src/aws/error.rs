//! What AWS answers, in words: code, message and request id; never what was sent.

use std::error::Error;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;

/// An error with all its sources, in one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// How sure one can be that a call had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// It was refused: no effect, and none by sending it again.
    Refused,
    /// It may have had its effect, or would have it when sent again.
    Unknown,
}

/// A failed call.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) certainty: Certainty,
    /// The service's error code, if it answered with one.
    pub(super) code: Option<String>,
    /// For people.
    pub(super) text: String,
}

impl Failed {
    /// What an SDK error means.
    pub(super) fn of<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: Error + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let Some(service) = error.as_service_error() else {
            let refused = matches!(error, SdkError::ConstructionFailure(_));
            return Self {
                certainty: if refused {
                    Certainty::Refused
                } else {
                    Certainty::Unknown
                },
                code: None,
                text: chain(error),
            };
        };
        let status = error
            .raw_response()
            .map(|response| response.status().as_u16());
        let code = service.code().map(str::to_owned);
        let is_throttled = code.as_deref().is_some_and(is_throttle);
        // 4xx is the service's verdict; anything else may pass.
        let refused = status.is_some_and(|status| (400..500).contains(&status)) && !is_throttled;
        let text = format!(
            "{} (HTTP {}): {}",
            code.as_deref().unwrap_or("no error code"),
            status.unwrap_or_default(),
            first_line(service.message().unwrap_or("no message")),
        );
        Self {
            certainty: if refused {
                Certainty::Refused
            } else {
                Certainty::Unknown
            },
            code,
            text,
        }
    }

    /// Whether the service answered with one of these codes; SQS also spells them with a prefix.
    pub(super) fn is_one_of(&self, codes: &[&str]) -> bool {
        let code = self.code.as_deref().unwrap_or_default();
        let code = code.strip_prefix("AWS.SimpleQueueService.").unwrap_or(code);
        codes.contains(&code)
    }
}

/// What a service says, as far as it is one sentence: what follows may repeat the request, whose headers
/// hold a session token.
fn first_line(message: &str) -> String {
    const LONGEST: usize = 200;
    let line = message.lines().next().unwrap_or_default();
    line.chars().take(LONGEST).collect()
}

fn is_throttle(code: &str) -> bool {
    [
        "Throttl",
        "RequestLimitExceeded",
        "TooManyRequests",
        "ProvisionedThroughputExceeded",
        "OverLimit",
    ]
    .iter()
    .any(|part| code.contains(part))
}
