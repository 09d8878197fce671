INSERT INTO ticks (schedule, at_ms, by_hand, state, cause, due_ms, decided_ms, token, by, event)
SELECT key, ?1, 0, 'fired', 'clock', ?1, ?1 + 5, 1, 'bench', key FROM json_each(?2)
