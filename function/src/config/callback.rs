//! `[[callback]]`: where results go, and what signs them.

use events::key::SecretKey;

use super::document::{At, Document, Section};
use super::reference::{self, Environment};
use crate::callback::address::{AllowPrivate, Cidr};
use crate::callback::endpoint::{Endpoint, EndpointSettings};
use crate::callback::trust::Trust;
use crate::signature::secret;

/// Reads one `[[callback]]`.
pub(super) fn callback(
    document: &Document<'_>,
    section: Section<'_>,
    environment: Environment<'_>,
    trust: &Trust,
) -> Option<At<Endpoint>> {
    let at = section.at;
    let name = section.require("name", section.string("name"));
    let url = section.require("url", section.string("url"));
    let secrets = v1_keys(document, &section.strings("secrets"), environment);
    let keys = v1a_keys(document, &section.strings("key_files"));
    let ca_pem = section.string("ca_file").map(|file| {
        let pem = document.text_of(file.value);
        pem.map(String::into_bytes)
            .map_err(|why| document.fault(file.at, why))
            .ok()
    });
    let allow_private = section
        .tables("allow_private")
        .into_iter()
        .filter_map(|table| private(document, table))
        .collect();
    section.finish();
    let (name, url) = (name?, url?);
    // A file that cannot be read is a fault already; going on would report what follows from it.
    let (Some(secrets), Some(keys), None | Some(Some(_))) = (secrets, keys, &ca_pem) else {
        return None;
    };
    let settings = EndpointSettings {
        name: name.value.to_owned(),
        url: url.value.to_owned(),
        secrets,
        keys,
        ca_pem: ca_pem.flatten(),
        allow_private,
    };
    match Endpoint::new(settings, trust) {
        Ok(endpoint) => Some(At {
            value: endpoint,
            at: name.at,
        }),
        Err(error) => {
            let place = if matches!(error, crate::callback::endpoint::InvalidEndpoint::Url(_)) {
                url.at
            } else {
                at
            };
            document.fault(place, error.to_string());
            None
        }
    }
}

fn v1_keys(
    document: &Document<'_>,
    references: &[At<&str>],
    environment: Environment<'_>,
) -> Option<Vec<ring::hmac::Key>> {
    let read = |reference: &At<&str>| {
        let text = reference::read(document, reference, environment)?;
        let key = secret::v1_key(&text);
        key.map_err(|error| {
            document.fault(reference.at, format!("secret {}: {error}", reference.value))
        })
        .ok()
    };
    all(references.iter().map(read).collect())
}

fn v1a_keys(document: &Document<'_>, files: &[At<&str>]) -> Option<Vec<SecretKey>> {
    all(files
        .iter()
        .map(|file| secret_key(document, file))
        .collect())
}

/// All of them, or nothing: each failure was noted, and the rest of them is noted too.
fn all<T>(found: Vec<Option<T>>) -> Option<Vec<T>> {
    found.into_iter().collect()
}

/// Reads a `whsk_` key file.
pub(super) fn secret_key(document: &Document<'_>, file: &At<&str>) -> Option<SecretKey> {
    let text = document
        .private(file.value)
        .map_err(|why| document.fault(file.at, why))
        .ok()?;
    let key = SecretKey::parse(&text);
    key.map_err(|error| document.fault(file.at, format!("key {}: {error}", file.value)))
        .ok()
}

fn private(document: &Document<'_>, table: Section<'_>) -> Option<AllowPrivate> {
    let cidr = table.require("cidr", table.parsed::<Cidr>("cidr"));
    let port = table.require("port", table.integer("port", 1..=65_535));
    table.finish();
    let _ = document;
    Some(AllowPrivate {
        cidr: cidr?.value,
        port: u16::try_from(port?.value).ok()?,
    })
}
