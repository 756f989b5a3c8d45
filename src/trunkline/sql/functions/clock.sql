-- Returns the time of the database server, which decides all deadlines and due times. Tests replace this
-- function by one that reads a setting. Only new_id and the measuring of ages and waits (passes, sessions,
-- locks) use clock_timestamp() directly.
create or replace function trunkline.clock() returns timestamptz
language sql volatile parallel safe
as $$ select pg_catalog.clock_timestamp() $$;

-- Returns a version 7 uuid, so that ids sort by time. Uses uuidv7() in Postgres 18 and newer; before that,
-- sets the time bits of a random uuid.
do $do$
begin
    if current_setting('server_version_num')::int >= 180000 then
        execute $f$
            create or replace function trunkline.new_id() returns uuid
            language sql volatile parallel safe
            as $$ select pg_catalog.uuidv7() $$
        $f$;
    else
        execute $f$
            create or replace function trunkline.new_id() returns uuid
            language sql volatile parallel safe
            as $$
                select encode(
                    set_bit(set_bit(
                        overlay(uuid_send(gen_random_uuid())
                                placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                                from 1 for 6),
                        52, 1), 53, 1),
                    'hex')::uuid
            $$
        $f$;
    end if;
end
$do$;
