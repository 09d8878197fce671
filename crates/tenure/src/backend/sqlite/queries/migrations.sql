-- name: schema_version
SELECT max(version) FROM tenure_migrations;

-- name: schema_record
INSERT INTO tenure_migrations (version, name, applied_at) VALUES (?1, ?2, ?3);
