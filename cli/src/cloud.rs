//! An installation on AWS, as operators' commands reach it: found by its stack's name, described by the
//! stack's outputs.

#[cfg(feature = "aws")]
mod installation;

#[cfg(feature = "aws")]
pub(crate) mod stack;

#[cfg(feature = "aws")]
pub(crate) mod secrets;

use anyhow::Result;
use clap::Args;

#[cfg(feature = "aws")]
pub(crate) use installation::Installation;

/// Which installation, and how to reach it.
#[derive(Debug, Clone, Args)]
pub(crate) struct InstallationArgs {
    /// Name of the installation's CloudFormation stack.
    #[arg(long, default_value = "gpuhook", env = "GPUHOOK_STACK")]
    pub(crate) stack: String,
    /// Region; the environment's or the profile's by default.
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// Profile of the shared AWS configuration.
    #[arg(long)]
    pub(crate) profile: Option<String>,
}

/// Runs what needs AWS, in a program that was built with it.
#[cfg(feature = "aws")]
pub(crate) fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    use anyhow::Context;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?
        .block_on(work)
}

/// What a program answers that was built without AWS.
#[cfg(not(feature = "aws"))]
pub(crate) fn not_built<T>() -> Result<T> {
    anyhow::bail!(
        "this gpuhook was built without AWS; build it with: cargo install --path cli --features aws"
    )
}
