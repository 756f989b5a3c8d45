-- Delivery history: consumer, lease times and outcome of each delivery. Written by the pass that first sees
-- the settle (pass.sql).

-- Returns the name of an outcome, for a kind in `settled`.
create or replace function trunkline._outcome(p_kind "char") returns text
language sql immutable parallel safe
as $$
    select case p_kind when 'a' then 'acked' when 'n' then 'nacked' when 'r' then 'released' when 'b' then 'buried'
                       when 'd' then 'dead' when 'x' then 'expired' when 'g' then 'gone' end
$$;

-- Returns deliveries that are not in the history yet: open ones, and those settled since the newest pass. The
-- caller has called _begin_read.
create or replace function trunkline._live_deliveries(p_queue_id int)
returns table (source_id int, first_offset bigint, last_offset bigint, attempt int, consumer text, claimed_at timestamptz,
               deadline timestamptz, settled_at timestamptz, kind "char", error text)
language sql stable
as $$
    select y.source_id, min(y.log_offset), max(y.log_offset), y.attempt + 1, (y.l).consumer, (y.l).claimed_at, y.ends_at, y.at, y.kind, y.error
    from (
        select d.*, x.source_id, x.log_offset, x.attempt,
               x.log_offset - row_number() over (partition by (d.l).cursor_id, (d.l).first, d.xid, d.at, d.kind, d.error, x.source_id, x.attempt order by x.log_offset) as run
        from (
            select o.l, trunkline._ends_at(o.l) as ends_at, o.positions, null::xid8 as xid, null::timestamptz as at, null::"char" as kind, null::text as error
            from trunkline._open_leases(p_queue_id) o
            union all
            select z.l, (z.l).deadline, int8multirange(int8range(e.pos, e.pos + e.n)), e.xid, e.at, e.kind, e.error
            from trunkline._new_settled(trunkline._since_pass()) e join trunkline.cursors c using (cursor_id)
            cross join lateral (select x as l from trunkline.leases x where x.rotation = e.rotation and x.cursor_id = e.cursor_id and x.first = e.first offset 0) z
            where c.queue_id = p_queue_id and e.kind <> 'p'
        ) d
        cross join lateral trunkline._entries(d.l, d.positions) x
    ) y
    group by y.l, y.ends_at, y.xid, y.at, y.kind, y.error, y.source_id, y.attempt, y.run
$$;

-- Returns deliveries of a queue (null: of all queues), newest first: one row per run of adjoining offsets
-- with the same outcome. An open delivery has no outcome.
-- Goes back by p_since, but not further than the queue's setting `history`. Returns at most p_limit rows (1
-- to 1,000,000).
create or replace function trunkline.list_deliveries(p_queue text default null, p_since interval default '1 day', p_limit int default 1000)
returns table (queue text, topic text, partition int, first_offset bigint, last_offset bigint, n bigint, attempt int, consumer text,
               claimed_at timestamptz, settled_at timestamptz, outcome text, error text)
language plpgsql
as $$
declare
    v_since timestamptz := trunkline.clock() - p_since;
begin
    perform trunkline._check_range('limit', p_limit, 1, 1000000);
    if p_queue is not null then
        perform trunkline._queue(p_queue);
    end if;
    begin
        perform trunkline._begin_read();
        return query
        select q.name, c.topic, c.partition, d.first_offset, d.last_offset, d.last_offset - d.first_offset + 1, d.attempt, d.consumer || '',
               d.claimed_at, d.settled_at, trunkline._outcome(d.kind), d.error || ''
        from trunkline.queues q
        cross join lateral (
            select h.source_id, h.first_offset, h.last_offset, h.attempt, h.consumer, h.claimed_at, h.settled_at, h.kind, h.error
            from trunkline.history h where h.queue_id = q.queue_id and h.settled_at > greatest(v_since, trunkline.clock() - q.history)
            union all
            select l.source_id, l.first_offset, l.last_offset, l.attempt, l.consumer, l.claimed_at, l.settled_at, l.kind, l.error
            from trunkline._live_deliveries(q.queue_id) l where coalesce(l.settled_at, l.claimed_at) > v_since
        ) d
        left join trunkline.cursors c on c.cursor_id = d.source_id
        where p_queue is null or q.name = p_queue
        order by coalesce(d.settled_at, d.claimed_at) desc, d.first_offset desc limit p_limit;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

create or replace view trunkline.deliveries as select * from trunkline.list_deliveries(null, '30 days', 1000000);

-- Returns the completed messages of a queue (null: of all queues), that is, acked ones, newest first. A
-- message is included while both the log and the delivery history keep it.
-- Reads the newest p_limit rows of `list_deliveries`, then returns the acked messages in them, at most
-- p_limit. So the result can be incomplete if other outcomes are frequent.
create or replace function trunkline.list_completed(p_queue text default null, p_since interval default '1 day', p_limit int default 1000)
returns table (queue text, id uuid, payload bytea, content_type text, created_at timestamptz, processed_at timestamptz, attempts int, consumer text,
               topic text, partition int, log_offset bigint, key text, routing_key text, label text, headers jsonb)
language plpgsql stable
as $$
begin
    return query
    select d.queue, m.id, m.payload, m.content_type, m.created_at, d.settled_at, d.attempt, d.consumer,
           d.topic, d.partition, m.log_offset, m.key, m.routing_key, m.label, m.headers
    from trunkline.list_deliveries(p_queue, p_since, p_limit) d
    join trunkline.queues q on q.name = d.queue
    join trunkline.cursors c on c.queue_id = q.queue_id and c.kind = 'log' and c.topic is not distinct from d.topic and c.partition = d.partition
    join trunkline.logs l on l.log = c.log and l.base_offset <= d.last_offset
    cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, greatest(d.first_offset, l.base_offset), d.last_offset) m
    where d.outcome = 'acked'
    order by d.settled_at desc, m.log_offset desc limit p_limit;
end
$$;

create or replace view trunkline.completed as select * from trunkline.list_completed(null, '30 days', 1000000);

-- Removes history that is older than the longest `history` setting of all queues, and old fires of schedules,
-- events of endpoints and progress of pipelines.
create or replace function trunkline._upkeep_history() returns int
language sql
as $$
    select trunkline._turn_window('history', coalesce(max(history), '0')) + trunkline._turn_window('schedule_fires', trunkline._setting('fires_kept')::interval)
           + trunkline._turn_window('endpoint_events', trunkline._setting('events_kept')::interval)
           + trunkline._turn_window('pipeline_progress', trunkline._setting('progress_kept')::interval)
    from trunkline.queues
$$;
