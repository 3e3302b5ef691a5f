-- The tables. `{schema}` is the name of the store's schema.
--
-- Keys, owners, metadata and reasons are bytes. They are compared byte by byte, whatever the
-- database's collation and encoding are, and may contain U+0000, which text in PostgreSQL may not.
-- Ids are ASCII. All times are readings of the server's `clock_timestamp()`.

CREATE SCHEMA IF NOT EXISTS {schema};

-- One row: the version of the schema, and the greatest token of all records that were purged.
CREATE TABLE IF NOT EXISTS {schema}.meta (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL,
    floor    bigint NOT NULL DEFAULT 0
);

-- One record per key. Its row lock orders all changes of the key. `id` is the acquisition that
-- holds the lease; without one the key is free, or closed by a minimum hold, until `closed_until`.
-- No column that a renewal changes is indexed, so that renewals are heap-only updates.
CREATE TABLE IF NOT EXISTS {schema}.lease (
    key          bytea PRIMARY KEY CHECK (octet_length(key) BETWEEN 1 AND 1024),
    id           text COLLATE "C",
    token        bigint NOT NULL CHECK (token BETWEEN 0 AND 9007199254740991), -- the last of the block
    tokens       integer NOT NULL CHECK (tokens > 0),                          -- the block's length
    granted      timestamptz NOT NULL,
    closed_until timestamptz NOT NULL,
    owner        bytea,
    metadata     bytea,                                                        -- a JSON object
    released     text[] COLLATE "C" NOT NULL DEFAULT '{}'                      -- the last 8 that released
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS lease_owner ON {schema}.lease (owner);

-- The queues. Places grow, so the order of the places is the order of arrival.
CREATE TABLE IF NOT EXISTS {schema}.ticket (
    key        bytea NOT NULL,
    place      bigint GENERATED ALWAYS AS IDENTITY,
    id         text COLLATE "C" NOT NULL,
    ends       timestamptz NOT NULL,  -- the last refresh plus the ticket's ttl
    claim_ttl  bigint NOT NULL,       -- microseconds
    turn_after bigint NOT NULL,       -- microseconds for each place before
    tokens     integer NOT NULL,
    owner      bytea,
    metadata   bytea,
    PRIMARY KEY (key, place),
    UNIQUE (key, id)
);

-- The last 8 releases by force of each key, for people and for the renewals of their holders.
CREATE TABLE IF NOT EXISTS {schema}.forced (
    key    bytea NOT NULL,
    nr     bigint GENERATED ALWAYS AS IDENTITY,
    at     timestamptz NOT NULL,
    id     text COLLATE "C",
    owner  bytea,
    token  bigint NOT NULL,
    reason bytea NOT NULL,
    PRIMARY KEY (key, nr)
);
