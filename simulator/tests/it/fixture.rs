//! A simulated host in a directory of its own, and short words for what tests do with it.

use std::{fs, path::PathBuf, time::Duration};

use simulator::{Client, ClientError, HostDescription, Simulator};
use uuid::Uuid;

/// Longest that anything here may take; no test waits for it to pass.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EBUSY: i32 = 16;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENODEV: i32 = 19;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;

pub(crate) const FIRST: &str = "0000:3b:00.0";
pub(crate) const SECOND: &str = "0000:af:00.0";

pub(crate) struct Fixture {
    pub(crate) simulator: Simulator,
    pub(crate) _dir: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn builtin(name: &str) -> Self {
        Self::with(HostDescription::builtin(name).unwrap())
    }

    pub(crate) fn with(host: HostDescription) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let simulator = Simulator::start(host, dir.path()).unwrap();
        Self {
            simulator,
            _dir: dir,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.simulator.dir()).unwrap()
    }

    /// Writes on a connection of its own and answers the errno, 0 for success.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> i32 {
        errno(self.client().write(path, bytes))
    }

    pub(crate) fn create(&self, parent: &str, type_id: u32, uuid: Uuid) -> i32 {
        self.write(&create(parent, type_id), uuid.to_string().as_bytes())
    }

    /// File below the host's root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.simulator.root().join(path.trim_start_matches('/'))
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(crate) fn available(&self, parent: &str, type_id: u32) -> u32 {
        let path = format!(
            "/sys/class/mdev_bus/{parent}/mdev_supported_types/nvidia-{type_id}/available_instances"
        );
        self.read(&path).trim_end().parse().unwrap()
    }
}

/// errno of a client's refusal; 0 for success.
pub(crate) fn errno(result: Result<(), ClientError>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => error.errno().unwrap_or_else(|| panic!("{error}")),
    }
}

pub(crate) fn create(parent: &str, type_id: u32) -> String {
    format!("/sys/bus/pci/devices/{parent}/mdev_supported_types/nvidia-{type_id}/create")
}

pub(crate) fn remove(uuid: Uuid) -> String {
    format!("/sys/bus/mdev/devices/{uuid}/remove")
}

pub(crate) fn uuid(n: u8) -> Uuid {
    Uuid::from_u128(0x5be6_c0a4_1d9f_4c6e_9d1c_0000_0000_0000 + u128::from(n))
}
