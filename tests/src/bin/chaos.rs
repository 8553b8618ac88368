//! `gpuhook-chaos`: see `gpuhook_tests::chaos`.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match gpuhook_tests::chaos::run(&gpuhook_tests::chaos::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
