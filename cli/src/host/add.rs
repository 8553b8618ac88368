//! `gpuhook host add`: a host's queues, its key, its agent's configuration.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use events::{HostName, PoolName};

use crate::cloud::InstallationArgs;

/// Arguments of `gpuhook host add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The host's name: 1 to 52 of a-z, 0-9 and -.
    pub(super) host: HostName,
    /// A pool that it belongs to; may be repeated.
    #[arg(long = "pool", required = true)]
    pub(super) pools: Vec<PoolName>,
    /// Public key of the host, as `gpuhook-agent enrol` or `gpuhook key new` printed it there. Without it
    /// a key is made here, and the command to paste carries it.
    #[arg(long, value_name = "WHPK")]
    pub(super) public_key: Option<String>,
    /// Folder for the host's files.
    #[arg(long, default_value = ".")]
    pub(super) out: PathBuf,
    /// Who else may send to the host's queue, besides the functions: a role's ARN. The caller's own by
    /// default, so that `gpuhook key rotate` reaches it.
    #[arg(long, value_name = "ARN")]
    pub(super) operator: Option<String>,
    /// SNS topic for the host's alarms.
    #[arg(long, value_name = "ARN")]
    pub(super) alarm_topic: Option<String>,
    /// Show what would be created, and create nothing.
    #[arg(long)]
    pub(super) print: bool,
    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

/// Enrols the host.
#[cfg(feature = "aws")]
pub(super) fn run(args: &AddArgs) -> Result<()> {
    crate::cloud::run(enrolment::enrol(args))
}

#[cfg(not(feature = "aws"))]
pub(super) fn run(args: &AddArgs) -> Result<()> {
    let _ = args;
    crate::cloud::not_built()
}

#[cfg(feature = "aws")]
mod enrolment;
