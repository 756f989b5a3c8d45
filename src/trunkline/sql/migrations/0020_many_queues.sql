-- When queues were rolled up last, in milliseconds, and the newest pass then. Unlogged: after a crash all queues are rolled up once.
create unlogged sequence trunkline.rolled_up_at minvalue 0 start 1;
create unlogged sequence trunkline.rolled_up_pass minvalue 0 start 1;

-- A row of queue_stats().
create type trunkline.queue_stat as (
    queue text, ready bigint, delayed bigint, leased bigint, dead bigint, acked bigint, expired bigint, purged bigint, oldest_age float8, paused boolean
);

-- Tables that keep rows for some days have four partitions that are used in turn, not one for each day of a month: this says which one gets new rows.
create table trunkline.windows (
    name     text        primary key,
    slot     smallint    not null,
    -- since when
    began_at timestamptz not null
);
do $do$
declare
    v_table text;
begin
    foreach v_table in array '{history,attempts,job_results,job_once}'::text[] loop
        insert into trunkline.windows values (v_table, 0, clock_timestamp());
        -- what is written meanwhile must not be in a partition that is dropped
        execute format('lock table trunkline.%I in access exclusive mode', v_table);
        execute format('update trunkline.%I set slot = 0 where slot > 0', v_table);
        for s in 4 .. 31 loop
            execute format('drop table trunkline.%I', v_table || '_' || s);
        end loop;
    end loop;
end
$do$;
