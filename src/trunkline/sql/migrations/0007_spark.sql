-- Spark: what its writers have committed, where they stage rows, and how its pipelines fare.

-- What a writer has published: one row per version (a micro-batch, a chunk of a job). Written in the transaction that publishes it.
create table trunkline.sink_commits (
    writer  text        not null,
    version bigint      not null,
    rows    bigint      not null,
    at      timestamptz not null,
    primary key (writer, version)
);
create index on trunkline.sink_commits (at);

-- An unlogged table stage_<stage_id> for the rows that the tasks of one writer bring along before they are published.
create table trunkline.stages (
    stage_id int generated always as identity primary key,
    writer   text        not null unique,
    used_at  timestamptz not null
);
create sequence trunkline.duty_stages minvalue 0 start 0;

-- How a pipeline fares, as it says itself every few seconds; for people to look at, nothing depends on it.
create table trunkline.pipelines (
    name            text        primary key,
    kind            text        not null,
    state           text        not null check (state in ('running', 'done', 'failed', 'stopped')),
    batch           bigint,
    rows            bigint      not null default 0,
    rows_per_second float8,
    lag             bigint,
    error           text,
    detail          jsonb       not null default '{}',
    started_at      timestamptz not null,
    updated_at      timestamptz not null,
    ended_at        timestamptz
) with (fillfactor = 50);

-- Archive.
