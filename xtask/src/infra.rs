//! What is deployed, without deploying it: templates, permissions and CDK constructs in the test command;
//! AWS's own builders, which weigh a gigabyte, in `cargo xtask deployable`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::ci::{found, install_python, shell, target, venv_python};
use crate::package::ARCHITECTURES;

/// The CDK's command line; the constructs themselves are pinned in `infra/cdk/package-lock.json`.
const CDK_CLI: &str = "aws-cdk@2.1148.1";

/// Functions of the template, and the programs that they run.
const FUNCTIONS: [&str; 4] = [
    "WebhookFunction",
    "ResultsFunction",
    "DeliverFunction",
    "SweepFunction",
];

fn cdk(root: &Path) -> PathBuf {
    target(root).join("cdk")
}

/// Installs the CDK beside everything else that is built, once per lock file.
pub(crate) fn prepare(root: &Path) -> Result<()> {
    if !found("npm") {
        println!("    npm is missing: the tests of infra/cdk will say that they are skipped");
        return Ok(());
    }
    let folder = cdk(root);
    let installed = folder.join("installed.json");
    let lock = std::fs::read(root.join("infra/cdk/package-lock.json"))
        .context("read infra/cdk/package-lock.json")?;
    if std::fs::read(&installed).is_ok_and(|before| before == lock) {
        return Ok(());
    }
    std::fs::create_dir_all(&folder)?;
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(root.join("infra/cdk").join(name), folder.join(name))?;
    }
    shell(Command::new("npm").current_dir(&folder).args([
        "ci",
        "--omit=optional",
        "--no-audit",
        "--no-fund",
        "--silent",
    ]))?;
    std::fs::write(installed, lock).context("note which packages are installed")
}

/// Runs `tests/infra`.
pub(crate) fn test(root: &Path) -> Result<()> {
    let mut run = Command::new(venv_python(root));
    run.current_dir(root).args([
        "-B",
        "-m",
        "unittest",
        "discover",
        "--start-directory",
        "tests/infra",
    ]);
    if cdk(root).join("installed.json").exists() {
        run.env("GPUHOOK_CDK", cdk(root));
    }
    shell(&mut run)
}

/// Builds and synthesises as somebody does who deploys: `sam validate`, `sam build` for both
/// architectures, `cdk synth`.
pub(crate) fn deployable(root: &Path) -> Result<()> {
    prepare(root)?;
    test(root)?;
    let tools = target(root).join("venv-sam");
    install_python(
        &tools,
        &[&root.join("tests/infra/requirements-nightly.txt")],
    )?;
    shell(sam(root, &tools)?.args(["validate", "--lint"]))?;
    for (architecture, _) in ARCHITECTURES {
        let built = target(root).join("sam").join(architecture);
        let chosen = format!("Architecture={architecture}");
        shell(
            sam(root, &tools)?
                .args(["build", "--parameter-overrides", &chosen, "--build-dir"])
                .arg(&built),
        )?;
        let programs: Vec<_> = FUNCTIONS
            .iter()
            .map(|function| format!("{function}/bootstrap"))
            .collect();
        let programs: Vec<_> = programs.iter().map(String::as_str).collect();
        crate::package::check(&built, &programs, architecture)?;
        println!("    sam build: four functions for {architecture}");
    }
    synthesise(root)
}

/// The SAM command line, which finds cargo-lambda beside itself.
fn sam(root: &Path, tools: &Path) -> Result<Command> {
    let before = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(tools.join("bin")).chain(std::env::split_paths(&before));
    let mut command = Command::new(tools.join("bin/sam"));
    command
        .current_dir(root)
        .env("PATH", std::env::join_paths(folders)?)
        .env("SAM_CLI_TELEMETRY", "0");
    Ok(command)
}

/// `cdk synth` over what `sam build` left in `target/lambda`.
fn synthesise(root: &Path) -> Result<()> {
    if !found("npm") {
        println!("    npm is missing: `cdk synth` is skipped");
        return Ok(());
    }
    let cli = target(root).join("cdk-cli");
    std::fs::create_dir_all(&cli)?;
    let install = ["install", "--no-audit", "--no-fund", "--silent", "--prefix"];
    shell(Command::new("npm").args(install).arg(&cli).arg(CDK_CLI))?;
    let told = |name: &str, path: &Path| format!("{name}={}", path.display());
    shell(
        Command::new(cli.join("node_modules/.bin/cdk"))
            .current_dir(cdk(root))
            .args(["synth", "--quiet", "--app", "node dist/bin/gpuhook.js"])
            .args(["--context", &told("checkout", root)])
            .args(["--context", &told("programs", &target(root).join("lambda"))])
            .args(["--context", "hosts=gpu-01"]),
    )
}
