-- Priorities: a queue with levels has one partition per level in its inbox; partition = priority, 0 is the lowest.
alter table trunkline.topics add column priorities int check (priorities between 2 and 10);
alter table trunkline.scheduled add column priority int;

-- How long a queue keeps its delivery history; null: none is kept.
alter table trunkline.queues add column history interval;
update trunkline.queues set history = '3 days';

-- Why a delivery was sent back or away.
alter table trunkline.lease_events add column error text;

-- What became of deliveries: one row per run of adjoining offsets that were settled alike. Written when a lease is closed, never
-- changed. A slot holds one day and is emptied by truncate before its number comes round again.
create table trunkline.history (
    slot       smallint    not null,
    queue_id   int         not null,
    -- the cursor on whose log the offsets are
    source_id  int         not null,
    first_offset bigint    not null,
    last_offset  bigint    not null,
    attempt    int         not null,
    consumer   text,
    claimed_at timestamptz not null,
    settled_at timestamptz not null,
    -- as in lease_events: a, n, r, b, d, x, g
    kind       "char"      not null,
    error      text
) partition by list (slot);
do $do$
begin
    for s in 0 .. 31 loop
        execute format('create table trunkline.history_%s partition of trunkline.history for values in (%s)', s, s);
    end loop;
end
$do$;
create index on trunkline.history (source_id, first_offset);
create index on trunkline.history (queue_id, settled_at);

create sequence trunkline.duty_history minvalue 0 start 0;

-- A claimed message in the short form: the part of its receipt behind the offset, and what belongs to the whole lease, only where a
-- new lease begins.
create type trunkline.taken as (
    lease text, attempt int, deadline timestamptz, topic text, partition int,
    log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb,
    payload bytea, content_type text, occurred_at timestamptz, created_at timestamptz
);
create index on trunkline.scheduled (id);

-- A redriven message has the same id at a second place; this tells where to look for it. Kept for 30 days.
create table trunkline.redriven (
    id       uuid        not null,
    topic_id int         not null references trunkline.topics on delete cascade,
    at       timestamptz not null
);
create index on trunkline.redriven (id);
create index on trunkline.redriven (at);
