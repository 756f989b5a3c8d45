-- Sets the settings of functions that are called from outside. Functions that they call inherit these
-- settings. Internal functions have none, because Postgres does not inline a function that has settings.
-- Called from outside are: functions that roles may call (names without _), and functions that Trunkline's
-- own programs call with their own rights. The latter are in the list below, or have settings in their
-- definition (tokens.sql). tests/sql/test_roles.py fails for a function that is missing here.
-- security definer: a caller needs the right to call a function (roles.sql) and no right on tables.
-- search_path: a caller's path must not change what our functions call. upkeep() commits, so it sets its path
-- itself.
-- enable_...: a plan that was cached while a partition was empty must not read all of it once it is full.
-- jit: before Postgres 18, enable_seqscan = off makes the full scan of a one-row table seem expensive enough
-- for JIT compilation.
do $do$
declare
    f      regprocedure;
    v_verb boolean;
begin
    for f, v_verb in
        select p.oid, p.proname !~ '^_' from pg_proc p
        where p.pronamespace = 'trunkline'::regnamespace and p.prokind = 'f'
          and (p.proname !~ '^(_|topic_[0-9]|queue_[0-9])'
               -- called by the HTTP service, with its own rights (compat.sql, settle.sql, stats.sql, push.sql)
               or p.proname in ('_delivery_of', '_drop_leases', '_queues_of_cursors', '_subscribe_once', '_pull', '_ack_upto', '_committed', '_offset_of',
                                '_ages', '_endpoint'))
          -- inlined into every statement; they name what they call with its schema
          and p.proname not in ('clock', 'new_id')
          -- must not run with the owner's rights (see outbox.sql)
          and p.proname <> 'publish_row'
    loop
        if v_verb then
            execute format('alter function %s security definer', f);
        end if;
        execute format('alter function %s set search_path = pg_catalog, pg_temp', f);
        execute format('alter function %s set enable_seqscan = off', f);
        execute format('alter function %s set enable_bitmapscan = off', f);
        execute format('alter function %s set enable_hashjoin = off', f);
        execute format('alter function %s set enable_mergejoin = off', f);
        execute format('alter function %s set jit = off', f);
    end loop;
end
$do$;
