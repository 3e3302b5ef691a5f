-- All times are nanoseconds of the machine's monotonic clock: see clock.rs.

-- One row: the last token that was granted, of all keys. It outlives all other rows, so tokens
-- grow although leases are deleted.
CREATE TABLE IF NOT EXISTS last_token (token INTEGER NOT NULL) STRICT;
INSERT INTO last_token SELECT 0 WHERE NOT EXISTS (SELECT * FROM last_token);

-- What keeps a key closed, and until when: a holder's lease or, without a holder, a minimum hold.
CREATE TABLE IF NOT EXISTS lease (
    key          BLOB NOT NULL PRIMARY KEY,
    holder       TEXT,
    description  TEXT NOT NULL,    -- of the holder, for people
    token        INTEGER NOT NULL, -- the first one
    tokens       INTEGER NOT NULL, -- how many
    granted      INTEGER NOT NULL,
    written      INTEGER NOT NULL,
    closed_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The queue of each key, in the order of `place`.
CREATE TABLE IF NOT EXISTS ticket (
    place       INTEGER PRIMARY KEY AUTOINCREMENT,
    key         BLOB NOT NULL,
    id          TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL,
    tokens      INTEGER NOT NULL,
    claim_ttl   INTEGER NOT NULL,
    written     INTEGER NOT NULL,
    ends        INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS ticket_of_key ON ticket (key, place);

-- The claims that have released, for repeated releases whose answer was lost.
CREATE TABLE IF NOT EXISTS released (id TEXT NOT NULL PRIMARY KEY, written INTEGER NOT NULL, ends INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS released_ends ON released (ends);

-- The leases that were released by force, and why: for people.
CREATE TABLE IF NOT EXISTS forced (key BLOB NOT NULL, holder TEXT, description TEXT NOT NULL, token INTEGER NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL) STRICT;
