//! `cargo xtask tidy`: the rules of the house that no compiler checks. Also runs as a test.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Who may see whom (crate folder, then what its `[dependencies]` may name of the house).
const ARROWS: [(&str, &[&str]); 12] = [
    ("events", &[]),
    ("placement", &["events"]),
    ("backplane", &["events"]),
    ("function", &["events", "placement", "backplane"]),
    ("lambda", &["backplane", "function"]),
    ("agent", &["events", "placement", "backplane"]),
    ("simulator", &[]),
    ("simulator/nvml", &["simulator"]),
    (
        "cli",
        &[
            "events",
            "backplane",
            "function",
            "agent",
            "simulator",
            "gpuhook-simulator-nvml",
        ],
    ),
    (
        "tests",
        &["events", "backplane", "function", "agent", "simulator"],
    ),
    ("tests/crashpoints", &[]),
    ("xtask", &[]),
];
/// Every name by which one crate of the house can name another.
const HOUSE: [&str; 8] = [
    "events",
    "placement",
    "backplane",
    "function",
    "agent",
    "simulator",
    "gpuhook-simulator-nvml",
    "gpuhook",
];

/// Lines of code in a file, tests and comments aside; beyond it the file has two jobs.
const MOST_LINES: usize = 400;
/// Lines of a function: a screen.
const MOST_FUNCTION_LINES: usize = 70;
/// Lines of ARCHITECTURE.md: a map, not a book.
const MOST_MAP_LINES: usize = 150;

/// One broken rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// File, relative to the repository, and line.
    place: String,
    /// The rule and its reason.
    rule: &'static str,
}

/// Checks the whole repository.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut found = arrows(root)?;
    for path in tracked(root)? {
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else {
            continue;
        };
        found.extend(check_file(&path, &text));
    }
    for violation in &found {
        println!("{}: {}", violation.place, violation.rule);
    }
    if found.is_empty() {
        Ok(())
    } else {
        bail!("{} rules of the house are broken", found.len())
    }
}

/// Files that git tracks or would track.
fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let list = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("run git ls-files")?;
    Ok(String::from_utf8_lossy(&list.stdout)
        .lines()
        .map(PathBuf::from)
        .collect())
}

fn arrows(root: &Path) -> Result<Vec<Violation>> {
    let mut found = Vec::new();
    for (folder, allowed) in ARROWS {
        let path = format!("{folder}/Cargo.toml");
        let text =
            std::fs::read_to_string(root.join(&path)).with_context(|| format!("read {path}"))?;
        found.extend(arrows_of(&path, &text, allowed));
    }
    Ok(found)
}

fn arrows_of(path: &str, manifest: &str, allowed: &[&str]) -> Vec<Violation> {
    let mut section = "";
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            section = line.trim();
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if section == "[dependencies]" && HOUSE.contains(&name) && !allowed.contains(&name) {
            found.push(at(
                path,
                index,
                "arrows go one way: this crate must not see that one (ARCHITECTURE.md)",
            ));
        }
    }
    found
}

fn at(path: &str, index: usize, rule: &'static str) -> Violation {
    Violation {
        place: format!("{path}:{}", index + 1),
        rule,
    }
}

fn check_file(path: &Path, text: &str) -> Vec<Violation> {
    let name = path.to_string_lossy();
    let mut found = Vec::new();
    if name == "ARCHITECTURE.md" && text.lines().count() > MOST_MAP_LINES {
        found.push(at(
            &name,
            MOST_MAP_LINES,
            "ARCHITECTURE.md has at most 150 lines: it is a map",
        ));
    }
    // Spelt apart, so that this file does not break its own rule.
    let machine = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    for (index, line) in text.lines().enumerate() {
        if machine.iter().any(|folder| names_folder(line, folder)) {
            found.push(at(
                &name,
                index,
                "no path of one machine: nobody else has it",
            ));
        }
    }
    if path.extension().is_some_and(|extension| extension == "rs") {
        found.extend(check_rust(&name, text));
    }
    found
}

/// Whether a line names an absolute folder; `dir/root/x` is not one.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        !line[..at]
            .ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '}')
    })
}

fn check_rust(name: &str, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    if !text.starts_with("//!") {
        found.push(at(
            name,
            0,
            "every file opens with //!: what lives here and what must not",
        ));
    }
    let stem = Path::new(name)
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    if [
        "mod", "utils", "util", "common", "helpers", "helper", "manager", "misc",
    ]
    .contains(&stem.as_str())
    {
        found.push(at(name, 0, "a file is named for the noun it defines"));
    }
    // What is not a test: in a file of tests nothing, elsewhere the lines before its test module.
    let is_test_file = name.contains("/tests/") || name.ends_with("/tests.rs");
    let tests_from = if is_test_file {
        0
    } else {
        text.lines()
            .position(|line| line.starts_with("#[cfg(test)]"))
            .unwrap_or(usize::MAX)
    };
    for (index, line) in text.lines().enumerate() {
        found.extend(check_words(name, index, line, index >= tests_from));
    }
    found.extend(check_sizes(name, text, tests_from));
    found
}

