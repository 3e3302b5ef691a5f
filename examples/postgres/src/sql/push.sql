-- Pushes events, when the transaction has committed. `{channel}` is the channel of all watchers.
-- Each provider has a channel of its own, whose name begins with it.
--
-- A release that finds no waiter pushes nothing, because a NOTIFY locks the whole database until its
-- transaction has committed. A purge pushes nothing, because its keys have no holders or waiters.

CREATE OR REPLACE FUNCTION {schema}.push_own(p_id text, p_event text) RETURNS void
LANGUAGE sql AS $fn$
    SELECT pg_notify({channel} || ':' || left(split_part(p_id, '-', 1), 16), p_event)
$fn$;

CREATE OR REPLACE FUNCTION {schema}.push_granted(p_lease {schema}.lease) RETURNS void
LANGUAGE sql AS $fn$
    SELECT {schema}.push_own(p_lease.id, concat_ws(' ',
        'granted', encode(p_lease.key, 'hex'), p_lease.id, p_lease.token - p_lease.tokens + 1, p_lease.tokens,
        {schema}.micros(p_lease.closed_until)))
$fn$;

CREATE OR REPLACE FUNCTION {schema}.push_gone(p_key bytea, p_id text, p_token bigint) RETURNS void
LANGUAGE sql AS $fn$
    SELECT {schema}.push_own(p_id, concat_ws(' ', 'gone', encode(p_key, 'hex'), p_id, p_token))
$fn$;

CREATE OR REPLACE FUNCTION {schema}.push_freed(p_key bytea) RETURNS void
LANGUAGE sql AS $fn$ SELECT pg_notify({channel}, concat_ws(' ', 'freed', encode(p_key, 'hex'))) $fn$;

-- Reports lock events, for administration. The trigger that calls it exists only if a store was
-- built with `lock_events` (`lock_events.sql`). It is called when `lease.id` is written, or its row
-- is removed.
CREATE OR REPLACE FUNCTION {schema}.tell_lock_event() RETURNS trigger
LANGUAGE plpgsql AS $fn$
DECLARE
    v_ended text := 'expired';
BEGIN
    IF OLD.id IS NOT NULL THEN
        IF TG_OP = 'UPDATE' AND OLD.id = ANY (NEW.released) THEN
            v_ended := 'released';
        ELSIF EXISTS (SELECT FROM {schema}.forced WHERE key = OLD.key AND id = OLD.id) THEN
            v_ended := 'forced';
        END IF;
        PERFORM pg_notify({channel} || ':locks', concat_ws(' ', v_ended, encode(OLD.key, 'hex'), OLD.id));
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.id IS NOT NULL THEN
        PERFORM pg_notify({channel} || ':locks', concat_ws(' ',
            'granted', encode(NEW.key, 'hex'), NEW.id, NEW.token, encode(NEW.owner, 'hex')));
    END IF;
    RETURN NULL;
END $fn$;
