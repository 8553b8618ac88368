//! The conformance suite of the backplane once more, against a third party's SQS and DynamoDB (MiniStack
//! from PyPI) on a loopback port; the suite itself runs against another one in process.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::ci::{cargo_with, target, venv_python};

/// Longest that it may take to listen.
const START: Duration = Duration::from_secs(60);

/// Starts the emulator, runs the suite's AWS half, and stops it whatever came of that.
pub(crate) fn run(root: &Path) -> Result<()> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut emulator = start(root, port)?;
    let ran = wait(&mut emulator, port).and_then(|()| suite(root, port));
    emulator.kill().context("stop MiniStack")?;
    emulator.wait()?;
    ran
}

fn start(root: &Path, port: u16) -> Result<Child> {
    let program = venv_python(root).with_file_name("ministack");
    let log = std::fs::File::create(target(root).join("ministack.log"))?;
    Command::new(&program)
        .current_dir(target(root))
        .env("BIND_HOST", "127.0.0.1")
        .env("GATEWAY_PORT", port.to_string())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .with_context(|| {
            format!(
                "start {}: `cargo xtask ci --only prepare` installs it",
                program.display()
            )
        })
}

fn wait(emulator: &mut Child, port: u16) -> Result<()> {
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(status) = emulator.try_wait()? {
            bail!("MiniStack ended with {status}: see target/ministack.log");
        }
        if begun.elapsed() > START {
            bail!("MiniStack does not listen after {} s", START.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn suite(root: &Path, port: u16) -> Result<()> {
    let endpoint = format!("http://127.0.0.1:{port}");
    // Names of the suite's AWS half end in `::aws::` and the case; the rest needs no emulator, and no other
    // package has such names. The whole workspace is named, since it is built that way already: another
    // set of features would be another build.
    cargo_with(
        root,
        &[
            "test",
            "--workspace",
            "--all-features",
            "--test",
            "it",
            "--quiet",
            "--",
            "::aws::",
        ],
        &[("GPUHOOK_TEST_AWS_ENDPOINT", &endpoint)],
    )
}
