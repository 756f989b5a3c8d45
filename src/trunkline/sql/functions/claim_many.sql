-- Claiming from many queues in one statement: what a dispatcher does with the queues of an endpoint. Queues that read the same topic are looked at
-- together: its messages are read once and matched with all their patterns. All other queues are claimed from one after another.

-- Which messages of a log, from p_from to p_to, are for which of these cursors. Patterns without wildcards are looked up, the others tried one by one.
create or replace function trunkline._matches(
    p_cursors int[], p_positions bigint[], p_topic_id int, p_partition int, p_segment_rows int, p_from bigint, p_to bigint)
returns table (cursor_id int, "position" bigint, log_offset bigint)
language sql
set enable_hashjoin = on
as $$
    with m as materialized (
        select r.log_offset, coalesce(r.routing_key, '') as routing_key, coalesce(r.headers, '{}') as headers
        from trunkline._read(p_topic_id, p_partition, p_segment_rows, p_from, p_to) r
    ), mine as materialized (
        select u.cursor_id, u.position, c.pattern_regex, c.filter, case when s.pattern !~ '[*#]' then s.pattern end as routing_key
        from unnest(p_cursors, p_positions) u(cursor_id, position) join trunkline.cursors c on c.cursor_id = u.cursor_id
        left join trunkline.subscriptions s on s.subscription_id = c.subscription_id
    )
    select c.cursor_id, c.position, m.log_offset from mine c join m on m.routing_key = c.routing_key
    where m.log_offset >= c.position and (c.filter is null or trunkline._filter_matches(c.filter, m.headers))
    union all
    select c.cursor_id, c.position, m.log_offset from mine c join m on m.log_offset >= c.position
    where c.routing_key is null and (c.pattern_regex is null or m.routing_key ~ c.pattern_regex)
      and (c.filter is null or trunkline._filter_matches(c.filter, m.headers))
$$;

-- Writes a lease for each cursor, or only moves it where its set is empty, and answers the deliveries. Whom another claim was faster with (its
-- position is another one now) is left out. The caller holds their locks, and took them in an earlier statement.
create or replace function trunkline._lease_many(
    p_cursors int[], p_positions bigint[], p_sets int8multirange[], p_next bigint[], p_topic_id int, p_partition int, p_segment_rows int, p_consumer text)
returns table (queue_id int, delivery trunkline.delivery)
language sql
set enable_hashjoin = on
as $$
    with made as (
        insert into trunkline.leases
        select (select slot from trunkline.epoch), u.cursor_id, coalesce(l.lease_no, 0) + 1, u.cursor_id, u.offsets, n.size, (n.size > 0)::int, gen_random_uuid(),
               case when n.size > 0 then p_consumer end, t.now, case when n.size > 0 then t.now + q.lease else t.now end, u.next,
               coalesce(l.delivered, 0) + n.size, coalesce(l.passed, 0), coalesce(l.skipped, 0) + u.next - u.position - n.size, coalesce(l.expired, 0), coalesce(l.purged, 0)
        from unnest(p_cursors, p_positions, p_sets, p_next) u(cursor_id, position, offsets, next)
        cross join lateral (select trunkline._size(u.offsets)::int as size) n
        cross join (select trunkline.clock() as now) t
        join trunkline.cursors c on c.cursor_id = u.cursor_id
        join trunkline.queues q on q.queue_id = c.queue_id
        left join lateral (select * from trunkline.leases x where x.cursor_id = u.cursor_id order by x.lease_no desc limit 1) l on true
        where coalesce(l.position, c.start_position) = u.position and not q.paused
        returning cursor_id, lease_no, token, offsets, deadline, n
    ), wanted as materialized (
        select m.cursor_id, '.' || m.cursor_id || '.' || m.lease_no || '.' || m.token as lease, m.deadline, o.log_offset
        from made m cross join lateral unnest(m.offsets) r(span) cross join lateral generate_series(lower(r.span), upper(r.span) - 1) o(log_offset)
        where m.n > 0
    ), span as (
        select min(lower(x)) as first, max(upper(x)) - 1 as last from unnest(p_sets) x where not isempty(x)
    )
    select c.queue_id, (r.log_offset || w.lease, 1, w.deadline, c.topic, c.partition, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers,
                        r.payload, r.content_type, r.occurred_at, r.created_at)::trunkline.delivery
    from span s cross join lateral trunkline._read(p_topic_id, p_partition, p_segment_rows, s.first, s.last) r
    join wanted w on w.log_offset = r.log_offset
    join trunkline.cursors c on c.cursor_id = w.cursor_id
    where s.first is not null
