-- The baseline: the tables of release 0.1. The files of this directory are one migration, applied in the
-- order of their names. A migration is never edited after its release; functions are in ../../functions and
-- are applied again by every upgrade. Partitions of partitioned tables are made in 6_partitions.sql.
--
-- This file: topics and their logs, the message store, sequencing, and publishing.
--
-- The messages of a topic are in tables that create_topic makes:
--   topic_<id>                        parent, partitioned by range (partition, id)
--   topic_<id>_<partition>_<segment>  ids from segment * segment_rows to (segment + 1) * segment_rows - 1
--   topic_<id>_<partition>_ids        the sequence of message ids

create table trunkline.settings (
    name  text primary key,
    value text not null
);
insert into trunkline.settings values
    -- limits of one publish call
    ('max_batch', '1000'),
    ('max_batch_bytes', '8388608'),
    -- how long idempotency keys and the ids of received deliveries are kept, at least
    ('idempotency_window', '24 hours'),
    ('inbox_window', '7 days'),
    -- how often upkeep rotates, and the size from which a rotation partition is left
    ('rotate_every', '5 minutes'),
    ('rotate_bytes', '33554432'),
    -- a claim or fetch gives offsets itself if no pass has run for this long: no service runs upkeep
    ('sequence_alone_after', '1 second'),
    -- a schedule with catch_up = 'skip' still fires when it is this late
    ('schedule_grace', '2 minutes'),
    ('job_results_keep', '7 days'),
    ('job_once_keep', '30 days'),
    ('attempts_kept', '3 days'),
    -- open staged segments of Spark writers: of one role, and of all
    ('staged_segments_per_role', '1000'),
    ('staged_segments', '4000');
-- Transaction ids in messages and snapshots are those of this cluster. After a restore to another one,
-- the first scan compares message ids instead (_adopt_logs).
insert into trunkline.settings select 'cluster', system_identifier from pg_control_system();

create table trunkline.topics (
    topic_id        int generated always as identity primary key,
    -- 'inbox': the own log of the queue with this name; 'store': the shared store (topic 0)
    kind            text        not null check (kind in ('topic', 'inbox', 'store')),
    name            text        not null,
    partitions      int         not null check (partitions between 1 and 64),
    retention       interval    not null,
    retention_bytes bigint,
    -- messages older than this are removed even if a reader has not seen them
    hard_retention  interval,
    max_payload     int         not null,
    segment_rows    int         not null,
    created_at      timestamptz not null default clock_timestamp(),
    -- of a queue with priorities: its log has one partition per level; partition = priority, 0 is the lowest
    priorities      int         check (priorities between 2 and 10),
    -- new messages are in the shared store, not in tables of this log
    shared          boolean     not null default false,
    unique (kind, name)
);
create index on trunkline.topics (topic_id) where not shared;

-- One row per partition. log = topic_id * 64 + partition is the number that locks, ticks and cursors use.
create table trunkline.logs (
    log          int    primary key,
    topic_id     int    not null references trunkline.topics on delete cascade,
    partition    int    not null,
    -- the earliest available offset
    base_offset  bigint not null default 1,
    -- while a slot is emptied: ticks up to this offset are already copied to the other slot
    carried_upto bigint not null default 0,
    unique (topic_id, partition)
);

create table trunkline.segments (
    log         int         not null references trunkline.logs on delete cascade,
    segment     bigint      not null,
    created_at  timestamptz not null default clock_timestamp(),
    -- set when every id was drawn: no transaction at or above this number can own one of them
    drained_xid xid8,
    -- set when every id has an offset or never will; last_offset is at or above all offsets of the segment
    sealed_at   timestamptz,
    last_offset bigint,
    primary key (log, segment)
);

-- Topics and queues that were deleted. Upkeep drops their tables and functions when no transaction that may
-- use them is left (_drop_deleted).
create table trunkline.deletions (
    topic_id int         primary key,
    -- the queue whose own log it was; null: a topic
    queue_id int,
    at       timestamptz not null,
    -- transactions that were open when upkeep first saw the row, and had read `topics`; null: not seen yet
    holders  text[]
);

