//! Numbering, and dying.

use std::sync::atomic::Ordering::SeqCst;

use crate::control::{Control, control};
use crate::durable;

/// Where a program is about to be, or has just been.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Before,
    After,
}

/// Whether points are counted now.
pub(crate) fn armed() -> Option<&'static Control> {
    control().filter(|control| control.armed.load(SeqCst) != 0)
}

/// Passes a point. Does not return if it is the last.
pub(crate) fn pass(side: Side, what: &str, subject: &str) {
    let Some(control) = armed() else { return };
    let number = control.count.fetch_add(1, SeqCst) + 1;
    let side = match side {
        Side::Before => "before",
        Side::After => "after",
    };
    note(control, &[side, " ", what, " ", subject, "\n"]);
    if number == control.kill_at.load(SeqCst) {
        die(control);
    }
}

fn note(control: &Control, parts: &[&str]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let start =
        usize::try_from(control.used.fetch_add(length as u64, SeqCst)).unwrap_or(usize::MAX);
    let bytes = parts.iter().flat_map(|part| part.bytes());
    for (cell, byte) in control.text.iter().skip(start).zip(bytes) {
        cell.store(byte, SeqCst);
    }
}

fn die(control: &Control) -> ! {
    let main = i32::try_from(control.main.load(SeqCst)).unwrap_or(0);
    // SAFETY: plain system calls. A helper process ends with its program: what it was asked to do
    // has not begun before this point, and is done after it.
    unsafe {
        if main == libc::getpid() {
            durable::take_back_what_is_not_synced();
        }
        if main > 0 {
            libc::kill(main, libc::SIGKILL);
        }
        loop {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    }
}
