-- Consumer groups: members, partition leases and committed offsets.
--
-- Locks. A call that creates, joins, changes, resets or deletes a group locks its row. A call that takes, releases, resets or
-- commits a partition lease locks the row of the lease. A commit is part of the transaction of a handler, which may last: a
-- reset waits for it like for any lock, and a take waits for a moment, then skips the lease, and the member tries again. A call
-- that takes a lease for a session locks the row of the session FOR KEY SHARE, as elections do.

-- Sends NOTIFY that a group changed.
CREATE FUNCTION tenure.notify_group(in_group integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_notify('tenure_notify', json_build_object('group_changed', json_build_object(
        'topic', json_build_object('namespace', t.namespace, 'name', t.name), 'name', g.name))::text)
    FROM tenure.consumer_groups g JOIN tenure.topics t ON t.id = g.topic_id WHERE g.id = in_group
$$;

-- The id of a group; null if it does not exist.
CREATE FUNCTION tenure.find_group(in_namespace text, in_topic text, in_group text) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT g.id FROM tenure.topics t JOIN tenure.consumer_groups g ON g.topic_id = t.id AND g.name = in_group
    WHERE t.namespace = in_namespace AND t.name = in_topic
$$;

-- The id of a group. Raises TN014 if it does not exist.
CREATE FUNCTION tenure.require_group(in_namespace text, in_topic text,
    in_group text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id CONSTANT integer := tenure.find_group(in_namespace, in_topic, in_group);
BEGIN
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'group %/% does not exist',
            CASE WHEN in_namespace = 'default' THEN in_topic ELSE concat(in_namespace, '/', in_topic) END, in_group
            USING ERRCODE = 'TN014', HINT = 'List the groups with `tenure events groups list`';
    END IF;
    RETURN found_id;
END
$$;

-- The committed offset of a group in a partition.
CREATE FUNCTION tenure.get_committed_offset(in_group integer, in_partition integer) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT o.committed_offset FROM tenure.committed_offsets o WHERE o.group_id = in_group AND o.partition = in_partition
            ORDER BY o.generation DESC LIMIT 1);
END
$$;

-- Sets the committed offsets of partitions, given as parallel arrays. The caller has locked their rows in partition_leases.
CREATE FUNCTION tenure.set_committed_offsets(in_group integer, in_partitions integer[], in_offsets bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    WITH last_ AS MATERIALIZED (
        SELECT w.partition, w.committed_offset, o.generation, o.update_count < 16 AS keep_row
        FROM unnest(in_partitions, in_offsets) AS w (partition, committed_offset)
        CROSS JOIN LATERAL (
            SELECT l.generation, l.update_count FROM tenure.committed_offsets l
            WHERE l.group_id = in_group AND l.partition = w.partition ORDER BY l.generation DESC LIMIT 1
        ) o
    ), deleted AS (
        DELETE FROM tenure.committed_offsets o USING last_ l
        WHERE o.group_id = in_group AND o.partition = l.partition AND o.generation = l.generation AND NOT l.keep_row
    ), inserted AS (
        INSERT INTO tenure.committed_offsets (group_id, partition, generation, committed_offset)
        SELECT in_group, l.partition, l.generation + 1, l.committed_offset FROM last_ l WHERE NOT l.keep_row
    )
    UPDATE tenure.committed_offsets o SET committed_offset = l.committed_offset, update_count = o.update_count + 1
    FROM last_ l
    WHERE o.group_id = in_group AND o.partition = l.partition AND o.generation = l.generation AND l.keep_row;
END
$$;

-- Creates a group with its start offsets, if it does not exist. `created`: whether it did.
CREATE FUNCTION tenure.ensure_group(
    in_namespace text, in_topic text, in_group text, max_attempts bigint, initial_backoff_ms bigint, max_backoff_ms bigint,
    start_at text, start_value bigint, OUT id integer, OUT created boolean
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    topic_ CONSTANT integer := tenure.require_topic(in_namespace, in_topic);
BEGIN
    -- Prevents a concurrent deletion of the topic.
    PERFORM FROM tenure.topics t WHERE t.id = topic_ FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM tenure.raise_no_such_topic(in_namespace, in_topic);
    END IF;
    -- Groups that other transactions are creating do not count: the limit need not be exact.
    IF (SELECT count(*) >= 256 AND NOT coalesce(bool_or(g.name = in_group), false) FROM tenure.consumer_groups g
        WHERE g.topic_id = topic_) THEN
        RAISE EXCEPTION 'topic % already has 256 groups, the maximum; cannot create group %',
            CASE WHEN in_namespace = 'default' THEN in_topic ELSE concat(in_namespace, '/', in_topic) END, in_group
            USING ERRCODE = 'TN017', HINT = 'Delete an unused group first (`tenure events groups list` shows them)';
    END IF;
    INSERT INTO tenure.consumer_groups AS g (topic_id, name, max_attempts, initial_backoff_ms, max_backoff_ms)
    VALUES (topic_, in_group, ensure_group.max_attempts, ensure_group.initial_backoff_ms, ensure_group.max_backoff_ms)
    ON CONFLICT (topic_id, name) DO NOTHING RETURNING g.id INTO id;
    created := id IS NOT NULL;
    IF created THEN
        INSERT INTO tenure.partition_leases (group_id, partition)
        SELECT ensure_group.id, s.partition FROM tenure.topics t, generate_series(0, t.partitions - 1) AS s (partition)
            WHERE t.id = topic_;
        INSERT INTO tenure.committed_offsets (group_id, partition, committed_offset)
        SELECT ensure_group.id, s.partition, tenure.resolve_offset(topic_, s.partition, start_at, start_value)
        FROM tenure.topics t, generate_series(0, t.partitions - 1) AS s (partition) WHERE t.id = topic_;
    ELSE
        SELECT g.id INTO STRICT id FROM tenure.consumer_groups g WHERE g.topic_id = topic_ AND g.name = in_group;
    END IF;
END
$$;

-- Joins a group, and creates it if it does not exist. Null if the session has ended.
CREATE FUNCTION tenure.join_group(
    in_namespace text, in_topic text, in_group text, in_session text, in_member text, start_at text, start_value bigint
) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    group_ integer;
    previous_name text;
BEGIN
    PERFORM tenure.require_topic(in_namespace, in_topic);
    PERFORM FROM tenure.sessions s WHERE s.id = in_session AND s.state = 'live' FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    group_ := (SELECT m.id FROM tenure.ensure_group(in_namespace, in_topic, in_group, 10, 500, 60000, start_at, start_value) m);
    PERFORM FROM tenure.consumer_groups g WHERE g.id = group_ FOR NO KEY UPDATE;
    -- From here on this transaction sees the members that joined before.
    UPDATE tenure.consumer_groups g SET active_since_at = clock_timestamp()
    WHERE g.id = group_ AND NOT EXISTS (
        SELECT FROM tenure.group_members m JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live'
        WHERE m.group_id = group_);
    DELETE FROM tenure.group_members m
    WHERE m.group_id = group_ AND NOT EXISTS (
        SELECT FROM tenure.sessions s WHERE s.id = m.session AND s.state = 'live');
    SELECT m.name INTO previous_name FROM tenure.group_members m WHERE m.group_id = group_ AND m.session = in_session;
    INSERT INTO tenure.group_members (group_id, session, name) VALUES (group_, in_session, in_member)
    ON CONFLICT (group_id, session) DO UPDATE SET name = EXCLUDED.name;
    IF previous_name IS DISTINCT FROM in_member THEN
        PERFORM tenure.notify_group(group_);
    END IF;
    RETURN group_;
END
$$;

-- Leaves a group and releases its partition leases.
CREATE FUNCTION tenure.leave_group(in_group integer, in_session text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- First: a call that takes a lease for this session locks this row, and the statements below see that lease.
    DELETE FROM tenure.group_members m WHERE m.group_id = in_group AND m.session = in_session;
    IF FOUND THEN
        PERFORM tenure.notify_group(in_group);
    END IF;
    PERFORM FROM tenure.partition_leases s WHERE s.group_id = in_group AND s.session = in_session
        ORDER BY s.partition FOR UPDATE;
    UPDATE tenure.partition_leases s SET session = NULL WHERE s.group_id = in_group AND s.session = in_session;
END
$$;

CREATE FUNCTION tenure.group_settings_json(g tenure.consumer_groups) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('max_attempts', g.max_attempts, 'backoff', json_build_object(
        'initial_ms', g.initial_backoff_ms, 'max_ms', g.max_backoff_ms))
$$;

CREATE FUNCTION tenure.group_pause_json(g tenure.consumer_groups) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN g.paused_at IS NOT NULL THEN json_build_object(
        'paused_by', g.paused_by, 'reason', g.paused_reason, 'paused_at_ms', tenure.to_unix_ms(g.paused_at)) END
$$;

CREATE FUNCTION tenure.group_members_json(in_group integer) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object('session', m.session, 'name', m.name) ORDER BY m.session), '[]')
    FROM tenure.group_members m JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live' WHERE m.group_id = in_group
$$;

-- A group as its members see it, as JSON in the form that the library reads.
CREATE FUNCTION tenure.group_assignment_json(in_group integer) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'members', m.members,
        'partition_leases', (SELECT coalesce(json_agg(json_build_object(
                       'partition', s.partition, 'token', s.token, 'holder', h.id, 'last_member', s.last_member,
                       'committed_offset', tenure.get_committed_offset(s.group_id, s.partition)) ORDER BY s.partition), '[]')
                   FROM tenure.partition_leases s LEFT JOIN tenure.sessions h ON h.id = s.session AND h.state = 'live'
                   WHERE s.group_id = g.id),
        'settings', tenure.group_settings_json(g), 'paused', tenure.group_pause_json(g),
        'active_ms', CASE WHEN json_array_length(m.members) = 0 THEN 0
                            ELSE greatest(0, tenure.to_unix_ms(clock_timestamp()) - tenure.to_unix_ms(g.active_since_at)) END)
    FROM tenure.consumer_groups g CROSS JOIN LATERAL (SELECT tenure.group_members_json(g.id) AS members) m
    WHERE g.id = in_group
$$;

-- The parked keys of a partition, each with its first event; events without a key are listed one by one.
CREATE FUNCTION tenure.parked_keys_json(in_group integer, in_partition integer) RETURNS json LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT coalesce(json_agg(json_build_object(
               'key', a.key, 'event_id', a.event_id, 'attempts', a.attempts,
               'retry_in_ms', CASE WHEN a.dead THEN NULL WHEN a.attempts = 0 THEN 0
                                 ELSE greatest(0, tenure.to_unix_ms(a.retry_at) - tenure.to_unix_ms(clock_timestamp())) END)
               ORDER BY a.event_offset, a.event_id), '[]')
    FROM (
        (SELECT DISTINCT ON (k.key) k.* FROM tenure.parked_events k
         WHERE k.group_id = in_group AND k.partition = in_partition AND k.key IS NOT NULL ORDER BY k.key, k.event_offset,
             k.event_id)
        UNION ALL
        SELECT n.* FROM tenure.parked_events n WHERE n.group_id = in_group AND n.partition = in_partition AND n.key IS NULL
    ) a
$$;

-- Takes partition leases, given as parallel arrays: each one that is free and has the given token. Waits for a locked lease for
-- a moment: it may be the last commit of the previous holder. Then skips it, so that a member that stopped in the middle of a
-- transaction does not delay the takeover of other partitions.
CREATE FUNCTION tenure.take_partitions(in_group integer, in_session text, in_partitions integer[], in_tokens bigint[])
RETURNS TABLE (partition integer, token bigint, committed_offset bigint, processed_event_ids json,
    parked_keys json) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    token_base bigint := tenure.current_epoch() << 40;
    name_ text;
    locked integer[];
    rest integer[];
    moved bigint := 0;
    lease record;
BEGIN
    SELECT m.name INTO name_ FROM tenure.group_members m JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live'
    WHERE m.group_id = in_group AND m.session = in_session FOR KEY SHARE OF s, m;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    locked := ARRAY(
        SELECT s.partition FROM tenure.partition_leases s
        WHERE s.group_id = in_group AND s.partition = ANY (in_partitions) FOR UPDATE SKIP LOCKED);
    rest := ARRAY(
        SELECT s.partition FROM tenure.partition_leases s JOIN unnest(in_partitions, in_tokens) AS w (partition, token)
            ON w.partition = s.partition AND w.token = s.token
        WHERE s.group_id = in_group AND s.partition <> ALL (locked) AND NOT EXISTS (
            SELECT FROM tenure.sessions h WHERE h.id = s.session AND h.state = 'live'));
    IF cardinality(rest) > 0 THEN
        BEGIN
            PERFORM set_config('lock_timeout', '400', true);
            PERFORM FROM tenure.partition_leases s WHERE s.group_id = in_group AND s.partition = ANY (rest)
                ORDER BY s.partition FOR UPDATE;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
        locked := locked || ARRAY(
            SELECT s.partition FROM tenure.partition_leases s
            WHERE s.group_id = in_group AND s.partition = ANY (rest) FOR UPDATE SKIP LOCKED);
    END IF;
    -- Check again, now that the rows are locked.
    FOR lease IN
        UPDATE tenure.partition_leases s SET token = greatest(s.token, token_base) + 1, session = in_session,
            last_member = name_
        FROM (SELECT o.partition, o.token, o.last_member FROM tenure.partition_leases o
            JOIN unnest(in_partitions, in_tokens) AS w (partition, token)
                  ON w.partition = o.partition AND w.token = o.token
              WHERE o.group_id = in_group AND o.partition = ANY (locked) AND NOT EXISTS (
                  SELECT FROM tenure.sessions h WHERE h.id = o.session AND h.state = 'live')) free_
        WHERE s.group_id = in_group AND s.partition = free_.partition AND s.token = free_.token
        RETURNING s.partition, s.token, tenure.get_committed_offset(in_group, s.partition) AS committed_offset,
            free_.last_member
    LOOP
        moved := moved + CASE WHEN lease.last_member NOT IN ('', name_) THEN 1 ELSE 0 END;
        partition := lease.partition;
        token := lease.token;
        committed_offset := lease.committed_offset;
        processed_event_ids := (SELECT coalesce(json_agg(d.event_id ORDER BY d.event_offset, d.event_id), '[]')
            FROM tenure.processed_events d
                 WHERE d.group_id = in_group AND d.partition = lease.partition AND d.event_offset > lease.committed_offset);
        parked_keys := tenure.parked_keys_json(in_group, lease.partition);
        RETURN NEXT;
    END LOOP;
    IF moved > 0 THEN
        UPDATE tenure.consumer_groups g SET rebalanced_partition_count = g.rebalanced_partition_count + moved
            WHERE g.id = in_group;
    END IF;
END
$$;

-- Releases partition leases, given as parallel arrays: each one that is held under the given token.
CREATE FUNCTION tenure.release_partitions(in_group integer, in_partitions integer[], in_tokens bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM FROM tenure.partition_leases s WHERE s.group_id = in_group AND s.partition = ANY (in_partitions)
        ORDER BY s.partition FOR UPDATE;
    UPDATE tenure.partition_leases s SET session = NULL FROM unnest(in_partitions, in_tokens) AS w (partition, token)
    WHERE s.group_id = in_group AND s.partition = w.partition AND s.token = w.token AND s.session IS NOT NULL;
    IF FOUND THEN
        PERFORM tenure.notify_group(in_group);
    END IF;
END
$$;

-- Commits one partition in the caller's transaction. Returns false and changes nothing if the lease is not held under
-- this token. The lease stays locked until the transaction ends, so that no other member takes it before. Arrays:
--   * Processed events: ids and offsets.
--   * Parked events: ids, offsets, failed attempts (0: the event waits behind another one), delay before the next
--     attempt (null: the event is dead) and errors.
--   * Settled events, which were parked before: ids, attempts (null: the event is processed), delays and errors.
CREATE FUNCTION tenure.commit_partition(
    in_group integer, in_partition integer, in_token bigint, in_offset bigint, processed_ids bigint[],
        processed_offsets bigint[],
    parked_ids bigint[], parked_offsets bigint[], parked_attempts integer[], parked_retry_in_ms bigint[], parked_errors text[],
    settled_ids bigint[], settled_attempts integer[], settled_retry_in_ms bigint[], settled_errors text[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    now_ CONSTANT timestamptz := date_trunc('milliseconds', clock_timestamp());
    new_offset bigint;
    old_offset bigint;
    topic_ integer;
    missing_id bigint;
BEGIN
    -- A lease of another epoch has read events that may not exist here.
    IF in_token >> 40 < coalesce((SELECT e.epoch FROM tenure.stored_epoch e), tenure.current_epoch()) THEN
        RETURN false;
    END IF;
    PERFORM FROM tenure.partition_leases s
    WHERE s.group_id = in_group AND s.partition = in_partition AND s.token = in_token AND s.session IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Read after the lock.
    old_offset := tenure.get_committed_offset(in_group, in_partition);
    SELECT g.topic_id INTO STRICT topic_ FROM tenure.consumer_groups g WHERE g.id = in_group;
    new_offset := greatest(old_offset, in_offset);
    IF new_offset > old_offset THEN
        -- Events that were read and no longer exist were lost in a crash: their offsets will be assigned to other events.
        IF new_offset > (SELECT e.end_offset FROM tenure.partition_offsets(topic_, in_partition) e) THEN
            RETURN false;
        END IF;
        PERFORM tenure.set_committed_offsets(in_group, ARRAY[in_partition], ARRAY[new_offset]);
        -- Rows up to the old offset are deleted already: do not scan them again.
        DELETE FROM tenure.processed_events d
        WHERE d.group_id = in_group AND d.partition = in_partition AND d.event_offset > old_offset
            AND d.event_offset <= new_offset;
    END IF;
    IF processed_ids IS NOT NULL THEN
        INSERT INTO tenure.processed_events (group_id, partition, event_offset, event_id)
        SELECT in_group, in_partition, d.event_offset, d.id FROM unnest(processed_ids, processed_offsets) AS d (id,
            event_offset)
        JOIN tenure.commit_batches u ON u.topic_id = topic_ AND u.partition = in_partition AND u.event_offset = d.event_offset
        JOIN tenure.events e ON e.transaction_id = u.transaction_id AND e.topic_id = u.topic_id AND e.partition = u.partition
            AND e.id = d.id
        WHERE d.event_offset > new_offset AND d.id BETWEEN u.first_event_id AND u.last_event_id
        ON CONFLICT (group_id, partition, event_offset, event_id) DO NOTHING;
    END IF;
    IF parked_ids IS NOT NULL THEN
        -- Skipping an event that cannot be parked would lose it.
        SELECT a.id INTO missing_id
        FROM unnest(parked_ids, parked_offsets) AS a (id, event_offset)
        LEFT JOIN tenure.commit_batches u ON u.topic_id = topic_ AND u.partition = in_partition
            AND u.event_offset = a.event_offset
        LEFT JOIN tenure.events e ON e.transaction_id = u.transaction_id AND e.topic_id = u.topic_id
            AND e.partition = u.partition AND e.id = a.id
        WHERE e.id IS NULL LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'event % cannot be parked for group %: it is not at this offset of partition %', missing_id,
                (SELECT concat(CASE WHEN t.namespace <> 'default' THEN t.namespace || '/' END, t.name, '/', g.name)
                 FROM tenure.consumer_groups g JOIN tenure.topics t ON t.id = g.topic_id WHERE g.id = in_group), in_partition
                USING ERRCODE = 'TN015', HINT = 'Nothing was changed.';
        END IF;
        INSERT INTO tenure.parked_events AS known (
            group_id, event_id, partition, event_offset, dead, attempts, retry_at, last_failed_at, published_at, leader_token,
            key, type, last_error, headers, payload, binary_payload)
        SELECT in_group, e.id, in_partition, u.event_offset, a.attempts > 0 AND a.retry_in_ms IS NULL, a.attempts,
               now_ + coalesce(a.retry_in_ms, 0) * interval '1 millisecond', now_, u.published_at, e.leader_token, e.key,
                   e.type,
               coalesce(a.error, ''), e.headers, e.payload, e.binary_payload
        FROM unnest(parked_ids, parked_offsets, parked_attempts, parked_retry_in_ms, parked_errors)
             AS a (id, event_offset, attempts, retry_in_ms, error)
        JOIN tenure.commit_batches u ON u.topic_id = topic_ AND u.partition = in_partition AND u.event_offset = a.event_offset
        JOIN tenure.events e ON e.transaction_id = u.transaction_id AND e.topic_id = u.topic_id AND e.partition = u.partition
            AND e.id = a.id
        ON CONFLICT (group_id, event_id) DO UPDATE
        SET dead = EXCLUDED.dead, attempts = EXCLUDED.attempts, retry_at = EXCLUDED.retry_at,
            last_failed_at = EXCLUDED.last_failed_at,
            last_error = EXCLUDED.last_error
        -- An event that is parked already and waits behind others stays as it is, and a dead letter stays dead.
        WHERE EXCLUDED.attempts > 0 AND NOT known.dead;
    END IF;
    -- Only an operator settles dead letters.
    IF settled_ids IS NOT NULL THEN
        DELETE FROM tenure.parked_events a USING unnest(settled_ids, settled_attempts) AS s (id, attempts)
        WHERE a.group_id = in_group AND a.event_id = s.id AND a.partition = in_partition AND s.attempts IS NULL AND NOT a.dead;
        UPDATE tenure.parked_events a
        SET dead = s.retry_in_ms IS NULL, attempts = s.attempts, last_failed_at = now_, last_error = coalesce(s.error, ''),
            retry_at = CASE WHEN s.retry_in_ms IS NULL THEN a.retry_at ELSE now_ + s.retry_in_ms * interval '1 millisecond' END
        FROM unnest(settled_ids, settled_attempts, settled_retry_in_ms, settled_errors) AS s (id, attempts, retry_in_ms, error)
        WHERE a.group_id = in_group AND a.event_id = s.id AND a.partition = in_partition AND s.attempts IS NOT NULL
            AND NOT a.dead;
    END IF;
    -- No NOTIFY: only the holder of the partition processes its parked events, and it has made this call.
    RETURN true;
END
$$;

-- Commits only offsets, of several partitions given as parallel arrays: the usual kind of commit. Returns whether each one was
-- committed, in the given order. Locks the leases in the order of their partitions, as all other calls do.
CREATE FUNCTION tenure.commit_offsets(in_group integer, in_partitions integer[], in_tokens bigint[], in_offsets bigint[])
RETURNS boolean[] LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    epoch_ CONSTANT bigint := coalesce((SELECT e.epoch FROM tenure.stored_epoch e), tenure.current_epoch());
    topic_ CONSTANT integer := (SELECT g.topic_id FROM tenure.consumer_groups g WHERE g.id = in_group);
    committed integer[];
    new_offsets bigint[];
    old_offsets bigint[];
BEGIN
    PERFORM FROM tenure.partition_leases s WHERE s.group_id = in_group AND s.partition = ANY (in_partitions)
        ORDER BY s.partition FOR UPDATE;
    -- Read after the locks. As in tenure.commit_partition: neither leases of another epoch nor offsets that no longer exist.
    SELECT array_agg(w.partition), array_agg(w.committed_offset), array_agg(w.old_offset) INTO committed, new_offsets,
        old_offsets FROM (
        SELECT s.partition, greatest(w.committed_offset, o.committed_offset) AS committed_offset,
            o.committed_offset AS old_offset
        FROM unnest(in_partitions, in_tokens, in_offsets) AS w (partition, token, committed_offset)
        JOIN tenure.partition_leases s ON s.group_id = in_group AND s.partition = w.partition AND s.token = w.token
        CROSS JOIN LATERAL (
            SELECT l.committed_offset FROM tenure.committed_offsets l WHERE l.group_id = in_group AND l.partition = w.partition
            ORDER BY l.generation DESC LIMIT 1
        ) o
        WHERE s.session IS NOT NULL AND w.token >> 40 >= epoch_
          AND (w.committed_offset <= o.committed_offset
               OR EXISTS (SELECT FROM tenure.commit_batches u WHERE u.topic_id = topic_ AND u.partition = w.partition
                   AND u.event_offset >= w.committed_offset)
               OR EXISTS (SELECT FROM tenure.partition_start_offsets f
                          WHERE f.topic_id = topic_ AND f.partition = w.partition AND f.start_offset >= w.committed_offset))
    ) w;
    PERFORM tenure.set_committed_offsets(in_group, committed, new_offsets);
    -- Rows up to the old offsets are deleted already: do not scan them again.
    DELETE FROM tenure.processed_events d USING unnest(committed, old_offsets, new_offsets) AS w (partition, after_offset,
        upto_offset)
    WHERE d.group_id = in_group AND d.partition = w.partition AND d.event_offset > w.after_offset
        AND d.event_offset <= w.upto_offset;
    RETURN ARRAY(SELECT w.partition = ANY (coalesce(committed, '{}'))
        FROM unnest(in_partitions) WITH ORDINALITY AS w (partition, n) ORDER BY w.n);
END
$$;

-- Moves the committed offsets of a group, in all partitions or in one, under new tokens. `dry_run`: returns the changes without
-- making them.
CREATE FUNCTION tenure.reset_offsets(in_group integer, start_at text, start_value bigint, in_partition integer, dry_run boolean)
RETURNS TABLE (partition integer, from_offset bigint, to_offset bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    token_base bigint := tenure.current_epoch() << 40;
    topic_ integer;
BEGIN
    SELECT g.topic_id INTO STRICT topic_ FROM tenure.consumer_groups g WHERE g.id = in_group;
    IF NOT dry_run THEN
        PERFORM FROM tenure.partition_leases s
        WHERE s.group_id = in_group AND (in_partition IS NULL OR s.partition = in_partition) ORDER BY s.partition FOR UPDATE;
    END IF;
    FOR partition, from_offset, to_offset IN
        SELECT s.partition, tenure.get_committed_offset(in_group, s.partition),
            tenure.resolve_offset(topic_, s.partition, start_at, start_value)
        FROM tenure.partition_leases s
        WHERE s.group_id = in_group AND (in_partition IS NULL OR s.partition = in_partition) ORDER BY s.partition
    LOOP
        IF NOT dry_run THEN
            UPDATE tenure.partition_leases s
            SET token = greatest(s.token, token_base) + 1, session = NULL
            WHERE s.group_id = in_group AND s.partition = reset_offsets.partition;
            PERFORM tenure.set_committed_offsets(in_group, ARRAY[reset_offsets.partition], ARRAY[to_offset]);
            DELETE FROM tenure.processed_events d WHERE d.group_id = in_group AND d.partition = reset_offsets.partition;
            DELETE FROM tenure.parked_events a
            WHERE a.group_id = in_group AND a.partition = reset_offsets.partition AND a.event_offset > to_offset;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF NOT dry_run THEN
        PERFORM tenure.notify_group(in_group);
    END IF;
END
$$;

-- Deletes a group with its offsets and parked events, unless it has live members.
CREATE FUNCTION tenure.delete_group(in_group integer, OUT existed boolean, OUT members bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- No member can join from here on.
    PERFORM FROM tenure.consumer_groups g WHERE g.id = in_group FOR UPDATE;
    existed := FOUND;
    members := (SELECT count(*) FROM tenure.group_members m JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live'
                WHERE m.group_id = in_group);
    IF NOT existed OR members > 0 THEN
        RETURN;
    END IF;
    PERFORM tenure.notify_group(in_group);
    DELETE FROM tenure.parked_events WHERE group_id = in_group;
    DELETE FROM tenure.processed_events WHERE group_id = in_group;
    DELETE FROM tenure.partition_leases WHERE group_id = in_group;
    DELETE FROM tenure.committed_offsets WHERE group_id = in_group;
    DELETE FROM tenure.group_members WHERE group_id = in_group;
    DELETE FROM tenure.group_webhooks WHERE group_id = in_group;
    DELETE FROM tenure.consumer_groups WHERE id = in_group;
END
$$;

-- Deletes a topic with its events and groups, unless one of the groups has live members. A publication that commits later
-- leaves orphaned events, which maintenance deletes.
CREATE FUNCTION tenure.delete_topic(in_namespace text, in_topic text, OUT existed boolean, OUT active_group text,
    OUT members bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    topic_ integer;
BEGIN
    -- No group can be created from here on.
    SELECT t.id INTO topic_ FROM tenure.topics t WHERE t.namespace = in_namespace AND t.name = in_topic FOR UPDATE;
    existed := FOUND;
    IF NOT existed THEN
        RETURN;
    END IF;
    PERFORM FROM tenure.consumer_groups g WHERE g.topic_id = topic_ ORDER BY g.id FOR UPDATE;
    SELECT g.name, count(*) INTO active_group, members
    FROM tenure.consumer_groups g JOIN tenure.group_members m ON m.group_id = g.id
    JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live'
    WHERE g.topic_id = topic_ GROUP BY g.name ORDER BY g.name LIMIT 1;
    IF active_group IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM tenure.delete_group(g.id) FROM tenure.consumer_groups g WHERE g.topic_id = topic_;
    WITH deleted AS (
        DELETE FROM tenure.commit_batches u WHERE u.topic_id = topic_
        RETURNING u.transaction_id, u.partition, u.first_event_id, u.last_event_id
    )
    DELETE FROM tenure.events e USING deleted g
    WHERE e.transaction_id = g.transaction_id AND e.topic_id = topic_ AND e.partition = g.partition
      AND e.id BETWEEN g.first_event_id AND g.last_event_id;
    DELETE FROM tenure.partition_start_offsets WHERE topic_id = topic_;
    DELETE FROM tenure.topic_waiters WHERE topic_id = topic_;
    DELETE FROM tenure.topics WHERE id = topic_;
END
$$;
