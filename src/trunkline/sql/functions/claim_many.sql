-- Claiming from many queues in one statement, for dispatchers that send the queues of an endpoint. New
-- messages of a topic are read once and matched with the subscriptions of all these queues. Only queues with
-- matching messages draw.

-- Returns those of these cursors for which no message from p_from to p_to matches. p_positions has the
-- position that each would draw next. Patterns without wildcards are joined by routing key. Other patterns
-- are tested one by one.
create or replace function trunkline._unmatched(p_cursors int[], p_positions bigint[], p_topic_id int, p_partition int, p_segment_rows int, p_from bigint, p_to bigint) returns int[]
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
    ), hit as (
        select c.cursor_id from mine c join m on m.routing_key = c.routing_key
        where m.log_offset >= c.position and (c.filter is null or trunkline._filter_matches(c.filter, m.headers))
        union
        select c.cursor_id from mine c
        where c.routing_key is null
          and exists (select from m where m.log_offset >= c.position and (c.pattern_regex is null or m.routing_key ~ c.pattern_regex)
                                      and (c.filter is null or trunkline._filter_matches(c.filter, m.headers)))
    )
    select coalesce(array_agg(u), '{}') from unnest(p_cursors) u where u not in (select cursor_id from hit)
$$;

-- Returns the cursors with a pattern or filter that match none of the next messages, up to 1,000 of each, and the
-- offset up to which that was checked.
create or replace function trunkline._without_matches(p_cursors int[], p_firsts bigint[], p_heads bigint[], out missed int[], out upto bigint[])
language plpgsql
as $$
declare
    c_window constant int := 1000;
    v_some   int[];
    g        record;
begin
    missed := '{}';
    upto := '{}';
    for g in
        select k.log, k.topic_id, k.partition, k.segment_rows, array_agg(u.cursor_id) as cursors, array_agg(u.first) as firsts, min(u.first) as first,
               least(max(u.head), max(u.first) + c_window - 1) as last
        from unnest(p_cursors, p_firsts, p_heads) u(cursor_id, first, head) join trunkline.cursors k on k.cursor_id = u.cursor_id
        where k.kind = 'log' and (k.pattern_regex is not null or k.filter is not null) and u.first <= u.head
        group by 1, 2, 3, 4, u.first / c_window
    loop
        v_some := trunkline._unmatched(g.cursors, g.firsts, g.topic_id, g.partition, g.segment_rows, g.first, g.last);
        missed := missed || v_some;
        upto := upto || array_fill(g.last, array[cardinality(v_some)]);
    end loop;
end
$$;

-- Moves cursors without matching messages (_without_matches) behind the messages that were checked: those at
-- least c_behind offsets behind, and a few more if no message was claimed.
create or replace function trunkline._pass_over(p_cursors int[], p_firsts bigint[], p_heads bigint[], p_missed int[], p_upto bigint[], p_nothing boolean, p_epoch bigint, p_consumer text)
returns void
language plpgsql
as $$
declare
    c_window constant int := 1000;
    c_behind constant int := 500;
    c_moves  constant int := 100;
    c_few    constant int := 20;
    g        record;
    s        trunkline.leases;
begin
    for g in
        select m.cur, m.queue, m.head, int8range(m.first, least(m.upto, m.first + c_window - 1) + 1) as skip
        from (
            select k as cur, y as queue, u.first, u.head, x.upto, row_number() over (order by u.first - u.head) as place
            from unnest(p_missed, p_upto) x(cursor_id, upto) join unnest(p_cursors, p_firsts, p_heads) u(cursor_id, first, head) using (cursor_id)
            join trunkline.cursors k using (cursor_id) join trunkline.queues y using (queue_id)
        ) m
        where m.place <= c_moves and (m.head - m.first >= c_behind or m.place <= c_few and p_nothing)
    loop
        s := trunkline._draw(g.cur, g.queue, g.head, 0, null, p_epoch, g.skip);
        if s.n > 0 then
            perform trunkline._lease(s, g.cur, '0', p_consumer);
        end if;
    end loop;
