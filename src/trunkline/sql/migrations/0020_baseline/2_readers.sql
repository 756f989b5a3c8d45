-- Readers of logs: queues, subscriptions, consumer groups, and the state of their cursors.

create table trunkline.queues (
    queue_id       int generated always as identity primary key,
    name           text        not null unique,
    -- the queue's own log, for direct messages
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
    updated_at     timestamptz not null default clock_timestamp(),
    -- how long to keep delivery history; null: none is kept
    history        interval,
    -- the newest purges and their transactions: a pass counts those that its snapshot sees
    purge_xids     xid8[]      not null default '{}',
    purge_nos      bigint[]    not null default '{}'
);
-- Numbers of purges. What was sent back before a purge drew its number is purged, not delivered. Numbers,
-- because times would be wrong after the clock was set back.
create sequence trunkline.purge_no;

-- A filtered reader of one topic: an input of a queue, or a consumer group.
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

-- One reader of one input. The row never changes with traffic: the state of a group's cursor is its newest
-- row in positions, that of a queue's cursor is in its sequences, leases and cursor_states.
create table trunkline.cursors (
    cursor_id       int generated always as identity primary key,
    -- 'log': a partition; 'returns': messages to deliver again; 'label': those of one label, and the ones
    -- that claims of other labels left
    kind            text   not null check (kind in ('log', 'returns', 'label')),
    subscription_id int    references trunkline.subscriptions on delete cascade,
    queue_id        int    references trunkline.queues on delete cascade,
    topic_id        int    references trunkline.topics,
    partition       int,
    log             int,
    -- copied from topic and subscription, so that a claim reads one row; null topic: the queue's own log
    topic           text,
    segment_rows    int,
    pattern_regex   text,
    filter          jsonb,
    start_position  bigint not null default 1,
    -- of kind 'label'; null: messages without a label
    label           text,
    -- The newest position that was drawn, and the newest that may be drawn. Sequences, because they move at
    -- once and never roll back. Null for groups and ordered queues, whose partitions have one owner at a
    -- time. The end of a log is in its ticks.
    drawn_seq       regclass,
    head_seq        regclass,
    -- the newest position drawn when the queue was purged: what a rolled back claim drew before is not
    -- returned
    purged_upto     bigint not null default 0
);
create index on trunkline.cursors (queue_id, kind);
create index on trunkline.cursors (subscription_id);
create index on trunkline.cursors (log);

-- Consumer groups.

-- Members that fetched lately, among which partitions are shared. Written at most every third of a lease.
create table trunkline.members (
    subscription_id int         not null references trunkline.subscriptions on delete cascade,
    member          text        not null,
    seen_until      timestamptz not null,
    primary key (subscription_id, member)
);

-- States of a group's cursor; the newest counts: the owner of the partition and until when, what it has
-- fetched, and what is committed.
create table trunkline.positions (
    slot       smallint    not null,
    cursor_id  int         not null,
    state_no   bigint      not null,
    committed  bigint      not null,
    fetched    bigint      not null,
    member     text,
    generation uuid,
    deadline   timestamptz,
    at         timestamptz not null,
    -- Of groups with a pattern or filter: the last fetched offset that matches. No offset from there up to
    -- `fetched` matches, so a commit of last_match commits them too. Null for groups that read everything.
    last_match bigint
) partition by list (slot);
create index on trunkline.positions (cursor_id, state_no);

-- Queues (docs/adr/0019). Claims write leases, settles write settled and extensions, passes write the rest.

-- The rotation partition for new rows. Of three, one is written, one is being left, and one is emptied.
create table trunkline.rotation (
    only_row   boolean     primary key default true check (only_row),
    current    smallint    not null,
    -- the partition that is used next is empty
    emptied    boolean     not null,
    rotated_at timestamptz not null default clock_timestamp()
);
insert into trunkline.rotation (current, emptied) values (0, true);

