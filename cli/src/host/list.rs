//! `gpuhook host list`: the hosts of an installation.

use anyhow::Result;
use clap::Args;

use crate::cloud::InstallationArgs;

/// Arguments of `gpuhook host list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Lists them.
#[cfg(feature = "aws")]
pub(super) fn run(args: &ListArgs) -> Result<()> {
    use crate::cloud::{Installation, run};
    use backplane::Reads;
    let hosts = run(async {
        let installation = Installation::open(&args.installation).await?;
        Ok(installation.store()?.hosts().await?)
    })?;
    let rows: Vec<_> = hosts.iter().map(row).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    if rows.is_empty() {
        println!("no hosts: `gpuhook host add NAME --pool POOL` enrols one");
    }
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or("never").to_owned();
        println!(
            "{:<20} pools {:<20} {} GPUs, {} partitions, {} reserved, last heard {}{}",
            text("host"),
            text("pools"),
            row["gpus"],
            row["partitions"],
            row["reserved"],
            text("last_heard_at"),
            if row["cordoned"] == true {
                ", being removed"
            } else {
                ""
            }
        );
    }
    Ok(())
}

#[cfg(feature = "aws")]
fn row(view: &backplane::store::HostView) -> serde_json::Value {
    let gpus = view
        .inventory
        .as_ref()
        .map(|inventory| &inventory.gpus[..])
        .unwrap_or_default();
    let heard = view
        .heard_at_ms
        .and_then(|at_ms| jiff::Timestamp::from_millisecond(at_ms).ok());
    let pools: Vec<_> = view.record.pools.iter().map(ToString::to_string).collect();
    serde_json::json!({
        "host": view.record.host,
        "pools": pools.join(","),
        "gpus": gpus.len(),
        "partitions": gpus.iter().map(|gpu| gpu.partitions.len()).sum::<usize>(),
        "reserved": view.reserved.len(),
        "last_heard_at": heard.map(|at| at.to_string()),
        "cordoned": view.cordoned,
    })
}

#[cfg(not(feature = "aws"))]
pub(super) fn run(args: &ListArgs) -> Result<()> {
    let _ = (args.json, &args.installation);
    crate::cloud::not_built()
}
