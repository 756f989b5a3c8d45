-- What dashboards read: once a minute one row per topic, group and queue. Rows go after 25 hours; their number depends on
-- how many topics, groups and queues there are, never on messages.
create table trunkline.rollups (
    kind        text        not null check (kind in ('topic', 'group', 'queue')),
    -- topic_id, subscription_id or queue_id
    subject     int         not null,
    at          timestamptz not null,
    -- running totals. topic: offsets given. group: offsets of its topic. queue: messages accepted for it
    head        bigint      not null,
    delivered   bigint      not null default 0,
    acked       bigint      not null default 0,
    returned    bigint      not null default 0,
    dead        bigint      not null default 0,
    expired     bigint      not null default 0,
    -- the state at this moment; lag and ready are messages, oldest_age seconds
    lag         bigint      not null default 0,
    ready       bigint      not null default 0,
    leased      bigint      not null default 0,
    oldest_age  float8      not null default 0,
    -- seconds from publish to claim (wait) and from claim to settle (work), over a sample; null when nothing was sampled
    wait_p50    float8,
    wait_p99    float8,
    wait_max    float8,
    work_p50    float8,
    work_p99    float8,
    work_max    float8,
    -- leases of the sample that are not settled yet: the next rollup looks at them again, so that long work counts too
    open_cursors int[],
    open_leases  bigint[],
    primary key (kind, subject, at)
);
create index on trunkline.rollups (at);

create sequence trunkline.duty_rollups minvalue 0 start 0;
