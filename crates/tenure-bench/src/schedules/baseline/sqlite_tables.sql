CREATE TABLE ticks (
    schedule_id INTEGER NOT NULL, tick_at_ms INTEGER NOT NULL, manual INTEGER NOT NULL, outcome TEXT NOT NULL, cause TEXT NOT NULL,
    due_at_ms INTEGER NOT NULL, decided_at_ms INTEGER NOT NULL, token INTEGER, decided_by TEXT NOT NULL, event_id INTEGER,
    PRIMARY KEY (schedule_id, tick_at_ms, manual)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, key TEXT, type TEXT NOT NULL, headers TEXT,
    payload TEXT NOT NULL, token INTEGER, published_at_ms INTEGER NOT NULL
)
