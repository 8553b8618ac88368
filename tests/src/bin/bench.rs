//! `gpuhook-bench`: see `gpuhook_tests::bench`.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match gpuhook_tests::bench::run(&gpuhook_tests::bench::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
