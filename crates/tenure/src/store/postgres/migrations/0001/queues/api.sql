-- The public SQL function that submits a task.

-- Rejects an invalid text, by the same rules as the library.
CREATE FUNCTION tenure.check_text(field text, value text, may_be_empty boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    problem text := CASE
        WHEN value IS NULL THEN 'is null'
        WHEN value = '' AND NOT may_be_empty THEN 'is empty'
        WHEN octet_length(value) > 256 THEN format('has %s bytes; at most 256 are allowed', octet_length(value))
        WHEN value ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'has a control character' END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'the % % %', field, coalesce(quote_literal(left(value, 40)), ''), problem USING ERRCODE = 'TN010',
            HINT = 'Use 1 to 256 bytes without control characters, or omit the argument. Nothing was submitted.';
    END IF;
END
$$;

-- Checks a list of texts. Returns it sorted and without duplicates.
CREATE FUNCTION tenure.check_texts(field text, values_ text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(values_) > 64 THEN
        RAISE EXCEPTION 'the task has % %s; at most 64 are allowed', cardinality(values_), field USING ERRCODE = 'TN010',
            HINT = 'Pass fewer. Nothing was submitted.';
    END IF;
    PERFORM tenure.check_text(field, w) FROM unnest(values_) w;
    RETURN ARRAY(SELECT DISTINCT w COLLATE "C" FROM unnest(values_) w ORDER BY 1);
END
$$;

-- Rejects a number that is out of range.
CREATE FUNCTION tenure.check_range(field text, value numeric, min_value numeric, max_value numeric) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF value NOT BETWEEN min_value AND max_value THEN
        RAISE EXCEPTION 'the % is %; it must be between % and %', field, value, min_value, max_value USING ERRCODE = 'TN010',
            HINT = 'Nothing was submitted.';
    END IF;
END
$$;

CREATE FUNCTION tenure.submit(
    queue text,
    payload jsonb DEFAULT '{}',
    kind text DEFAULT '',
    priority integer DEFAULT 0,
    namespace text DEFAULT 'default',
    required_tags text[] DEFAULT '{}',
    preferred_tags text[] DEFAULT '{}',
    allowed_workers text[] DEFAULT '{}',
    run_at timestamptz DEFAULT NULL,
    max_wait interval DEFAULT NULL,
    max_run interval DEFAULT NULL,
    max_attempts integer DEFAULT 20,
    initial_backoff interval DEFAULT '1 second',
    max_backoff interval DEFAULT '1 hour',
    parents bigint[] DEFAULT '{}',
    idempotency_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency_limit integer DEFAULT 1
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    name_ text;
    required_tags_ text[] := tenure.check_texts('required tag', coalesce(required_tags, '{}'));
    preferred_tags_ text[] := tenure.check_texts('preferred tag', coalesce(preferred_tags, '{}'));
    allowed_workers_ text[] := tenure.check_texts('allowed worker', coalesce(allowed_workers, '{}'));
    max_duration_ms CONSTANT numeric := 3155760000000;
    ms_per_second CONSTANT numeric := 1000;
    id_ bigint;
BEGIN
    FOREACH name_ IN ARRAY ARRAY[queue, namespace] LOOP
        IF name_ IS NULL OR name_ !~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$' THEN
            RAISE EXCEPTION '% is not a valid name of a queue or namespace', coalesce(quote_literal(left(name_, 40)), 'null')
                USING ERRCODE = 'TN010', HINT = 'Use 1 to 128 letters, digits, ''.'', ''_'', '':'' or ''-'', starting with a '
                                                'letter or digit. Nothing was submitted.';
        END IF;
    END LOOP;
    IF octet_length(payload::text) > 1048576 THEN
        RAISE EXCEPTION 'the payload has % bytes; at most 1048576 are allowed', octet_length(payload::text)
            USING ERRCODE = 'TN010', HINT = 'Store the data elsewhere and submit its address. Nothing was submitted.';
    END IF;
    PERFORM tenure.check_text('kind', coalesce(kind, ''), true);
    IF idempotency_key IS NOT NULL THEN
        PERFORM tenure.check_text('idempotency key', idempotency_key);
        IF idempotency_key ~ '^[^/]+/.+@[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z!*$' THEN
            RAISE EXCEPTION 'the idempotency key % is reserved for tasks of schedules', quote_literal(left(idempotency_key, 40))
                USING ERRCODE = 'TN010', HINT = 'Use another key. Nothing was submitted.';
        END IF;
    END IF;
    IF concurrency_key IS NOT NULL THEN
        PERFORM tenure.check_text('concurrency key', concurrency_key);
    END IF;
    PERFORM tenure.check_range('priority', priority, -1000000, 1000000);
    PERFORM tenure.check_range('number of attempts', max_attempts, 1, 2147483647);
    PERFORM tenure.check_range('concurrency limit', concurrency_limit, 1, 2147483647);
    PERFORM tenure.check_range('run_at, in seconds since 1970,', extract(epoch FROM run_at)::numeric, 0, 253402300799);
    PERFORM tenure.check_range('max_wait in ms', extract(epoch FROM max_wait)::numeric * ms_per_second, 0, max_duration_ms);
    PERFORM tenure.check_range('max_run in ms', extract(epoch FROM max_run)::numeric * ms_per_second, 0, max_duration_ms);
    PERFORM tenure.check_range('max_backoff in ms', extract(epoch FROM max_backoff)::numeric * ms_per_second, 0,
        max_duration_ms);
    PERFORM tenure.check_range('initial_backoff in ms', extract(epoch FROM initial_backoff)::numeric * ms_per_second, 0,
                               extract(epoch FROM max_backoff)::numeric * ms_per_second);
    PERFORM tenure.check_range('number of parents', cardinality(parents), 0, 64);
    SELECT s.task_id INTO id_ FROM tenure.submit_tasks(
        submit.namespace, submit.queue,
        json_build_array(json_build_object(
            'kind', coalesce(kind, ''), 'required_tags', required_tags_, 'preferred_tags', preferred_tags_,
            'allowed_workers', CASE WHEN '*' = ANY (allowed_workers_) THEN '{}' ELSE allowed_workers_ END)),
        json_build_array(json_strip_nulls(json_build_object(
            'requirements_index', 0, 'priority', priority, 'run_at_ms', tenure.to_unix_ms(run_at),
            'max_wait_ms', round(extract(epoch FROM max_wait) * 1000),
            'max_run_ms', round(extract(epoch FROM max_run) * 1000), 'max_attempts', max_attempts,
            'initial_backoff_ms', round(extract(epoch FROM initial_backoff) * 1000),
            'max_backoff_ms', round(extract(epoch FROM max_backoff) * 1000),
            'parents', CASE WHEN cardinality(parents) > 0 THEN parents END, 'idempotency_key', idempotency_key,
            'concurrency_key', concurrency_key, 'concurrency_limit', concurrency_limit))),
        ARRAY[coalesce(payload, '{}')::text], false) s;
    RETURN id_;
END
$$;

COMMENT ON FUNCTION tenure.submit IS
'Submits a task to a queue in the caller''s transaction. If the transaction commits, the task exists and waiting workers are notified.
Returns the id of the task; for a known idempotency key, the id of the first task with that key.

    SELECT tenure.submit(''mail'', ''{"to": "ada"}'', kind => ''welcome'', run_at => now() + interval ''1 hour'');

queue, namespace: created if they do not exist. priority: each point equals one minute of waiting. required_tags: tags that a worker must
have, all of them. preferred_tags: workers with one of these tags go first. allowed_workers: names of the workers that may claim the task.
max_wait: the task is dead if no worker claims it in this time. max_run: an attempt that takes longer fails, and the task returns to the
queue. parents: tasks that must complete first; the worker gets their results. idempotency_key: a second submission with the same key
returns the first task. concurrency_key, concurrency_limit: at most this many tasks of the namespace with this key are claimed at a time.
Errors: SQLSTATE TN010 for an invalid argument, TN011 for an unknown parent, TN012 for a parent that is dead or cancelled.';
