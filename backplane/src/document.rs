//! Versioned JSON documents, so that a later reader can tell what wrote a row or an item.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A document that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// It is not what it should be.
    #[error("stored {what} cannot be read")]
    Stored {
        /// Which value.
        what: &'static str,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// It was written by a later program.
    #[error("stored document has version {found}, this program reads up to {known}")]
    Newer {
        /// Its version.
        found: u32,
        /// The highest that this program knows.
        known: u32,
    },
}

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
pub(crate) fn write<T: Serialize>(value: &T) -> Result<String, DocumentError> {
    serde_json::to_string(&Written {
        v: VERSION,
        doc: value,
    })
    .map_err(|source| DocumentError::Stored {
        what: "value",
        source,
    })
}

/// The value of a document; `what` names it for people.
pub(crate) fn read<T: DeserializeOwned>(
    what: &'static str,
    text: &str,
) -> Result<T, DocumentError> {
    let stored = |source| DocumentError::Stored { what, source };
    let version: Version = serde_json::from_str(text).map_err(stored)?;
    if version.v > VERSION {
        return Err(DocumentError::Newer {
            found: version.v,
            known: VERSION,
        });
    }
    let read: Read<T> = serde_json::from_str(text).map_err(stored)?;
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
            matches!(later, Err(DocumentError::Newer { found: 2, known: 1 })),
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
                matches!(
                    read::<u32>("number", bad),
                    Err(DocumentError::Stored { .. })
                ),
                "{bad}"
            );
        }
    }
}
