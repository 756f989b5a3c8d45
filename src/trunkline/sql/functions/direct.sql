-- Direct queues: a claim reads one row of `direct_queues` instead of the queue and its cursors. A queue is
-- direct if all messages of its logs are for it and can be claimed now: it is not paused, has no priorities,
-- ttl, delay or order, and its subscriptions have no pattern and no filter. Claims from other queues, and from
-- those with more than 16 logs, use the general path (_claim_any), which finds the logs with messages in one
-- query. Triggers keep the rows, so no function that changes a queue can forget to.

-- Writes the row of a direct queue, or removes it if the queue is no longer direct. Changes of one queue wait
-- for each other here. The queue's row is really updated: a transaction whose snapshot does not contain a
-- concurrent change then fails with 40001 instead of using what it sees.
create or replace function trunkline._describe_direct(p_queue_id int) returns void
language plpgsql
as $$
begin
    update trunkline.queues set created_at = created_at where queue_id = p_queue_id;
    delete from trunkline.direct_queues where queue_id = p_queue_id;
    insert into trunkline.direct_queues (name, queue_id, lease, cursors, logs, topics, partitions, before_first, marks, drawn_seqs, returns_drawn, returns_head)
    select q.name, q.queue_id, q.lease, c.cursors, c.logs, c.topics, c.partitions, c.before_first, c.marks, c.drawn_seqs, r.drawn_seq, r.head_seq
    from trunkline.queues q
    join trunkline.topics t on t.topic_id = q.inbox_id
    join trunkline.cursors r on r.queue_id = q.queue_id and r.kind = 'returns'
    cross join lateral (
        select array_agg(x.cursor_id order by x.cursor_id) as cursors, array_agg(x.log order by x.cursor_id) as logs, array_agg(x.topic order by x.cursor_id) as topics,
               array_agg(x.partition order by x.cursor_id) as partitions, array_agg(x.start_position - 1 order by x.cursor_id) as before_first,
               array_agg(trunkline._mark(x.cursor_id, 0, 1) order by x.cursor_id) as marks, array_agg(x.drawn_seq order by x.cursor_id) as drawn_seqs,
               bool_and(x.drawn_seq is not null and x.pattern_regex is null and x.filter is null) as plain
        from trunkline.cursors x where x.queue_id = q.queue_id and x.kind = 'log') c
    where q.queue_id = p_queue_id and c.plain and cardinality(c.cursors) <= 16
      and not q.paused and not q.ordered and q.ttl is null and q.delivery_delay = '0' and t.priorities is null
      and r.drawn_seq is not null and r.head_seq is not null;
end
$$;

-- Trigger function: describes the changed queue.
create or replace function trunkline._queue_changed() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trunkline._describe_direct(new.queue_id);
    return null;
end
$$;

-- Trigger function: describes the queue of a changed cursor.
create or replace function trunkline._cursor_changed() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
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
