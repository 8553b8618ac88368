//! One write in a process of its own: what that process shares, what it answers, and what becomes of
//! one that dies or does not come back.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use agent::attributes::{Attributes, ChildAttributes, WriteError};
use agent::gpus::Gpus;
use agent::operation::place::Place;
use agent::partitioner::{Class, Partitioner, Slot};
use events::{Code, PartitionId};
use rustix::process::{Pid, Signal, kill_process};
use simulator::{Client, Effect, Fault, HostDescription, Simulator, Window};

use crate::{DEADLINE, PROGRAM};

const CREATE: &str = "/sys/bus/pci/devices/0000:3b:00.0/mdev_supported_types/nvidia-232/create";
const UUID: uuid::Uuid = uuid::Uuid::from_u128(0x5be6_c0a4_1d9f_4c6e_9d1c_0000_0000_0001);

struct Kernel {
    client: Client,
    simulator: Simulator,
    attributes: Arc<ChildAttributes>,
    _folder: tempfile::TempDir,
}

/// A simulated kernel, and writers that it may keep for `deadline`.
fn kernel(deadline: Duration) -> Kernel {
    let folder = tempfile::tempdir().unwrap();
    let description = HostDescription::builtin("two-t4").unwrap();
    let simulator = Simulator::start(description, &folder.path().join("host")).unwrap();
    let attributes = ChildAttributes::socket(PROGRAM.into(), simulator.socket(), deadline);
    Kernel {
        client: Client::connect(simulator.dir()).unwrap(),
        simulator,
        attributes: Arc::new(attributes),
        _folder: folder,
    }
}

impl Kernel {
    fn hold(&mut self, path_suffix: &str, effect: Effect) {
        let fault = Fault::WriteHold {
            path_suffix: path_suffix.to_owned(),
            effect,
            window: Window::default(),
        };
        self.client.fault(fault).unwrap();
    }

    /// The process of the write that is held.
    fn writer(&mut self) -> u32 {
        let held = |state: &simulator::State| !state.waiting.is_empty();
        self.client.wait_for(DEADLINE, held).unwrap().waiting[0].pid
    }

    fn partitioner(&self) -> Arc<Gpus> {
        Arc::new(Gpus::new(
            self.simulator.root(),
            self.simulator.library(),
            "/proc".into(),
            self.attributes.clone(),
        ))
    }
}

/// Runs `work` beside the test, which waits for its result later.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    done
}

