//! `gpuhook host`: enrolling and removing GPU hosts, and what they hold.

mod holdings;

mod add;

mod list;

mod remove;

use anyhow::Result;
use clap::Subcommand;

/// Hosts.
#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Enrol a GPU host in an installation on AWS: its queues, its key, its agent's configuration.
    ///
    /// Deploys infra/host.yaml for it, registers its public key, writes the agent's configuration and
    /// prints one command to paste on the host. Doing it again changes what differs and nothing else.
    Add(add::AddArgs),
    /// List the hosts of an installation on AWS, and when each was last heard.
    List(list::ListArgs),
    /// Remove a host from an installation on AWS: nothing new is placed on it, and once it holds nothing,
    /// its queues and its key go.
    Remove(remove::RemoveArgs),
    /// Write down what a host holds, signed, for `gpuhook-agent rebuild` on a host whose ledger was lost.
    Holdings(holdings::HoldingsArgs),
}

/// Runs a host command.
pub(crate) fn run(command: HostCommand) -> Result<()> {
    match command {
        HostCommand::Add(args) => add::run(&args),
        HostCommand::List(args) => list::run(&args),
        HostCommand::Remove(args) => remove::run(&args),
        HostCommand::Holdings(args) => holdings::run(args),
    }
}
