-- Jobs. A job is a message in a queue whose label names its kind; these tables hold only what the log cannot say. Plain jobs
-- never touch them.

create sequence trunkline.job_numbers;

-- What a job answered, for those who asked for it; also how a job that waits for others learns that they are done. A slot holds
-- one day and is emptied by truncate before its number comes round again. The newest row of a job counts.
create table trunkline.job_results (
    slot   smallint    not null,
    n      bigint      not null default nextval('trunkline.job_numbers'),
    job_id uuid        not null,
    -- d(one), f(ailed: it is a dead letter)
    state  "char"      not null,
    result bytea,
    error  text,
    at     timestamptz not null
) partition by list (slot);

-- Effects that must not happen twice: s(tarted), d(one, with what it answered), f(ailed, may start again). Days like job_results; the
-- newest row of a scope and key counts, read and written under one advisory lock.
create table trunkline.job_once (
    slot   smallint    not null,
    n      bigint      not null default nextval('trunkline.job_numbers'),
    scope  text        not null,
    key    text        not null,
    state  "char"      not null,
    result bytea,
    at     timestamptz not null
) partition by list (slot);

do $do$
begin
    for s in 0 .. 31 loop
        execute format('create table trunkline.job_results_%s partition of trunkline.job_results for values in (%s)', s, s);
        execute format('create table trunkline.job_once_%s partition of trunkline.job_once for values in (%s)', s, s);
    end loop;
end
$do$;
create index on trunkline.job_results (job_id, n);
create index on trunkline.job_once (scope, key, n);

-- A job that waits for others, as it will be enqueued; and one row for each job that it still waits for.
create table trunkline.job_waiting (
    waiting_id uuid        primary key,
    queue      text        not null,
    label      text        not null,
    payload    bytea       not null,
    key        text,
    headers    jsonb,
    priority   int,
    created_at timestamptz not null
);
create table trunkline.job_parents (
    parent_id  uuid not null,
    waiting_id uuid not null references trunkline.job_waiting on delete cascade,
    primary key (parent_id, waiting_id)
);
create index on trunkline.job_parents (waiting_id);

-- A key that a job holds until it ends, so that no second one is enqueued meanwhile.
create table trunkline.job_unique (
    key    text        primary key,
    job_id uuid        not null,
    until  timestamptz not null
);
create index on trunkline.job_unique (job_id);

-- Jobs that somebody wants to end. Workers read what is new about once a second.
create table trunkline.job_cancels (
    job_id uuid        primary key,
    n      bigint      not null default nextval('trunkline.job_numbers'),
    reason text        not null,
    at     timestamptz not null
);
create index on trunkline.job_cancels (n);

-- Limits over all processes. Slots are held by workers for a time, as capacity, not per job; tokens are taken for many jobs at once.
create table trunkline.job_limits (
    name        text             primary key,
    max_running int,
    rate        double precision,
    burst       double precision,
    tokens      double precision not null default 0,
    at          timestamptz      not null
) with (fillfactor = 50);
create table trunkline.job_slots (
    limit_name text        not null references trunkline.job_limits on delete cascade,
    worker     text        not null,
    held       int         not null,
    until      timestamptz not null,
    primary key (limit_name, worker)
) with (fillfactor = 50);

-- Workers that run, as they describe themselves every few seconds.
create table trunkline.job_workers (
    worker     text        primary key,
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    info       jsonb       not null
) with (fillfactor = 50);

create sequence trunkline.duty_jobs minvalue 0 start 0;
insert into trunkline.settings values ('job_results_keep', '7 days'), ('job_once_keep', '30 days');
