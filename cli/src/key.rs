//! `gpuhook key new`: fresh keys and secrets, written to files that only their owner can read.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use events::key::SecretKey;

use crate::data::Data;
use crate::rotation;
use crate::webhook;

/// Keys and secrets.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a fresh key: an Ed25519 pair (function, host or callback key) or a shared webhook secret.
    ///
    /// The secret goes to the file named by --out (mode 0600, never overwritten); what is printed is
    /// safe to share: the public half of a pair, or nothing but the file's name for a shared secret.
    New {
        /// What to make.
        #[arg(long, value_enum, default_value_t = Kind::Ed25519)]
        kind: Kind,
        /// The file to write; it must not exist.
        #[arg(long)]
        out: PathBuf,
    },
    /// Rotate the key that commands are signed with, step by step, with an overlap in which hosts trust
    /// both keys.
    Rotate(rotation::RotateArgs),
}

/// What kind of key to make.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Kind {
    /// `whsk_…`: signs commands, results or callbacks (Standard Webhooks v1a).
    Ed25519,
    /// `whsec_…`: shared with a webhook's sender or receiver (Standard Webhooks v1).
    Secret,
}

/// Runs a key command.
pub(crate) fn run(command: KeyCommand) -> Result<()> {
    let (kind, out) = match command {
        KeyCommand::New { kind, out } => (kind, out),
        KeyCommand::Rotate(args) => return rotation::run(&args),
    };
    let (folder, name) = (out.parent().map(PathBuf::from), out.file_name());
    let name = name
        .and_then(|name| name.to_str())
        .context("--out must name a file")?;
    let folder = folder
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or_else(|| PathBuf::from("."));
    let data = Data::locate(Some(folder), false)?;
    match kind {
        Kind::Ed25519 => {
            let key = SecretKey::generate()?;
            data.write_new(name, &format!("{}\n", key.expose().as_str()))?;
            println!("{}", key.public());
            eprintln!(
                "secret key written to {} (mode 0600); the line above is its public half",
                out.display()
            );
        }
        Kind::Secret => {
            data.write_new(name, &format!("{}\n", webhook::new_secret()?.as_str()))?;
            eprintln!(
                "secret written to {} (mode 0600); give it to the other side over a safe channel",
                out.display()
            );
        }
    }
    Ok(())
}