-- The shared store: messages of all queues (docs/adr/0021), a ring of eight tables. The upper bits of an id
-- are the number of its segment; the segment is in the table with that number modulo 8.
create table trunkline.store (
    -- the queue and partition: trunkline.logs
    log          int         not null,
    id           bigint      not null,
    message_id   uuid        not null,
    key          text,
    routing_key  text,
    label        text,
    headers      jsonb,
    payload      bytea       not null,
    content_type text        not null,
    occurred_at  timestamptz,
    created_at   timestamptz not null,
    xid          xid8        not null default pg_current_xact_id()
) partition by list (((id >> 30) & 7));
-- finds what was committed since the last scan
create index on trunkline.store (xid, id);
create sequence trunkline.store_ids;

-- For segments and sequencing the store is a log like others: number 1, partition 1 of topic 0.
insert into trunkline.topics (topic_id, kind, name, partitions, retention, max_payload, segment_rows)
overriding system value values (0, 'store', 'store', 1, '1 day', 16777216, 1073741824);
insert into trunkline.logs (log, topic_id, partition) values (1, 0, 1);
insert into trunkline.segments (log, segment) values (1, 0);

-- The slot for new rows of the tables with two slots (ticks, positions). The other one is emptied next.
create table trunkline.epoch (
    only_row   boolean     primary key default true check (only_row),
    slot       smallint    not null,
    rotated_at timestamptz not null default clock_timestamp()
);
insert into trunkline.epoch (slot) values (0);

-- Sequencing (docs/adr/0020): one row gives the next n offsets of a log to a set of message ids.
create table trunkline.ticks (
    slot         smallint       not null,
    log          int            not null,
    first_offset bigint         not null,
    n            int            not null,
    ids          int8multirange not null,
    cut_at       timestamptz    not null,
    -- Only in the newest tick of a log: the snapshot of its scan, the newest id that was drawn before the
    -- scan, and whether no open transaction owned one of these ids.
    snapshot     pg_snapshot,
    last_id      bigint,
    whole        boolean,
    -- of a scan inside a publisher's transaction: that transaction, and those of its ids that got an offset
    own_xid      xid8,
    own_ids      int8multirange,
    -- the ids are those of the shared store, not of the tables of this log
    shared       boolean        not null default false
) partition by list (slot);
-- Unique: rotation copies ticks, and two in one slot with the same first offset would be added up by the next
-- one.
create unique index on trunkline.ticks (log, first_offset, slot);

-- Idempotency keys. A key is in the window in which it was used and in the next one, so that two publishers
-- on both sides of a border find each other. Old windows are truncated (functions/publish.sql).
create table trunkline.idempotency (
    slot     smallint    not null,
    win      bigint      not null,
    topic_id int         not null,
    key      text        not null,
    id       uuid        not null,
    -- of the message: the same key with another message is an error
    digest   bytea       not null,
    at       timestamptz not null,
    primary key (slot, win, topic_id, key)
) partition by list (slot);

-- Delayed messages. They enter the log when they are due, so that offsets are in the order of delivery.
create table trunkline.scheduled (
    schedule_id  bigint generated always as identity primary key,
    topic_id     int         not null references trunkline.topics on delete cascade,
    due_at       timestamptz not null,
    id           uuid        not null,
    key          text,
    routing_key  text,
    label        text,
    headers      jsonb,
    payload      bytea       not null,
    content_type text        not null,
    occurred_at  timestamptz,
    priority     int
);
create index on trunkline.scheduled (due_at);
create index on trunkline.scheduled (topic_id, due_at);
create index on trunkline.scheduled (id);

-- Results of publish, read and fetch.
create type trunkline.published as (ord int, id uuid, duplicate boolean);

create type trunkline.log_row as (
    log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);

create type trunkline.message as (
    topic text, partition int,
    log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);

create type trunkline.fetched as (
    partition int, generation uuid, deadline timestamptz,
    log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);
