CREATE TABLE ticks (
    schedule INTEGER NOT NULL, at_ms INTEGER NOT NULL, by_hand INTEGER NOT NULL, state TEXT NOT NULL, cause TEXT NOT NULL,
    due_ms INTEGER NOT NULL, decided_ms INTEGER NOT NULL, token INTEGER, by TEXT NOT NULL, event INTEGER,
    PRIMARY KEY (schedule, at_ms, by_hand)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, slot INTEGER NOT NULL, key TEXT, kind TEXT NOT NULL, headers TEXT,
    payload TEXT NOT NULL, token INTEGER, at INTEGER NOT NULL
)
