-- Data for delivery reports, besides the messages themselves: deliveries with the times of their messages,
-- lag over time, and dead letters.

-- Returns deliveries of all queues since p_since, newest claim first: one row per run of adjoining offsets,
-- at most p_limit rows (1 to 10,000,000).
-- published_first and published_last: when the first and last message of the run entered the queue's own log;
-- null if retention removed them. They are null for messages of topics, whose log or archive has these times.
create or replace function trunkline.delivery_times(p_since interval default '1 day', p_limit int default 200000)
returns table (queue text, topic text, partition int, first_offset bigint, last_offset bigint, attempt int, consumer text, claimed_at timestamptz,
               settled_at timestamptz, outcome text, error text, published_first timestamptz, published_last timestamptz)
language plpgsql
as $$
declare
    v_since timestamptz := trunkline.clock() - p_since;
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000000);
    begin
        perform trunkline._begin_read();
        return query
        select x.name, c.topic, c.partition, x.first_offset, x.last_offset, x.attempt, x.consumer || '', x.claimed_at, x.settled_at, trunkline._outcome(x.kind), x.error || '',
               case when c.topic is null then trunkline._published_at(x.source_id, x.first_offset) end,
               case when c.topic is null then trunkline._published_at(x.source_id, x.last_offset) end
        from (
            select q.name, d.* from trunkline.queues q
            cross join lateral (
                select h.source_id, h.first_offset, h.last_offset, h.attempt, h.consumer, h.claimed_at, h.settled_at, h.kind, h.error
                from trunkline.history h where h.queue_id = q.queue_id and h.settled_at > v_since
                union all
                select l.source_id, l.first_offset, l.last_offset, l.attempt, l.consumer, l.claimed_at, l.settled_at, l.kind, l.error
                from trunkline._live_deliveries(q.queue_id) l where coalesce(l.settled_at, l.claimed_at) > v_since
            ) d
            order by d.claimed_at desc limit p_limit
        ) x
        left join trunkline.cursors c on c.cursor_id = x.source_id;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns the lag of each group and queue per step of p_step. The newest rollup of a step represents it. The
-- lag of a queue is the number of ready and leased messages; oldest_age is in seconds.
create or replace function trunkline.reader_lags(p_since interval default '1 day', p_step interval default '5 minutes')
returns table (kind text, reader text, at timestamptz, lag bigint, oldest_age float8)
language plpgsql
as $$
begin
    perform trunkline._need_duration('since', p_since, '1 minute', '100 years');
    perform trunkline._need_duration('step', p_step, '1 second', '100 years');
    return query
    select distinct on (r.kind, r.subject, date_bin(p_step, r.at, 'epoch'))
           r.kind, coalesce(q.name, t.name || '/' || s.name), date_bin(p_step, r.at, 'epoch'),
           case r.kind when 'queue' then r.ready + r.leased else r.lag end, r.oldest_age
    from trunkline.rollups r
    left join trunkline.queues q on r.kind = 'queue' and q.queue_id = r.subject
    left join trunkline.subscriptions s on r.kind = 'group' and s.subscription_id = r.subject
    left join trunkline.topics t on t.topic_id = s.topic_id
    where r.kind in ('queue', 'group') and r.at > trunkline.clock() - p_since and coalesce(q.name, s.name) is not null
    order by r.kind, r.subject, date_bin(p_step, r.at, 'epoch'), r.at desc;
end
$$;

-- Returns the dead letters of all queues since p_since, without payloads, in no particular order. masked: the
-- error as dead_groups shows it.
create or replace function trunkline.dead_letter_errors(p_since interval default '1 day')
returns table (queue text, topic text, label text, attempts int, error text, reason text, created_at timestamptz, dead_at timestamptz, masked text)
language plpgsql stable
as $$
begin
    return query
    select q.name, d.topic, d.label, d.attempts, d.error, d.reason, d.created_at, d.dead_at, trunkline._masked(coalesce(d.error, d.reason))
    from trunkline.dead_letters d join trunkline.queues q using (queue_id) where d.dead_at > trunkline.clock() - p_since;
end
$$;
