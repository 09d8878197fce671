-- The public view for submissions from any language, in the transaction of the caller:
--
--     INSERT INTO tenure_submit (queue, kind, payload) VALUES ('mail', 'welcome', '{"to":"ada"}');
--
-- Only `queue` is required. required_tags, preferred_tags, allowed_workers and parents are JSON arrays. If the queue has a task with
-- the same idempotency_key, the insert does nothing. A trigger cannot notify waiters, so workers find the task when they poll.
-- The trigger uses no feature newer than SQLite 3.38, because the caller may use such an old version. RAISE takes only literal
-- messages there.
CREATE VIEW tenure_submit AS
SELECT q.namespace, q.name AS queue, d.kind, t.payload, t.priority, d.required_tags, d.preferred_tags, d.allowed_workers, t.run_at_ms,
       t.max_wait_ms, t.max_run_ms, t.max_attempts,
       (SELECT json_group_array(p.parent_id) FROM tenure_task_dependencies p WHERE p.task_id = t.id) AS parents,
       t.idempotency_key, substr(t.concurrency_key, length(q.namespace) + 2) AS concurrency_key, t.concurrency_limit, t.id, t.state
FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue_id JOIN tenure_task_requirements d ON d.id = t.requirements_id;

CREATE TRIGGER tenure_submit_insert INSTEAD OF INSERT ON tenure_submit
BEGIN
    -- The same checks as for a submission from Rust. The first group finds invalid JSON, because the second group reads the JSON.
    SELECT CASE
        WHEN NEW.queue IS NULL
            THEN RAISE(ABORT, 'tenure: the queue is missing; name one: INSERT INTO tenure_submit (queue, payload) VALUES (''mail'', ''{}'')')
        WHEN NEW.queue GLOB '*[^A-Za-z0-9._:-]*' OR NEW.queue NOT GLOB '[A-Za-z0-9]*' OR length(NEW.queue) > 128
            THEN RAISE(ABORT, 'tenure: the queue name must have 1 to 128 letters, digits, ''.'', ''_'', '':'' or ''-'', and start with a letter or digit')
        WHEN NEW.namespace GLOB '*[^A-Za-z0-9._:-]*' OR NEW.namespace NOT GLOB '[A-Za-z0-9]*' OR length(NEW.namespace) > 128
            THEN RAISE(ABORT, 'tenure: the namespace must have 1 to 128 letters, digits, ''.'', ''_'', '':'' or ''-'', and start with a letter or digit; omit it for ''default''')
        WHEN typeof(NEW.payload) = 'blob' OR json_valid(coalesce(NEW.payload, '[]')) = 0
            THEN RAISE(ABORT, 'tenure: the payload is not valid JSON text; use ''{"to":"ada"}'' or json_object(''to'', ''ada'')')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576
            THEN RAISE(ABORT, 'tenure: the payload has more than 1048576 bytes; store it elsewhere and submit a reference')
        WHEN json_valid(coalesce(NEW.required_tags, '[]')) = 0 OR json_valid(coalesce(NEW.preferred_tags, '[]')) = 0
                OR json_valid(coalesce(NEW.allowed_workers, '[]')) = 0 OR json_valid(coalesce(NEW.parents, '[]')) = 0
            THEN RAISE(ABORT, 'tenure: required_tags, preferred_tags, allowed_workers and parents must be JSON arrays, for example ''["gpu"]'' or ''[12]''')
    END;
    SELECT CASE
        WHEN coalesce(json_type(NEW.required_tags), 'array') <> 'array' OR coalesce(json_type(NEW.preferred_tags), 'array') <> 'array'
                OR coalesce(json_type(NEW.allowed_workers), 'array') <> 'array' OR coalesce(json_type(NEW.parents), 'array') <> 'array'
            THEN RAISE(ABORT, 'tenure: required_tags, preferred_tags, allowed_workers and parents must be JSON arrays, for example ''["gpu"]'' or ''[12]''')
        WHEN coalesce(json_array_length(NEW.required_tags), 0) > 64 OR coalesce(json_array_length(NEW.preferred_tags), 0) > 64
                OR coalesce(json_array_length(NEW.allowed_workers), 0) > 64 OR coalesce(json_array_length(NEW.parents), 0) > 64
            THEN RAISE(ABORT, 'tenure: a task can have at most 64 required tags, preferred tags, allowed workers or parents; remove some')
        WHEN EXISTS (SELECT 1 FROM (SELECT type, value FROM json_each(coalesce(NEW.required_tags, '[]'))
                                    UNION ALL SELECT type, value FROM json_each(coalesce(NEW.preferred_tags, '[]'))
                                    UNION ALL SELECT type, value FROM json_each(coalesce(NEW.allowed_workers, '[]'))) w
                     WHERE w.type <> 'text' OR length(CAST(w.value AS BLOB)) NOT BETWEEN 1 AND 256
                        OR w.value GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: tags and worker names must be strings of 1 to 256 bytes without control characters')
        WHEN length(CAST(NEW.kind AS BLOB)) > 256 OR NEW.kind GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
            THEN RAISE(ABORT, 'tenure: the kind must have at most 256 bytes and no control characters')
        WHEN length(CAST(NEW.idempotency_key AS BLOB)) NOT BETWEEN 1 AND 256 OR NEW.idempotency_key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
                OR length(CAST(NEW.concurrency_key AS BLOB)) NOT BETWEEN 1 AND 256
                OR NEW.concurrency_key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
            THEN RAISE(ABORT, 'tenure: idempotency_key and concurrency_key must have 1 to 256 bytes and no control characters; omit the key or use another one')
        WHEN NEW.idempotency_key GLOB '?*/?*@[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T*Z*'
            THEN RAISE(ABORT, 'tenure: the idempotency_key has the form that schedules use for the tasks of ticks; use another one')
        WHEN NEW.priority IS NOT NULL AND (typeof(NEW.priority) <> 'integer' OR abs(NEW.priority) > 1000000)
            THEN RAISE(ABORT, 'tenure: the priority must be an integer from -1000000 to 1000000')
        WHEN NEW.max_attempts IS NOT NULL AND (typeof(NEW.max_attempts) <> 'integer' OR NEW.max_attempts NOT BETWEEN 1 AND 2147483647)
            THEN RAISE(ABORT, 'tenure: max_attempts must be an integer from 1 to 2147483647')
        WHEN NEW.concurrency_limit IS NOT NULL AND (typeof(NEW.concurrency_limit) <> 'integer' OR NEW.concurrency_limit NOT BETWEEN 1 AND 2147483647)
            THEN RAISE(ABORT, 'tenure: concurrency_limit must be an integer from 1 to 2147483647')
        WHEN NEW.run_at_ms IS NOT NULL AND (typeof(NEW.run_at_ms) <> 'integer' OR NEW.run_at_ms NOT BETWEEN 0 AND 253402300799999)
            THEN RAISE(ABORT, 'tenure: run_at_ms must be an integer number of milliseconds since 1970, for example unixepoch(''now'', ''+1 hour'') * 1000')
        WHEN (NEW.max_wait_ms IS NOT NULL AND (typeof(NEW.max_wait_ms) <> 'integer' OR NEW.max_wait_ms NOT BETWEEN 0 AND 3155760000000))
                OR (NEW.max_run_ms IS NOT NULL AND (typeof(NEW.max_run_ms) <> 'integer' OR NEW.max_run_ms NOT BETWEEN 0 AND 3155760000000))
            THEN RAISE(ABORT, 'tenure: max_wait_ms and max_run_ms must be integer numbers of milliseconds, at most 100 years')
        WHEN EXISTS (SELECT 1 FROM json_each(coalesce(NEW.parents, '[]')) p
                     WHERE p.type <> 'integer' OR NOT EXISTS (
                         SELECT 1 FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue_id
                         WHERE t.id = p.value AND q.namespace = coalesce(NEW.namespace, 'default')))
            THEN RAISE(ABORT, 'tenure: a parent does not exist in this namespace; parents must be ids of existing tasks (SELECT id FROM tenure_submit)')
        WHEN EXISTS (SELECT 1 FROM json_each(coalesce(NEW.parents, '[]')) p JOIN tenure_tasks t ON t.id = p.value
                     WHERE t.state IN ('dead', 'cancelled'))
            THEN RAISE(ABORT, 'tenure: a parent is dead or cancelled, so the task would end in the same state; retry the parent first: tenure tasks retry ID')
    END;

    INSERT INTO tenure_queues (namespace, name, created_at_ms)
    SELECT coalesce(NEW.namespace, 'default'), NEW.queue, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)
    WHERE NOT EXISTS (SELECT 1 FROM tenure_queues q
                      WHERE q.namespace = coalesce(NEW.namespace, 'default') AND q.name = NEW.queue);

    INSERT INTO tenure_task_requirements (queue_id, kind, required_tags, preferred_tags, allowed_workers)
    SELECT w.queue_id, w.kind, w.required_tags, w.preferred_tags, w.allowed_workers
    FROM (SELECT q.id AS queue_id, coalesce(NEW.kind, '') AS kind,
                 (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.required_tags, '[]')) ORDER BY value)) AS required_tags,
                 (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.preferred_tags, '[]')) ORDER BY value)) AS preferred_tags,
                 (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.allowed_workers, '[]'))
                                                       WHERE NOT EXISTS (SELECT 1 FROM json_each(coalesce(NEW.allowed_workers, '[]')) a WHERE a.value = '*')
                                                       ORDER BY value)) AS allowed_workers
          FROM tenure_queues q WHERE q.namespace = coalesce(NEW.namespace, 'default') AND q.name = NEW.queue) w
    WHERE NOT EXISTS (SELECT 1 FROM tenure_task_requirements d
                      WHERE d.queue_id = w.queue_id AND d.kind = w.kind AND d.required_tags = w.required_tags
                        AND d.preferred_tags = w.preferred_tags AND d.allowed_workers = w.allowed_workers);

    -- The new id is the last id plus one. An INSERT of several rows updates sqlite_sequence only at its end, so the trigger also
    -- reads the last row.
    INSERT INTO tenure_task_dependencies (parent_id, task_id)
    SELECT DISTINCT p.value, max(coalesce((SELECT max(id) FROM tenure_tasks), 0),
                                 coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_tasks'), 0)) + 1
    FROM json_each(coalesce(NEW.parents, '[]')) p
    WHERE NEW.idempotency_key IS NULL OR NOT EXISTS (
        SELECT 1 FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue_id
        WHERE q.namespace = coalesce(NEW.namespace, 'default') AND q.name = NEW.queue AND t.idempotency_key = NEW.idempotency_key);

    INSERT INTO tenure_tasks
        (id, queue_id, requirements_id, state, effective_at_ms, priority, max_attempts, parent_count, concurrency_key,
         concurrency_limit, idempotency_key, initial_backoff_ms, max_backoff_ms, max_wait_ms, max_run_ms, submitted_at_ms,
         run_at_ms, ready_at_ms, wait_expires_at_ms, payload)
    SELECT n.id, n.queue_id, n.requirements_id, n.state, n.now - coalesce(NEW.priority, 0) * 60000, coalesce(NEW.priority, 0),
           coalesce(NEW.max_attempts, 20),
           (SELECT count(DISTINCT p.value) FROM json_each(coalesce(NEW.parents, '[]')) p),
           coalesce(NEW.namespace, 'default') || '/' || NEW.concurrency_key, coalesce(NEW.concurrency_limit, 1), NEW.idempotency_key,
           1000, 3600000, NEW.max_wait_ms, NEW.max_run_ms, n.now, NEW.run_at_ms,
           CASE WHEN n.state = 'ready' THEN n.now END,
           CASE WHEN n.state = 'ready' THEN n.now + NEW.max_wait_ms END,
           coalesce(CAST(NEW.payload AS TEXT), '{}')
    FROM (SELECT m.id, m.queue_id, m.requirements_id, m.now,
                 CASE WHEN EXISTS (SELECT 1 FROM json_each(coalesce(NEW.parents, '[]')) p JOIN tenure_tasks t ON t.id = p.value
                                   WHERE t.state <> 'completed') THEN 'waiting'
                      WHEN NEW.run_at_ms > m.now THEN 'scheduled'
                      ELSE 'ready' END AS state
          FROM (SELECT max(coalesce((SELECT max(id) FROM tenure_tasks), 0),
                           coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_tasks'), 0)) + 1 AS id,
                       q.id AS queue_id, d.id AS requirements_id,
                       CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) AS now
                FROM tenure_queues q JOIN tenure_task_requirements d ON d.queue_id = q.id
                WHERE q.namespace = coalesce(NEW.namespace, 'default') AND q.name = NEW.queue
                  AND d.kind = coalesce(NEW.kind, '')
                  AND d.required_tags = (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.required_tags, '[]')) ORDER BY value))
                  AND d.preferred_tags = (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.preferred_tags, '[]')) ORDER BY value))
                  AND d.allowed_workers = (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.allowed_workers, '[]'))
                                                                        WHERE NOT EXISTS (SELECT 1 FROM json_each(coalesce(NEW.allowed_workers, '[]')) a WHERE a.value = '*')
                                                                        ORDER BY value))
               ) m
         ) n
    WHERE NEW.idempotency_key IS NULL OR NOT EXISTS (SELECT 1 FROM tenure_tasks t WHERE t.queue_id = n.queue_id AND t.idempotency_key = NEW.idempotency_key);
END;
