-- The kernel's tables. Numbered migrations are never edited once released;
-- functions live in ../functions and are re-applied on every upgrade.
--
-- A topic's messages live in tables of their own, made when the topic is made:
--   topic_<id>                         parent, partitioned by range (partition, id)
--   topic_<id>_<partition>_<segment>   one segment: ids [segment * segment_rows, (segment + 1) * segment_rows)
--   topic_<id>_<partition>_ids         the sequence that hands out ids

create table trunkline.topics (
    topic_id        int generated always as identity primary key,
    -- 'inbox' is the log that belongs to one queue and carries its name
    kind            text        not null check (kind in ('topic', 'inbox')),
    name            text        not null,
    partitions      int         not null check (partitions between 1 and 64),
    retention       interval    not null,
    retention_bytes bigint,
    -- after this long even a lagging reader no longer holds a segment back
    hard_retention  interval,
    max_payload     int         not null,
    segment_rows    int         not null,
    created_at      timestamptz not null default clock_timestamp(),
    unique (kind, name)
);

-- One row per partition. log = topic_id * 64 + partition: the number that locks, ticks and cursors use.
create table trunkline.logs (
    log         int      primary key,
    topic_id    int      not null references trunkline.topics on delete cascade,
    partition   int      not null,
    -- lowest offset that can still be read
    base_offset bigint   not null default 1,
    -- while a slot of the hot tables is being emptied: ticks up to this offset are copied to the other one
    carried_upto bigint  not null default 0,
    unique (topic_id, partition)
);

create table trunkline.segments (
    log          int         not null references trunkline.logs on delete cascade,
    segment      bigint      not null,
    created_at   timestamptz not null default clock_timestamp(),
    -- once every id of the segment was drawn: no transaction at or above this number can own one of them
    drained_xid  xid8,
    -- every id is sequenced or dead, nothing can be added; last_offset is at or above all its offsets
    sealed_at    timestamptz,
    last_offset  bigint,
    primary key (log, segment)
);

-- Where new rows of the hot tables go. The other slot is the one that is emptied next.
create table trunkline.epoch (
    only_row   boolean     primary key default true check (only_row),
    slot       smallint    not null,
    rotated_at timestamptz not null default clock_timestamp()
);
insert into trunkline.epoch (slot) values (0);

-- Sequencing (DESIGN 3.2): one row gives the next n offsets to a set of ids. Never updated.
create table trunkline.ticks (
    slot         smallint       not null,
    log          int            not null,
    first_offset bigint         not null,
    n            int            not null,
    ids          int8multirange not null,
    -- where the next scan starts; ids below it that were not visible are in the gaps
    next_id      bigint         not null,
    -- the generation that waits for old_horizon, and the one that collects meanwhile
    old_gaps     int8multirange not null,
    old_horizon  xid8,
    old_since    timestamptz,
    new_gaps     int8multirange not null,
    new_horizon  xid8,
    cut_at       timestamptz    not null
) partition by list (slot);
create table trunkline.ticks_0 partition of trunkline.ticks for values in (0);
create table trunkline.ticks_1 partition of trunkline.ticks for values in (1);
create index on trunkline.ticks (log, first_offset);

create table trunkline.queues (
    queue_id       int generated always as identity primary key,
    name           text        not null unique,
    inbox_id       int         not null references trunkline.topics,
    lease          interval    not null,
    max_attempts   int         not null,
    backoff_base   interval    not null,
    backoff_factor float8      not null,
    backoff_cap    interval    not null,
    backoff_jitter float8      not null,
    ttl            interval,
    delivery_delay interval    not null,
    ordered        boolean     not null,
    paused         boolean     not null default false,
    created_at     timestamptz not null default clock_timestamp(),
    updated_at     timestamptz not null default clock_timestamp()
);

-- A filtered cursor on one topic: either feeds a queue or is a group.
create table trunkline.subscriptions (
    subscription_id int generated always as identity primary key,
    kind            text        not null check (kind in ('queue', 'group')),
    name            text        not null,
    topic_id        int         not null references trunkline.topics,
    queue_id        int         references trunkline.queues on delete cascade,
    pattern         text,
    pattern_regex   text,
    filter          jsonb,
    created_at      timestamptz not null default clock_timestamp()
);
create unique index on trunkline.subscriptions (topic_id, name) where kind = 'group';
create unique index on trunkline.subscriptions (queue_id, name) where kind = 'queue';

