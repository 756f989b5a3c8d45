-- Drops signatures that a later version of this schema has replaced. Applied in the transaction that creates
-- their successors, so that callers always find one of the two.
drop function if exists trunkline._append(trunkline.topics, bytea[], uuid[], text[], text[], text[], jsonb[], text[], timestamptz[], int[]);
drop function if exists trunkline._drawable_cursors(trunkline.queues, int, text[]);
drop function if exists trunkline._release_due(int, int), trunkline._release_due_of(int[], text[]), trunkline._upkeep_due(), trunkline.purge_queue(text, int);
drop function if exists trunkline._write_states(trunkline.pass_run, trunkline.cursor_states[]);
drop function if exists trunkline._claim_drawn(trunkline.queues, int, smallint, int, interval, text[], text);
drop function if exists trunkline._needed_from(int), trunkline._roll_up_queue(trunkline.queues, timestamptz, timestamptz);
drop function if exists trunkline.archive_tiers(text, int, bigint, bigint, text),
    trunkline.add_archive_files(text, int[], bigint[], bigint[], text[], bigint[], timestamptz[], timestamptz[], text[]);

-- Not in a migration, since functions that return the type must change in the same transaction. created_at:
-- time of the publish; entered_at: time at which the message entered the log; topic: original topic of a
-- redriven message.
drop function if exists trunkline._make_segments(int), trunkline._unsequenced_logs(int[]);
do $do$
begin
    if not exists (select from pg_attribute where attrelid = 'trunkline.log_row'::regclass and attname = 'entered_at') then
        alter type trunkline.log_row add attribute entered_at timestamptz, add attribute topic text;
    end if;
end
$do$;
drop function if exists trunkline._ack_one(bigint, int, bigint, text, text);
drop function if exists trunkline.fetch(text, text, text, int, interval, boolean, boolean, uuid),
    trunkline._pull(text, text, text, int, interval);

-- `create or replace` cannot rename a parameter: the limit of these was p_max, or p_n.
do $do$
declare
    f regprocedure;
begin
    for f in
        select oid from pg_proc
        where pronamespace = 'trunkline'::regnamespace and proname in ('claim', 'claim_many', 'fetch', '_next_matches', 'claim_range', 'next_runs')
          and proargnames && array['p_max', 'p_n']
    loop
        execute format('drop function %s', f);
    end loop;
end
$do$;
drop function if exists trunkline._draw(trunkline.cursors, trunkline.queues, bigint, int, text[], bigint, int8range),
    trunkline._claim_run(int, regclass, bigint, int, text, int, bigint, bigint, bigint, int, interval, text, bigint);

drop function if exists trunkline.list_jobs(text, text, int), trunkline.register_worker(text, jsonb), trunkline.list_attempts(text, uuid, interval, int),
    trunkline._create_token(text, text, bytea, text[], timestamptz);
drop function if exists trunkline._record_audit(text, text, text, text),
    trunkline._audit_hash(bytea, bigint, timestamptz, text, text, text, text);

-- These return another column now.
do $do$
begin
    if exists (select from pg_proc where oid = to_regprocedure('trunkline._list_audit(bigint, int)') and not 'detail' = any (proargnames)) then
        drop function trunkline._list_audit(bigint, int);
    end if;
    if exists (select from pg_proc where oid = to_regprocedure('trunkline.dead_letter_errors(interval)') and not 'masked' = any (proargnames)) then
        drop function trunkline.dead_letter_errors(interval);
    end if;
end
$do$;

-- The result of these has other columns now, or they have other parameters.
do $do$
declare
    f regprocedure;
begin
    for f in
        select p.oid
        from pg_proc p
        join (values ('topic_rollups', 'bytes'), ('list_queues', 'p_names'), ('list_topics', 'p_names'), ('list_groups', 'p_names'), ('queue_stats', 'p_names'),
                     ('upkeep_stats', 'took_seconds'), ('list_workers', 'schemas')) x (name, argument)
          on p.proname = x.name and not x.argument = any (coalesce(p.proargnames, '{}'))
        where p.pronamespace = 'trunkline'::regnamespace
    loop
        execute format('drop function %s', f);
    end loop;
end
$do$;

do $do$
begin
    if not exists (select from pg_attribute where attrelid = 'trunkline.queue_row'::regclass and attname = 'segment_rows') then
        alter type trunkline.queue_row add attribute segment_rows int;
    end if;
end
$do$;
drop function if exists trunkline.ensure_queue(text, interval, int, interval, float8, interval, float8, interval, interval, boolean, int, interval, int, int, interval);

-- The words of the glossary: names of functions, parameters and result columns before migration 0032, and the
-- views that stand for renamed tables and for the view `completed`.
drop view if exists trunkline.archive, trunkline.endpoint_bars, trunkline.job_slots, trunkline.bell;
do $do$
declare
    f regprocedure;
begin
    for f in
        select oid from pg_proc
        where pronamespace = 'trunkline'::regnamespace
          and (proname in ('take_permits', 'take_probe', 'take_tokens', 'hold_slots', 'finish_jobs', 'cleanup_queue', 'list_archive', 'hold_endpoint',
                           'bar_dispatcher', 'lift_bar', 'lowest_offset', '_barred', '_verbs', '_take_dead_letters', '_place', '_group_place',
                           '_swap_slots', '_empty_slot')
               or (proname = 'topic_stats' and proargnames && array['lowest_offset', 'scheduled'])
               or (proname = 'archive_stats' and proargnames && array['lowest_live', 'lowest_archived'])
               or (proname = 'offset_of' and proargnames && array['p_place'])
               or (proname = '_pull' and proargnames && array['p_max']))
    loop
        execute format('drop function %s', f);
    end loop;
end
$do$;
