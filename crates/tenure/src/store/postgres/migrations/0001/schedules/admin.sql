-- Changes of schedules. The library decides what a definition means for its ticks, from what it has read; these functions
-- compare that with the stored state under the lock of the schedule's row, and change nothing if it differs.

-- Creates a schedule or changes its definition. `seen_version`: the version that the caller has read, null if there was none;
-- with it the ticks and the pause. `in_secret`: null keeps the stored one. `now_at_ms`: the time of the decision. Returns the
-- new version; null if the stored state differs from what the caller has read.
CREATE FUNCTION tenure.set_schedule(
    in_namespace text, in_name text, seen_version bigint, seen_next_tick bigint, seen_last_tick bigint, seen_paused boolean,
        in_definition json,
    in_tracks_runs boolean, in_next_tick bigint, in_last_tick bigint, in_due_at bigint, in_secret text, in_source text,
        in_updated_by text,
    now_at_ms bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    schedule_id_ integer;
    version_ bigint;
BEGIN
    IF seen_version IS NULL THEN
        INSERT INTO tenure.schedules (namespace, name, definition, source, created_at, updated_at, updated_by)
        VALUES (in_namespace, in_name, in_definition, in_source, tenure.from_unix_ms(now_at_ms),
            tenure.from_unix_ms(now_at_ms), in_updated_by)
        ON CONFLICT (namespace, name) DO NOTHING RETURNING id INTO schedule_id_;
        IF schedule_id_ IS NULL THEN
            RETURN NULL;
        END IF;
        -- A new statement: if the insert waited for a deletion, this one sees its result.
        SELECT f.max_deleted_version + 1 INTO STRICT version_ FROM tenure.schedule_versions f;
        INSERT INTO tenure.schedule_state (schedule_id, version, tracks_runs, next_tick_at_ms, last_tick_at_ms, due_at_ms)
        VALUES (schedule_id_, version_, in_tracks_runs, in_next_tick, in_last_tick, in_due_at);
    ELSE
        UPDATE tenure.schedule_state p
        SET version = p.version + 1, tracks_runs = in_tracks_runs, next_tick_at_ms = in_next_tick,
            last_tick_at_ms = in_last_tick, due_at_ms = in_due_at, last_error = NULL, consecutive_failures = 0
        FROM tenure.schedules s
        WHERE s.namespace = in_namespace AND s.name = in_name AND p.schedule_id = s.id AND p.version = seen_version
          AND p.next_tick_at_ms IS NOT DISTINCT FROM seen_next_tick AND p.last_tick_at_ms IS NOT DISTINCT FROM seen_last_tick
          AND (p.paused_at IS NOT NULL) = seen_paused
        RETURNING p.schedule_id, p.version INTO schedule_id_, version_;
        IF schedule_id_ IS NULL THEN
            RETURN NULL;
        END IF;
        UPDATE tenure.schedules s SET definition = in_definition, source = in_source, updated_by = in_updated_by,
            updated_at = tenure.from_unix_ms(now_at_ms)
        WHERE s.id = schedule_id_;
    END IF;
    IF in_secret IS NOT NULL THEN
        INSERT INTO tenure.schedule_webhook_secrets (schedule_id, secret) VALUES (schedule_id_, in_secret)
        ON CONFLICT (schedule_id) DO UPDATE SET secret = EXCLUDED.secret;
    END IF;
    PERFORM tenure.notify_scheduler();
    RETURN version_;
END
$$;

-- Sends NOTIFY that schedules changed.
CREATE FUNCTION tenure.notify_scheduler() RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_notify('tenure_notify', '"schedules_changed"')
$$;

-- Deletes a schedule if it has this version (null: any). Returns null if it does not exist and false if it has another version.
-- tenure.prune_orphaned_ticks deletes its ticks later: there may be millions, and firings would have to wait for this
-- transaction.
CREATE FUNCTION tenure.delete_schedule(in_namespace text, in_name text,
    if_version bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    schedule_id_ integer;
    version_ bigint;
BEGIN
    SELECT p.schedule_id, p.version INTO schedule_id_, version_
    FROM tenure.schedules s JOIN tenure.schedule_state p ON p.schedule_id = s.id
    WHERE s.namespace = in_namespace AND s.name = in_name FOR UPDATE OF p;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF version_ <> if_version THEN
        RETURN false;
    END IF;
    DELETE FROM tenure.schedule_state p WHERE p.schedule_id = schedule_id_;
    DELETE FROM tenure.schedules s WHERE s.id = schedule_id_;
    DELETE FROM tenure.schedule_webhook_secrets e WHERE e.schedule_id = schedule_id_;
    DELETE FROM tenure.tracked_runs r WHERE r.schedule_id = schedule_id_;
    INSERT INTO tenure.orphaned_ticks (schedule_id) VALUES (schedule_id_);
    UPDATE tenure.schedule_versions f SET max_deleted_version = greatest(f.max_deleted_version, version_);
    PERFORM tenure.notify_scheduler();
    RETURN true;
END
$$;

-- Deletes ticks of deleted schedules, at most `max_count`, and returns their number. Skips schedules that another transaction
-- cleans up.
CREATE FUNCTION tenure.prune_orphaned_ticks(max_count bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    deleted_count bigint := 0;
    got bigint;
    orphan_id integer;
BEGIN
    FOR orphan_id IN SELECT s.schedule_id FROM tenure.orphaned_ticks s ORDER BY s.schedule_id FOR UPDATE SKIP LOCKED LOOP
        EXIT WHEN deleted_count >= max_count;
        DELETE FROM tenure.ticks WHERE ctid = ANY (ARRAY(
            SELECT t.ctid FROM tenure.ticks t WHERE t.schedule_id = orphan_id LIMIT max_count - deleted_count));
        GET DIAGNOSTICS got = ROW_COUNT;
        deleted_count := deleted_count + got;
        DELETE FROM tenure.skipped_ticks WHERE ctid = ANY (ARRAY(
            SELECT k.ctid FROM tenure.skipped_ticks k WHERE k.schedule_id = orphan_id LIMIT max_count - deleted_count));
        GET DIAGNOSTICS got = ROW_COUNT;
        deleted_count := deleted_count + got;
        IF deleted_count < max_count THEN
            DELETE FROM tenure.orphaned_ticks s WHERE s.schedule_id = orphan_id;
        END IF;
    END LOOP;
    RETURN deleted_count;
END
$$;
