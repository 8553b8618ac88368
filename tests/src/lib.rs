//! The whole system under fire. Programs here start it as it is shipped, stand at its doors as the
//! outside world does, and compare what it says with the simulated hardware's own state.
//!
//! | program | what it does |
//! |---|---|
//! | `gpuhook-crash` | kills a real `gpuhook up` before and after every durable step, and looks what came of it |
//! | `gpuhook-chaos` | drives a machine by a seeded script while everything around it fails, then compares all stories |
//! | `gpuhook-nasty` | sends every nasty input to the front door, byte for byte, and looks for its documented answer and for traces |
//! | `gpuhook-bench` | measures, by hand and never in tests: what a cold start of a function is made of |

pub mod site;

pub mod door;

pub mod receiver;

pub mod crash;

pub mod chaos;

pub mod nasty;

pub mod bench;
