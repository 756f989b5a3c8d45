-- Archives, pipelines, and the tables of the Spark connector.

-- Topics with an archive. Its Parquet files count only if archive_files names them.
create table trunkline.archives (
    topic_id   int         primary key references trunkline.topics on delete cascade,
    -- the directory of the files, as a path or URI; null: nothing is archived yet
    location   text,
    -- retention waits until a segment is archived
    required   boolean     not null default false,
    created_at timestamptz not null default clock_timestamp()
);

create table trunkline.archive_files (
    topic_id       int         not null references trunkline.archives on delete cascade,
    partition      int         not null,
    first_offset   bigint      not null check (first_offset >= 1),
    last_offset    bigint      not null check (last_offset >= first_offset),
    -- relative to the location
    path           text        not null,
    bytes          bigint      not null check (bytes > 0),
    min_created_at timestamptz not null,
    max_created_at timestamptz not null,
    -- of the rows, not of the file (docs/spark/pipelines.md)
    checksum       text        not null,
    archived_at    timestamptz not null,
    primary key (topic_id, partition, first_offset),
    -- No offset is in two files. One range that includes the log, because equality would need an extension.
    exclude using gist (
        numrange((topic_id::numeric * 64 + partition) * 9223372036854775808 + first_offset,
                 (topic_id::numeric * 64 + partition) * 9223372036854775808 + last_offset, '[]') with &&
    )
);

-- Progress of a pipeline, reported by itself every few seconds. For operators only.
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

-- Arguments of a pipeline that can be resumed: a second start with the same name continues with them.
create table trunkline.pipeline_plans (
    name       text        primary key,
    plan       jsonb       not null,
    created_at timestamptz not null default clock_timestamp()
);

-- The role that may commit versions of a writer: that of its first commit, or the one set by assign_writer.
create table trunkline.sink_writers (
    writer text        primary key,
    role   text        not null,
    at     timestamptz not null
);

-- Published versions of a writer (micro-batches, or chunks of a batch write), each inserted by the
-- transaction that published it.
create table trunkline.sink_commits (
    writer  text        not null,
    version bigint      not null,
    rows    bigint      not null,
    at      timestamptz not null,
    primary key (writer, version)
);
create index on trunkline.sink_commits (at);

-- Staged rows (docs/adr/0018): Spark tasks write them to segments of the log that the sequencer does not
-- scan; a commit gives them offsets. Such segments have numbers from 2^30, which the sequence of a log does
-- not reach.
create table trunkline.staged_segments (
    log         int         not null references trunkline.logs on delete cascade,
    segment     bigint      not null,
    created_at  timestamptz not null,
    -- set when none of its rows can get an offset any more; last_offset is the highest one given, 0: none
    sealed_at   timestamptz,
    last_offset bigint,
    -- the only role that may copy rows to it; null: none, it gives out no ids
    role        text,
    primary key (log, segment)
);

-- The next id of an open staged segment. Not in staged_segments, whose rows commits keep locked.
create table trunkline.staged_ids (
    log     int    not null,
    segment bigint not null,
    next_id bigint not null,
    primary key (log, segment),
    foreign key (log, segment) references trunkline.staged_segments on delete cascade
) with (fillfactor = 50);

-- Ids that one attempt of a task owns until a commit gives them offsets.
create table trunkline.staged (
    log      int         not null references trunkline.logs on delete cascade,
    first_id bigint      not null,
    n        int         not null,
    attempt  uuid        not null,
    -- all rows are stored and were checked
    complete boolean     not null default false,
    at       timestamptz not null,
    -- the role that opened it
    role     text,
    primary key (log, first_id)
);
create index on trunkline.staged (attempt);
