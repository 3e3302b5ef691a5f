-- The keys that are not free, for administration. The clock is read once per query.
CREATE OR REPLACE VIEW {schema}.held AS
SELECT l.key, l.id, l.token,
       {schema}.micros(l.closed_until) - {schema}.micros(c.read_at) AS remaining,
       (SELECT count(*) FROM {schema}.ticket t WHERE t.key = l.key AND c.read_at < t.ends) AS waiting,
       l.owner, l.metadata
FROM {schema}.lease l CROSS JOIN (SELECT clock_timestamp() AS read_at) c
WHERE c.read_at < l.closed_until;

-- Releases a key by force, and returns the lock that was there. With `p_holder` it releases only a
-- lease, not a minimum hold; with `p_owner` only a lease of that owner. Both are decided when the
-- row is locked.
CREATE OR REPLACE FUNCTION {schema}.force_release(p_key bytea, p_reason bytea, p_holder boolean, p_owner bytea)
RETURNS SETOF {schema}.held
LANGUAGE plpgsql AS $fn$
DECLARE
    v_victim {schema}.held;
BEGIN
    PERFORM FROM {schema}.lease WHERE key = p_key FOR UPDATE;
    SELECT * INTO v_victim FROM {schema}.held
    WHERE key = p_key AND (NOT p_holder OR id IS NOT NULL) AND (p_owner IS NULL OR owner = p_owner);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.forced (key, at, id, owner, token, reason)
    VALUES (p_key, clock_timestamp(), v_victim.id, CASE WHEN v_victim.id IS NOT NULL THEN v_victim.owner END,
            v_victim.token, p_reason);
    DELETE FROM {schema}.forced
    WHERE key = p_key AND nr <= (SELECT nr FROM {schema}.forced WHERE key = p_key ORDER BY nr DESC OFFSET 8 LIMIT 1);
    UPDATE {schema}.lease SET id = NULL, token = token + 1, tokens = 1, closed_until = clock_timestamp()
    WHERE key = p_key;
    IF v_victim.id IS NOT NULL THEN
        PERFORM {schema}.push_gone(p_key, v_victim.id, v_victim.token + 1);
    END IF;
    PERFORM {schema}.push_freed(p_key);
    RETURN NEXT v_victim;
END $fn$;

-- Releases up to `p_limit` leases in a range of keys by force, in the order of the keys. `seen` is
-- how many it looked at, `last` the last one of them.
CREATE OR REPLACE FUNCTION {schema}.force_range(
    p_from bytea, p_until bytea, p_after bytea, p_owner bytea, p_reason bytea, p_limit bigint,
    OUT seen bigint, OUT released bigint, OUT last bytea
)
LANGUAGE plpgsql AS $fn$
DECLARE
    v_key bytea;
BEGIN
    seen := 0;
    released := 0;
    FOR v_key IN
        SELECT key FROM {schema}.held
        WHERE id IS NOT NULL AND key >= p_from AND (p_until IS NULL OR key < p_until)
            AND (p_after IS NULL OR key > p_after) AND (p_owner IS NULL OR owner = p_owner)
        ORDER BY key LIMIT p_limit
    LOOP
        seen := seen + 1;
        last := v_key;
        released := released + (SELECT count(*) FROM {schema}.force_release(v_key, p_reason, true, p_owner));
    END LOOP;
END $fn$;

-- Removes those of the records that were unused for `p_unused` microseconds. Their greatest token
-- becomes the floor of new records, in the same transaction.
CREATE OR REPLACE FUNCTION {schema}.purge_keys(p_keys bytea[], p_unused bigint) RETURNS bigint
LANGUAGE plpgsql AS $fn$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_keys  bytea[];
    v_floor bigint;
BEGIN
    SELECT array_agg(key) INTO v_keys FROM (
        SELECT key FROM {schema}.lease
        WHERE key = ANY (p_keys) AND closed_until < {schema}.later(v_now, -p_unused)
        ORDER BY key FOR UPDATE SKIP LOCKED
    ) unused;
    -- Only a new statement sees the tickets that were added before the rows were locked.
    SELECT array_agg(l.key), max(l.token) INTO v_keys, v_floor FROM {schema}.lease l
    WHERE l.key = ANY (v_keys)
        AND NOT EXISTS (SELECT FROM {schema}.ticket t WHERE t.key = l.key AND v_now < t.ends);
    IF v_keys IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE {schema}.meta SET floor = v_floor WHERE floor < v_floor;
    DELETE FROM {schema}.ticket WHERE key = ANY (v_keys);
    DELETE FROM {schema}.forced WHERE key = ANY (v_keys);
    DELETE FROM {schema}.lease WHERE key = ANY (v_keys);
    RETURN cardinality(v_keys);
END $fn$;

-- Purges the next `p_limit` records after a key. `last` is the last key that it looked at, NULL at
-- the end of the table.
CREATE OR REPLACE FUNCTION {schema}.purge(p_after bytea, p_limit bigint, p_unused bigint, OUT removed bigint, OUT last bytea)
LANGUAGE plpgsql AS $fn$
DECLARE
    v_keys bytea[];
BEGIN
    SELECT array_agg(key ORDER BY key) INTO v_keys FROM (
        SELECT key FROM {schema}.lease WHERE p_after IS NULL OR key > p_after ORDER BY key LIMIT p_limit
    ) batch;
    removed := {schema}.purge_keys(coalesce(v_keys, '{}'), p_unused);
    IF cardinality(v_keys) = p_limit THEN
        last := v_keys[p_limit];
    END IF;
END $fn$;
