-- The messages of queues are in one store that they share (docs/adr/0021): a queue is rows and sequences, without tables and functions.
-- Queues of an earlier version keep the tables that they have.
alter table trunkline.topics drop constraint topics_kind_check;
alter table trunkline.topics
    add check (kind in ('topic', 'inbox', 'store')),
    -- new messages go to the shared store
    add column shared boolean not null default false;
create index on trunkline.topics (topic_id) where not shared;
-- the ids of this tick are those of the shared store, not of the tables of its log
alter table trunkline.ticks add column shared boolean not null default false;
-- rotation copies a tick to the other slot; two in one slot that begin at the same offset would be added up by the next rotation
drop index trunkline.ticks_log_first_offset_idx;
create unique index on trunkline.ticks (log, first_offset, slot);

-- A ring of eight tables. The upper bits of an id are the number of its segment, and the segment's place in the ring is that number modulo 8.
create table trunkline.store (
    -- of which queue and partition: trunkline.logs
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
do $do$
begin
    for r in 0 .. 7 loop
        execute format('create table trunkline.store_%1$s partition of trunkline.store for values in (%1$s)', r);
        execute format('alter table trunkline.store_%s add primary key (id)', r);
    end loop;
end
$do$;
-- by which the sequencer finds what was committed since its last scan
create index on trunkline.store (xid, id);
create sequence trunkline.store_ids;

-- For segments and sequencing the store is a log like others: number 1, partition 1 of topic 0.
insert into trunkline.topics (topic_id, kind, name, partitions, retention, max_payload, segment_rows) overriding system value
values (0, 'store', 'store', 1, '1 day', 16777216, 1073741824);
insert into trunkline.logs (log, topic_id, partition) values (1, 0, 1);
insert into trunkline.segments (log, segment) values (1, 0);
