-- Upkeep and observation.

-- One row per minute for each topic, group and queue that changed; deleted after 25 hours. Their number
-- depends on how many topics, groups and queues there are, never on messages.
create table trunkline.rollups (
    kind         text        not null check (kind in ('topic', 'group', 'queue')),
    -- topic_id, subscription_id or queue_id
    subject      int         not null,
    at           timestamptz not null,
    -- running totals. head of a topic: offsets given; of a group: offsets of its topic; of a queue: messages
    -- accepted
    head         bigint      not null,
    delivered    bigint      not null default 0,
    acked        bigint      not null default 0,
    returned     bigint      not null default 0,
    dead         bigint      not null default 0,
    expired      bigint      not null default 0,
    -- the state at this time: messages, and oldest_age in seconds
    lag          bigint      not null default 0,
    ready        bigint      not null default 0,
    leased       bigint      not null default 0,
    oldest_age   float8      not null default 0,
    -- seconds from publish to claim (wait) and from claim to settle (work) in a sample; null: no sample
    wait_p50     float8,
    wait_p99     float8,
    wait_max     float8,
    work_p50     float8,
    work_p99     float8,
    work_max     float8,
    -- leases of the sample that are not settled: the next rollup checks them again, so that long work counts
    -- too
    open_cursors int[],
    open_leases  bigint[],
    primary key (kind, subject, at)
);
create index on trunkline.rollups (at);
-- When queues were rolled up last, in milliseconds, and the newest pass then. Unlogged: after a crash all
-- queues are rolled up once.
create unlogged sequence trunkline.rolled_up_at minvalue 0 start 1;
create unlogged sequence trunkline.rolled_up_pass minvalue 0 start 1;

-- Messages for the operator: retention that removed unread messages, a rotation that keeps failing.
create table trunkline.alerts (
    alert_id bigint generated always as identity primary key,
    at       timestamptz not null,
    kind     text        not null,
    detail   jsonb       not null
);

-- Upkeep tasks whose last run failed. Written when a task starts to fail and when its error changes, deleted
-- when it succeeds: a task that fails twice a second must not leave a dead row each time.
create table trunkline.upkeep_failures (
    task  text        primary key,
    since timestamptz not null,
    code  text        not null,
    error text        not null
);

-- The last run of each task, in milliseconds. Sequences change in place and leave no dead rows.
create sequence trunkline.upkeep_pass minvalue 0 start 0;
create sequence trunkline.upkeep_sequence minvalue 0 start 0;
create sequence trunkline.upkeep_due minvalue 0 start 0;
create sequence trunkline.upkeep_schedules minvalue 0 start 0;
create sequence trunkline.upkeep_segments minvalue 0 start 0;
create sequence trunkline.upkeep_retention minvalue 0 start 0;
create sequence trunkline.upkeep_rotate minvalue 0 start 0;
create sequence trunkline.upkeep_windows minvalue 0 start 0;
create sequence trunkline.upkeep_history minvalue 0 start 0;
create sequence trunkline.upkeep_attempts minvalue 0 start 0;
create sequence trunkline.upkeep_stages minvalue 0 start 0;
create sequence trunkline.upkeep_rollups minvalue 0 start 0;
create sequence trunkline.upkeep_jobs minvalue 0 start 0;
-- The last call of upkeep. In the future: the server clock was ahead and went back.
create sequence trunkline.upkeep_clock minvalue 0 start 0;

-- Never holds a row and is never locked for longer than a moment: see _catch_up() in functions/checks.sql.
create table trunkline.bell ();
