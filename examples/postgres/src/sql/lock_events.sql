-- From now on every grant and every end of a lease is reported. No renewal writes `id`.
CREATE OR REPLACE TRIGGER lock_events AFTER UPDATE OF id OR DELETE ON {schema}.lease
FOR EACH ROW EXECUTE FUNCTION {schema}.tell_lock_event();
