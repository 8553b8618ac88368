//! Preloaded (`LD_PRELOAD`) into an unmodified program: every step by which that program changes
//! something that outlives it passes here, is numbered, and can be its last.
//!
//! Steps are the C library's own calls, so that nothing can be forgotten by decorating too little:
//! `fdatasync`/`fsync` of a file below the data folder (each is a commit of the ledger or the
//! backplane), `mkdir`/`rmdir`/`write` below the control-group mount, an attribute write to the
//! simulated kernel, and bytes to the network (the 202, a callback). Each is a point before and a point
//! after. At the chosen point the process dies by SIGKILL, and what it had not synced is taken back
//! first, as a power cut would.
//!
//! The driver and the program share one mapped file (`control.rs`); wall time is shifted there too, so
//! that leases and visibility timeouts can run out without waiting.
#![expect(
    unsafe_code,
    reason = "interposes the C library: exported symbols, raw system calls"
)]

mod calls;

mod control;

mod durable;

mod point;
