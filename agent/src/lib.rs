//! The GPU host's agent: signed commands in, partitions and results out.
//!
//! ```text
//!             queue ──▶ intake ──▶ ledger ──▶ workers (one thread per GPU) ──▶ partitioner, limiter
//!                                    ▲  │        ▲
//!   results queue ◀── reporter ◀─────┼──┘        │ repairs, ended leases
//!                                    └── reconciler (looks each second) ──▶ snapshot ──▶ server
//! ```
//!
//! | task | runs on | bounded by | owns |
//! |---|---|---|---|
//! | `intake` | async task | one message at a time | acknowledging |
//! | `ledger` | whoever calls, one lock | SQLite transaction | `ledger.db` |
//! | `worker` | one thread per GPU | 256 jobs each | effects on its GPU |
//! | `reporter` | async task | 32 events at a time | the outbox's `sent` marks |
//! | `reconciler` | one thread | one look a second | the snapshot |
//! | `server` | async task | loopback | nothing |

pub mod config;

pub mod queue;

pub mod keys;

#[cfg(feature = "sqs")]
pub mod enrolment;

pub mod partitioner;

pub mod limiter;

pub mod host;

pub mod probe;

pub mod attributes;

pub mod nvml;

pub mod gpus;

mod mdev;

mod mig;

pub mod cgroup;

pub mod doctor;

pub mod operation;

pub mod ledger;

pub mod worker;

pub mod polls;

pub mod intake;

pub mod reporter;

pub mod reconciler;

pub mod server;

pub mod running;

pub use config::{Config, ConfigError};
pub use host::Host;
pub use running::{Ends, Running, StartError, start};

/// An error with all its sources: tracing's JSON would drop them.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
