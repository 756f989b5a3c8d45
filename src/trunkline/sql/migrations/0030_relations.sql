-- Fewer relations.

-- Partitions keep their indexes, and the partitioned tables lose theirs: Postgres uses them only for ON
-- CONFLICT and for new partitions, and there are none. The keys become unique indexes.
do $do$
declare
    r record;
begin
    for r in
        select p.oid as parent, p.relname as parent_name, n.conname is not null as is_key, n.conname, t.relname as parent_table,
               array_agg(k.relname order by k.relname) as names, array_agg(pg_get_indexdef(k.oid) order by k.relname) as definitions
        from pg_class p join pg_index i on i.indexrelid = p.oid join pg_class t on t.oid = i.indrelid
        left join pg_constraint n on n.conindid = p.oid and n.conrelid = t.oid
        join pg_inherits h on h.inhparent = p.oid join pg_class k on k.oid = h.inhrelid
        where p.relnamespace = 'trunkline'::regnamespace and p.relkind = 'I' and t.relname !~ '^topic_[0-9]+$'
          -- these have statements with ON CONFLICT
          and p.relname not in ('settled_pkey', 'idempotency_pkey', 'inbox_keys_pkey')
        group by p.oid, p.relname, n.conname, t.relname order by p.relname
    loop
        if r.is_key then
            execute format('alter table trunkline.%I drop constraint %I', r.parent_table, r.conname);
        else
            execute format('drop index trunkline.%I', r.parent_name);
        end if;
        for i in 1 .. cardinality(r.names) loop
            execute r.definitions[i];
        end loop;
    end loop;
end
$do$;

-- Tables that keep rows for some days have three partitions instead of four. The rows of the fourth go to
-- another one. The next partition to be emptied must have the oldest rows only: current + 1, as before.
do $do$
declare
    w       record;
    v_moves int[][];
begin
    for w in select name, slot from trunkline.windows order by name loop
        -- from and to, in this order
        v_moves := case w.slot when 0 then array[[3, 2]] when 1 then array[[3, 0]] when 2 then array[[0, 1], [3, 0]] else array[[3, 2]] end;
        for i in 1 .. array_length(v_moves, 1) loop
            execute format('update trunkline.%I set slot = %s where slot = %s', w.name, v_moves[i][2], v_moves[i][1]);
        end loop;
        execute format('drop table trunkline.%I', w.name || '_3');
        update trunkline.windows set slot = 2 where name = w.name and slot = 3;
    end loop;
end
$do$;

-- One row at most, or few: an index costs more than it saves.
alter table trunkline.epoch drop constraint epoch_pkey;
alter table trunkline.rotation drop constraint rotation_pkey;
alter table trunkline.delayed_rotation drop constraint delayed_rotation_pkey;
drop index trunkline.bindings_endpoint_id_idx;
drop index trunkline.endpoint_bars_dispatcher_idx;
drop index trunkline.job_cancels_n_idx;
drop index trunkline.sink_commits_at_idx;

-- Upkeep tasks: when each ran last, and since when it fails. Sequences, which leave no dead rows, remain for
-- tasks that run every few seconds or more often.
alter table trunkline.upkeep_failures rename to upkeep_tasks;
alter table trunkline.upkeep_tasks rename constraint upkeep_failures_pkey to upkeep_tasks_pkey;
alter table trunkline.upkeep_tasks
    alter column since drop not null,
    alter column code drop not null,
    alter column error drop not null,
    -- in milliseconds since 1970; null: in the sequence upkeep_<task>
    add column ran_at bigint,
    -- where the next run continues: see the task
    add column mark bigint[];
insert into trunkline.upkeep_tasks (task, ran_at)
select t, coalesce(pg_sequence_last_value(format('trunkline.upkeep_%s', t)::regclass), 0)
from unnest('{segments,retention,rotate,windows,history,attempts,stages,rollups}'::text[]) t
on conflict (task) do update set ran_at = excluded.ran_at;
-- milliseconds of the last run that succeeded, the newest pass then, and the last group that was rolled up
update trunkline.upkeep_tasks set mark = array[coalesce(pg_sequence_last_value('trunkline.rolled_up_at'), 0),
    coalesce(pg_sequence_last_value('trunkline.rolled_up_pass'), 0), coalesce(pg_sequence_last_value('trunkline.groups_visited'), 0)]
where task = 'rollups';
drop sequence trunkline.upkeep_segments, trunkline.upkeep_retention, trunkline.upkeep_rotate, trunkline.upkeep_windows, trunkline.upkeep_history,
    trunkline.upkeep_attempts, trunkline.upkeep_stages, trunkline.upkeep_rollups, trunkline.rolled_up_at, trunkline.rolled_up_pass, trunkline.groups_visited;
