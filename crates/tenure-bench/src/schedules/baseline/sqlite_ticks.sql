INSERT INTO ticks (schedule_id, tick_at_ms, manual, outcome, cause, due_at_ms, decided_at_ms, token, decided_by, event_id)
SELECT key, ?1, 0, 'fired', 'schedule', ?1, ?1 + 5, 1, 'bench', key FROM json_each(?2)
