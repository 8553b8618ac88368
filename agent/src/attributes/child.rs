//! Writes in a process of their own, each with a deadline.
//!
//! The kernel may keep a writer for as long as something holds the device (`remove` of a mediated
//! device, kernel facts §1). A thread in that state would keep the whole agent from ending, `kill -9`
//! included, and with it the ledger's lock; a process that shares nothing with the agent does not.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::abandoned::Abandoned;
use super::command::{Place, read_answer};
use super::{Attributes, WriteError};

/// Longest answer of a child: a line.
const MAX_ANSWER: usize = 4096;

/// Attributes that are written by a child process each.
#[derive(Debug)]
pub struct ChildAttributes {
    program: PathBuf,
    place: Place,
    deadline: Duration,
    abandoned: Abandoned,
}

impl ChildAttributes {
    /// Attributes that are files below `root`, written by `program write-attribute …`.
    #[must_use]
    pub fn files(program: PathBuf, root: PathBuf, deadline: Duration) -> Self {
        Self::new(program, Place::files(root), deadline)
    }

    /// Attributes behind `socket`, written by `program write-attribute …`.
    #[must_use]
    pub fn socket(program: PathBuf, socket: PathBuf, deadline: Duration) -> Self {
        Self::new(program, Place::socket(socket), deadline)
    }

    fn new(program: PathBuf, place: Place, deadline: Duration) -> Self {
        Self {
            program,
            place,
            deadline,
            abandoned: Abandoned::default(),
        }
    }

    /// Takes over what an earlier agent of this host left behind: its writes that have not come back,
    /// found among the processes that `proc` lists.
    #[must_use]
    pub fn taking_over(mut self, proc: &Path) -> Self {
        self.abandoned = Abandoned::find(proc, &self.place);
        self
    }

    fn start(&self, path: &str, bytes: &[u8]) -> io::Result<(Child, ChildStdout)> {
        let mut command = Command::new(&self.program);
        self.place.tell(&mut command, path, bytes);
        let mut child = command
            .arg0("gpuhook-agent")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal is for the agent; it lets the write finish.
            .process_group(0)
            .spawn()?;
        let answers = child.stdout.take().expect("standard output was piped");
        Ok((child, answers))
    }
}

impl Attributes for ChildAttributes {
    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let no_answer = |reason: String| WriteError::NoAnswer { reason };
        if !self.abandoned.has_room() {
            let text = "too many earlier writes have not come back; no more are begun";
            return Err(no_answer(text.to_owned()));
        }
        let started = self.start(path, bytes);
        let (mut child, answers) = started
            .map_err(|error| no_answer(format!("start {}: {error}", self.program.display())))?;
        match read_until(answers, Instant::now() + self.deadline) {
            Ok(Some(text)) => {
                // It has closed its output: what is left of it is its exit.
                let status = child.wait().map_err(|error| no_answer(error.to_string()))?;
                read_answer(&text)
                    .unwrap_or_else(|| Err(no_answer(format!("it ended with {status}"))))
            }
            Ok(None) => {
                self.abandoned.keep(path, child);
                Err(WriteError::Stuck {
                    deadline: self.deadline,
                })
            }
            Err(error) => {
                self.abandoned.keep(path, child);
                Err(no_answer(format!("read its answer: {error}")))
            }
        }
    }

    fn abandoned(&self) -> Vec<String> {
        self.abandoned.paths()
    }
}

/// Everything that `answers` gives, to its end; `None` if that has not come at `deadline`.
fn read_until(mut answers: ChildStdout, deadline: Instant) -> io::Result<Option<String>> {
    let mut text = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&answers, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut chunk = [0; 512];
        let read = answers.read(&mut chunk)?;
        if read == 0 {
            return Ok(Some(String::from_utf8_lossy(&text).into_owned()));
        }
        text.extend_from_slice(&chunk[..read]);
        if text.len() > MAX_ANSWER {
            return Err(io::Error::other("it is longer than any answer"));
        }
    }
}
