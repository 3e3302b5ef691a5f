-- Functions that several requests share.

CREATE OR REPLACE FUNCTION {schema}.micros(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $fn$ SELECT (extract(epoch FROM p_time) * 1000000)::bigint $fn$;

CREATE OR REPLACE FUNCTION {schema}.later(p_time timestamptz, p_micros bigint) RETURNS timestamptz
LANGUAGE sql STABLE AS $fn$ SELECT p_time + p_micros * interval '1 microsecond' $fn$;

-- Locks and returns the record of a key; a new one if there is none. The token of a new one is the
-- floor. It is read after the insertion, because an insertion that waited for a purge must see what
-- the purge has written.
CREATE OR REPLACE FUNCTION {schema}.locked(p_key bytea) RETURNS {schema}.lease
LANGUAGE plpgsql AS $fn$
DECLARE
    v_lease {schema}.lease;
BEGIN
    LOOP
        SELECT * INTO v_lease FROM {schema}.lease WHERE key = p_key FOR UPDATE;
        IF FOUND THEN
            RETURN v_lease;
        END IF;
        INSERT INTO {schema}.lease (key, token, tokens, granted, closed_until)
        VALUES (p_key, 0, 1, '-infinity', '-infinity')
        ON CONFLICT (key) DO NOTHING
        RETURNING * INTO v_lease;
        IF FOUND THEN
            SELECT floor INTO STRICT v_lease.token FROM {schema}.meta;
            RETURN v_lease;
        END IF;
    END LOOP;
END $fn$;

-- Grants a locked key whose last token is `p_last`. The first token of the block is the next one,
-- or the clock in microseconds since 2025, whichever is greater. So a record that was lost with a
-- failed primary does not repeat its tokens. `p_released` is the claim whose release grants the
-- lease, if it is one.
CREATE OR REPLACE FUNCTION {schema}.give(
    p_key bytea, p_last bigint, p_id text, p_now timestamptz, p_ttl bigint, p_tokens integer,
    p_owner bytea, p_metadata bytea, p_released text
) RETURNS {schema}.lease
LANGUAGE sql AS $fn$
    UPDATE {schema}.lease SET
        id = p_id,
        token = greatest(p_last + 1, {schema}.micros(p_now) - 1735689600000000) + p_tokens - 1,
        tokens = p_tokens,
        granted = p_now,
        closed_until = {schema}.later(p_now, p_ttl),
        owner = p_owner,
        metadata = p_metadata,
        released = CASE WHEN p_released IS NULL THEN array_remove(released, p_id)
                        ELSE (p_released || array_remove(released, p_id))[1:8] END
    WHERE key = p_key
    RETURNING *
$fn$;

-- Ends the server process of a request whose outcome is unknown, unless it has ended, and waits
-- until it is gone. From then on the request has taken effect or never will. The timeout of the
-- statement limits the wait.
CREATE OR REPLACE FUNCTION {schema}.fence(p_pid integer, p_started bigint) RETURNS void
LANGUAGE plpgsql AS $fn$
DECLARE
    v_signalled boolean := false;
BEGIN
    WHILE EXISTS (
        SELECT FROM pg_stat_activity WHERE pid = p_pid AND {schema}.micros(backend_start) = p_started
    ) LOOP
        IF NOT v_signalled THEN
            PERFORM pg_terminate_backend(p_pid);
            v_signalled := true;
        END IF;
        PERFORM pg_sleep(0.005);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
END $fn$;