-- One row per draw of a claim: the positions first to first + n - 1 of a cursor are leased together.
create table trunkline.leases (
    rotation      smallint    not null,
    xid           xid8        not null,
    cursor_id     int         not null,
    first         bigint      not null,
    n             int         not null,
    -- the positions that are delivered, and those left to consumers of other labels; null: all are delivered
    taken         int8multirange,
    passed        int8multirange,
    -- how many of the rest do not match the subscription, and how many are older than the ttl
    skipped       int         not null,
    expired       int         not null,
    -- the message at each position; null for a log, where the position is the offset and the attempt is the
    -- first
    source_ids    int[],
    offsets       bigint[],
    attempts      int[],
    -- why each is delivered again, as in settled; h: a claim of it was rolled back, l: skipped for its label
    whys          "char"[],
    token         uuid        not null,
    consumer      text,
    claimed_at    timestamptz not null,
    deadline      timestamptz not null,
    -- Only of ordered queues, whose newest lease is the state of the partition: the next new offset, and the
    -- messages to deliver again that are not in this lease.
    next_offset   bigint,
    held_offsets  bigint[],
    held_attempts int[],
    held_dues     timestamptz[],
    held_errors   text[],
    -- the newest purge when messages were skipped for their label
    purge_no      bigint,
    primary key (cursor_id, first, rotation)
) partition by list (rotation);
create index on trunkline.leases (xid);

-- How positions of a lease were settled, one row per run of positions. The key decides between two settles of
-- one message.
create table trunkline.settled (
    rotation  smallint    not null,
    xid       xid8        not null,
    cursor_id int         not null,
    pos       bigint      not null,
    n         int         not null,
    -- the first position of its lease
    first     bigint      not null,
    -- a(ck), n(ack), r(elease), b(ury), d(ead: attempts used up), x (lease expired), p(urged),
    -- g(one: removed by retention or an unsubscribe)
    kind      "char"      not null,
    -- of n, r and x: when it may be delivered again
    due       timestamptz,
    error     text,
    at        timestamptz not null,
    -- of n and r: the newest purge by then
    purge_no  bigint,
    primary key (cursor_id, pos, rotation)
) partition by list (rotation);
create index on trunkline.settled (xid);

-- Positions whose lease was extended.
create table trunkline.extensions (
    rotation  smallint       not null,
    cursor_id int            not null,
    first     bigint         not null,
    positions int8multirange not null,
    until     timestamptz    not null
) partition by list (rotation);
create index on trunkline.extensions (cursor_id, first);

-- Messages that may be delivered again now: position pos of a cursor of kind 'returns' or 'label'.
create table trunkline.returns (
    rotation   smallint    not null,
    cursor_id  int         not null,
    pos        bigint      not null,
    -- the cursor on whose log the offset is
    source_id  int         not null,
    log_offset bigint      not null,
    -- attempts that it had
    attempt    int         not null,
    why        "char"      not null,
    error      text,
    at         timestamptz not null,
    -- the newest purge when it was sent back; null: it was drawn from a log and never delivered
    purge_no   bigint,
    primary key (cursor_id, pos, rotation)
) partition by list (rotation);
create index on trunkline.returns (source_id, log_offset);

-- Work for a later time.
create table trunkline.later (
    rotation   smallint    not null,
    due        timestamptz not null,
    no         bigint      not null generated by default as identity,
    -- l: check whether leases have ended (positions of a cursor); r: return a message
    kind       "char"      not null,
    queue_id   int         not null,
    cursor_id  int,
    positions  int8multirange,
    source_id  int,
    log_offset bigint,
    attempt    int,
    why        "char",
    error      text,
    -- the true time; due may be later, because nothing is added before the time up to which passes have
    -- worked
    due_at     timestamptz not null,
    -- when it was settled, and the newest purge by then
    at         timestamptz not null,
    purge_no   bigint
) partition by list (rotation);
create index on trunkline.later (due, no);
create index on trunkline.later (queue_id, due);

-- States of a queue's cursor after a pass; the newest counts. Totals count positions: a message that is
-- delivered again has another one.
create table trunkline.cursor_states (
    rotation     smallint       not null,
    cursor_id    int            not null,
    pass         bigint         not null,
    -- the newest position drawn at this pass, and at the one before: only what was drawn by then is judged
    drawn        bigint         not null,
    drawn_before bigint         not null,
    -- every position up to here is accounted for, except those in `open`, whose transactions have not ended
    upto         bigint         not null,
    open         int8multirange not null,
    -- the newest position in returns
    head         bigint         not null,
    delivered    bigint         not null,
    passed       bigint         not null,
    skipped      bigint         not null,
    expired      bigint         not null,
    holes        bigint         not null,
    -- how many of the delivered ones were settled, and how
    settled      bigint         not null,
    acked        bigint         not null,
    returned     bigint         not null,
    dead         bigint         not null,
    gone         bigint         not null,
    purged       bigint         not null,
    -- messages in later that will be returned here
    delayed      bigint         not null,
    primary key (cursor_id, pass, rotation)
) partition by list (rotation);
create index on trunkline.cursor_states (pass);

