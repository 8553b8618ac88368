//! References to secrets: `file:PATH` or `env:NAME`. Secrets never stand in the configuration itself.

use zeroize::Zeroizing;

use super::document::{At, Document};

/// Looks up an environment variable; injected, since a test process has one environment for all.
pub type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Reads what `reference` names, noting why not.
pub(super) fn read(
    document: &Document<'_>,
    reference: &At<&str>,
    environment: Environment<'_>,
) -> Option<Zeroizing<String>> {
    let found = match reference.value.split_once(':') {
        Some(("file", path)) => document.private(path),
        Some(("env", name)) => environment(name)
            .map(Zeroizing::new)
            .ok_or_else(|| format!("environment variable {} is not set", shown(name))),
        // The text may be the secret itself, so it is not repeated.
        _ => Err("a secret must be a reference, file:PATH or env:NAME; secrets do not belong in this file".to_owned()),
    };
    found.map_err(|why| document.fault(reference.at, why)).ok()
}

/// A name as it may be repeated: who writes `file:whsec_…` pasted the secret where its file's name
/// belongs.
pub(super) fn shown(name: &str) -> &str {
    if name.contains("whsec_") || name.contains("whsk_") {
        "(not repeated, since it looks like the secret itself)"
    } else {
        name
    }
}
