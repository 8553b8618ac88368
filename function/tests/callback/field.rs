//! Faults that others met in the field, one file each, tried on callbacks. The records are those of
//! the field facts; each test names its own.

mod hops;

mod retries;