end
$$;

-- Claims up to p_limit messages (at most 1,000) in total from these queues, given by number, and returns each
-- delivery with its queue. Messages are shared evenly between queues, and each has the lease of its queue. A
-- row without a delivery means that its queue has no more messages now. A queue without a row may have more:
-- call again. One call visits at most 250 of up to 10,000 queues, chosen at random, because each sequence
-- that is read stays locked until the transaction ends. p_relaxed: as in claim. Fails with TL008 above read
-- committed.
create or replace function trunkline.claim_many(p_queues int[], p_limit int default 100, p_consumer text default null, p_relaxed boolean default false)
returns table (queue_id int, delivery trunkline.delivery)
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    c_claims constant int := 100;
    v_epoch   bigint := coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0);
    v_visited int[];
    -- Cursors with positions to draw, the first position of each, and the newest one that it may draw.
    v_cursors int[];
    v_firsts  bigint[];
    v_heads   bigint[];
    -- Cursors without matching messages, and the offset up to which that was checked.
    v_missed  int[];
    v_upto    bigint[];
    v_ready   int[];
    v_left    int := p_limit;
    v_share   int;
    v_count   int;
    q         trunkline.queues;
begin
    perform trunkline._need_read_committed('claim_many');
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    perform trunkline._check_range('number of queues', cardinality(p_queues), 0, 10000);
    if p_relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    v_visited := array(select u from unnest(p_queues) u order by random() limit 250);
    select array_agg(k.cursor_id), array_agg(greatest(x.drawn + 1, l.base_offset)), array_agg(x.head) into v_cursors, v_firsts, v_heads
    from trunkline.queues y join trunkline.cursors k using (queue_id) left join trunkline.logs l on l.log = k.log
    cross join lateral (select trunkline._drawable(k) as head, trunkline._drawn(k) as drawn where k.drawn_seq is not null offset 0) x
    where y.queue_id = any (v_visited) and not y.paused and x.head > x.drawn;

    -- before any draw, because the message at an offset never changes
    select * into v_missed, v_upto from trunkline._without_matches(v_cursors, v_firsts, v_heads);
    -- Reading the state of an ordered queue costs more than trying to claim from it.
    v_ready := array(
        select x.queue_id from trunkline.queues x where x.queue_id = any (v_visited) and not x.paused
           and (x.ordered or exists (select from trunkline.cursors k where k.queue_id = x.queue_id and k.cursor_id = any (v_cursors) and k.cursor_id <> all (v_missed))));

    v_share := greatest(1, p_limit / greatest(1, cardinality(v_ready)));
    -- In random order, because a dispatcher passes its queues in the same order each time.
    for q in select x.* from trunkline.queues x where x.queue_id = any (v_ready) order by random() limit c_claims loop
        exit when v_left <= 0 or coalesce(nullif(current_setting('trunkline.marks', true), ''), '0')::int >= 300;
        if q.ordered then
            return query select q.queue_id, d from trunkline._claim_ordered(q, least(v_left, v_share), q.lease, p_consumer) d;
        else
            return query select q.queue_id, d from trunkline._claim_drawn(q, (select priorities from trunkline.topics where topic_id = q.inbox_id), least(v_left, v_share), q.lease, null, p_consumer) d;
        end if;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        if v_count = 0 then
            return query select q.queue_id, null::trunkline.delivery;
        end if;
    end loop;

    perform trunkline._pass_over(v_cursors, v_firsts, v_heads, v_missed, v_upto, v_left = p_limit, v_epoch, p_consumer);
    return query
    select u, null::trunkline.delivery from unnest(v_visited) u
    where u <> all (v_ready) and not exists (
        select from unnest(v_missed, v_upto) x(cursor_id, upto) join unnest(v_cursors, v_heads) h(cursor_id, head) using (cursor_id) join trunkline.cursors k using (cursor_id)
        where k.queue_id = u and x.upto < h.head);
end
$$;
