-- Removes a claim's ticket, and passes its lease on to the head of the queue. Returns true if this
-- release or an earlier one ended the claim's lease. `p_used` is the last token that a guard has
-- had: 0 if no guard had one, NULL if that is unknown.
CREATE OR REPLACE FUNCTION {schema}.release(p_key bytea, p_id text, p_hold bigint, p_used bigint) RETURNS boolean
LANGUAGE plpgsql AS $fn$
#variable_conflict use_column
DECLARE
    v_lease {schema}.lease;
    v_head  {schema}.ticket;
    v_now   timestamptz;
    v_last  bigint;
    v_opens timestamptz;
BEGIN
    SELECT * INTO v_lease FROM {schema}.lease WHERE key = p_key FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_now := clock_timestamp();
    -- First, so that no claim passes its lease on to itself.
    DELETE FROM {schema}.ticket WHERE key = p_key AND id = p_id;
    IF v_lease.id IS DISTINCT FROM p_id THEN
        RETURN p_id = ANY (v_lease.released);
    END IF;
    IF v_lease.closed_until <= v_now THEN
        UPDATE {schema}.lease SET id = NULL, tokens = 1 WHERE key = p_key;
        RETURN false;
    END IF;

    -- Tokens that no guard has had may be granted again.
    v_last := v_lease.token;
    IF p_used IS NOT NULL THEN
        v_last := least(v_last, greatest(v_last - v_lease.tokens + 1, p_used));
    END IF;
    v_opens := greatest(v_now, {schema}.later(v_lease.granted, coalesce(p_hold, 0)));
    IF v_opens <= v_now THEN
        DELETE FROM {schema}.ticket WHERE key = p_key AND ends <= v_now;
        DELETE FROM {schema}.ticket
        WHERE key = p_key AND place = (SELECT min(place) FROM {schema}.ticket WHERE key = p_key)
        RETURNING * INTO v_head;
        IF FOUND THEN
            v_lease := {schema}.give(p_key, v_last, v_head.id, v_now, v_head.claim_ttl, v_head.tokens,
                                     v_head.owner, v_head.metadata, p_id);
            PERFORM {schema}.push_granted(v_lease);
            RETURN true;
        END IF;
    END IF;
    UPDATE {schema}.lease
    SET id = NULL, token = v_last, tokens = 1, closed_until = v_opens, released = (p_id || released)[1:8]
    WHERE key = p_key;
    IF v_opens > v_now THEN
        PERFORM {schema}.push_freed(p_key);
    END IF;
    RETURN true;
END $fn$;
