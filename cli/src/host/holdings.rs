//! `gpuhook host holdings`: what the front door knows a host to hold, signed for that host.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, Reads, SystemClock};
use clap::Args;
use events::HostName;

use crate::cloud::InstallationArgs;
use crate::data::Data;

/// Arguments of `gpuhook host holdings`.
#[derive(Debug, Args)]
pub(crate) struct HoldingsArgs {
    /// The host.
    host: HostName,
    /// The file to write; it must not exist.
    #[arg(long)]
    out: PathBuf,
    /// Data folder; the user's own data directory by default.
    #[arg(long, env = "GPUHOOK_DATA")]
    data: Option<PathBuf>,
    /// The machine of `up --simulate`.
    #[arg(long)]
    simulate: bool,
    /// What an installation on AWS knows, signed with the key of the data folder that was pushed to it.
    #[arg(long)]
    aws: bool,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Writes the statement.
pub(super) fn run(args: HoldingsArgs) -> Result<()> {
    let HoldingsArgs {
        host,
        out,
        data,
        simulate,
        aws,
        installation,
    } = args;
    let data = Data::locate(data, simulate)?;
    let config = function::Config::load(&data.config())?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let now_s = clock.now_s();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?;
    let (text, holdings) = runtime.block_on(async {
        let reads: Box<dyn Reads> = if aws {
            of_installation(&installation).await?
        } else {
            Box::new(SqliteBackplane::open(data.store_path(&config)?, clock)?)
        };
        let key = config.signing_key.as_ref().context("no signing key")?;
        let written = function::holdings::write(&*reads, key, &host, now_s).await;
        written.context("write down what the host holds")
    })?;
    std::fs::File::create_new(&out)
        .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
        .with_context(|| format!("write {}", out.display()))?;
    println!(
        "{}: {} allocations and {} open operations of {host}; on the host: gpuhook-agent rebuild {}",
        out.display(),
        holdings.allocations.len(),
        holdings.operations.len(),
        out.display()
    );
    Ok(())
}

#[cfg(feature = "aws")]
async fn of_installation(args: &InstallationArgs) -> Result<Box<dyn Reads>> {
    let installation = crate::cloud::Installation::open(args).await?;
    Ok(Box::new(installation.store()?))
}

#[cfg(not(feature = "aws"))]
async fn of_installation(args: &InstallationArgs) -> Result<Box<dyn Reads>> {
    let _ = args;
    crate::cloud::not_built()
}
