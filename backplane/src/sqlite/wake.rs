//! Wakes receivers of every process that has the file open: whoever commits something receivable
//! writes to a small file beside it, and a thread per handle watches that file by inotify.
//!
//! Watching the write-ahead log itself would wake receivers before the commit, at every page of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::inotify;
use tokio::sync::watch;

use super::file::{OpenError, beside};

/// How often receivers look where the host has no inotify instance left (the default is 128 per
/// user): half of the 50 ms in which a message should arrive.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Wakes.
#[derive(Clone)]
pub(super) struct Waker {
    file: Arc<File>,
}

impl Waker {
    /// Wakes everyone, here and in other processes. Whether it could.
    pub(super) fn wake(&self) -> bool {
        // Rewriting one byte is an event and needs no room on the disk.
        let written = self.file.write_all_at(b"!", 0);
        if let Err(error) = &written {
            tracing::warn!(error = %error, "backplane receivers could not be woken; they look again when their wait ends");
        }
        written.is_ok()
    }
}

/// Is woken.
pub(super) struct Wakes {
    waker: Waker,
    seen: watch::Receiver<u64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wakes {
    /// Watches the wake file of the backplane at `path`, which is made when there is none.
    pub(super) fn start(path: &Path) -> Result<Self, OpenError> {
        let wake_path = beside(path, ".wake");
        let fault = |doing| {
            let path = wake_path.clone();
            move |source: io::Error| OpenError::Io {
                path,
                doing,
                source,
            }
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&wake_path)
            // Takes its room now, so that waking works on a disk that is full by then.
            .and_then(|file| file.write_all_at(b"!", 0).map(|()| file))
            .map_err(fault("create wake file of"))?;
        let waker = Waker {
            file: Arc::new(file),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, seen) = watch::channel(0);
        let thread = std::thread::Builder::new()
            .name("backplane-wake".to_owned())
            .spawn({
                let stop = Arc::clone(&stop);
                let watched = watch_file(wake_path.clone());
                move || forward(watched, &stop, &tell)
            })
            .map_err(fault("start watching"))?;
        Ok(Self {
            waker,
            seen,
            stop,
            thread: Some(thread),
        })
    }

    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Changes with every wake from now on.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.seen.clone()
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread sits in a read; its own event gets it out. Without one it is left to the end of
        // the process rather than waited for.
        if self.waker.wake()
            && let Some(thread) = self.thread.take()
        {
            drop(thread.join());
        }
    }
}

fn watch_file(path: PathBuf) -> io::Result<OwnedFd> {
    let inotify = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    inotify::add_watch(&inotify, path, inotify::WatchFlags::MODIFY)?;
    Ok(inotify)
}

fn forward(watched: io::Result<OwnedFd>, stop: &AtomicBool, tell: &watch::Sender<u64>) {
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut events = watched.map(|inotify| inotify::Reader::new(inotify, &mut buffer));
    if let Err(error) = &events {
        tracing::warn!(error = %error, "backplane wakes cannot be watched; receivers look every {LOOK_EVERY:?} instead");
    }
    while !stop.load(Ordering::Acquire) {
        match &mut events {
            Ok(events) => {
                if let Err(error) = events.next() {
                    tracing::warn!(error = %error, "backplane wake was lost");
                    std::thread::sleep(LOOK_EVERY);
                }
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
        tell.send_modify(|wakes| *wakes = wakes.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host out of inotify instances still delivers.
    #[tokio::test]
    async fn receivers_are_woken_by_time_where_nothing_can_be_watched() {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, mut seen) = watch::channel(0);
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || forward(Err(io::Error::from_raw_os_error(24)), &stop, &tell)
        });
        seen.changed().await.unwrap();
        stop.store(true, Ordering::Release);
        thread.join().unwrap();
    }
}
