//! `gpuhook config`: check a configuration's folder, and push it to an installation on AWS.

mod parts;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

#[cfg(feature = "aws")]
pub(crate) use parts::FUNCTION_KEY;

use crate::cloud::InstallationArgs;
use crate::data::Data;

/// The configuration's folder.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check gpuhook.toml, its policy, and every file that they name. All faults are reported at once.
    Check(FolderArgs),
    /// Push the folder to an installation on AWS, as secrets that each function reads its own of.
    ///
    /// The folder is checked first. What is there already is not written again; functions take a change
    /// within five minutes.
    Push {
        #[command(flatten)]
        folder: FolderArgs,
        #[command(flatten)]
        installation: InstallationArgs,
        /// Show which file would go to which secret, and write nothing.
        #[arg(long)]
        print: bool,
    },
}

/// Which folder.
#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// The folder of gpuhook.toml.
    #[arg(long, env = "GPUHOOK_DATA", default_value = ".")]
    data: PathBuf,
}

/// Runs a configuration command.
pub(crate) fn run(command: ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::Check(folder) => check(&folder).map(drop),
        ConfigCommand::Push {
            folder,
            installation,
            print,
        } => push(&check(&folder)?, &installation, print),
    }
}

/// The folder's files by the secret that they belong to, if nothing is wrong with them.
fn check(folder: &FolderArgs) -> Result<parts::Parts> {
    let data = Data::locate(Some(folder.data.clone()), false)?;
    let config = function::Config::load(&data.config())?;
    let parts = parts::Parts::of(&data)?;
    println!(
        "{}: {} sources, {} tokens, {} callbacks",
        data.config().display(),
        config.sources.len(),
        config.tokens.len(),
        config.callbacks.len()
    );
    Ok(parts)
}

fn push(parts: &parts::Parts, installation: &InstallationArgs, print: bool) -> Result<()> {
    if print {
        for (secret, files) in parts.secrets() {
            for path in files.keys() {
                println!("{}/{secret}  {path}", installation.stack);
            }
        }
        return Ok(());
    }
    write(parts, installation)
}

#[cfg(feature = "aws")]
fn write(parts: &parts::Parts, args: &InstallationArgs) -> Result<()> {
    use crate::cloud::{Installation, run, secrets};
    run(async {
        let installation = Installation::open(args).await?;
        for (name, files) in parts.secrets() {
            let written = secrets::write(&installation, name, files).await?;
            let what = if written { "written" } else { "as it was" };
            println!("{}/{name}: {what}", installation.prefix()?);
        }
        Ok(())
    })
}

#[cfg(not(feature = "aws"))]
fn write(_: &parts::Parts, _: &InstallationArgs) -> Result<()> {
    crate::cloud::not_built()
}
