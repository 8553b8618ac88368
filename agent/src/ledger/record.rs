//! Rows that are JSON: wrapped with a version, so that a later reader can tell old from new.

use rusqlite::types::Type;
use rusqlite::{Error, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Version of what is written today.
const VERSION: u32 = 1;

#[derive(serde::Serialize, serde::Deserialize)]
struct Versioned<T> {
    v: u32,
    record: T,
}

/// The text of a JSON column.
pub(super) fn write<T: Serialize>(record: &T) -> Result<String, Error> {
    serde_json::to_string(&Versioned { v: VERSION, record })
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
    let versioned: Versioned<serde_json::Value> =
        serde_json::from_str(text).map_err(|error| failed(error.into()))?;
    if versioned.v > VERSION {
        return Err(failed(
            format!("row version {} is newer than {VERSION}", versioned.v).into(),
        ));
    }
    serde_json::from_value(versioned.record).map_err(|error| failed(error.into()))
}
