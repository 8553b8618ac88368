//! `cargo xtask ci`: every check, in the order in which they fail fastest.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

/// Arguments of `cargo xtask ci`.
#[derive(Debug, Args)]
pub(crate) struct CiArgs {
    /// Run only this step (and what it needs nothing else for).
    #[arg(long)]
    only: Option<String>,
    /// List the steps.
    #[arg(long)]
    list: bool,
}

type Step = (&'static str, fn(&Path) -> Result<()>);

const STEPS: [Step; 17] = [
    ("prepare", prepare),
    ("fmt", |root| cargo(root, &["fmt", "--all", "--check"])),
    ("tidy", crate::tidy::run),
    ("infra", crate::infra::test),
    ("trees", trees),
    ("clippy", |root| {
        cargo(
            root,
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--all-features",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ],
        )
    }),
    ("docs", docs),
    ("build", |root| {
        cargo(root, &["build", "--workspace", "--all-features", "--quiet"])
    }),
    ("test", test),
    ("emulator", crate::emulator::run),
    ("functions", functions),
    ("python", python),
    ("nasty", |root| {
        crate::fire::start(root, "gpuhook-nasty", &[])
    }),
    ("nasty-prove", |root| {
        crate::fire::start(root, "gpuhook-nasty", &["--prove"])
    }),
    ("chaos", |root| {
        crate::fire::start(root, "gpuhook-chaos", &["--seeds", "20"])
    }),
    ("crash", |root| {
        crate::fire::start(root, "gpuhook-crash", &[])
    }),
    ("crash-prove", |root| {
        crate::fire::start(root, "gpuhook-crash", &["--prove"])
    }),
];

/// Runs the steps and prints each with its time; stops at the first that fails.
pub(crate) fn run(root: &Path, args: &CiArgs) -> Result<()> {
    if args.list {
        STEPS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let chosen: Vec<_> = STEPS
        .iter()
        .filter(|(name, _)| args.only.as_deref().is_none_or(|only| only == *name))
        .collect();
    if chosen.is_empty() {
        bail!("no such step; `cargo xtask ci --list` names them");
    }
    let start = Instant::now();
    for (done, (name, step)) in chosen.iter().enumerate() {
        println!("==> {name}");
        let begun = Instant::now();
        if let Err(error) = step(root) {
            println!("ci: {done} passed, 1 failed");
            return Err(error.context(format!(
                "step {name} failed; repeat it with `cargo xtask ci --only {name}`"
            )));
        }
        println!("    {name}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    println!("all steps done in {:.0} s", start.elapsed().as_secs_f64());
    println!("ci: {} passed, 0 failed", chosen.len());
    Ok(())
}

pub(crate) fn shell(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    if status.success() {
        Ok(())
    } else {
        bail!("{command:?} ended with {status}")
    }
}

pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    cargo_with(root, arguments, &[])
}

pub(crate) fn cargo_with(
    root: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(arguments);
    shell(command.envs(environment.iter().copied()))
}

pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

pub(crate) fn venv_python(root: &Path) -> PathBuf {
    target(root).join("venv/bin/python")
}

/// Installs what the tests need: a Python environment, the CDK, and `strace` where apt can bring it.
fn prepare(root: &Path) -> Result<()> {
    let requirements =
        ["tests/python", "tests/infra"].map(|of| root.join(of).join("requirements.txt"));
    install_python(
        &target(root).join("venv"),
        &requirements.each_ref().map(PathBuf::as_path),
    )?;
    crate::infra::prepare(root)?;
    if found("strace") {
        return Ok(());
    }
    let root_user = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout == b"0\n");
    if !root_user || !found("apt-get") {
        println!(
            "    strace is missing and cannot be installed here (not root, or no apt): the fdatasync test will say that it is skipped"
        );
        return Ok(());
    }
    let install = "apt-get install -y -qq strace >/dev/null || (apt-get update -qq >/dev/null && apt-get install -y -qq strace >/dev/null)";
    let installed = Command::new("sh")
        .args(["-c", install])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stderr(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        println!(
            "    apt could not install strace: the fdatasync test will say that it is skipped"
        );
    }
    Ok(())
}

/// Installs requirements into a Python environment, which is made if there is none.
pub(crate) fn install_python(venv: &Path, requirements: &[&Path]) -> Result<()> {
    let python = venv.join("bin/python");
    if !python.exists() {
        shell(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    }
    let mut install = Command::new(&python);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    for file in requirements {
        install.arg("-r").arg(file);
    }
    shell(&mut install)
}

pub(crate) fn found(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// The crates of the quick edit-test loop have neither a cloud SDK nor the policy engine in their trees.
fn trees(root: &Path) -> Result<()> {
    for package in [
        "gpuhook-events",
        "gpuhook-placement",
        "gpuhook-simulator",
        "gpuhook-agent",
    ] {
        let tree = Command::new("cargo")
            .current_dir(root)
            .args([
                "tree",
                "--prefix",
                "none",
                "--edges",
                "normal,build",
                "-p",
                package,
            ])
            .output()?;
        if !tree.status.success() {
            bail!("cargo tree -p {package} ended with {}", tree.status);
        }
        let text = String::from_utf8_lossy(&tree.stdout).into_owned();
        let heavy = text
            .lines()
            .find(|line| line.starts_with("aws-") || line.starts_with("cedar-"));
        if let Some(line) = heavy {
            bail!(
                "{package} depends on {line}: `cargo tree -p {package} -i {}` shows how",
                line.split(' ').next().unwrap_or_default()
            );
        }
        println!(
            "    {package}: {} crates, no aws-*, no cedar-*",
            text.lines().count()
        );
    }
    Ok(())
}

fn docs(root: &Path) -> Result<()> {
    shell(
        Command::new("cargo")
            .current_dir(root)
            .args([
                "doc",
                "--workspace",
                "--all-features",
                "--no-deps",
                "--quiet",
            ])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

fn test(root: &Path) -> Result<()> {
    if found("cargo-nextest") {
        cargo(
            root,
            &[
                "nextest",
                "run",
                "--workspace",
                "--all-features",
                "--no-fail-fast",
                "--status-level",
                "fail",
                "--hide-progress-bar",
            ],
        )
    } else {
        cargo(
            root,
            &[
                "test",
                "--workspace",
                "--all-features",
                "--quiet",
                "--no-fail-fast",
            ],
        )
    }
}

/// Builds the functions as they are packaged (what Lambda is given is what is tried), and looks whether
/// they, and the agent, would start where they are meant to.
fn functions(root: &Path) -> Result<()> {
    let package = ["--package", "gpuhook-lambda", "--quiet"];
    cargo(root, &[&["build", "--release"][..], &package].concat())?;
    let here = crate::package::here();
    crate::package::check(
        &target(root).join("release"),
        &["webhook", "results", "deliver", "sweep"],
        here,
    )?;
    crate::package::check(&target(root).join("debug"), &["gpuhook-agent"], here)
}

/// The outage of the Python tests in its long form.
pub(crate) fn long_outage(root: &Path) -> Result<()> {
    functions(root)?;
    prepare(root)?;
    let long = [
        ("GPUHOOK_OUTAGE_OPERATIONS", "1000"),
        ("GPUHOOK_OUTAGE_S", "60"),
    ];
    unittest(
        root,
        &["-m", "unittest", "--verbose", "test_cloud_outage"],
        &long,
    )
}

/// Asks a real account; never part of the test command.
pub(crate) fn live_aws(root: &Path, arguments: &[String]) -> Result<()> {
    prepare(root)?;
    let mut run = Command::new(venv_python(root));
    shell(run.arg(root.join("tests/live/live_aws.py")).args(arguments))
}

fn python(root: &Path) -> Result<()> {
    let discover = ["-m", "unittest", "discover", "--verbose"];
    unittest(root, &discover, &[])
}

fn unittest(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let (bins, functions) = (target(root).join("debug"), target(root).join("release"));
    let mut run = Command::new(venv_python(root));
    run.current_dir(root.join("tests/python")).args(arguments);
    shell(
        run.env("GPUHOOK_BIN_DIR", bins)
            .env("GPUHOOK_LAMBDA_DIR", functions)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .envs(environment.iter().copied()),
    )
}
