//! Every key of `gpuhook.toml`, to tell the author of an unknown one where it belongs.

use std::collections::BTreeSet;

/// Keys by section; the empty section is the top.
const KEYS: [(&str, &[&str]); 9] = [
    (
        "",
        &[
            "server", "signing", "store", "policy", "source", "token", "callback", "host",
        ],
    ),
    ("server", &["listen", "max_body_bytes"]),
    ("signing", &["key_file"]),
    ("store", &["path"]),
    ("policy", &["file"]),
    (
        "source",
        &[
            "name",
            "tenant",
            "preset",
            "secrets",
            "roles",
            "default_target",
            "callbacks",
            "tolerance_s",
        ],
    ),
    ("token", &["sha256", "tenant", "name", "roles"]),
    (
        "callback",
        &["url", "secrets", "key_files", "ca_file", "allow_private"],
    ),
    ("host", &["pools", "public_key"]),
];

/// Edits that a slip of the fingers makes.
const MAX_EDITS: usize = 2;

/// What to add to "unknown key": a near name of the same section, or the section that has the key.
pub(super) fn hint(section: &str, key: &str, known: &BTreeSet<&'static str>) -> String {
    let near = known.iter().map(|known| (edits(key, known), *known)).min();
    if let Some((_, near)) = near.filter(|(edits, near)| *edits <= MAX_EDITS && *edits < near.len())
    {
        return format!("; did you mean {near}?");
    }
    let belongs = KEYS
        .iter()
        .find(|(other, keys)| *other != section && keys.contains(&key));
    match belongs {
        Some(("", _)) => format!("; [{key}] is a section of its own"),
        Some((other, _)) => format!("; it belongs in [{other}]"),
        None => String::new(),
    }
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_led_to_their_place() {
        let server = BTreeSet::from(["listen", "max_body_bytes"]);
        for (section, key, expect) in [
            ("server", "lisen", "; did you mean listen?"),
            ("server", "max_body_byte", "; did you mean max_body_bytes?"),
            ("server", "key_file", "; it belongs in [signing]"),
            ("server", "tolerance_s", "; it belongs in [source]"),
            ("server", "source", "; [source] is a section of its own"),
            ("server", "colour", ""),
        ] {
            assert_eq!(hint(section, key, &server), expect, "{key}");
        }
    }
}
