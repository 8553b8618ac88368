//! `gpuhook`: everything on one machine, and the tools of integrators and operators.

mod data;

mod setup;

mod up;

mod simulated_host;

mod send;

mod client;

mod webhook;

mod key;

mod rotation;

mod token;

mod host;

mod config;

mod cloud;

mod ca;

mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Webhooks in, GPU partitions out.
///
/// Start with `gpuhook up --simulate`: the whole path on this machine, no GPU and no cloud needed.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::UpArgs),
    Send(send::SendArgs),
    /// Make keys and secrets.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Make and revoke bearer tokens for the read doors.
    #[command(subcommand)]
    Token(token::TokenCommand),
    Verify(verify::VerifyArgs),
    /// Enrol, list and remove GPU hosts, and what they hold.
    #[command(subcommand)]
    Host(host::HostCommand),
    /// An authority for hosts' certificates, for IAM Roles Anywhere.
    #[command(subcommand)]
    Ca(ca::CaCommand),
    /// Check a configuration, and push it to an installation on AWS.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// The simulated host, as `up --simulate` starts it.
    #[command(hide = true)]
    Simulator(simulator::Arguments),
    /// One kernel write, in a process of its own, as the agent within `up` starts it.
    #[command(hide = true)]
    WriteAttribute(agent::attributes::WriteArguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Up(args) => up::run(&args),
        Command::Send(args) => send::run(args),
        Command::Key(command) => key::run(command),
        Command::Token(command) => token::run(command),
        Command::Verify(args) => verify::run(&args),
        Command::Host(command) => host::run(command),
        Command::Config(command) => config::run(command),
        Command::Ca(command) => ca::run(command),
        Command::Simulator(arguments) => {
            simulator::run_command(&arguments).map_err(anyhow::Error::from)
        }
        Command::WriteAttribute(arguments) => return arguments.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
