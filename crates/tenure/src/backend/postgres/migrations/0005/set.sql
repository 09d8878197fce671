-- Setting schedules, pausing and deleting them. What a definition means for its ticks is decided in the library, from what it has seen;
-- here it is compared with what is so, under the lock of the schedule's row, and nothing happens if that is something else by now.

-- Makes a schedule, or defines it anew. `seen`: the version that was seen, null if there was none; and the ticks and the pause that
-- were. `in_secret`: null to keep what there is. `now_ms`: the moment as of which it was decided. Its version from now on; null: what was
-- seen is not so.
CREATE FUNCTION tenure.set_schedule(
    in_namespace text, in_name text, seen bigint, seen_next bigint, seen_last bigint, seen_paused boolean, in_definition json,
    in_counted boolean, in_next bigint, in_last bigint, in_due bigint, in_secret text, in_source text, in_by text,
    now_ms bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    schedule_ integer;
    version_ bigint;
BEGIN
    IF seen IS NULL THEN
        INSERT INTO tenure.schedules (namespace, name, definition, source, created_at, updated_at, updated_by)
        VALUES (in_namespace, in_name, in_definition, in_source, tenure.at(now_ms), tenure.at(now_ms), in_by)
        ON CONFLICT (namespace, name) DO NOTHING RETURNING id INTO schedule_;
        IF schedule_ IS NULL THEN
            RETURN NULL;
        END IF;
        -- Another statement: had it to wait for a deletion, it sees what that left.
        SELECT f.version + 1 INTO STRICT version_ FROM tenure.schedule_floor f;
        INSERT INTO tenure.schedule_progress (schedule, version, counted, next_at_ms, last_at_ms, due_ms)
        VALUES (schedule_, version_, in_counted, in_next, in_last, in_due);
    ELSE
        UPDATE tenure.schedule_progress p
        SET version = p.version + 1, counted = in_counted, next_at_ms = in_next, last_at_ms = in_last, due_ms = in_due,
            trouble = NULL, strikes = 0
        FROM tenure.schedules s
        WHERE s.namespace = in_namespace AND s.name = in_name AND p.schedule = s.id AND p.version = seen
          AND p.next_at_ms IS NOT DISTINCT FROM seen_next AND p.last_at_ms IS NOT DISTINCT FROM seen_last
          AND (p.paused_at IS NOT NULL) = seen_paused
        RETURNING p.schedule, p.version INTO schedule_, version_;
        IF schedule_ IS NULL THEN
            RETURN NULL;
        END IF;
        UPDATE tenure.schedules s SET definition = in_definition, source = in_source, updated_by = in_by, updated_at = tenure.at(now_ms)
        WHERE s.id = schedule_;
    END IF;
    IF in_secret IS NOT NULL THEN
        INSERT INTO tenure.schedule_secrets (schedule, secret) VALUES (schedule_, in_secret)
        ON CONFLICT (schedule) DO UPDATE SET secret = EXCLUDED.secret;
    END IF;
    PERFORM tenure.ring_scheduler();
    RETURN version_;
END
$$;

-- Tells the leader to look anew.
CREATE FUNCTION tenure.ring_scheduler() RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_notify('tenure_wake', '"schedules"')
$$;

-- Deletes a schedule, if it is of this version (null: of any). Null: it is not there; false: it is of another version. Its ticks, which
-- may be millions, are left to tenure.sweep_ticks: whoever fires would have to wait for this transaction.
CREATE FUNCTION tenure.delete_schedule(in_namespace text, in_name text, expect bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    schedule_ integer;
    version_ bigint;
BEGIN
    SELECT p.schedule, p.version INTO schedule_, version_
    FROM tenure.schedules s JOIN tenure.schedule_progress p ON p.schedule = s.id
    WHERE s.namespace = in_namespace AND s.name = in_name FOR UPDATE OF p;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF version_ <> expect THEN
        RETURN false;
    END IF;
    DELETE FROM tenure.schedule_progress p WHERE p.schedule = schedule_;
    DELETE FROM tenure.schedules s WHERE s.id = schedule_;
    DELETE FROM tenure.schedule_secrets e WHERE e.schedule = schedule_;
    DELETE FROM tenure.tick_runs r WHERE r.schedule = schedule_;
    INSERT INTO tenure.tick_strays (schedule) VALUES (schedule_);
    UPDATE tenure.schedule_floor f SET version = greatest(f.version, version_);
    PERFORM tenure.ring_scheduler();
    RETURN true;
END
$$;

-- Clears away what deleted schedules left, at most so much; how much. What another clears away at this moment is left to it.
CREATE FUNCTION tenure.sweep_ticks(most bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    swept bigint := 0;
    got bigint;
    stray integer;
BEGIN
    FOR stray IN SELECT s.schedule FROM tenure.tick_strays s ORDER BY s.schedule FOR UPDATE SKIP LOCKED LOOP
        EXIT WHEN swept >= most;
        DELETE FROM tenure.ticks WHERE ctid = ANY (ARRAY(
            SELECT t.ctid FROM tenure.ticks t WHERE t.schedule = stray LIMIT most - swept));
        GET DIAGNOSTICS got = ROW_COUNT;
        swept := swept + got;
        DELETE FROM tenure.tick_skips WHERE ctid = ANY (ARRAY(
            SELECT k.ctid FROM tenure.tick_skips k WHERE k.schedule = stray LIMIT most - swept));
        GET DIAGNOSTICS got = ROW_COUNT;
        swept := swept + got;
        IF swept < most THEN
            DELETE FROM tenure.tick_strays s WHERE s.schedule = stray;
        END IF;
    END LOOP;
    RETURN swept;
END
$$;
