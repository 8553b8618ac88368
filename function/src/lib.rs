//! The front door: verifies webhooks, accepts operations, settles results, posts callbacks.
//!
//! ```text
//! door -> signature -> intake -> plan (policy, placement) -> Store::accept -> dispatch -> host's queue
//! results queue -> results -> Store::settle -> sweep -> callback
//! ```
//! Knows queue and store by their traits only, and hosts by what they sign.

pub mod app;

pub mod config;

pub mod door;

mod problem;

pub mod signature;

mod intake;

mod plan;

pub mod policy;

pub mod dispatch;

pub mod holdings;

pub mod changes;

pub mod serve;

mod framing;

pub mod results;

pub mod callback;

pub mod sweep;

mod shutdown;

mod causes;

pub use app::{App, AppError, Backplane};
pub use config::Config;
pub use dispatch::Dispatcher;
pub use door::router;
pub use serve::serve;
