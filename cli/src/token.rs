//! `gpuhook token new`: a bearer token for the read doors, of which only the hash is configured.

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Subcommand;
use events::{SourceName, TenantName};
use zeroize::Zeroizing;

use crate::webhook;

/// Bearer tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it once, with the block to add to gpuhook.toml.
    New {
        /// The tenant whose operations, allocations and hosts the token may read.
        #[arg(long)]
        tenant: TenantName,
        /// A name for it, to tell tokens apart later.
        #[arg(long, default_value = "token")]
        name: SourceName,
        /// A role, for tokens that may also release (DELETE /v1/allocations/{key}); may be repeated.
        #[arg(long = "role")]
        roles: Vec<String>,
    },
}

/// A fresh token and the hash to configure.
pub(crate) fn generate() -> Result<(Zeroizing<String>, String)> {
    let token = Zeroizing::new(format!(
        "gpht_{}",
        URL_SAFE_NO_PAD.encode(webhook::random::<32>()?.as_slice())
    ));
    let hash = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    Ok((token, hex::encode(hash)))
}

/// The block for gpuhook.toml.
pub(crate) fn block(tenant: &TenantName, name: &str, hash: &str, roles: &[String]) -> String {
    let roles = match roles {
        [] => String::new(),
        roles => format!("roles = {}\n", toml::Value::from(roles.to_vec())),
    };
    format!("[[token]]\ntenant = \"{tenant}\"\nname = \"{name}\"\nsha256 = \"{hash}\"\n{roles}")
}

/// Runs a token command.
pub(crate) fn run(command: TokenCommand) -> Result<()> {
    let TokenCommand::New {
        tenant,
        name,
        roles,
    } = command;
    let (token, hash) = generate()?;
    println!("{}", token.as_str());
    eprintln!(
        "shown once; add this to gpuhook.toml and restart:\n\n{}",
        block(&tenant, name.as_str(), &hash, &roles)
    );
    Ok(())
}
