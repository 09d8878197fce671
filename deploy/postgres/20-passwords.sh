# Set the passwords of the roles of 10-roles.sql. The entrypoint of the postgres image sources this file when it creates the database.
psql -v ON_ERROR_STOP=1 -v owner="$TENURE_OWNER_PASSWORD" -v server="$TENURE_SERVER_PASSWORD" <<'SQL'
ALTER ROLE tenure_owner PASSWORD :'owner';
ALTER ROLE tenure_server PASSWORD :'server';
SQL
