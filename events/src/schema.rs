//! JSON Schemas of everything that travels; committed under `schemas/` and drift-tested.

use schemars::{Schema, schema_for};

/// Every published schema by file name.
#[must_use]
pub fn all() -> Vec<(&'static str, Schema)> {
    vec![
        ("operation.json", schema_for!(crate::operation::Operation)),
        ("command.json", schema_for!(crate::command::Command)),
        ("holdings.json", schema_for!(crate::holdings::Holdings)),
        ("keyset.json", schema_for!(crate::keyset::Keyset)),
        ("result.json", schema_for!(crate::result::ResultEvent)),
        ("envelope.json", schema_for!(crate::envelope::Envelope)),
        (
            "inventory.json",
            schema_for!(crate::inventory::HostInventory),
        ),
    ]
}
