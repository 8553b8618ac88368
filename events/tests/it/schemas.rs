//! The committed JSON Schemas are what the types say.
//! `UPDATE_GOLDEN=1 cargo test -p gpuhook-events` writes them anew.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::here;

#[test]
fn committed_schemas_match_the_types() {
    for (name, schema) in events::schema::all() {
        let path = here("schemas").join(name);
        let text = serde_json::to_string_pretty(&sorted(schema.to_value())).unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == text,
            "{} differs from the types; run with UPDATE_GOLDEN=1",
            path.display()
        );
    }
}

/// Keys in order, whatever order the JSON library keeps: another crate of the build may choose it.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let entries: BTreeMap<_, _> = map
                .into_iter()
                .map(|(key, value)| (key, sorted(value)))
                .collect();
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[test]
fn every_committed_schema_is_still_published() {
    let known: Vec<_> = events::schema::all()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    for entry in std::fs::read_dir(here("schemas")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            known.contains(&name.as_str()),
            "schemas/{name} is published by nothing"
        );
    }
}
