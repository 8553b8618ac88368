//! The pure heart: what to do about a command, an observation, an interrupted step. No IO here.
//!
//! ```text
//! command ── admit ──▶ Accepted ── plan ──▶ Step ─┐        Accepted -> Applying -> Succeeded
//!                          ▲         ▲            │                        └─> RollingBack -> Failed{residue}
//!                          │      observe ◀── effect       Refused, Expired only before the first step
//!                        ledger ◀── recover (after a crash)
//! ```

pub mod admit;

pub mod allocation;

pub mod place;

pub mod sharing;

pub mod choice;

pub mod layout;

pub mod plan;

pub mod recover;
