//! The functions on AWS Lambda: adapters between Lambda's events and the rooms of `function`, and what
//! each function starts with. There is no decision about webhooks, results or hosts in here.
//!
//! ```text
//! HTTP API -> bin webhook -> gateway -> function::door        bin sweep   -> function::sweep (operations)
//! results queue -> bin results -> records -> function::results  bin deliver -> function::sweep (callbacks)
//! ```
//! Everything that can be made before the first event is: clients, TLS, configuration, policy.

pub mod environment;

pub mod gateway;

pub mod records;

pub mod secrets;

pub mod door;

pub mod results;

pub mod deliver;

pub mod sweep;

pub mod run;
