//! Rows that are JSON: wrapped with a version, so that a later reader can tell old from new.

use rusqlite::types::Type;
use rusqlite::{Error, Row};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of what is written today.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Written<'a, T> {
    v: u32,
    record: &'a T,
}

/// Read before the rest, whose shape depends on it.
#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Deserialize)]
struct Read<T> {
    record: T,
}

/// A later program wrote the row.
#[derive(Debug, thiserror::Error)]
#[error(
    "stored record has version {found}, this program reads up to {VERSION}: use the newer program"
)]
struct NewerRecord {
    found: u32,
}

/// The text of a JSON column.
pub(super) fn write<T: Serialize>(record: &T) -> Result<String, Error> {
    serde_json::to_string(&Written { v: VERSION, record })
        .map_err(|error| Error::ToSqlConversionFailure(error.into()))
}

/// Reads JSON column number `column`. A row of a newer version is an error, never a default.
pub(super) fn read<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T, Error> {
    let text: String = row.get(column)?;
    parse(&text, column)
}

fn parse<T: DeserializeOwned>(text: &str, column: usize) -> Result<T, Error> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::FromSqlConversionFailure(column, Type::Text, error)
    };
    let Version { v: found } = serde_json::from_str(text).map_err(|error| failed(error.into()))?;
    if found > VERSION {
        return Err(failed(NewerRecord { found }.into()));
    }
    let read: Read<T> = serde_json::from_str(text).map_err(|error| failed(error.into()))?;
    Ok(read.record)
}
