//! `agent.toml`: what it may say about the kernel.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use agent::{Config, ConfigError};
use events::key::SecretKey;

fn load(kernel: &str) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let key = SecretKey::generate().unwrap();
    let (config, key_file) = (
        folder.path().join("agent.toml"),
        folder.path().join("host.whsk"),
    );
    std::fs::write(&key_file, key.expose().as_str()).unwrap();
    std::fs::set_permissions(&key_file, PermissionsExt::from_mode(0o600)).unwrap();
    let text = format!(
        "host = \"gpu-1\"\nstate_dir = \"agent\"\n[paths]\n[queue]\nbackplane = \"b\"\n[keys]\nhost = \"host.whsk\"\nfunctions = [\"{}\"]\n[allow]\noperations = []\nmodes = []\ntenants = []\n{kernel}",
        key.public()
    );
    std::fs::write(&config, text).unwrap();
    Config::load(&config)
}

#[test]
fn the_kernels_deadline_has_a_default_and_a_range() {
    for (kernel, seconds) in [
        ("", 30),
        ("[kernel]", 30),
        ("[kernel]\nwrite_deadline_s = 1", 1),
        ("[kernel]\nwrite_deadline_s = 600", 600),
    ] {
        let deadline = load(kernel).unwrap().write_deadline;
        assert_eq!(deadline, Duration::from_secs(seconds), "{kernel}");
    }
    for (kernel, says) in [
        (
            "[kernel]\nwrite_deadline_s = 0",
            "agent.toml:13: kernel.write_deadline_s: must be from 1 to 600",
        ),
        ("[kernel]\nwrite_deadline_s = 601", "must be from 1 to 600"),
        (
            "[kernel]\nwrite_deadline_s = \"30\"",
            "agent.toml:14: kernel: ",
        ),
        (
            "[kernel]\nwrite_deadline = 30",
            "agent.toml:14: kernel: unknown field",
        ),
    ] {
        let error = load(kernel).unwrap_err().to_string();
        assert!(error.contains(says), "{kernel}: {error}");
    }
}
