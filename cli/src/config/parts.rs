//! Which file of a configuration belongs to which secret. Each function is given what it needs and no
//! more: see the table in docs/cloud.md.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use events::key::SecretKey;
use toml::{Table, Value};
use zeroize::Zeroizing;

use crate::data::Data;

/// Public half of the key that signs commands, for hosts that are enrolled.
pub(crate) const FUNCTION_KEY: &str = "keys/function.whpk";

type Files = BTreeMap<String, Zeroizing<String>>;

/// The files of a folder, by secret.
pub(crate) struct Parts {
    config: Files,
    sources: Files,
    signing: Files,
    callbacks: Files,
}

impl Parts {
    /// Reads the files that a folder's gpuhook.toml names.
    pub(crate) fn of(data: &Data) -> Result<Self> {
        let text = std::fs::read_to_string(data.config()).context("read gpuhook.toml")?;
        let table: Table = text.parse().context("parse gpuhook.toml")?;
        let read = |paths: Vec<String>| -> Result<Files> {
            paths
                .into_iter()
                .map(|path| {
                    let text = std::fs::read_to_string(data.path(&path));
                    let text = text.with_context(|| format!("read {path}"))?;
                    Ok((path, Zeroizing::new(text)))
                })
                .collect()
        };
        let key_file = text_of(&table, "signing", "key_file")
            .context("gpuhook.toml has no signing.key_file")?;
        let signing = read(vec![key_file.clone()])?;
        let key = signing.get(&key_file).map(|text| SecretKey::parse(text));
        let key = key.context("the signing key was read")?;
        let key = key.with_context(|| format!("read {key_file}"))?;
        let mut config = read(text_of(&table, "policy", "file").into_iter().collect())?;
        config.insert("gpuhook.toml".to_owned(), Zeroizing::new(text.clone()));
        config.insert(
            FUNCTION_KEY.to_owned(),
            Zeroizing::new(key.public().to_string()),
        );
        // Hosts that are enrolled pin the root and begin with this keyset.
        let rooted = [crate::rotation::ROOT, crate::rotation::KEYSET];
        if rooted.iter().all(|path| data.path(path).exists()) {
            config.extend(read(rooted.map(str::to_owned).to_vec())?);
        }
        let mut of_callbacks = references(&table, "callback")?;
        for callback in tables(&table, "callback") {
            let keys = callback.get("key_files").and_then(Value::as_array);
            let keys = keys.into_iter().flatten().filter_map(Value::as_str);
            of_callbacks.extend(keys.map(str::to_owned));
            let root = callback.get("ca_file").and_then(Value::as_str);
            of_callbacks.extend(root.map(str::to_owned));
        }
        Ok(Self {
            config,
            signing,
            sources: read(references(&table, "source")?)?,
            callbacks: read(of_callbacks)?,
        })
    }

    /// Each secret's name and files.
    pub(crate) fn secrets(&self) -> [(&'static str, &Files); 4] {
        [
            ("config", &self.config),
            ("sources", &self.sources),
            ("signing", &self.signing),
            ("callbacks", &self.callbacks),
        ]
    }
}

fn text_of(table: &Table, section: &str, key: &str) -> Option<String> {
    table.get(section)?.get(key)?.as_str().map(str::to_owned)
}

fn tables<'a>(table: &'a Table, name: &str) -> impl Iterator<Item = &'a Table> {
    let list = table.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_table)
}

/// Files behind the references of `secrets`. A function has no environment of this machine.
fn references(table: &Table, name: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for section in tables(table, name) {
        let secrets = section.get("secrets").and_then(Value::as_array);
        for reference in secrets.into_iter().flatten().filter_map(Value::as_str) {
            match reference.split_once(':') {
                Some(("file", path)) => files.push(path.to_owned()),
                _ => bail!(
                    "a [[{name}]] takes a secret from the environment, which functions do not have: put it in a file of mode 0600"
                ),
            }
        }
    }
    Ok(files)
}
