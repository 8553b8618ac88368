//! `cargo xtask crash` and its like: programs of the `tests` crate, built with everything that they
//! start, and run.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::ci::{cargo, shell, target};

/// Arguments that the program itself takes.
#[derive(Debug, Args)]
pub(crate) struct FireArgs {
    /// Passed on; `-- --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl FireArgs {
    /// As they were given.
    pub(crate) fn arguments(&self) -> &[String] {
        &self.arguments
    }
}

/// Builds the workspace and runs one of its programs.
pub(crate) fn run(root: &Path, program: &str, args: &FireArgs) -> Result<()> {
    cargo(root, &["build", "--workspace", "--all-features", "--quiet"])?;
    let arguments: Vec<_> = args.arguments.iter().map(String::as_str).collect();
    start(root, program, &arguments)
}

/// The long forms: ten thousand random operations, and every point of every crash scenario; a minute without queue and
/// table in the middle of a thousand operations; then what is deployed.
pub(crate) fn nightly(root: &Path) -> Result<()> {
    cargo(root, &["build", "--workspace", "--all-features", "--quiet"])?;
    start(
        root,
        "gpuhook-chaos",
        &["--seeds", "200", "--first", "1000"],
    )?;
    start(root, "gpuhook-crash", &[])?;
    start(root, "gpuhook-crash", &["--prove"])?;
    crate::ci::long_outage(root)?;
    crate::infra::deployable(root)
}

/// Builds what a benchmark measures, as it is packaged, and runs it.
pub(crate) fn bench(root: &Path, args: &FireArgs) -> Result<()> {
    let package = [
        "--package",
        "gpuhook-lambda",
        "--bins",
        "--example",
        "hello",
        "--quiet",
    ];
    cargo(root, &[&["build", "--release"][..], &package].concat())?;
    cargo(root, &["build", "--package", "gpuhook-tests", "--quiet"])?;
    let built = target(root).join("release");
    let (functions, hello) = (
        built.display().to_string(),
        built.join("examples/hello").display().to_string(),
    );
    let mut arguments: Vec<_> = args.arguments.iter().map(String::as_str).collect();
    if arguments.first() == Some(&"coldstart") {
        arguments.extend(["--functions", &functions, "--hello", &hello]);
    }
    start(root, "gpuhook-bench", &arguments)
}

/// Runs a program that was built before.
pub(crate) fn start(root: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    let path = target(root).join("debug").join(program);
    shell(Command::new(path).current_dir(root).args(arguments))
}
