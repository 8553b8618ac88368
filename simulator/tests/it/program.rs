//! `gpuhook-simulator` as a process, and processes as its clients.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream, process::CommandExt},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use simulator::{Client, HostDescription, Simulator, StartError};

use crate::fixture::{DEADLINE, FIRST, Fixture, uuid};

/// The program, ended with the test.
struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn simulator(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuhook-simulator"));
    command.args(["--host", "t4", "--dir"]).arg(dir);
    command
}

/// A client of another kind: Python loads the library by name, as a monitor would, and does what `then` says.
fn python(host: &Fixture, then: &str) -> Program {
    let script = format!(
        "import ctypes, sys\nnvml = ctypes.CDLL('libnvidia-ml.so.1')\nprint(nvml.nvmlInit_v2(), flush=True)\n{then}\nsys.stdin.read()\n"
    );
    let mut command = Command::new("python3");
    command.args(["-c", &script]).env(
        "LD_LIBRARY_PATH",
        host.simulator.library().parent().unwrap(),
    );
    command.env("GPUHOOK_SIM", host.simulator.socket());
    Program::start(&mut command)
}

#[test]
fn program_says_ready_serves_and_ends_on_a_signal() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let mut program = Program::start(&mut simulator(dir.path()));
        assert_eq!(program.line(), format!("ready {}\n", dir.path().display()));
        Client::connect(dir.path()).unwrap().state().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&program.child), signal)
            .unwrap();
        assert!(program.child.wait().unwrap().success());
        assert!(!dir.path().join("sim.sock").exists());
    }
}

#[test]
fn program_ends_with_its_parent_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(simulator(dir.path()).arg("--until-stdin-closes"));
    program.line();
    drop(program.child.stdin.take());
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn restart_is_a_new_boot_of_the_same_host() {
    let dir = tempfile::tempdir().unwrap();
    let state = |program: &mut Program| {
        program.line();
        let mut client = Client::connect(dir.path()).unwrap();
        let path = crate::fixture::create(FIRST, 232);
        client.write(&path, uuid(1).to_string().as_bytes()).unwrap();
        client.state().unwrap()
    };
    let before = state(&mut Program::start(&mut simulator(dir.path())));
    let after = state(&mut Program::start(&mut simulator(dir.path())));
    assert_eq!(before.gpus[0].uuid, after.gpus[0].uuid);
    assert_ne!(before.boot_id, after.boot_id);
}

#[test]
fn directory_of_someone_else_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.txt"), "years").unwrap();
    let error = Simulator::start(HostDescription::builtin("t4").unwrap(), dir.path()).unwrap_err();
    assert!(matches!(error, StartError::Foreign(_)), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);

    let host = Fixture::builtin("t4");
    let error = Simulator::start(
        HostDescription::builtin("t4").unwrap(),
        host.simulator.dir(),
    )
    .unwrap_err();
    assert!(matches!(error, StartError::Taken(_)), "{error}");
    host.client().state().unwrap();
}

#[test]
fn killed_client_releases_its_session() {
    let host = Fixture::builtin("t4");
    let mut client = python(&host, "");
    assert_eq!(client.line(), "0\n");
    let pid = client.child.id();
    let holds = move |state: &simulator::State| state.holders.iter().any(|each| each.pid == pid);
    assert!(holds(&host.client().state().unwrap()));
    client.child.kill().unwrap();
    host.client()
        .wait_for(DEADLINE, |state| !holds(state))
        .unwrap();
}

#[test]
fn foreign_program_reads_the_host_through_the_c_abi() {
    let host = Fixture::builtin("two-t4");
    let mut client = python(
        &host,
        "n = ctypes.c_uint()\nprint(nvml.nvmlDeviceGetCount_v2(ctypes.byref(n)), n.value, flush=True)",
    );
    assert_eq!(
        (client.line().as_str(), client.line().as_str()),
        ("0\n", "0 2\n")
    );
}

#[test]
fn line_that_is_no_request_gets_a_sentence_and_the_next_one_an_answer() {
    let host = Fixture::builtin("t4");
    let stream = UnixStream::connect(host.simulator.socket()).unwrap();
    let mut reader = BufReader::new(&stream);
    for (request, expect) in [
        ("hello", "{\"error\":\"not a request"),
        ("{\"launch\":{}}", "{\"error\":\"not a request"),
        (
            "{\"attribute_write\":{\"path\":\"/sys\",\"bytes\":\"!\"}}",
            "{\"error\":\"bytes is not standard base64\"}",
        ),
        (
            "{\"attribute_write\":{\"path\":\"/sys/none\",\"bytes\":\"MQ==\"}}",
            "{\"errno\":2}",
        ),
        ("{\"release\":{}}", "{\"ok\":true}"),
        ("{\"state\":{}}", "{\"state\":{\"generation\":"),
    ] {
        (&stream)
            .write_all(format!("{request}\n").as_bytes())
            .unwrap();
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with(expect), "{request}: {line}");
    }
}

#[test]
fn overlong_line_ends_the_connection() {
    let host = Fixture::builtin("t4");
    let stream = UnixStream::connect(host.simulator.socket()).unwrap();
    // The simulator may hang up before all of it is written.
    let _ = (&stream).write_all(&vec![b'x'; 2 << 20]);
    let mut lines = BufReader::new(&stream).lines();
    assert!(
        lines
            .next()
            .is_none_or(|line| line.is_err() || line.unwrap().contains("not a request"))
    );
    assert!(lines.next().is_none_or(|line| line.is_err()));
}

#[test]
fn user_who_is_not_root_may_not_write() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become someone else; the simulator's own user counts as root.
        return;
    }
    let host = Fixture::builtin("t4");
    for (path, mode) in [
        (host.simulator.dir().to_owned(), 0o755),
        (host.simulator.socket(), 0o777),
    ] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.sendall(sys.argv[2].encode() + b'\\n')\nprint(s.recv(99).decode().strip())";
    let request = format!(
        "{{\"attribute_write\":{{\"path\":\"{}\",\"bytes\":\"\"}}}}",
        crate::fixture::create(FIRST, 232)
    );
    let mut command = Command::new("python3");
    command
        .args(["-c", script])
        .arg(host.simulator.socket())
        .arg(request)
        .uid(65534)
        .current_dir("/");
    assert_eq!(Program::start(&mut command).line(), "{\"errno\":13}\n");
}