/// Waits until `look` holds. Whoever waits looks again.
fn until(what: &str, look: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !look() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

fn proc(pid: u32, what: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{what}"))
}

/// Not even one that a library of the agent forgot to close on exec: NVML has GPUs' nodes open.
#[test]
fn a_writer_inherits_no_descriptor_and_has_a_process_group_of_its_own() {
    let mut kernel = kernel(DEADLINE);
    let leaky = tempfile::tempfile().unwrap();
    rustix::io::fcntl_setfd(&leaky, rustix::io::FdFlags::empty()).unwrap();
    kernel.hold("create", Effect::Before);
    let attributes = Arc::clone(&kernel.attributes);
    let written = beside(move || attributes.write(CREATE, UUID.to_string().as_bytes()));
    let writer = kernel.writer();
    let mut links: Vec<_> = std::fs::read_dir(proc(writer, "fd"))
        .unwrap()
        .map(|entry| {
            let link = std::fs::read_link(entry.unwrap().path()).unwrap();
            let text = link.to_string_lossy().into_owned();
            text.split('[').next().unwrap().to_owned()
        })
        .collect();
    links.sort();
    assert_eq!(links, ["/dev/null", "/dev/null", "pipe:", "socket:"]);
    let stat = std::fs::read_to_string(proc(writer, "stat")).unwrap();
    let group = stat.rsplit(')').next().unwrap().split_whitespace().nth(2);
    assert_eq!(group, Some(writer.to_string().as_str()));
    kernel.client.release().unwrap();
    written.recv_timeout(DEADLINE).unwrap().unwrap();
    assert!(kernel.client.state().unwrap().mdev(UUID).is_some());
}

#[test]
fn a_write_past_its_deadline_is_given_up_and_its_process_reaped_when_it_ends() {
    let mut kernel = kernel(Duration::from_secs(2));
    let partitioner = kernel.partitioner();
    let gpus = partitioner.observe().unwrap().gpus;
    let slot = |n: usize| Slot {
        gpu: gpus[n].uuid.clone(),
        place: Place::mdev(PartitionId(uuid::Uuid::from_u128(
            UUID.as_u128() + n as u128,
        ))),
    };
    let profile = "T4-4Q".parse().unwrap();
    kernel.hold("create", Effect::Before);
    let error = partitioner.create(&slot(0), &profile).unwrap_err();
    assert_eq!(
        (error.code, error.class),
        (Code::GpuStuck, Class::Stuck),
        "{error}"
    );
    let writer = kernel.writer();
    assert!(
        proc(writer, "exe").exists(),
        "it cannot be ended, and nobody tries"
    );
    let seen = partitioner.observe().unwrap().gpus;
    assert!(
        seen[0].is_stuck() && seen[1].unavailable.is_none(),
        "{seen:#?}"
    );
    partitioner.create(&slot(1), &profile).unwrap();
    partitioner.destroy(&slot(1)).unwrap();

    kernel.client.release().unwrap();
    until("the write to come back", || {
        !partitioner.observe().unwrap().gpus[0].is_stuck()
    });
    assert!(!proc(writer, "").exists(), "no zombie is left");
    let seen = partitioner.observe_gpu(&slot(0).gpu).unwrap();
    assert_eq!(
        seen.partitions[0].place,
        slot(0).place,
        "a late effect is seen like any other"
    );
}

/// An agent that starts anew knows what the one before left in the kernel, and only that.
#[test]
fn a_writer_of_an_earlier_agent_is_known_until_it_ends() {
    let mut kernel = kernel(DEADLINE);
    kernel.hold("create", Effect::Before);
    let attributes = Arc::clone(&kernel.attributes);
    let written = beside(move || attributes.write(CREATE, UUID.to_string().as_bytes()));
    kernel.writer();
    let later = |socket: PathBuf| {
        let later = ChildAttributes::socket(PROGRAM.into(), socket, DEADLINE);
        later.taking_over(Path::new("/proc"))
    };
    let (later, other) = (later(kernel.simulator.socket()), later("/none".into()));
    assert_eq!(later.abandoned(), [CREATE]);
    assert_eq!(other.abandoned(), Vec::<String>::new(), "another host's");
    assert_eq!(
        kernel.attributes.abandoned(),
        Vec::<String>::new(),
        "it is still waited for"
    );
    kernel.client.release().unwrap();
    written.recv_timeout(DEADLINE).unwrap().unwrap();
    assert_eq!(later.abandoned(), Vec::<String>::new());
}

/// A writer that is killed (memory ran out, an operator) says nothing: what was written is looked at.
#[test]
fn a_writer_that_dies_is_tried_again_unless_its_effect_is_there() {
    for (effect, suffix) in [
        (Effect::Before, "create"),
        (Effect::After, "create"),
        (Effect::After, "remove"),
    ] {
        let mut kernel = kernel(DEADLINE);
        let partitioner = kernel.partitioner();
        let gpu = partitioner.observe().unwrap().gpus.remove(0).uuid;
        let slot = Slot {
            gpu,
            place: Place::mdev(PartitionId(UUID)),
        };
        let profile = "T4-4Q".parse().unwrap();
        if suffix == "remove" {
            partitioner.create(&slot, &profile).unwrap();
        }
        kernel.hold(suffix, effect);
        let does = partitioner.clone();
        let done = beside(move || match suffix {
            "create" => does.create(&slot, &profile),
            _ => does.destroy(&slot),
        });
        let writer = kernel.writer();
        let pid = Pid::from_raw(i32::try_from(writer).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        let result = done.recv_timeout(DEADLINE).unwrap();
        match effect {
            Effect::Before => {
                let error = result.unwrap_err();
                assert_eq!((error.code, error.class), (Code::DriverError, Class::Retry));
                assert!(error.message.contains("signal: 9"), "{error}");
            }
            Effect::After => result.unwrap(),
        }
        kernel.client.release().unwrap();
    }
}

/// As on hardware: attributes are files, made by the kernel alone.
#[test]
fn a_writer_of_files_answers_the_errno_and_makes_no_file() {
    let root = tempfile::tempdir().unwrap();
    let attributes = ChildAttributes::files(PROGRAM.into(), root.path().into(), DEADLINE);
    let errno = |path: &str| match attributes.write(path, b"1").unwrap_err() {
        WriteError::Refused(error) => error.raw_os_error(),
        other => panic!("{other:?}"),
    };
    assert_eq!(errno("/sys/remove"), Some(libc::ENOENT));
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    std::fs::create_dir(root.path().join("sys")).unwrap();
    assert_eq!(errno("/sys"), Some(libc::EISDIR));
    std::fs::write(root.path().join("sys/remove"), "").unwrap();
    attributes.write("/sys/remove", b"-1\n").unwrap();
    let holds = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!(holds(&root.path().join("sys/remove")), "-1\n");
    // The kernel's own refusal of a write, where opening is permitted.
    symlink("/dev/full", root.path().join("sys/create")).unwrap();
    assert_eq!(errno("/sys/create"), Some(libc::ENOSPC));
}

#[test]
fn a_program_that_cannot_write_is_told_by_how_it_ended() {
    let root = tempfile::tempdir().unwrap();
    for (program, says) in [
        ("/none/such", "start /none/such"),
        ("/bin/false", "exit status: 1"),
        ("/bin/true", "exit status: 0"),
    ] {
        let attributes = ChildAttributes::files(program.into(), root.path().into(), DEADLINE);
        let error = attributes.write("/sys/remove", b"1").unwrap_err();
        assert!(matches!(error, WriteError::NoAnswer { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
