//! Where an allocation goes: observed inventory and reservations in, host, GPU and profile out.
//!
//! Pure: no IO, no clock, no randomness. [`geometry`] knows what still fits on one GPU, [`place`]
//! takes the first GPU, in the order given, on which the whole request fits. Ranking comes later,
//! behind the same door.

pub mod geometry;

pub mod slices;
mod unplaceable;

mod first_fit;

pub use first_fit::{Candidate, Placement, place, smallest_profile};
pub use unplaceable::{Class, GpuRefusal, Refusal, Unplaceable};
