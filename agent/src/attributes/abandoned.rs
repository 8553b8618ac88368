//! Writes that were given up: processes that the kernel keeps. They cannot be ended, so they are
//! remembered, and reaped by whoever looks at the host next (the reconciler does each second).

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::command::Place;

/// A GPU with one of these takes no more work, and no host has as many GPUs: beyond it something else
/// is wrong, and no more processes are started.
const MOST: usize = 64;

/// Writes that have not come back.
#[derive(Debug, Default)]
pub(super) struct Abandoned(Mutex<Vec<Write>>);

#[derive(Debug)]
struct Write {
    path: String,
    writer: Writer,
}

#[derive(Debug)]
enum Writer {
    Ours(Child),
    /// Of an agent that has died: somebody else reaps it.
    Orphan {
        command_line: PathBuf,
        says: Vec<u8>,
    },
}

impl Abandoned {
    /// What processes listed in `proc` are writing to attributes in `place`, whoever started them.
    pub(super) fn find(proc: &Path, place: &Place) -> Self {
        let processes = std::fs::read_dir(proc).into_iter().flatten().flatten();
        let writes = processes.filter_map(|process| {
            let command_line = process.path().join("cmdline");
            let says = std::fs::read(&command_line).ok()?;
            let arguments = says.strip_suffix(&[0])?;
            let arguments: Vec<_> = arguments.split(|byte| *byte == 0).collect();
            let path = place.attribute_of(&arguments)?;
            let writer = Writer::Orphan { command_line, says };
            Some(Write { path, writer })
        });
        Self(Mutex::new(writes.collect()))
    }

    /// Paths of those that are still there; what has ended is reaped.
    pub(super) fn paths(&self) -> Vec<String> {
        let there = self.those_still_there();
        there.iter().map(|write| write.path.clone()).collect()
    }

    /// Whether one more could be kept.
    pub(super) fn has_room(&self) -> bool {
        self.those_still_there().len() < MOST
    }

    /// Keeps one more.
    pub(super) fn keep(&self, path: &str, child: Child) {
        self.those_still_there().push(Write {
            path: path.to_owned(),
            writer: Writer::Ours(child),
        });
    }

    fn those_still_there(&self) -> MutexGuard<'_, Vec<Write>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain_mut(|write| write.writer.is_there());
        all
    }
}

impl Writer {
    fn is_there(&mut self) -> bool {
        match self {
            // A child that cannot be waited for is not ours any more: it has ended.
            Self::Ours(child) => matches!(child.try_wait(), Ok(None)),
            // One that has ended and waits to be reaped has no command line any more.
            Self::Orphan { command_line, says } => {
                std::fs::read(command_line).is_ok_and(|now| now == *says)
            }
        }
    }
}
