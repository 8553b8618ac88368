//! `samples/`: valid operations parse, invalid ones do not, and messages of every earlier version
//! stay readable for ever.

use events::json::parse_object;
use events::{Command, Operation, ResultEvent};
use serde_json::Value;

use crate::here;

fn each(folder: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(here(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                std::fs::read(&path).unwrap(),
            )
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} is empty");
    files
}

fn operation(bytes: &[u8]) -> Result<Operation, String> {
    let object = parse_object(bytes).map_err(|error| error.to_string())?;
    Operation::from_value(Value::Object(object)).map_err(|problems| format!("{problems:?}"))
}

#[test]
fn valid_samples_parse() {
    for (name, bytes) in each("samples/valid") {
        operation(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn invalid_samples_are_refused() {
    for (name, bytes) in each("samples/invalid") {
        assert!(operation(&bytes).is_err(), "{name} was accepted");
    }
}

#[test]
fn messages_of_earlier_versions_stay_readable() {
    for (name, bytes) in each("samples/old") {
        let read = if name.starts_with("command") {
            serde_json::from_slice::<Command>(&bytes).map(|_| ())
        } else {
            serde_json::from_slice::<ResultEvent>(&bytes).map(|_| ())
        };
        read.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
