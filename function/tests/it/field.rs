//! Faults that others met in the field, one file each, tried at this door. The records are those of
//! the field facts; each test names its own.

mod unsent;

mod freshness;

mod rotation;

mod bodies;

mod secrets;

mod disclosure;
