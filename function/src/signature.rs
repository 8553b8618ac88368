//! Who sent a webhook: signatures over the exact bytes received, and API keys.
//!
//! Reasons are precise here and end in the log; a stranger gets one answer for all of them. Nothing
//! in this module parses a body or re-renders a header (webhook facts §0.1).

pub mod secret;

pub mod standard;

pub mod api_key;

pub mod refusal;

pub use api_key::ApiKey;
pub use refusal::{Header, Refusal};
pub use secret::{SecretError, WebhookSecret};
