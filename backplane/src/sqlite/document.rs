//! Versioned JSON documents, so that a later reader can tell what wrote a row.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::fault::Fault;

/// Version that is written. A reader keeps reading every version up to its own.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Written<'a, T> {
    v: u32,
    doc: &'a T,
}

/// Read before the rest, whose shape depends on it.
#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Deserialize)]
struct Read<T> {
    doc: T,
}

/// The document of `value`.
pub(super) fn write<T: Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string(&Written {
        v: VERSION,
        doc: value,
    })
    .map_err(|error| Fault::stored("value", error))
}

/// The value of a document; `what` names it for people.
pub(super) fn read<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, Fault> {
    let version: Version =
        serde_json::from_str(text).map_err(|error| Fault::stored(what, error))?;
    if version.v > VERSION {
        return Err(Fault::NewerDocument {
            found: version.v,
            known: VERSION,
        });
    }
    let read: Read<T> = serde_json::from_str(text).map_err(|error| Fault::stored(what, error))?;
    Ok(read.doc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_a_later_version_is_refused_whatever_it_holds() {
        assert_eq!(write(&7).unwrap(), r#"{"v":1,"doc":7}"#);
        assert_eq!(read::<u32>("number", r#"{"v":1,"doc":7}"#).unwrap(), 7);
        let later = read::<u32>("number", r#"{"v":2,"doc":{"other":"shape"}}"#);
        assert!(
            matches!(later, Err(Fault::NewerDocument { found: 2, known: 1 })),
            "{later:?}"
        );
        for bad in [
            "",
            "7",
            r#"{"doc":7}"#,
            r#"{"v":1}"#,
            r#"{"v":1,"doc":"x"}"#,
        ] {
            assert!(
                matches!(read::<u32>("number", bad), Err(Fault::Stored { .. })),
                "{bad}"
            );
        }
    }
}
