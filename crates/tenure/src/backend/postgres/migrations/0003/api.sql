-- For any language: a task, submitted in the caller's own transaction.

-- Refuses a word that is no word: see claim::check.
CREATE FUNCTION tenure.check_word(what text, word text, may_be_empty boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    problem text := CASE
        WHEN word IS NULL THEN 'is null'
        WHEN word = '' AND NOT may_be_empty THEN 'is empty'
        WHEN octet_length(word) > 256 THEN format('has %s bytes; at most 256 are allowed', octet_length(word))
        WHEN word ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'has a control character' END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'its % % %', what, coalesce(quote_literal(left(word, 40)), ''), problem USING ERRCODE = 'TN010',
            HINT = 'Give it 1 to 256 bytes without control characters, or leave it out. Nothing was submitted.';
    END IF;
END
$$;

-- The same for a list of words, of which none may be double: sorted, each once.
CREATE FUNCTION tenure.check_words(what text, words text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(words) > 64 THEN
        RAISE EXCEPTION 'it has % %s; at most 64 are allowed', cardinality(words), what USING ERRCODE = 'TN010',
            HINT = 'Leave some out. Nothing was submitted.';
    END IF;
    PERFORM tenure.check_word(what, w) FROM unnest(words) w;
    RETURN ARRAY(SELECT DISTINCT w COLLATE "C" FROM unnest(words) w ORDER BY 1);
END
$$;

-- Refuses a number that is out of range.
CREATE FUNCTION tenure.check_range(what text, number numeric, least_ numeric, most numeric) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF number NOT BETWEEN least_ AND most THEN
        RAISE EXCEPTION 'its % is %; it must be between % and %', what, number, least_, most USING ERRCODE = 'TN010',
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
    requires text[] DEFAULT '{}',
    prefers text[] DEFAULT '{}',
    workers text[] DEFAULT '{}',
    run_at timestamptz DEFAULT NULL,
    max_wait interval DEFAULT NULL,
    max_run interval DEFAULT NULL,
    max_attempts integer DEFAULT 20,
    backoff_first interval DEFAULT '1 second',
    backoff_most interval DEFAULT '1 hour',
    parents bigint[] DEFAULT '{}',
    key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency_limit integer DEFAULT 1
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    name_ text;
    requires_ text[] := tenure.check_words('required tag', coalesce(requires, '{}'));
    prefers_ text[] := tenure.check_words('preferred tag', coalesce(prefers, '{}'));
    workers_ text[] := tenure.check_words('named worker', coalesce(workers, '{}'));
    longest CONSTANT numeric := 3155760000000;
    ms CONSTANT numeric := 1000;
    id_ bigint;
BEGIN
    FOREACH name_ IN ARRAY ARRAY[queue, namespace] LOOP
        IF name_ IS NULL OR name_ !~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$' THEN
            RAISE EXCEPTION '% is no name of a queue or namespace', coalesce(quote_literal(left(name_, 40)), 'null')
                USING ERRCODE = 'TN010', HINT = 'Give 1 to 128 letters, digits, ''.'', ''_'', '':'' or ''-'', beginning with a '
                                                'letter or digit. Nothing was submitted.';
        END IF;
    END LOOP;
    IF octet_length(payload::text) > 1048576 THEN
        RAISE EXCEPTION 'its payload has % bytes; at most 1048576 are carried', octet_length(payload::text)
            USING ERRCODE = 'TN010', HINT = 'Keep the data elsewhere and give its address. Nothing was submitted.';
    END IF;
    PERFORM tenure.check_word('kind', coalesce(kind, ''), true);
    IF key IS NOT NULL THEN
        PERFORM tenure.check_word('key', key);
        IF key ~ '^[^/]+/.+@[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z!*$' THEN
            RAISE EXCEPTION 'its key % is one by which a schedule submits the task of a tick', quote_literal(left(key, 40))
                USING ERRCODE = 'TN010', HINT = 'Give it another. Nothing was submitted.';
        END IF;
    END IF;
    IF concurrency_key IS NOT NULL THEN
        PERFORM tenure.check_word('concurrency key', concurrency_key);
    END IF;
    PERFORM tenure.check_range('priority', priority, -1000000, 1000000);
    PERFORM tenure.check_range('number of attempts', max_attempts, 1, 2147483647);
    PERFORM tenure.check_range('concurrency limit', concurrency_limit, 1, 2147483647);
    PERFORM tenure.check_range('run_at, in seconds since 1970,', extract(epoch FROM run_at)::numeric, 0, 253402300799);
    PERFORM tenure.check_range('longest wait in ms', extract(epoch FROM max_wait)::numeric * ms, 0, longest);
    PERFORM tenure.check_range('longest run in ms', extract(epoch FROM max_run)::numeric * ms, 0, longest);
    PERFORM tenure.check_range('backoff''s most in ms', extract(epoch FROM backoff_most)::numeric * ms, 0, longest);
    PERFORM tenure.check_range('backoff''s first in ms', extract(epoch FROM backoff_first)::numeric * ms, 0,
                               extract(epoch FROM backoff_most)::numeric * ms);
    PERFORM tenure.check_range('number of parents', cardinality(parents), 0, 64);
    SELECT s.id INTO id_ FROM tenure.submit_all(
        submit.namespace, submit.queue,
        json_build_array(json_build_object(
            'kind', coalesce(kind, ''), 'requires', requires_, 'prefers', prefers_,
            'workers', CASE WHEN '*' = ANY (workers_) THEN '{}' ELSE workers_ END)),
        json_build_array(json_strip_nulls(json_build_object(
            'd', 0, 'priority', priority, 'run_at_ms', tenure.ms(run_at),
            'max_wait_ms', round(extract(epoch FROM max_wait) * 1000),
            'max_run_ms', round(extract(epoch FROM max_run) * 1000), 'max_attempts', max_attempts,
            'backoff_first_ms', round(extract(epoch FROM backoff_first) * 1000),
            'backoff_most_ms', round(extract(epoch FROM backoff_most) * 1000),
            'parents', CASE WHEN cardinality(parents) > 0 THEN parents END, 'key', key,
            'concurrency_key', concurrency_key, 'concurrency_limit', concurrency_limit))),
        ARRAY[coalesce(payload, '{}')::text], false) s;
    RETURN id_;
END
$$;

COMMENT ON FUNCTION tenure.submit IS
'Submits a task to a queue, in the caller''s own transaction: it is there if that commits, and workers that sleep are woken then.
Returns the task''s number; with a key that is known already, that of the first task with this key.

    SELECT tenure.submit(''mail'', ''{"to": "ada"}'', kind => ''welcome'', run_at => now() + interval ''1 hour'');

queue, namespace: made if they are not there. priority: each point is worth a minute of waiting. requires: tags that a worker must
have, all of them. prefers: tags of which it had better have one. workers: names of workers that it is meant for. max_wait: dead
if nobody claims it for so long. max_run: returned to the queue if an attempt takes longer. parents: tasks that must be completed
first; their outputs are its inputs. key: makes submitting again harmless. concurrency_key, concurrency_limit: of all tasks of the
namespace with this key, at most so many are claimed at once. What makes no sense is refused with SQLSTATE TN010, an unknown
parent with TN011, a parent that is dead or cancelled with TN012.';
