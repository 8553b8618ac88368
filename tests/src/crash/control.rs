//! The file that driver and preloaded library share. The layout is the one of
//! `tests/crashpoints/src/control.rs`. The library maps it; here it is read and written, which is
//! the same bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;

/// Bytes of the file.
const SIZE: u64 = 1 << 18;
/// Offsets of the fields, in words.
const ARMED: u64 = 0;
const COUNT: u64 = 1;
const KILL_AT: u64 = 2;
const MAIN: u64 = 3;
const SWALLOW_SYNCS: u64 = 4;
const WALL_OFFSET_S: u64 = 5;
const USED: u64 = 6;
const TEXT: u64 = 56;

/// The driver's end.
pub(super) struct Control(File);

impl Control {
    /// Makes the file: nothing is counted, nothing killed.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        file.set_len(SIZE)?;
        Ok(Self(file))
    }

    fn put(&self, word: u64, value: u64) -> Result<()> {
        Ok(self.0.write_all_at(&value.to_ne_bytes(), word * 8)?)
    }

    fn get(&self, word: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, word * 8)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Whose points count.
    pub(super) fn set_main(&self, pid: u32) -> Result<()> {
        self.put(MAIN, pid.into())
    }

    /// Counts from now on, and kills at point `kill_at`.
    pub(super) fn arm(&self, kill_at: u64, swallow_syncs: bool) -> Result<()> {
        self.put(USED, 0)?;
        self.put(COUNT, 0)?;
        self.put(KILL_AT, kill_at)?;
        self.put(SWALLOW_SYNCS, swallow_syncs.into())?;
        self.put(ARMED, 1)
    }

    /// Counts and kills no more. Returns the points passed.
    pub(super) fn disarm(&self) -> Result<u64> {
        self.put(ARMED, 0)?;
        self.put(KILL_AT, 0)?;
        self.count()
    }

    /// Points passed since arming.
    pub(super) fn count(&self) -> Result<u64> {
        self.get(COUNT)
    }

    /// Shifts the program's wall clock to `offset_s` after the real one.
    pub(super) fn set_wall_offset_s(&self, offset_s: i64) -> Result<()> {
        self.put(WALL_OFFSET_S, offset_s.cast_unsigned())
    }

    /// The names of the points passed, in order.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let used = self.get(USED)?.min(SIZE - TEXT);
        let mut text = vec![0; usize::try_from(used)?];
        self.0.read_exact_at(&mut text, TEXT)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().map(str::to_owned).collect())
    }
}
