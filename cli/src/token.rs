//! `gpuhook token`: bearer tokens for the read doors, of which only hashes are configured.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Subcommand;
use events::{SourceName, TenantName};
use toml_edit::{DocumentMut, Item};
use zeroize::Zeroizing;

use crate::data::Data;
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
        /// Add the block to gpuhook.toml of this folder.
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
    },
    /// Take a token's block out of gpuhook.toml; the rest of the file stays as it is, comments included.
    Revoke {
        /// The token's name.
        name: SourceName,
        /// The folder of gpuhook.toml.
        #[arg(long, env = "GPUHOOK_DATA", default_value = ".")]
        data: PathBuf,
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
    match command {
        TokenCommand::New {
            tenant,
            name,
            roles,
            data,
        } => new(&tenant, &name, &roles, data),
        TokenCommand::Revoke { name, data } => {
            let data = Data::locate(Some(data), false)?;
            let text = read(&data)?;
            let Some(revoked) = without(&text, name.as_str())? else {
                bail!(
                    "there is no [[token]] named {name} in {}",
                    data.config().display()
                );
            };
            write(&data, &revoked)?;
            println!(
                "token {name} is revoked once the front door has read this: restart it, or `gpuhook config push`"
            );
            Ok(())
        }
    }
}

fn new(
    tenant: &TenantName,
    name: &SourceName,
    roles: &[String],
    data: Option<PathBuf>,
) -> Result<()> {
    let (token, hash) = generate()?;
    let block = block(tenant, name.as_str(), &hash, roles);
    let Some(data) = data else {
        println!("{}", token.as_str());
        eprintln!("shown once; add this to gpuhook.toml and restart:\n\n{block}");
        return Ok(());
    };
    let data = Data::locate(Some(data), false)?;
    let text = read(&data)?;
    if without(&text, name.as_str())?.is_some() {
        bail!("there is a [[token]] named {name} already; names tell tokens apart, give --name");
    }
    write(&data, &format!("{}\n\n{block}", text.trim_end()))?;
    println!("{}", token.as_str());
    eprintln!(
        "shown once; its hash is in {}; restart, or `gpuhook config push`",
        data.config().display()
    );
    Ok(())
}

fn read(data: &Data) -> Result<String> {
    let path = data.config();
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// Writes a configuration, if it is one.
fn write(data: &Data, text: &str) -> Result<()> {
    let before = read(data)?;
    data.replace("gpuhook.toml", text)?;
    if let Err(error) = function::Config::load(&data.config()) {
        data.replace("gpuhook.toml", &before)?;
        return Err(error).context("gpuhook.toml is left as it was");
    }
    Ok(())
}

/// A configuration without the token of that name; `None` if it has none.
fn without(text: &str, name: &str) -> Result<Option<String>> {
    let mut document: DocumentMut = text.parse().context("read gpuhook.toml")?;
    let Some(tokens) = document
        .get_mut("token")
        .and_then(Item::as_array_of_tables_mut)
    else {
        return Ok(None);
    };
    let before = tokens.len();
    tokens.retain(|token| token.get("name").and_then(Item::as_str) != Some(name));
    let is_gone = tokens.len() < before;
    Ok(is_gone.then(|| document.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_goes_and_everything_else_stays() {
        let text = "# Ours.\n[server]\nlisten = \"127.0.0.1:1\" # here\n\n[[token]]\nname = \"a\"\n\n# The second.\n[[token]]\nname = \"b\"\n\n[[host]]\nname = \"h\"\n";
        let left = without(text, "a").unwrap().unwrap();
        assert_eq!(
            left,
            "# Ours.\n[server]\nlisten = \"127.0.0.1:1\" # here\n\n# The second.\n[[token]]\nname = \"b\"\n\n[[host]]\nname = \"h\"\n"
        );
        assert_eq!(without(text, "c").unwrap(), None);
        assert_eq!(without("", "a").unwrap(), None);
        without("[[token", "a").unwrap_err();
    }
}
