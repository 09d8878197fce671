# Sourced by the entrypoint of the postgres image, once, when the database is made: the roles of 10-roles.sql get passwords.
psql -v ON_ERROR_STOP=1 -v owner="$TENURE_OWNER_PASSWORD" -v runtime="$TENURE_RUNTIME_PASSWORD" <<'SQL'
ALTER ROLE tenure_owner PASSWORD :'owner';
ALTER ROLE tenure_runtime PASSWORD :'runtime';
SQL
