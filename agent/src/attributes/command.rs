//! The hidden subcommand `write-attribute`: what a child of [`super::ChildAttributes`] is told, does
//! and answers. Both ends of that small language live here.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use super::{Attributes, FileAttributes, SocketAttributes, WriteError};

/// The subcommand's name, which both programs that run an agent must give it.
const NAME: &str = "write-attribute";

/// One write to one kernel attribute.
#[derive(Debug, Clone, clap::Args)]
pub struct WriteArguments {
    #[command(flatten)]
    place: Place,
    /// The attribute, absolute as the kernel has it
    path: String,
    /// What to write
    #[arg(allow_hyphen_values = true)]
    bytes: OsString,
}

/// Where attributes are.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Place {
    /// Attributes are files below this folder
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Attributes are written through this socket
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
}

impl Place {
    pub(super) fn files(root: PathBuf) -> Self {
        Self {
            root: Some(root),
            socket: None,
        }
    }

    pub(super) fn socket(socket: PathBuf) -> Self {
        Self {
            root: None,
            socket: Some(socket),
        }
    }

    /// Everything that `command` is told, beside its program.
    pub(super) fn tell(&self, command: &mut Command, path: &str, bytes: &[u8]) {
        command.arg(NAME);
        for (option, value) in [("--root", &self.root), ("--socket", &self.socket)] {
            if let Some(value) = value {
                command.arg(option).arg(value);
            }
        }
        command.arg(path).arg(OsStr::from_bytes(bytes));
    }

    /// The attribute that a process with these arguments, program first, writes in this place; `None`
    /// for every other process.
    pub(super) fn attribute_of(&self, arguments: &[&[u8]]) -> Option<String> {
        let mut told = Command::new("");
        let [_, own @ .., path, bytes] = arguments else {
            return None;
        };
        let path = std::str::from_utf8(path).ok()?;
        self.tell(&mut told, path, bytes);
        let told: Vec<_> = told.get_args().map(OsStr::as_bytes).collect();
        (told.split_last_chunk::<2>()?.0 == own).then(|| path.to_owned())
    }

    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), WriteError> {
        match (&self.root, &self.socket) {
            (_, Some(socket)) => SocketAttributes {
                socket: socket.clone(),
            }
            .write(path, bytes),
            (Some(root), None) => FileAttributes { root: root.clone() }.write(path, bytes),
            // The group above requires one of the two.
            (None, None) => Err(io::Error::from(io::ErrorKind::InvalidInput).into()),
        }
    }
}

impl WriteArguments {
    /// Writes, and answers on standard output. To be called before anything else is opened.
    #[must_use]
    pub fn run(self) -> ExitCode {
        close_what_was_inherited();
        let written = self
            .place
            .write(&self.path, &OsStringExt::into_vec(self.bytes));
        // Whoever has given up on this process has closed the other end; there is nobody to tell.
        let _ = writeln!(io::stdout(), "{}", answer(&written));
        ExitCode::SUCCESS
    }
}

/// Closes every descriptor beyond standard input, output and error. Our own are closed on exec; a
/// library of the agent (NVML opens device nodes) may have others, which would keep a GPU in use for
/// as long as the kernel blocks this process.
#[expect(unsafe_code, reason = "no safe interface to close_range(2)")]
fn close_what_was_inherited() {
    // SAFETY: nothing in this process has opened a descriptor yet, so none is closed behind its owner.
    unsafe {
        libc::close_range(3, libc::c_uint::MAX, 0);
    }
}

fn answer(written: &Result<(), WriteError>) -> String {
    match written {
        Ok(()) => "ok".to_owned(),
        Err(WriteError::Refused(error)) => match error.raw_os_error() {
            Some(errno) => format!("errno {errno}"),
            None => format!("error {error}"),
        },
        Err(error) => format!("error {error}"),
    }
}

/// Reads an answer; `None` if it is none, or not a whole one.
pub(super) fn read_answer(text: &str) -> Option<Result<(), WriteError>> {
    let line = text.strip_suffix('\n')?;
    let refused = |error: io::Error| Some(Err(error.into()));
    match line.split_once(' ') {
        None if line == "ok" => Some(Ok(())),
        Some(("errno", errno)) => refused(io::Error::from_raw_os_error(errno.parse().ok()?)),
        Some(("error", text)) => refused(io::Error::other(text.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_were_given_and_nothing_else_is_one() {
        let refused = |error: io::Error| answer(&Err(error.into()));
        assert!(matches!(
            read_answer(&format!("{}\n", answer(&Ok(())))),
            Some(Ok(()))
        ));
        let errno = refused(io::Error::from_raw_os_error(libc::EEXIST));
        let read = read_answer(&format!("{errno}\n"));
        assert!(
            matches!(&read, Some(Err(WriteError::Refused(error))) if error.raw_os_error() == Some(libc::EEXIST)),
            "{read:?}"
        );
        let text = refused(io::Error::other("no such\nthing"));
        assert!(matches!(
            read_answer(&format!("{text}\n")),
            Some(Err(WriteError::Refused(_)))
        ));
        for cut in [
            "",
            "\n",
            "ok",
            "okay\n",
            "errno\n",
            "errno x\n",
            "errno 1",
            "usage: x\n",
        ] {
            assert!(read_answer(cut).is_none(), "{cut:?}");
        }
    }
}
