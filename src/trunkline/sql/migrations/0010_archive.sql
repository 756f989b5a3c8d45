-- The archive: which offsets of a topic lie in which files. These rows are the truth; a file that no row names does not count.
create table trunkline.archives (
    topic_id   int         primary key references trunkline.topics on delete cascade,
    -- the folder that holds the files, as a path or URI; null: nothing was archived yet
    location   text,
    -- retention waits for the archive
    required   boolean     not null default false,
    created_at timestamptz not null default clock_timestamp()
);

create table trunkline.archive_files (
    topic_id       int         not null references trunkline.archives on delete cascade,
    partition      int         not null,
    first_offset   bigint      not null check (first_offset >= 1),
    last_offset    bigint      not null check (last_offset >= first_offset),
    -- below the location
    path           text        not null,
    bytes          bigint      not null check (bytes > 0),
    min_created_at timestamptz not null,
    max_created_at timestamptz not null,
    -- of the rows, not of the file: see docs/spark/pipelines.md
    checksum       text        not null,
    archived_at    timestamptz not null,
    primary key (topic_id, partition, first_offset),
    -- no offset is in two files. One range per log, so that no extension is needed for the equality
    exclude using gist (numrange((topic_id::numeric * 64 + partition) * 9223372036854775808 + first_offset,
                                 (topic_id::numeric * 64 + partition) * 9223372036854775808 + last_offset, '[]') with &&)
);

-- What a pipeline that can be resumed was started with: a second start with the same name goes on with the same.
create table trunkline.pipeline_plans (
    name       text        primary key,
    plan       jsonb       not null,
    created_at timestamptz not null default clock_timestamp()
);