/// Words that must not be written, with the reason. Spelt apart, so that this file keeps its rule.
const BANNED: [(&str, &str); 4] = [
    (
        concat!("#[al", "low("),
        "expect a lint with its reason, so that it goes when it is no longer needed",
    ),
    (
        concat!("#[ig", "nore"),
        "a test that does not run proves nothing",
    ),
    (
        concat!("#[should_", "panic"),
        "assert on the error instead of any panic",
    ),
    (
        concat!("if simu", "lated"),
        "production code never knows whether hardware is simulated",
    ),
];

fn check_words(name: &str, index: usize, line: &str, in_tests: bool) -> Vec<Violation> {
    let trimmed = line.trim_start();
    // The cli starts the simulated host: there the word is the user's.
    let is_said = |word: &str| {
        trimmed.contains(word) && !(word.starts_with("if ") && name.starts_with("cli/"))
    };
    let mut found: Vec<_> = BANNED
        .iter()
        .filter(|(word, _)| is_said(word))
        .map(|(_, rule)| at(name, index, rule))
        .collect();
    let sleeps = [concat!("thread::sl", "eep"), concat!("time::sl", "eep")];
    if in_tests && sleeps.iter().any(|sleep| trimmed.contains(sleep)) {
        found.push(at(
            name,
            index,
            "tests wait for a condition with a deadline, they do not sleep",
        ));
    }
    found
}

fn check_sizes(name: &str, text: &str, tests_from: usize) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut code = 0;
    let mut function: Option<(usize, usize)> = None;
    // Tables of test cases are long and flat; only code that branches has to fit a screen.
    for (index, line) in text.lines().enumerate().take(tests_from) {
        let trimmed = line.trim_start();
        if trimmed.is_empty() || trimmed.starts_with("//") {
            continue;
        }
        code += 1;
        let indent = line.len() - trimmed.len();
        let names_function = trimmed
            .split('(')
            .next()
            .is_some_and(|head| head.split(' ').any(|word| word == "fn"));
        if names_function {
            function = Some((index, indent));
        }
        if let Some((start, _)) = function.filter(|(_, depth)| trimmed == "}" && *depth == indent) {
            if index - start > MOST_FUNCTION_LINES {
                found.push(at(name, start, "a function fits a screen: 70 lines"));
            }
            function = None;
        }
    }
    if code > MOST_LINES {
        found.push(at(
            name,
            0,
            "more than 400 lines of code: the file has two jobs",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(name: &str, text: &str) -> usize {
        check_file(Path::new(name), text).len()
    }

    #[test]
    fn the_repository_keeps_its_rules() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        run(root).unwrap();
    }

    #[test]
    fn each_rule_can_fire() {
        let long = format!("//! x\n{}", "let a = 1;\n".repeat(401));
        let function = format!("//! x\nfn f() {{\n{}}}\n", "    a();\n".repeat(71));
        for (name, text) in [
            ("a/src/b.rs", "fn f() {}\n"),
            ("a/src/utils.rs", "//! x\n"),
            ("a/src/mod.rs", "//! x\n"),
            ("a/src/b.rs", concat!("//! x\n#[al", "low(dead_code)]\n")),
            (
                "a/tests/it/b.rs",
                concat!("//! x\nstd::thread::sl", "eep(d);\n"),
            ),
            ("a/src/b.rs", concat!("//! x\nif simu", "lated {}\n")),
            ("a/src/b.rs", long.as_str()),
            ("a/src/b.rs", function.as_str()),
            ("README.md", concat!("cd /wo", "rk/main\n")),
        ] {
            assert_eq!(rules(name, text), 1, "{name}: {text:.60}");
        }
        assert_eq!(rules("a/src/b.rs", "//! x\nfn f() {}\n"), 0);
        assert_eq!(rules("ARCHITECTURE.md", &"x\n".repeat(151)), 1);
        let manifest = "[package]\nname = \"x\"\n[dependencies]\nagent.workspace = true\n[dev-dependencies]\nsimulator.workspace = true\n";
        assert_eq!(
            arrows_of("function/Cargo.toml", manifest, &["events"]).len(),
            1
        );
    }
}
