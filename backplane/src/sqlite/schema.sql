-- The one file of the embedded backplane. Rows keep their contract types as JSON documents
-- {"v": 1, "doc": ...}; the columns beside a document are what its row is found and ordered by.

-- Queue ---------------------------------------------------------------------------------------

-- The row with the lowest seq of a group is its head: only heads are ever delivered, so a head that
-- is invisible (received, or put back with a delay) blocks its group.
CREATE TABLE messages (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    queue         TEXT NOT NULL,
    grp           TEXT NOT NULL,
    id            TEXT NOT NULL,
    body          TEXT NOT NULL,
    sent_at_ms    INTEGER NOT NULL,
    visible_at_ms INTEGER NOT NULL,
    receives      INTEGER NOT NULL,
    receipt       TEXT
) STRICT;
CREATE UNIQUE INDEX messages_by_group ON messages (queue, grp, seq);
CREATE UNIQUE INDEX messages_by_receipt ON messages (receipt) WHERE receipt IS NOT NULL;

-- Apart from the messages, because the window outlives them.
CREATE TABLE dedup_ids (
    queue        TEXT NOT NULL,
    dedup        TEXT NOT NULL,
    forget_at_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, dedup)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedup_ids_by_end ON dedup_ids (forget_at_ms);

CREATE TABLE dead_letters (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    queue      TEXT NOT NULL,
    grp        TEXT NOT NULL,
    id         TEXT NOT NULL,
    body       TEXT NOT NULL,
    sent_at_ms INTEGER NOT NULL,
    died_at_ms INTEGER NOT NULL,
    receives   INTEGER NOT NULL,
    reason     TEXT NOT NULL
) STRICT;

-- Store ---------------------------------------------------------------------------------------

CREATE TABLE deliveries (
    id             TEXT PRIMARY KEY,
    tenant         TEXT NOT NULL,
    source         TEXT NOT NULL,
    body           BLOB NOT NULL,
    response       TEXT NOT NULL,
    accepted_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE idempotency_keys (
    kind         TEXT NOT NULL CHECK (kind IN ('id', 'content')),
    digest       BLOB NOT NULL,
    delivery     TEXT NOT NULL REFERENCES deliveries (id),
    forget_at_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_end ON idempotency_keys (forget_at_ms);

CREATE TABLE operations (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE,
    delivery       TEXT NOT NULL REFERENCES deliveries (id),
    tenant         TEXT NOT NULL,
    host           TEXT,
    sent           INTEGER NOT NULL,
    final          INTEGER NOT NULL,
    accepted_at_ms INTEGER NOT NULL,
    expires_at_s   INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL DEFAULT 0,
    doc            TEXT NOT NULL
) STRICT;
CREATE INDEX operations_by_delivery ON operations (delivery, seq);
CREATE INDEX operations_by_tenant ON operations (tenant, seq);
CREATE INDEX operations_open ON operations (expires_at_s) WHERE final = 0;

-- Keys that were released before they were ever allocated: until then an allocate of them is refused.
CREATE TABLE tombstones (
    allocation TEXT PRIMARY KEY,
    until_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The highest revision given out, per allocation or per message group of a host.
CREATE TABLE revisions (
    scope    TEXT PRIMARY KEY,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE reservations (
    operation TEXT PRIMARY KEY REFERENCES operations (id),
    host      TEXT NOT NULL,
    doc       TEXT NOT NULL
) STRICT;
CREATE INDEX reservations_by_host ON reservations (host);

-- operation: the allocate that made it pending or live. sequence: the last event of its host that
-- moved it.
CREATE TABLE allocations (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT NOT NULL UNIQUE,
    tenant    TEXT NOT NULL,
    host      TEXT NOT NULL,
    state     TEXT NOT NULL CHECK (state IN ('pending', 'live', 'ended')),
    operation TEXT NOT NULL,
    sequence  INTEGER NOT NULL,
    doc       TEXT NOT NULL
) STRICT;
CREATE INDEX allocations_by_tenant ON allocations (tenant, seq) WHERE state <> 'ended';

CREATE TABLE hosts (
    host        TEXT PRIMARY KEY,
    pools       TEXT NOT NULL,
    public_key  TEXT NOT NULL,
    version     INTEGER NOT NULL,
    heard_at_ms INTEGER,
    sequence    INTEGER,
    inventory   TEXT
) STRICT;

CREATE TABLE callbacks (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    endpoint       TEXT NOT NULL,
    webhook_id     TEXT NOT NULL,
    body           TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'parked')),
    attempts       INTEGER NOT NULL,
    due_at_ms      INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL DEFAULT 0,
    changed_at_ms  INTEGER NOT NULL,
    reason         TEXT,
    UNIQUE (endpoint, webhook_id)
) STRICT;
CREATE INDEX callbacks_due ON callbacks (due_at_ms) WHERE state = 'pending';