-- The static row that a claim or fetch locks. It never changes with traffic: the state is the newest
-- row for it in leases (queues) or positions (groups).
-- Each queue also has one cursor without a log (lane 'retry'), whose leases hold redelivered messages.
create table trunkline.cursors (
    cursor_id       int generated always as identity primary key,
    lane            text   not null check (lane in ('log', 'retry')),
    subscription_id int    references trunkline.subscriptions on delete cascade,
    queue_id        int    references trunkline.queues on delete cascade,
    topic_id        int    references trunkline.topics,
    partition       int,
    log             int,
    -- copied from topic and subscription, so that a claim reads one row; null topic: the queue's own inbox
    topic           text,
    segment_rows    int,
    pattern_regex   text,
    filter          jsonb,
    start_position  bigint not null default 1
);
create index on trunkline.cursors (queue_id);
create index on trunkline.cursors (subscription_id);
create index on trunkline.cursors (log);

-- One row per claim, not per message. It is both the lease and, for its cursor, the newest state.
create table trunkline.leases (
    slot       smallint       not null,
    cursor_id  int            not null,
    lease_no   bigint         not null,
    -- the cursor on whose log the offsets are (differs from cursor_id in the retry lane)
    source_id  int            not null,
    offsets    int8multirange not null,
    n          int            not null,
    attempt    int            not null,
    token      uuid           not null,
    consumer   text,
    claimed_at timestamptz    not null,
    deadline   timestamptz    not null,
    -- the cursor's state after this row: next offset, and running totals of what it passed for the first time
    position   bigint         not null,
    delivered  bigint         not null,
    passed     bigint         not null,
    skipped    bigint         not null,
    expired    bigint         not null,
    purged     bigint         not null
) partition by list (slot);
create table trunkline.leases_0 partition of trunkline.leases for values in (0);
create table trunkline.leases_1 partition of trunkline.leases for values in (1);
create index on trunkline.leases (cursor_id, lease_no);

-- What happened to offsets of a lease: a(ck), n(ack), r(elease), b(ury), d(ead: attempts used up),
-- x (lease expired, delivered again), g(one: retention or an unsubscribe took it meanwhile), e(xtend, until).
-- A set union: writing the same row twice changes nothing.
create table trunkline.lease_events (
    slot      smallint       not null,
    cursor_id int            not null,
    lease_no  bigint         not null,
    kind      "char"         not null,
    offsets   int8multirange not null,
    until     timestamptz,
    at        timestamptz    not null
) partition by list (slot);
create table trunkline.lease_events_0 partition of trunkline.lease_events for values in (0);
create table trunkline.lease_events_1 partition of trunkline.lease_events for values in (1);
create index on trunkline.lease_events (cursor_id, lease_no);

-- One row per look at a cursor's leases: everything up to closed_upto is settled except the stragglers.
-- The totals count messages of settled leases, so that stats are sums over what is still open only.
create table trunkline.lease_checks (
    slot        smallint    not null,
    cursor_id   int         not null,
    check_no    bigint      not null,
    at          timestamptz not null,
    closed_upto bigint      not null,
    stragglers  bigint[]    not null,
    acked       bigint      not null,
    dead        bigint      not null,
    returned    bigint      not null,
    gone        bigint      not null
) partition by list (slot);
create table trunkline.lease_checks_0 partition of trunkline.lease_checks for values in (0);
create table trunkline.lease_checks_1 partition of trunkline.lease_checks for values in (1);
create index on trunkline.lease_checks (cursor_id, check_no);

-- The state of a group's cursor: who owns the partition until when, what was fetched, what is committed.
create table trunkline.positions (
    slot       smallint    not null,
    cursor_id  int         not null,
    state_no   bigint      not null,
    committed  bigint      not null,
    fetched    bigint      not null,
    member     text,
    generation uuid,
    deadline   timestamptz,
    at         timestamptz not null
) partition by list (slot);
create table trunkline.positions_0 partition of trunkline.positions for values in (0);
create table trunkline.positions_1 partition of trunkline.positions for values in (1);
create index on trunkline.positions (cursor_id, state_no);

