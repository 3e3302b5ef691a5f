-- One attempt. If granted, it returns the first token, the block's length, and the time that is
-- left. If busy, it returns the time until the claim's turn, the clock, the token before which
-- grants are old, and the position in the queue: -1 without a ticket, -2 if the queue is full.
CREATE OR REPLACE FUNCTION {schema}.acquire(
    p_key bytea, p_id text, p_ttl bigint, p_tokens integer, p_turn_after bigint, p_owner bytea, p_metadata bytea,
    p_ticket_ttl bigint, p_claim_ttl bigint, p_capacity bigint,
    OUT granted boolean, OUT first bigint, OUT block integer, OUT remaining bigint, OUT read_at bigint,
    OUT standing bigint
)
LANGUAGE plpgsql AS $fn$
#variable_conflict use_column
DECLARE
    v_lease {schema}.lease;
    v_now   timestamptz;
    v_place bigint;
    v_ahead bigint;
    v_turn  timestamptz;
BEGIN
    granted := false;
    IF p_ticket_ttl IS NULL THEN
        -- A row lock is a write. A poll that finds the key held needs none.
        SELECT * INTO v_lease FROM {schema}.lease WHERE key = p_key;
        v_now := clock_timestamp();
        IF v_lease.id <> p_id AND v_now < v_lease.closed_until THEN
            first := v_lease.token - v_lease.tokens + 1;
            read_at := {schema}.micros(v_now);
            remaining := {schema}.micros(v_lease.closed_until) - read_at;
            standing := -1;
            RETURN;
        END IF;
    END IF;

    v_lease := {schema}.locked(p_key);
    -- After the row is locked: an earlier reading could revive a lease that has expired meanwhile.
    v_now := clock_timestamp();
    IF v_lease.id = p_id AND v_now < v_lease.closed_until THEN
        UPDATE {schema}.lease SET closed_until = greatest(closed_until, {schema}.later(v_now, p_ttl))
        WHERE key = p_key
        RETURNING * INTO v_lease;
        granted := true;
    ELSE
        SELECT place INTO v_place FROM {schema}.ticket WHERE key = p_key AND id = p_id AND v_now < ends;
        SELECT count(*) INTO v_ahead FROM {schema}.ticket
        WHERE key = p_key AND v_now < ends AND (v_place IS NULL OR place < v_place);
        v_turn := {schema}.later(v_lease.closed_until, v_ahead * p_turn_after);
        IF v_turn <= v_now THEN
            DELETE FROM {schema}.ticket WHERE key = p_key AND (id = p_id OR ends <= v_now);
            v_lease := {schema}.give(
                p_key, v_lease.token, p_id, v_now, p_ttl, p_tokens, p_owner, p_metadata, NULL);
            granted := true;
        END IF;
    END IF;

    first := v_lease.token - v_lease.tokens + 1;
    block := v_lease.tokens;
    read_at := {schema}.micros(v_now);
    IF granted THEN
        remaining := {schema}.micros(v_lease.closed_until) - read_at;
        RETURN;
    END IF;
    remaining := {schema}.micros(v_turn) - read_at;
    IF p_ticket_ttl IS NULL THEN
        standing := -1;
    ELSIF v_place IS NULL AND v_ahead >= p_capacity THEN
        standing := -2;
    ELSE
        DELETE FROM {schema}.ticket WHERE key = p_key AND ends <= v_now;
        INSERT INTO {schema}.ticket AS t (key, id, ends, claim_ttl, turn_after, tokens, owner, metadata)
        VALUES (p_key, p_id, {schema}.later(v_now, p_ticket_ttl), p_claim_ttl, p_turn_after, p_tokens,
                p_owner, p_metadata)
        ON CONFLICT (key, id) DO UPDATE SET
            ends = excluded.ends, claim_ttl = excluded.claim_ttl, turn_after = excluded.turn_after,
            tokens = excluded.tokens, owner = excluded.owner, metadata = excluded.metadata;
        standing := v_ahead;
    END IF;
END $fn$;
