-- Runs once, when the volume is new. Creates role trunkline, which owns the database and installs the schema, and moves
-- the superuser's password to it. The superuser can then connect only inside the container:
-- docker compose exec postgres psql -U postgres trunkline
\getenv password POSTGRES_PASSWORD
create role trunkline login password :'password';
create role trunkline_publisher;
create role trunkline_consumer;
create role trunkline_reader;
create role trunkline_owner;
grant trunkline_publisher, trunkline_consumer, trunkline_reader, trunkline_owner to trunkline with admin option;
-- trunkline doctor reads the sessions of other roles.
grant pg_monitor to trunkline;
alter database trunkline owner to trunkline;
alter role current_user password null;
