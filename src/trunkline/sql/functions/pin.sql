-- Settings of the routines that are called from outside; what they call inherits them, so internal functions need none and stay cheap to call
-- (one with settings is not expanded in place). From outside means: by any role (names without _), or by our own programs with the rights of
-- theirs (the list below; or written on the function, as in tokens.sql). tests/sql/test_roles.py fails for one that is left out.
-- security definer: a caller needs the right to call a verb (roles.sql), never a right on our tables.
-- search_path: what a caller puts there must not reach into our functions. upkeep(), which commits, sets it itself.
-- enable_...: a plan that was cached while a segment, slot or window was empty must not read all of it when it is full.
-- jit: before Postgres 18 a full scan of a one-row table would then look expensive enough to be compiled.
do $do$
declare
    f      regprocedure;
    v_verb boolean;
begin
    for f, v_verb in
        select p.oid, p.proname !~ '^_' from pg_proc p
        where p.pronamespace = 'trunkline'::regnamespace and p.prokind = 'f'
          and (p.proname !~ '^(_|topic_[0-9]|queue_[0-9])'
               -- called by our own HTTP service, with its rights (doors.sql, push.sql)
               or p.proname in ('_delivery_of', '_drop_leases', '_queues_of_cursors', '_subscribe_once', '_pull', '_ack_upto', '_committed', '_offset_of',
                                '_ages', '_endpoint'))
          -- expanded in place in every statement; they name what they call with its schema
          and p.proname not in ('clock', 'new_id')
          -- must not run with our rights, and says why (outbox.sql)
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
