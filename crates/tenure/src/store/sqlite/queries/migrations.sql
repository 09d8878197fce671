-- name: schema_version
SELECT max(version) AS version, max(oldest_compatible) AS oldest_compatible FROM tenure_migrations;

-- name: schema_objects
SELECT type || ' ' || name AS object FROM sqlite_schema;

-- name: schema_record
INSERT INTO tenure_migrations (version, name, oldest_compatible, applied_at_ms) VALUES (?1, ?2, ?3, ?4);
