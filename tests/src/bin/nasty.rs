//! `gpuhook-nasty`: see `gpuhook_tests::nasty`.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match gpuhook_tests::nasty::run(&gpuhook_tests::nasty::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
