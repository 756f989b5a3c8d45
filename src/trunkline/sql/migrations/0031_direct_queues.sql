-- What a claim needs to know of a direct queue: one whose messages can all be claimed as they are in its logs. Kept by triggers (functions/direct.sql), so that a
-- claim reads one row instead of the queue and its cursors.
create table trunkline.direct_queues (
    name          text       primary key,
    queue_id      int        not null unique references trunkline.queues on delete cascade,
    lease         interval   not null,
    -- of the cursors of its logs, in the same order; before_first: the position before the first one; marks: of draws, with the cursor in the upper 22 bits
    cursors       int[]      not null,
    logs          int[]      not null,
    topics        text[]     not null,
    partitions    int[]      not null,
    before_first  bigint[]   not null,
    marks         bigint[]   not null,
    drawn_seqs    regclass[] not null,
    -- sequences of the cursor of returned messages
    returns_drawn regclass   not null,
    returns_head  regclass   not null
);
alter type trunkline.drawable drop attribute run_offset, drop attribute run_id;

-- Offset minus id, if the ids of the tick are one run in one table of the store: a claim then finds its messages without reading the multirange.
alter table trunkline.ticks add column shift bigint generated always as (
    case when shared and log <> 1 and upper(ids) - lower(ids) = n and lower(ids) >> 30 = upper(ids) - 1 >> 30 then first_offset - lower(ids) end) stored;

-- Counts the cursors of kind 'label' that were ever created. A claim looks for them only if there are any.
create sequence trunkline.label_cursors;
select setval('trunkline.label_cursors', count(*)) from trunkline.cursors where kind = 'label' having count(*) > 0;

-- Their bodies are in functions/direct.sql.
create function trunkline._queue_changed() returns trigger language plpgsql as $$ begin return null; end $$;
create function trunkline._cursor_changed() returns trigger language plpgsql as $$ begin return null; end $$;

-- A pass creates cursors of kind 'label'. It must not wait for an open transaction that changes the queue, so claims look for these cursors themselves.
create trigger queue_changed after update of lease, ttl, delivery_delay, ordered, paused on trunkline.queues
for each row execute function trunkline._queue_changed();
create trigger cursor_added after insert or update of queue_id, log, drawn_seq, head_seq, start_position, pattern_regex, filter on trunkline.cursors
for each row when (new.queue_id is not null and new.kind <> 'label') execute function trunkline._cursor_changed();
create trigger cursor_removed after delete on trunkline.cursors
for each row when (old.queue_id is not null and old.kind <> 'label') execute function trunkline._cursor_changed();
