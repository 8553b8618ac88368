//! Why a request is not authenticated, for the log. None of it holds any of the request's text.

use std::fmt;

/// A header that authentication reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Header {
    /// `webhook-id`.
    Id,
    /// `webhook-timestamp`.
    Timestamp,
    /// `webhook-signature`.
    Signature,
    /// `x-api-key`.
    ApiKey,
    /// `idempotency-key`.
    IdempotencyKey,
}

impl Header {
    /// Its name, lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Id => "webhook-id",
            Self::Timestamp => "webhook-timestamp",
            Self::Signature => "webhook-signature",
            Self::ApiKey => "x-api-key",
            Self::IdempotencyKey => "idempotency-key",
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a request is refused before its body is read as anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The header is not there.
    #[error("{0} is missing")]
    Missing(Header),
    /// The header is there more than once: a gateway would have joined them, another server would
    /// have taken the first, so that two readers would disagree.
    #[error("{0} is repeated")]
    Repeated(Header),
    /// The id is not 1 to 256 printable ASCII characters without spaces.
    #[error("{0} is not 1 to 256 printable ASCII characters")]
    MalformedId(Header),
    /// `a.5` at `1614265330` and `a` at `5` have one signed text if the body helps.
    #[error("webhook-id contains a dot, so that the signed text would be ambiguous")]
    DottedId,
    /// Not `^[1-9][0-9]{0,10}$`.
    #[error("webhook-timestamp is not a plain number of seconds")]
    MalformedTimestamp,
    /// Thirteen digits.
    #[error("webhook-timestamp looks like milliseconds; seconds are expected")]
    MillisecondTimestamp,
    /// Signed, and older than the tolerance.
    #[error("webhook-timestamp is {0} s old")]
    Stale(i64),
    /// Signed, and ahead by more than the tolerance.
    #[error("webhook-timestamp is {0} s ahead")]
    Future(i64),
    /// No entry of the header is well-formed under a known tag.
    #[error("webhook-signature has no well-formed v1 or v1a entry")]
    NoEntry,
    /// Well-formed entries, none of which verifies.
    #[error("no signature verifies")]
    Mismatch,
    /// No API key is this one.
    #[error("no API key matches")]
    UnknownKey,
}

impl Refusal {
    /// Whether the request is malformed, whoever sent it: answered `400` and told. Everything else
    /// is `401` and not.
    #[must_use]
    pub fn is_malformed(self) -> bool {
        matches!(
            self,
            Self::Repeated(Header::Id | Header::IdempotencyKey)
                | Self::MalformedId(_)
                | Self::DottedId
        )
    }
}
