-- One row per key, never deleted: the last token must outlive all leases.
CREATE TABLE IF NOT EXISTS lock (
    key     BLOB NOT NULL PRIMARY KEY,
    written INTEGER NOT NULL, -- nanoseconds of the machine's monotonic clock: see clock.rs
    token   INTEGER NOT NULL, -- the last one
    record  TEXT              -- NULL after a restart of the machine
) STRICT, WITHOUT ROWID;