-- One row per pass; 6_partitions.sql inserts the first.
create table trunkline.passes (
    rotation smallint    not null,
    pass     bigint      not null,
    -- its own transaction, which its snapshot may not count as finished
    xid      xid8        not null,
    snapshot pg_snapshot not null,
    -- the time up to which it has done what was due
    walked   timestamptz not null,
    at       timestamptz not null,
    primary key (pass, rotation)
) partition by list (rotation);

-- The variables of a running pass: the pass before it, its snapshot and transaction, and the times between
-- which it does what is due.
create type trunkline.pass_run as (
    before trunkline.passes, snapshot pg_snapshot, own xid8, rotation smallint,
    now timestamptz, upto timestamptz,
    -- transactions that ended between the pass before and this one, as ranges
    from_xids xid8[], upto_xids xid8[]
);

-- Unlogged sequences change in place and need no transaction; nothing depends on them after a crash.
-- Counts passes, at their beginning: a claim compares it before and after its draw.
create unlogged sequence trunkline.pass_epoch minvalue 0 start 1;
-- When a service ran the newest pass, in milliseconds.
create unlogged sequence trunkline.pass_ended minvalue 0 start 1;
-- The last cursor and the last log that were visited in turn.
create unlogged sequence trunkline.pass_visited minvalue 0 start 1;
create unlogged sequence trunkline.logs_visited minvalue 0 start 1;

-- Dead letters: complete copies, because retention may remove the message from its log.
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

-- A redriven message has the same id at a second offset: the log to search for it. Kept for 30 days.
create table trunkline.redriven (
    id       uuid        not null,
    topic_id int         not null references trunkline.topics on delete cascade,
    at       timestamptz not null
);
create index on trunkline.redriven (id);
create index on trunkline.redriven (at);

-- Tables that keep rows for some days (history, attempts, job_results, job_once) have four window partitions
-- that are used in turn and emptied by truncate. A row of this table names the one for new rows.
create table trunkline.windows (
    name     text        primary key,
    slot     smallint    not null,
    -- since when it is used
    began_at timestamptz not null
);
insert into trunkline.windows
select name, 0, clock_timestamp() from unnest('{history,attempts,job_results,job_once}'::text[]) name;

-- Delivery history: one row per run of adjoining offsets that were settled together. Written by passes.
create table trunkline.history (
    slot         smallint    not null,
    queue_id     int         not null,
    -- the cursor on whose log the offsets are
    source_id    int         not null,
    first_offset bigint      not null,
    last_offset  bigint      not null,
    attempt      int         not null,
    consumer     text,
    claimed_at   timestamptz not null,
    settled_at   timestamptz not null,
    -- as in settled
    kind         "char"      not null,
    error        text
) partition by list (slot);
create index on trunkline.history (source_id, first_offset);
create index on trunkline.history (queue_id, settled_at);

-- Results of claim, settle, get_queue and queue_stats.
create type trunkline.delivery as (
    receipt text, attempt int, deadline timestamptz, topic text, partition int,
    log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);

create type trunkline.settlement as (ord int, receipt text, result text);

-- A queue with the settings of its log.
create type trunkline.queue_row as (
    queue_id int, name text, inbox_id int, lease interval, max_attempts int,
    backoff_base interval, backoff_factor float8, backoff_cap interval, backoff_jitter float8,
    ttl interval, delivery_delay interval, ordered boolean, paused boolean,
    created_at timestamptz, updated_at timestamptz, history interval,
    partitions int, retention interval, max_payload int, priorities int
);

create type trunkline.queue_stat as (
    queue text, ready bigint, delayed bigint, leased bigint, dead bigint, acked bigint,
    expired bigint, purged bigint, oldest_age float8, paused boolean
);