$$;

-- Claims up to p_max messages from these queues together, each for the lease of its queue, and as evenly as it goes. A row without a delivery says
-- that its queue has nothing more now; a queue without one is worth another look. Only tries for what others hold. Queues that share a topic
-- get what has its offset already: poll gives it that, and finds leases that ended. p_relaxed: as in claim.
create or replace function trunkline.claim_many(p_queues int[], p_max int default 100, p_consumer text default null, p_relaxed boolean default false)
returns table (queue_id int, delivery trunkline.delivery)
language plpgsql
as $$
#variable_conflict use_column
declare
    c_chunk  constant int := 1000;
    -- a cursor that is further behind than this, with nothing for it in between, is moved; the others when there is nothing else to do
    c_behind constant int := 500;
    c_moves  constant int := 200;
    c_claims constant int := 100;
    v_left   int;
    v_kept   int;
    v_count  int;
    v_found  record;
    g        record;
    m        record;
    q        record;
    v_to     bigint;
    v_head   bigint;
begin
    perform trunkline._need_read_committed('claim_many');
    perform trunkline._check_range('max', p_max, 1, 1000);
    perform trunkline._check_range('number of queues', cardinality(p_queues), 0, 10000);
    if p_relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    with looked as materialized (
        select u.queue_id, q.paused, q.ordered or q.ttl is not null or q.delivery_delay > '0' or t.priorities is not null as special,
               (select due_at from trunkline.pending p where p.queue_id = u.queue_id order by due_at limit 1) <= trunkline.clock() as due, a.*
        from unnest(p_queues) u(queue_id)
        left join trunkline.queues q on q.queue_id = u.queue_id
        left join trunkline.topics t on t.topic_id = q.inbox_id
        cross join lateral (
            select count(*) as n, min(c.log) as log, min(c.cursor_id) as cursor_id, min(coalesce(l.position, c.start_position)) as position
            from trunkline.cursors c
            left join lateral (select x.position from trunkline.leases x where x.cursor_id = c.cursor_id order by x.lease_no desc limit 1) l on true
            where c.queue_id = u.queue_id and c.lane = 'log' and trunkline._head(c.log) >= coalesce(l.position, c.start_position)) a
    ), sorted as (
        select *, case when paused is not false or n = 0 and due is not true then 'idle'
                       when special or due is true or n > 1 or count(*) over (partition by log) = 1 then 'alone'
                       else 'together' end as way
        from looked
    )
    select array_agg(queue_id) filter (where way = 'idle') as idle, array_agg(queue_id) filter (where way = 'alone') as alone,
           array_agg(cursor_id) filter (where way = 'together') as cursors, array_agg(position) filter (where way = 'together') as positions,
           count(*) filter (where way = 'alone') as n_alone, count(*) filter (where way <> 'idle') as busy
      into v_found from sorted;
    return query select x, null::trunkline.delivery from unnest(v_found.idle) x;
    -- Those who come second keep their share, on average also where it is less than one message.
    v_kept := floor(p_max * v_found.n_alone / greatest(v_found.busy, 1)::float8 + random());
    v_left := p_max - v_kept;

    -- in no order, so that a long backlog does not keep back who is at the head
    for g in
        select c.log, c.topic_id, c.partition, c.segment_rows, array_agg(u.cursor_id) as cursors, array_agg(u.position) as positions, min(u.position) as first
        from unnest(v_found.cursors, v_found.positions) u(cursor_id, position) join trunkline.cursors c on c.cursor_id = u.cursor_id
        group by 1, 2, 3, 4, u.position / c_chunk order by random()
    loop
        exit when v_left <= 0;
        v_head := trunkline._head(g.log);
        v_to := least(v_head, g.first + c_chunk - 1);
        -- Before any lock: what is at an offset never changes, and positions are looked at again later. One for each cursor first, then the second ...
        with hits as (
            select h.*, row_number() over (order by h.turn, h.log_offset) as place
            from (select x.*, row_number() over (partition by x.cursor_id order by x.log_offset) as turn
                  from trunkline._matches(g.cursors, g.positions, g.topic_id, g.partition, g.segment_rows, g.first, v_to) x) h
        ), hit as materialized (
            select h.cursor_id, h.position, coalesce(range_agg(int8range(h.log_offset, h.log_offset, '[]')) filter (where h.place <= v_left), '{}') as offsets,
                   case when max(h.place) <= v_left then v_to + 1 else 1 + max(h.log_offset) filter (where h.place <= v_left) end as next
            from hits h group by 1, 2
        ), missed as (
            select u.cursor_id, u.position, row_number() over (order by u.position) as place
            from unnest(g.cursors, g.positions) u(cursor_id, position) where u.position <= v_to and u.cursor_id <> all (array(select cursor_id from hit))
        ), written as (
            select cursor_id, position, offsets, next from hit where next is not null
            union all
            select cursor_id, position, '{}', v_to + 1 from missed
            where place <= c_moves and (v_to - position >= c_behind or not exists (select from hit))
        )
        select array_agg(w.cursor_id order by w.cursor_id) as cursors, array_agg(w.position order by w.cursor_id) as positions,
               array_agg(w.offsets order by w.cursor_id) as sets, array_agg(w.next order by w.cursor_id) as next,
               case when v_to = v_head then array(select cursor_id from hit where next = v_to + 1 union all select cursor_id from missed) end as ended
          into m from written w;
        -- two statements: the second sees who was faster
        select array_agg(u.cursor_id) as cursors, array_agg(u.position) as positions, array_agg(u.offsets) as sets, array_agg(u.next) as next, m.ended as ended
          into m
          from unnest(m.cursors, m.positions, m.sets, m.next) u(cursor_id, position, offsets, next) where pg_try_advisory_xact_lock(778005, u.cursor_id);
        if m.cursors is not null then
            return query select l.queue_id, l.delivery
                         from trunkline._lease_many(m.cursors, m.positions, m.sets, m.next, g.topic_id, g.partition, g.segment_rows, p_consumer) l;
            get diagnostics v_count = row_count;
            v_left := v_left - v_count;
        end if;
        return query select c.queue_id, null::trunkline.delivery from trunkline.cursors c where c.cursor_id = any (m.ended);
    end loop;

    v_left := v_left + v_kept;
    -- in no order either: those who ask name the same queues first again
    for q in
        select x.queue_id, x.lease, array(select c.cursor_id from trunkline.cursors c where c.queue_id = x.queue_id and c.lane = 'log') as cursors
        from unnest(v_found.alone) u(queue_id) join trunkline.queues x on x.queue_id = u.queue_id order by random() limit c_claims
    loop
        exit when v_left <= 0;
        v_count := 0;
        -- a claim waits for the cursor of a queue that has only one; who holds others already may not
        if cardinality(q.cursors) > 1 or pg_try_advisory_xact_lock(778005, q.cursors[1]) then
            return query select q.queue_id, d from trunkline._claim(q.queue_id, least(v_left, greatest(1, p_max / v_found.busy))::int, q.lease, null, p_consumer) d;
            get diagnostics v_count = row_count;
        end if;
        v_left := v_left - v_count;
        if v_count = 0 then
            return query select q.queue_id, null::trunkline.delivery;
        end if;
    end loop;
end
$$;
