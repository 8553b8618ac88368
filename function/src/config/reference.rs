//! References to secrets: `file:PATH` or `env:NAME`. Secrets never stand in the configuration itself.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use zeroize::Zeroizing;

use super::document::{At, Document};
use crate::signature::secret::in_file;

/// Bytes of the longest secret file; keys and secrets have about a hundred.
const MAX_BYTES: u64 = 4096;

/// Looks up an environment variable; injected, since a test process has one environment for all.
pub type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Reads what `reference` names, noting why not.
pub(super) fn read(
    document: &Document<'_>,
    reference: &At<&str>,
    environment: Environment<'_>,
) -> Option<Zeroizing<String>> {
    let found = match reference.value.split_once(':') {
        Some(("file", path)) => read_private(&document.resolve(path)),
        Some(("env", name)) => environment(name)
            .map(Zeroizing::new)
            .ok_or_else(|| format!("environment variable {} is not set", shown(name))),
        // The text may be the secret itself, so it is not repeated.
        _ => Err("a secret must be a reference, file:PATH or env:NAME; secrets do not belong in this file".to_owned()),
    };
    found.map_err(|why| document.fault(reference.at, why)).ok()
}

/// Reads a file that only its owner may read; one line break at its end does not count.
pub(super) fn read_private(path: &Path) -> Result<Zeroizing<String>, String> {
    let name = path.display().to_string();
    let name = shown(&name);
    let failed = |what: &str, error: &std::io::Error| format!("{what} {name}: {error}");
    let file = std::fs::File::open(path).map_err(|error| failed("cannot open", &error))?;
    let about = file
        .metadata()
        .map_err(|error| failed("cannot look at", &error))?;
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "{name} may be read by others (mode {mode:04o}): chmod 600 it"
        ));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| failed("cannot read", &error))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!(
            "{name} is larger than {MAX_BYTES} bytes: not a secret"
        ));
    }
    Ok(Zeroizing::new(in_file(&text).to_owned()))
}

/// A name as it may be repeated: who writes `file:whsec_…` pasted the secret where its file's name
/// belongs.
fn shown(name: &str) -> &str {
    if name.contains("whsec_") || name.contains("whsk_") {
        "(not repeated, since it looks like the secret itself)"
    } else {
        name
    }
}
