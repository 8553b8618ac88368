//! `gpuhook-crash`: see `gpuhook_tests::crash`.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match gpuhook_tests::crash::run(&gpuhook_tests::crash::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
