-- The agent's ledger. JSON columns hold {"v":1,"record":…}.
CREATE TABLE operations (
    id TEXT PRIMARY KEY, hash BLOB NOT NULL, final INTEGER NOT NULL, sequence INTEGER,
    seen_at_s INTEGER NOT NULL, command TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX operations_open ON operations (final) WHERE final = 0;
CREATE TABLE revisions (scope TEXT PRIMARY KEY, revision INTEGER NOT NULL) STRICT;
CREATE TABLE allocations (id TEXT PRIMARY KEY, gpu TEXT NOT NULL, record TEXT NOT NULL) STRICT;
CREATE TABLE tombstones (allocation TEXT PRIMARY KEY, until_s INTEGER NOT NULL) STRICT;
CREATE TABLE intents (
    n INTEGER PRIMARY KEY AUTOINCREMENT, allocation TEXT NOT NULL, gpu TEXT NOT NULL,
    open INTEGER NOT NULL, record TEXT NOT NULL
) STRICT;
CREATE INDEX intents_allocation ON intents (allocation);
CREATE TABLE outbox (sequence INTEGER PRIMARY KEY AUTOINCREMENT, sent INTEGER NOT NULL DEFAULT 0, event TEXT NOT NULL) STRICT;
CREATE INDEX outbox_unsent ON outbox (sequence) WHERE sent = 0;
CREATE TABLE gpus (uuid TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
CREATE TABLE quarantine (gpu TEXT PRIMARY KEY, reason TEXT NOT NULL) STRICT;
CREATE TABLE dead_letters (n INTEGER PRIMARY KEY AUTOINCREMENT, at_s INTEGER NOT NULL, reason TEXT NOT NULL, body TEXT NOT NULL) STRICT;
