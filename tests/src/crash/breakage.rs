//! Deliberate breakages: what a run has to notice if it is worth anything.

use std::path::Path;

use anyhow::Result;
use rusqlite::Connection;

/// Something that must not be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Breakage {
    /// `fdatasync` does nothing: what is answered is not on the disk.
    Sync,
    /// The agent forgets what it was working on when it starts again.
    Recovery,
    /// A message counts as acknowledged as soon as it was received.
    Ack,
}

impl Breakage {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Sync, Self::Recovery, Self::Ack];

    /// Does its harm to the files of a machine that has just been killed.
    pub(super) fn harm(self, folder: &Path) -> Result<()> {
        let statements = match self {
            Self::Sync => return Ok(()),
            Self::Recovery => (
                "agent/ledger.db",
                "DELETE FROM operations WHERE final = 0; DELETE FROM intents",
            ),
            Self::Ack => (
                "backplane.db",
                "DELETE FROM messages WHERE receipt IS NOT NULL",
            ),
        };
        let connection = Connection::open(folder.join(statements.0))?;
        connection.execute_batch(statements.1)?;
        connection.close().map_err(|(_, error)| error)?;
        Ok(())
    }
}
