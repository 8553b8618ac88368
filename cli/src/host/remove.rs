//! `gpuhook host remove`: drain a host, or end what a lost one held, then its queues and its key.

use anyhow::Result;
use clap::Args;
use events::HostName;

use crate::cloud::InstallationArgs;

/// Arguments of `gpuhook host remove`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// The host.
    host: HostName,
    /// The host is gone for good: what it held and what it had begun ends now, and callers are told.
    ///
    /// Only for a host that will never run its agent again: what it may still hold is not taken back.
    #[arg(long)]
    lost: bool,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Removes it.
#[cfg(feature = "aws")]
pub(super) fn run(args: &RemoveArgs) -> Result<()> {
    crate::cloud::run(remove(args))
}

#[cfg(feature = "aws")]
async fn remove(args: &RemoveArgs) -> Result<()> {
    use crate::cloud::{Installation, stack};
    use backplane::aws::{Removal, Removed};
    use backplane::{Clock, SystemClock};
    let installation = Installation::open(&args.installation).await?;
    let removal = if args.lost {
        Removal::Lost(function::results::owed_at_once)
    } else {
        Removal::Drained
    };
    let now_ms = SystemClock.now_ms();
    let store = installation.store()?;
    let removed = store.remove_host(&args.host, removal, now_ms).await?;
    if let Removed::Draining {
        allocations,
        operations,
    } = removed
    {
        println!(
            "host {} takes nothing new and still holds {allocations} allocations and {operations} open operations; release them and run this again, or use --lost if the host is gone for good",
            args.host
        );
        return Ok(());
    }
    let name = format!("{}-host-{}", installation.prefix()?, args.host);
    stack::remove(&installation.formation, &name).await?;
    println!("host {} is removed, and stack {name} with it", args.host);
    Ok(())
}

#[cfg(not(feature = "aws"))]
pub(super) fn run(args: &RemoveArgs) -> Result<()> {
    let _ = (&args.host, args.lost, &args.installation);
    crate::cloud::not_built()
}