-- Members that fetched lately, so that partitions can be shared out. Written every third of a lease at most.
create table trunkline.members (
    subscription_id int         not null references trunkline.subscriptions on delete cascade,
    member          text        not null,
    seen_until      timestamptz not null,
    primary key (subscription_id, member)
);

-- The exceptions: messages that must be delivered (again) although their cursor has passed them.
create table trunkline.pending (
    cursor_id  int         not null references trunkline.cursors on delete cascade,
    log_offset bigint      not null,
    queue_id   int         not null,
    due_at     timestamptz not null,
    label      text,
    attempt    int         not null,
    error      text,
    primary key (cursor_id, log_offset)
);
create index on trunkline.pending (queue_id, due_at);
create index on trunkline.pending (queue_id, label, due_at);

-- Messages published with a delay; they enter the log when due, so that offset order is delivery order.
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
    occurred_at  timestamptz
);
create index on trunkline.scheduled (due_at);
create index on trunkline.scheduled (topic_id, due_at);

-- A self-contained copy with its last error: the log may have let the message go.
create table trunkline.dead_letters (
    dead_id      bigint generated always as identity primary key,
    queue_id     int         not null references trunkline.queues on delete cascade,
    id           uuid        not null,
    topic        text        not null,
    partition    int         not null,
    log_offset   bigint      not null,
    cursor_id    int         not null,
    key          text,
    routing_key  text,
    label        text,
    headers      jsonb,
    payload      bytea       not null,
    content_type text        not null,
    occurred_at  timestamptz,
    created_at   timestamptz not null,
    attempts     int         not null,
    error        text,
    reason       text        not null check (reason in ('attempts', 'buried')),
    dead_at      timestamptz not null,
    unique (cursor_id, log_offset)
);
create index on trunkline.dead_letters (queue_id, dead_id);
create index on trunkline.dead_letters (id);

-- Idempotency keys live in the windows they were used in and the next one, so that two publishers
-- on both sides of a border still meet. Windows are emptied by truncate, see functions/publish.sql.
create table trunkline.idempotency (
    slot     smallint    not null,
    win      bigint      not null,
    topic_id int         not null,
    key      text        not null,
    id       uuid        not null,
    digest   bytea       not null,
    at       timestamptz not null,
    primary key (slot, win, topic_id, key)
) partition by list (slot);
create table trunkline.idempotency_0 partition of trunkline.idempotency for values in (0);
create table trunkline.idempotency_1 partition of trunkline.idempotency for values in (1);
create table trunkline.idempotency_2 partition of trunkline.idempotency for values in (2);
create table trunkline.idempotency_3 partition of trunkline.idempotency for values in (3);

-- Things an operator must hear about: retention that overtook a reader, a rotation that keeps failing.
create table trunkline.notices (
    notice_id bigint generated always as identity primary key,
    at        timestamptz not null,
    kind      text        not null,
    detail    jsonb       not null
);

-- Never holds a row and is never locked for longer than a moment: see _catch_up() in functions/checks.sql.
create table trunkline.bell ();

create table trunkline.settings (
    name  text primary key,
    value text not null
);
insert into trunkline.settings values
    ('idempotency_window', '24 hours'),
    ('rotate_every', '5 minutes'),
    ('max_batch', '1000'),
    ('max_batch_bytes', '8388608');

-- When a duty last ran, in milliseconds: a sequence changes in place, so a mark set twice a second leaves no dead rows.
create sequence trunkline.duty_expire minvalue 0 start 0;
create sequence trunkline.duty_due minvalue 0 start 0;
create sequence trunkline.duty_segments minvalue 0 start 0;
create sequence trunkline.duty_retention minvalue 0 start 0;
create sequence trunkline.duty_rotate minvalue 0 start 0;
create sequence trunkline.duty_windows minvalue 0 start 0;
create sequence trunkline.duty_sequence minvalue 0 start 0;

create type trunkline.log_row as (
    log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);

create type trunkline.message as (
    topic text, partition int, log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);

create type trunkline.fetched as (
    partition int, generation uuid, deadline timestamptz,
    log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);

create type trunkline.delivery as (
    receipt text, attempt int, deadline timestamptz, topic text, partition int,
    log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);

create type trunkline.settlement as (ord int, receipt text, result text);
create type trunkline.published as (ord int, id uuid, duplicate boolean);
