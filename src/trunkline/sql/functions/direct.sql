-- Direct queues: a claim reads one row of `direct_queues` instead of the queue, its cursors and its logs. A
-- queue is direct if its only messages are those enqueued to it, in the shared store, and each of them can be
-- claimed: it is not paused, has no priorities, ttl, delay or order, and no subscription. Claims from other
-- queues use the general path (_claim_any). Triggers keep the rows, so no function that changes a queue can
-- forget to.

-- Writes the row of a direct queue, or removes it if the queue is no longer direct. Changes of one queue wait
-- for each other here. The queue's row is really updated: a transaction whose snapshot does not contain a
-- concurrent change then fails with 40001 instead of using what it sees.
create or replace function trunkline._describe_direct(p_queue_id int) returns void
language plpgsql
as $$
begin
    update trunkline.queues set created_at = created_at where queue_id = p_queue_id;
    delete from trunkline.direct_queues where queue_id = p_queue_id;
    insert into trunkline.direct_queues (name, queue_id, lease, cursor_id, log, before_first, mark, drawn_seq, returns_drawn, returns_head)
    select q.name, q.queue_id, q.lease, c.cursor_id, c.log, c.start_position - 1, trunkline._mark(c.cursor_id, 0, 1), c.drawn_seq, r.drawn_seq, r.head_seq
    from trunkline.queues q
    join trunkline.topics t on t.topic_id = q.inbox_id
    join trunkline.cursors c on c.queue_id = q.queue_id and c.kind = 'log'
    join trunkline.cursors r on r.queue_id = q.queue_id and r.kind = 'returns'
    where q.queue_id = p_queue_id
      and not q.paused and not q.ordered and q.ttl is null and q.delivery_delay = '0'
      and t.shared and t.priorities is null and c.topic_id = t.topic_id and c.pattern_regex is null and c.filter is null
      and c.drawn_seq is not null and r.drawn_seq is not null and r.head_seq is not null
      and (select count(*) from trunkline.cursors x where x.queue_id = q.queue_id and x.kind <> 'label') = 2;
end
$$;

-- Trigger function: describes the changed queue.
create or replace function trunkline._queue_changed() returns trigger
language plpgsql
as $$
begin
    perform trunkline._describe_direct(new.queue_id);
    return null;
end
$$;

-- Trigger function: describes the queue of a changed cursor.
create or replace function trunkline._cursor_changed() returns trigger
language plpgsql
as $$
begin
    perform trunkline._describe_direct(case when tg_op = 'DELETE' then old.queue_id else new.queue_id end);
    return null;
end
$$;

-- For queues of an earlier version.
do $do$
begin
    perform trunkline._describe_direct(q.queue_id) from trunkline.queues q
    where not exists (select from trunkline.direct_queues d where d.queue_id = q.queue_id);
end
$do$;
