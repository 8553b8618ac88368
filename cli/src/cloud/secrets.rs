//! The installation's secrets: each a JSON object of paths and texts of the configuration's files.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use aws_sdk_secretsmanager::Client;
use aws_sdk_secretsmanager::error::DisplayErrorContext;
use zeroize::Zeroizing;

use super::Installation;

/// Files by their paths relative to the configuration's folder.
pub(crate) type Files = BTreeMap<String, Zeroizing<String>>;

/// Reads one of the installation's secrets: `config`, `sources`, `signing` or `callbacks`.
pub(crate) async fn read(installation: &Installation, name: &str) -> Result<Files> {
    let id = format!("{}/{name}", installation.prefix()?);
    let client = Client::new(installation.aws.sdk_config());
    let got = client.get_secret_value().secret_id(&id).send().await;
    let got = got
        .map_err(|error| anyhow::anyhow!("{}", DisplayErrorContext(&error)))
        .with_context(|| format!("read secret {id}"))?;
    let text = Zeroizing::new(got.secret_string.unwrap_or_default());
    serde_json::from_str(&text)
        .ok()
        .with_context(|| format!("secret {id} is not a JSON object of paths and texts"))
}

/// Writes one of them, unless it holds just that. Whether it was written.
pub(crate) async fn write(installation: &Installation, name: &str, files: &Files) -> Result<bool> {
    if read(installation, name)
        .await
        .is_ok_and(|held| held == *files)
    {
        return Ok(false);
    }
    let id = format!("{}/{name}", installation.prefix()?);
    let client = Client::new(installation.aws.sdk_config());
    let text = Zeroizing::new(serde_json::to_string(files)?);
    let put = client
        .put_secret_value()
        .secret_id(&id)
        .secret_string(text.as_str());
    put.send()
        .await
        .map_err(|error| anyhow::anyhow!("{}", DisplayErrorContext(&error)))
        .with_context(|| format!("write secret {id}"))?;
    Ok(true)
}
