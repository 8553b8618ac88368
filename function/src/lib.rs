//! The front door: verifies webhooks, accepts operations, settles results, posts callbacks.

pub mod config;

pub mod signature;

pub mod policy;

pub mod callback;

pub mod results;

pub mod sweep;

mod shutdown;

mod causes;
