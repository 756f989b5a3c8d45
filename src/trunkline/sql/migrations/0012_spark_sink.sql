-- Spark's tasks write rows to the log itself, to segments that the sequencer does not look at; a commit gives them offsets. See docs/adr/0018.

-- A segment for such rows, numbered from 2^30 up, where the sequence of a log does not get.
create table trunkline.staged_segments (
    log         int         not null references trunkline.logs on delete cascade,
    segment     bigint      not null,
    created_at  timestamptz not null,
    -- nothing in it can get an offset any more; last_offset is the highest that was given, 0 for none
    sealed_at   timestamptz,
    last_offset bigint,
    primary key (log, segment)
);

-- Ids that an attempt of a task has for itself, until a commit gives them offsets. Complete: all rows are there and were checked.
create table trunkline.staged (
    log      int         not null references trunkline.logs on delete cascade,
    first_id bigint      not null,
    n        int         not null,
    attempt  uuid        not null,
    complete boolean     not null default false,
    at       timestamptz not null,
    primary key (log, first_id)
);
create index on trunkline.staged (attempt);

-- What was staged the old way and is not committed is staged again by its query.
do $do$
declare
    v_table text;
begin
    for v_table in select format('stage_%s', stage_id) from trunkline.stages loop
        execute format('drop table if exists trunkline.%I', v_table);
    end loop;
end
$do$;
drop table trunkline.stages;
