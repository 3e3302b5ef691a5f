-- Renews leases, and refreshes tickets where `p_tokens` is NULL. Returns one row for each, numbered
-- from 1: `state` is `held`, `waiting`, `gone`, `forced`, or `locked`.
--
-- With `p_wait` it waits for a record that another transaction has locked. Otherwise it returns
-- `locked`, so that one such record delays no other renewal. It then never waits while it holds row
-- locks, so no two batches can block each other.
CREATE OR REPLACE FUNCTION {schema}.renew(
    p_keys bytea[], p_ids text[], p_tokens bigint[], p_ttls bigint[], p_claim_ttls bigint[], p_wait boolean
) RETURNS TABLE (nr integer, state text, remaining bigint, read_at bigint, first bigint, ahead bigint)
LANGUAGE plpgsql AS $fn$
#variable_conflict use_column
DECLARE
    v_lease  {schema}.lease;
    v_ticket {schema}.ticket;
    v_now    timestamptz;
    v_found  boolean;
BEGIN
    FOR i IN 1 .. cardinality(p_keys) LOOP
        nr := i; remaining := NULL; read_at := NULL; first := NULL; ahead := NULL;
        IF p_tokens[i] IS NULL THEN
            IF p_wait THEN
                SELECT * INTO v_ticket FROM {schema}.ticket WHERE key = p_keys[i] AND id = p_ids[i] FOR UPDATE;
            ELSE
                SELECT * INTO v_ticket FROM {schema}.ticket WHERE key = p_keys[i] AND id = p_ids[i]
                FOR UPDATE SKIP LOCKED;
            END IF;
            v_found := FOUND;
            v_now := clock_timestamp();
            IF v_found THEN
                UPDATE {schema}.ticket
                SET ends = {schema}.later(v_now, p_ttls[i]), claim_ttl = p_claim_ttls[i]
                WHERE key = p_keys[i] AND id = p_ids[i];
            END IF;
            -- A new statement sees the grant that has removed the ticket, if there was one.
            SELECT * INTO v_lease FROM {schema}.lease WHERE key = p_keys[i];
            read_at := {schema}.micros(v_now);
            IF v_found THEN
                state := 'waiting';
                SELECT count(*) INTO ahead FROM {schema}.ticket
                WHERE key = p_keys[i] AND v_now < ends AND place < v_ticket.place;
                first := v_lease.token - v_lease.tokens + 1;
                remaining := greatest(0, {schema}.micros(
                    {schema}.later(v_lease.closed_until, ahead * v_ticket.turn_after)) - read_at);
                RETURN NEXT;
                CONTINUE;
            ELSIF v_lease.id = p_ids[i] AND v_now < v_lease.closed_until THEN
                state := 'held';
                remaining := {schema}.micros(v_lease.closed_until) - read_at;
                RETURN NEXT;
                CONTINUE;
            ELSIF NOT p_wait AND EXISTS (
                SELECT FROM {schema}.ticket WHERE key = p_keys[i] AND id = p_ids[i]
            ) THEN
                state := 'locked';
                RETURN NEXT;
                CONTINUE;
            END IF;
        ELSE
            IF p_wait THEN
                SELECT * INTO v_lease FROM {schema}.lease WHERE key = p_keys[i] AND id = p_ids[i] FOR UPDATE;
            ELSE
                SELECT * INTO v_lease FROM {schema}.lease WHERE key = p_keys[i] AND id = p_ids[i]
                FOR UPDATE SKIP LOCKED;
            END IF;
            v_found := FOUND;
            v_now := clock_timestamp();
            IF v_found AND v_lease.token = p_tokens[i] AND v_now < v_lease.closed_until THEN
                UPDATE {schema}.lease SET closed_until = greatest(closed_until, {schema}.later(v_now, p_ttls[i]))
                WHERE key = p_keys[i]
                RETURNING * INTO v_lease;
                state := 'held';
                remaining := {schema}.micros(v_lease.closed_until) - {schema}.micros(v_now);
                RETURN NEXT;
                CONTINUE;
            ELSIF NOT v_found AND NOT p_wait AND EXISTS (
                SELECT FROM {schema}.lease WHERE key = p_keys[i] AND id = p_ids[i]
            ) THEN
                state := 'locked';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        state := CASE WHEN EXISTS (SELECT FROM {schema}.forced WHERE key = p_keys[i] AND id = p_ids[i])
                      THEN 'forced' ELSE 'gone' END;
        RETURN NEXT;
    END LOOP;
END $fn$;
