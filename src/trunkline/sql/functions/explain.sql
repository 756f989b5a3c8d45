-- Explains where a message is and why it is not delivered now. Only reads. Finds messages by index and by
-- bounded searches; a log is never scanned as a whole.

-- Returns the time in a version 7 uuid; null for other ids.
create or replace function trunkline._uuid_time(p_id uuid) returns timestamptz
language sql immutable
as $$
    select case when substr(p_id::text, 15, 1) = '7'
                then to_timestamp(('x' || lpad(translate(left(p_id::text, 13), '-', ''), 16, '0'))::bit(64)::bigint / 1000.0) end
$$;

-- Returns the first offset of the first tick of a log that was written at p_at or later, or of the newest
-- tick if there is none. A binary search.
create or replace function trunkline._tick_at(p_log int, p_at timestamptz) returns bigint
language plpgsql stable
as $$
declare
    v_low   bigint;
    v_high  bigint;
    v_probe record;
begin
    select first_offset into v_low from trunkline.ticks where log = p_log order by first_offset limit 1;
    select first_offset into v_high from trunkline.ticks where log = p_log order by first_offset desc limit 1;
    while v_low < v_high loop
        select first_offset, cut_at into v_probe from trunkline.ticks
        where log = p_log and first_offset <= (v_low + v_high) / 2 order by first_offset desc limit 1;
        if v_probe.cut_at >= p_at then
            v_high := v_probe.first_offset;
        else
            select first_offset into v_low from trunkline.ticks where log = p_log and first_offset > v_probe.first_offset order by first_offset limit 1;
        end if;
    end loop;
    return v_low;
end
$$;

-- Returns the table that has the row with an id.
create or replace function trunkline._table_of(p_shared boolean, p_topic_id int, p_partition int, p_segment_rows int, p_id bigint) returns text
language sql immutable
as $$ select case when p_shared then trunkline._segment_table(0, 1, p_id >> 30) else trunkline._segment_table(p_topic_id, p_partition, p_id / p_segment_rows) end $$;

-- Returns the first offset of the last tick whose first message was created at p_at or before. For messages
-- that got their offset long after they were created. Messages are in a log nearly in the order of their
-- creation.
create or replace function trunkline._tick_made_at(p_log int, p_at timestamptz) returns bigint
language plpgsql stable
as $$
declare
    v_topic int;
    v_part  int;
    v_rows  int;
    v_low   bigint;
    v_high  bigint;
    v_probe record;
    v_made  timestamptz;
begin
    select l.topic_id, l.partition, t.segment_rows into v_topic, v_part, v_rows from trunkline.logs l join trunkline.topics t using (topic_id) where l.log = p_log;
    select t.first_offset into v_low from trunkline.logs l join trunkline.ticks t using (log)
    where l.log = p_log and t.first_offset + t.n > l.base_offset order by t.first_offset limit 1;
    select first_offset into v_high from trunkline.ticks where log = p_log order by first_offset desc limit 1;
    while v_low < v_high loop
        -- rounded up, so that the loop ends
        select first_offset, lower(ids) as id, shared into v_probe from trunkline.ticks
        where log = p_log and first_offset <= v_low + (v_high - v_low + 1) / 2 order by first_offset desc limit 1;
        if v_probe.first_offset <= v_low then
            select first_offset, lower(ids) as id, shared into v_probe from trunkline.ticks where log = p_log and first_offset > v_low order by first_offset limit 1;
        end if;
        execute format('select created_at from %s where id = $1', trunkline._table_of(v_probe.shared, v_topic, v_part, v_rows, v_probe.id)) into v_made using v_probe.id;
        if v_made <= p_at then
            v_low := v_probe.first_offset;
        else
            select first_offset into v_high from trunkline.ticks where log = p_log and first_offset < v_probe.first_offset order by first_offset desc limit 1;
        end if;
    end loop;
    return v_low;
end
$$;

-- Finds a message by id in p_ticks ticks of a log from offset p_from on, and returns its offset, or null.
-- Reads ids only, not payloads. p_around: searches this many ticks on both sides of p_from, the nearest
-- first.
create or replace function trunkline._find_in_ticks(p_log int, p_from bigint, p_ticks int, p_id uuid, p_around boolean default false) returns bigint
language plpgsql stable
as $$
declare
    k    record;
    v_id bigint;
begin
    for k in
        select l.topic_id, l.partition, x.first_offset, x.ids, x.shared,
               trunkline._table_of(x.shared, l.topic_id, l.partition, t.segment_rows, lower(x.ids)) as first_table,
               trunkline._table_of(x.shared, l.topic_id, l.partition, t.segment_rows, upper(x.ids) - 1) as last_table
        from trunkline.logs l
        join trunkline.topics t using (topic_id)
        cross join lateral (
            (select * from trunkline.ticks where log = p_log and first_offset >= p_from order by first_offset limit p_ticks)
            union all
            (select * from trunkline.ticks where p_around and log = p_log and first_offset < p_from order by first_offset desc limit p_ticks)
        ) x
        where l.log = p_log and x.first_offset + x.n > l.base_offset
        order by abs(x.first_offset - p_from)
    loop
        -- names the segment alone if that is enough: Postgres plans this in a third of the time
        execute format('select id from %s where %s = $1 and id >= $2 and id < $3 and message_id = $4 limit 1',
                       case when k.first_table = k.last_table then k.first_table when k.shared then 'trunkline.store' else 'trunkline.topic_' || k.topic_id end,
                       case when k.shared then 'log' else 'partition' end)
            into v_id using case when k.shared then p_log else k.partition end, lower(k.ids), upper(k.ids), p_id;
        if k.ids @> v_id then
            return k.first_offset + (select sum(least(upper(r) - 1, v_id) - lower(r) + 1) from unnest(k.ids) r where lower(r) <= v_id) - 1;
        end if;
    end loop;
    return null;
end
$$;

-- Returns the offset of a message that got it soon after its creation, which is the usual case. Null: not
-- found, or its id has no time.
create or replace function trunkline._find_soon(p_log int, p_id uuid) returns bigint
language sql stable
as $$
    -- the id is created shortly before the row, and the row gets its offset later
    select case when trunkline._uuid_time(p_id) is not null
                then trunkline._find_in_ticks(p_log, trunkline._tick_at(p_log, trunkline._uuid_time(p_id)), 3, p_id) end
$$;

-- Returns the offset of a message anywhere else in a log, or null. An id without a time is searched in the
-- newest 21 ticks.
create or replace function trunkline._find_late(p_log int, p_id uuid) returns bigint
language plpgsql stable
as $$
declare
    v_at   timestamptz := trunkline._uuid_time(p_id);
    v_tick bigint;
begin
    if v_at is null then
        return trunkline._find_in_ticks(
            p_log, coalesce((select first_offset from trunkline.ticks where log = p_log order by first_offset desc offset 20 limit 1), 0), 21, p_id);
    end if;
    v_tick := trunkline._tick_made_at(p_log, v_at);
    -- by the creation time of the messages, first in a few ticks and then in many; then for a transaction
    -- that stayed open for long
    return coalesce(trunkline._find_in_ticks(p_log, v_tick, 2, p_id, true),
                    trunkline._find_in_ticks(p_log, v_tick, 100, p_id, true),
                    trunkline._find_in_ticks(p_log, trunkline._tick_at(p_log, v_at), 200, p_id));
end
$$;

-- Returns the offset of a message in a log, or null if it has none there.
create or replace function trunkline._find_offset(p_log int, p_id uuid) returns bigint
language sql stable
as $$ select coalesce(trunkline._find_soon(p_log, p_id), trunkline._find_late(p_log, p_id)) $$;

-- Returns a message of a log that has no offset yet. Of other transactions, returns only what they have
-- committed.
create or replace function trunkline._find_unsequenced(p_log int, p_id uuid) returns setof trunkline.log_row
language plpgsql stable
as $$
declare
    v_store int := trunkline._sequenced_with(p_log);
    v_last  pg_snapshot := coalesce((select snapshot from trunkline.ticks where log = v_store order by first_offset desc limit 1), '1:1:');
    v_own   xid8 := coalesce(pg_current_xact_id_if_assigned(), '0');
    v_ended record := trunkline._ended_between(v_last, trunkline._snapshot_of_others());
    v_table text;
begin
    for v_table in select trunkline._segment_table(l.topic_id, l.partition, s.segment) from trunkline.logs l join trunkline.segments s using (log) where log = v_store and s.sealed_at is null loop
        return query execute format('
            select null::bigint, m.message_id::uuid, m.key, m.routing_key, m.label, m.headers, m.payload::bytea, m.content_type::text, m.occurred_at,
                   coalesce((m.origin).published_at, m.created_at)::timestamptz, m.created_at::timestamptz, (m.origin).topic
            from unnest($1 || $3, $2 || trunkline._next_xid($3)) r(lo, hi) cross join lateral (select * from %s x where x.xid >= r.lo and x.xid < r.hi offset 0) m
            where m.message_id = $4 %s', v_table, case when v_store = 1 then 'and m.log = ' || p_log end) using v_ended.from_xids, v_ended.upto_xids, v_own, p_id;
    end loop;
end
$$;

-- Returns the leases that delivered an offset of a queue's cursor, if they still exist, and the position in
-- each: of the first delivery, and of each redelivery.
create or replace function trunkline._leases_of(c trunkline.cursors, p_offset bigint) returns table (l trunkline.leases, pos bigint)
language sql stable
as $$
    select x.l, x.pos from (
        -- in a lease drawn from a log, the position is the offset
        (select y as l, p_offset as pos from trunkline.leases y where c.drawn_seq is not null and y.cursor_id = c.cursor_id and y.first <= p_offset order by y.first desc limit 1)
        union all
        -- returned messages: `returns` has the source cursor and offset of each position
        select y.lease, r.pos from (select distinct z.cursor_id, z.pos from trunkline.returns z where z.source_id = c.cursor_id and z.log_offset = p_offset) r
        cross join lateral (select z as lease from trunkline.leases z where z.cursor_id = r.cursor_id and z.first <= r.pos order by z.first desc limit 1) y
        union all
        select y.lease, (y.lease).first + array_position((y.lease).offsets, p_offset) - 1
        from (select z as lease from trunkline.leases z where c.drawn_seq is null and z.cursor_id = c.cursor_id order by z.first desc limit 5000) y where p_offset = any ((y.lease).offsets)
    ) x where trunkline._leased(x.l) @> x.pos
$$;

-- Returns all deliveries of one message by one cursor of a queue, oldest first.
create or replace function trunkline._deliveries_of(c trunkline.cursors, p_offset bigint)
returns table (attempt int, consumer text, claimed_at timestamptz, deadline timestamptz, settled_at timestamptz, kind "char", error text)
language sql stable
as $$
    select * from (
        -- a run in the history has at most 1,000 offsets, like a claim
        select h.attempt, h.consumer, h.claimed_at, null::timestamptz, h.settled_at, h.kind, h.error
        from trunkline.history h
        where h.source_id = c.cursor_id and h.first_offset between p_offset - 1000 and p_offset and h.last_offset >= p_offset
        union
        select coalesce((x.l).attempts[x.pos - (x.l).first + 1], 0) + 1, (x.l).consumer, (x.l).claimed_at, trunkline._ends_at_position(x.l, x.pos), e.at, e.kind, e.error
        from trunkline._leases_of(c, p_offset) x
        left join lateral (select * from trunkline.settled s where s.rotation = (x.l).rotation and s.cursor_id = (x.l).cursor_id and s.pos >= (x.l).first and s.pos <= x.pos and s.pos + s.n > x.pos) e on true
        -- a settled delivery that is in the history is read from there
        where e.kind is distinct from 'p' and (e.at is null or not exists (
              select from trunkline.history h where h.source_id = c.cursor_id and h.first_offset between p_offset - 1000 and p_offset and h.last_offset >= p_offset
                 and h.claimed_at = (x.l).claimed_at and h.kind = e.kind))
    ) d(attempt, consumer, claimed_at, deadline, settled_at, kind, error)
    order by d.claimed_at
$$;

-- Returns one delivery as an element of a message's delivery history.
create or replace function trunkline._delivery_step(p_attempt int, p_consumer text, p_claimed_at timestamptz, p_settled_at timestamptz, p_kind "char", p_error text) returns jsonb
language sql stable
as $$
    select jsonb_build_object('attempt', p_attempt, 'consumer', p_consumer, 'claimed_at', p_claimed_at, 'settled_at', p_settled_at,
                              'outcome', trunkline._outcome(p_kind), 'error', p_error)
$$;

-- Returns all redrives and replays of a message, oldest first, each with the earlier offset and its
-- deliveries.
create or replace function trunkline._redrives(p_id uuid) returns jsonb
language sql stable
as $$
    select jsonb_build_object('redriven_at', max(r.at), 'redrives', jsonb_agg(jsonb_build_object(
               'at', r.at, 'queue', q.name, 'topic', case when c.cursor_id is null then r.topic else c.topic end, 'partition', r.partition, 'offset', r.log_offset,
               'dead_at', r.dead_at, 'reason', r.reason, 'error', r.error,
               'history', coalesce((select jsonb_agg(trunkline._delivery_step(d.attempt, d.consumer, d.claimed_at, d.settled_at, d.kind, d.error) order by d.claimed_at)
                                    from trunkline._deliveries_of(c, r.log_offset) d where c.cursor_id is not null), '[]')) order by r.at))
    from trunkline.redriven r left join trunkline.cursors c on c.cursor_id = r.cursor_id left join trunkline.queues q on q.queue_id = c.queue_id
    where r.id = p_id
$$;

-- Returns when the lease of one position ends.
create or replace function trunkline._ends_at_position(l trunkline.leases, p_pos bigint) returns timestamptz
language sql stable
as $$
    select greatest(l.deadline, (select max(e.until) from trunkline.extensions e
                                 where e.rotation = l.rotation and e.cursor_id = l.cursor_id and e.first = l.first and e.positions @> p_pos))
$$;

-- Returns how often the open lease of a message was extended.
create or replace function trunkline._extensions_of(c trunkline.cursors, p_offset bigint) returns int
language sql stable
as $$
    select coalesce((select count(*)::int from trunkline._leases_of(c, p_offset) x
                     join trunkline.extensions e on e.rotation = (x.l).rotation and e.cursor_id = (x.l).cursor_id and e.first = (x.l).first and e.positions @> x.pos
                     where trunkline._ends_at_position(x.l, x.pos) > trunkline.clock()), 0)
$$;

-- Returns why a cursor skips a message; null if the message matches.
create or replace function trunkline._mismatch(c trunkline.cursors, p_offset bigint, p_routing_key text, p_headers jsonb) returns text
language plpgsql stable
as $$
declare
    s trunkline.subscriptions;
begin
    select * into s from trunkline.subscriptions where subscription_id = c.subscription_id;
    if p_offset < c.start_position then
        return format('the subscription starts at offset %s', c.start_position);
    elsif c.pattern_regex is not null and coalesce(p_routing_key, '') !~ c.pattern_regex then
        return format('routing key "%s" does not match pattern "%s"', p_routing_key, s.pattern);
    elsif c.filter is not null and not trunkline._filter_matches(c.filter, coalesce(p_headers, '{}')) then
        return format('headers do not match filter %s', c.filter);
    end if;
    return null;
end
$$;

-- Returns the state of a message for a group, and the reason.
create or replace function trunkline._explain_group(c trunkline.cursors, p_offset bigint, p_mismatch text) returns jsonb
language plpgsql stable
as $$
declare
    p       trunkline.positions;
    v_now   timestamptz := trunkline.clock();
    v_state text;
    v_why   text;
    v_rate  float8;
    v_ahead bigint;
begin
    select * into p from trunkline.positions where cursor_id = c.cursor_id order by state_no desc limit 1;
    p.committed := coalesce(p.committed, c.start_position - 1);
    if p_offset <= p.committed then
        v_state := case when p_mismatch is null then 'read' else 'not_matched' end;
        v_why := coalesce(p_mismatch, format('the group has committed up to offset %s', p.committed));
    elsif p_mismatch is not null then
        v_state := 'not_matched';
        v_why := p_mismatch;
    elsif p.member is not null and p_offset <= p.fetched and p.deadline > v_now then
        v_state := 'leased';
        v_why := format('fetched by member "%s", not committed yet', p.member);
    elsif p.member is not null and p.deadline > v_now then
        v_state := 'ready';
        v_why := format('%s messages ahead; member "%s" owns the partition', p_offset - p.committed - 1, p.member);
    else
        v_state := 'ready';
        v_why := format('%s messages ahead; no member owns the partition', p_offset - p.committed - 1);
    end if;
    if v_state = 'ready' then
        v_ahead := p_offset - p.committed - 1;
        -- of all partitions; a partition has its share
        v_rate := trunkline._recent_rate('group', c.subscription_id) / (select count(*) from trunkline.cursors k where k.subscription_id = c.subscription_id);
    end if;
    return jsonb_build_object('state', v_state, 'reason', v_why, 'consumer', case when p.deadline > v_now then p.member end,
                              'until', case when v_state = 'leased' then p.deadline end)
           || case when v_state = 'ready' then jsonb_build_object('cause', case when p.member is not null and p.deadline > v_now then 'behind' else 'no_member' end, 'ahead', v_ahead,
                  'rate_per_second', v_rate, 'expected_at', case when v_rate > 0 then v_now + least((v_ahead + 1) / v_rate, 3e8) * interval '1 second' end) else '{}' end;
end
$$;

-- Returns the state of a message that was returned to its queue. p_holder, p_held_until: the open lease of its
-- partition, in an ordered queue.
create or replace function trunkline._explain_returned(q trunkline.queues, p_label text, p_attempt int, p_why "char", p_error text, p_due_at timestamptz,
    p_holder text, p_held_until timestamptz, out state text, out reason text, out until timestamptz)
language plpgsql stable
as $$
begin
    state := case when q.paused then 'paused' when p_due_at > trunkline.clock() then 'delayed' when p_held_until is not null then 'blocked' else 'ready' end;
    until := case when state = 'delayed' then p_due_at when state = 'blocked' then p_held_until end;
    reason := case state when 'paused' then 'the queue is paused'
                 when 'delayed' then format('retry after attempt %s%s', p_attempt, coalesce(': ' || p_error, ''))
                 when 'blocked' then format('the queue is ordered, and %s has leased messages of this partition', coalesce(p_holder, 'a consumer'))
                 else case when p_why = 'l' then format('skipped by claims for labels other than "%s"', p_label)
                           when p_attempt = 0 and p_error is null then 'released without counting an attempt'
                           else format('ready for retry after attempt %s%s', p_attempt, coalesce(': ' || p_error, '')) end end;
end
$$;

-- Returns the state of a message that was not delivered yet. p_mismatch: why the subscription does not match it;
-- p_next: the next offset to deliver.
create or replace function trunkline._explain_new(q trunkline.queues, m trunkline.log_row, p_mismatch text, p_next bigint,
    p_holder text, p_held_until timestamptz, out state text, out reason text, out until timestamptz)
language plpgsql stable
as $$
begin
    if p_mismatch is not null then
        state := 'not_matched';
        reason := p_mismatch;
    elsif q.ttl is not null and m.entered_at < trunkline.clock() - q.ttl then
        state := 'expired';
        reason := format('older than the ttl of %s', trunkline._duration_text(q.ttl));
    elsif q.paused then
        state := 'paused';
        reason := 'the queue is paused';
    elsif m.entered_at + q.delivery_delay > trunkline.clock() then
        state := 'delayed';
        until := m.entered_at + q.delivery_delay;
        reason := format('the queue has a delivery delay of %s', trunkline._duration_text(q.delivery_delay));
    elsif p_held_until is not null then
        state := 'blocked';
        until := p_held_until;
        reason := format('the queue is ordered, and %s has leased messages of this partition', coalesce(p_holder, 'a consumer'));
    else
        state := 'ready';
        reason := format('%s messages ahead', m.log_offset - p_next);
    end if;
end
$$;

-- Returns the state of a message that was drawn, without a delivery that is still known.
create or replace function trunkline._explain_unknown(c trunkline.cursors, q trunkline.queues, m trunkline.log_row, out state text, out reason text)
language plpgsql stable
as $$
declare
    v_lease  trunkline.leases;
    v_purged boolean;
begin
    select * into v_lease from trunkline.leases l where l.cursor_id = c.cursor_id and c.drawn_seq is not null and l.first <= m.log_offset order by l.first desc limit 1;
    v_purged := exists (select from trunkline._leases_of(c, m.log_offset) y join trunkline.settled e
                        on e.rotation = (y.l).rotation and e.cursor_id = (y.l).cursor_id and e.first = (y.l).first and e.kind = 'p');
    if v_purged or v_lease.first + v_lease.n > m.log_offset and not trunkline._leased(v_lease) @> m.log_offset then
        state := case when not v_purged and q.ttl is not null and m.entered_at < v_lease.claimed_at - q.ttl then 'expired' else 'purged' end;
        reason := case state when 'expired' then format('older than the ttl of %s when it was next to be delivered', trunkline._duration_text(q.ttl)) else 'purged' end;
    else
        state := 'gone';
        reason := 'settled, expired or purged; delivery history no longer covers the message';
    end if;
end
$$;

-- Returns the state of a message for a queue, the reason, and its delivery history.
create or replace function trunkline._explain_queue(c trunkline.cursors, m trunkline.log_row, p_mismatch text) returns jsonb
language plpgsql stable
as $$
declare
    q         trunkline.queues;
    w         record;
    v_next    bigint;
    d         trunkline.dead_letters;
    x         record;
    v_now     timestamptz := trunkline.clock();
    v_state   text;
    v_why     text;
    v_until   timestamptz;
    v_history jsonb := '[]';
    v_holder  record;
    v_more    jsonb := '{}';
    v_extended int;
begin
    select * into q from trunkline.queues where queue_id = c.queue_id;
    v_next := trunkline._next_offset(c);
    select * into w from trunkline._returned_at(c, m.log_offset) r;
    select * into d from trunkline.dead_letters where cursor_id = c.cursor_id and log_offset = m.log_offset;
    -- after the loop, x is the newest delivery
    for x in select * from trunkline._deliveries_of(c, m.log_offset) y order by y.claimed_at loop
        v_history := v_history || trunkline._delivery_step(x.attempt, x.consumer, x.claimed_at, x.settled_at, x.kind, x.error);
    end loop;
    -- the open lease of the partition, in an ordered queue
    select y.consumer, y.deadline into v_holder from trunkline._live_deliveries(c.queue_id) y
    where q.ordered and y.source_id = c.cursor_id and y.kind is null and y.deadline > v_now limit 1;
    if d.dead_id is not null then
        v_state := 'dead';
        v_why := format('%s after %s: %s', case d.reason when 'buried' then 'buried' else 'out of attempts' end,
                        case d.attempts when 1 then '1 attempt' else d.attempts || ' attempts' end, coalesce(d.error, 'no error recorded'));
    elsif w.source_id is not null then
        select * into v_state, v_why, v_until from trunkline._explain_returned(q, m.label, w.attempt, w.why, w.error, w.due_at, v_holder.consumer, v_holder.deadline);
    elsif m.log_offset >= v_next then
        select * into v_state, v_why, v_until from trunkline._explain_new(q, m, p_mismatch, v_next, v_holder.consumer, v_holder.deadline);
    elsif x.kind is null and x.claimed_at is not null then
        if x.deadline > v_now then
            v_state := 'leased';
            v_until := x.deadline;
            v_extended := trunkline._extensions_of(c, m.log_offset);
            v_why := format('leased to %s, attempt %s', coalesce(x.consumer, 'an unnamed consumer'), x.attempt)
                     || case v_extended when 0 then '' when 1 then ', extended once' else format(', extended %s times', v_extended) end;
        else
            v_state := 'ready';
            v_why := 'lease expired; redelivery is due';
        end if;
    elsif x.kind = 'a' then
        v_state := 'acked';
        v_why := format('acked by %s', coalesce(x.consumer, 'an unnamed consumer'));
    elsif x.kind = 'g' then
        v_state := 'gone';
        v_why := 'removed by retention before it could be redelivered';
    elsif x.kind in ('b', 'd') then
        v_state := 'gone';
        v_why := 'was a dead letter, then redriven or purged';
    elsif p_mismatch is not null then
        v_state := 'not_matched';
        v_why := p_mismatch;
    elsif x.kind is not null then
        v_state := 'expired';
        v_why := format('returned after attempt %s, then expired or purged', x.attempt);
    else
        select * into v_state, v_why from trunkline._explain_unknown(c, q, m);
    end if;
    if v_state = 'ready' then
        v_more := trunkline._waiting_for(q, case when w.source_id is null and x.claimed_at is null then m.log_offset - v_next else 0 end, m.label);
        v_why := concat_ws('; ', v_why, v_more ->> 'why');
    end if;
    return jsonb_build_object('state', v_state, 'reason', v_why, 'until', v_until, 'attempt', coalesce(x.attempt, 0),
                              'consumer', case when v_state = 'leased' then x.consumer end, 'history', v_history)
           || case when v_state = 'leased' then jsonb_build_object('claimed_at', x.claimed_at, 'extensions', v_extended) else '{}' end || v_more - 'why';
end
$$;

-- Returns the message at an offset of a log, and its state for each reader of the log.
create or replace function trunkline._explain_at(p_log int, p_offset bigint) returns jsonb
language plpgsql stable
as $$
declare
    l         trunkline.logs;
    t         trunkline.topics;
    m         trunkline.log_row;
    v_readers jsonb;
begin
    select * into l from trunkline.logs where log = p_log;
    select * into t from trunkline.topics where topic_id = l.topic_id;
    select * into m from trunkline._read(t.topic_id, l.partition, t.segment_rows, p_offset, p_offset);
    select jsonb_agg(jsonb_build_object('kind', s.kind, 'name', coalesce(q.name, s.name)) || case s.kind
               when 'group' then trunkline._explain_group(c, p_offset, x.mismatch)
               else trunkline._explain_queue(c, m, x.mismatch) end order by s.kind, coalesce(q.name, s.name))
      into v_readers
      from trunkline.cursors c
      join trunkline.subscriptions s using (subscription_id)
      left join trunkline.queues q on q.queue_id = s.queue_id
      cross join lateral (select trunkline._mismatch(c, p_offset, m.routing_key, m.headers) as mismatch) x
      where c.log = p_log;
    return jsonb_build_object(
        'id', m.id, 'state', 'in_log', 'topic', case t.kind when 'topic' then t.name end, 'queue', case t.kind when 'inbox' then t.name end,
        'partition', l.partition, 'offset', p_offset, 'published_at', m.created_at, 'sequenced_at', (trunkline._tick_of(p_log, p_offset)).cut_at, 'occurred_at', m.occurred_at, 'key', m.key,
        'routing_key', m.routing_key, 'label', m.label, 'headers', m.headers, 'content_type', m.content_type, 'size', length(m.payload),
        'reason', case when v_readers is null then 'no group or queue reads this topic'
                       when not jsonb_path_exists(v_readers, '$[*] ? (@.state != "not_matched")') then 'no subscription matches the message'
                       else (select string_agg(format('%s %s: %s (%s)', r ->> 'kind', r ->> 'name', r ->> 'state', r ->> 'reason'), '; ')
                             from jsonb_array_elements(v_readers) r where r ->> 'state' <> 'not_matched') end,
        'readers', coalesce(v_readers, '[]'));
end
$$;

-- Checks the arguments of explain_offset and returns its result. The caller has called _begin_read.
create or replace function trunkline._explain_offset(p_topic text, p_partition int, p_offset bigint) returns jsonb
language plpgsql stable
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    l trunkline.logs;
begin
    select * into l from trunkline.logs where topic_id = t.topic_id and partition = p_partition;
    if not found then
        perform trunkline._fail('TL001', format('partition %s is out of range: topic "%s" has partitions 0 to %s', coalesce(p_partition::text, 'null'), p_topic, t.partitions - 1),
                                format('Use a partition from 0 to %s.', t.partitions - 1));
    end if;
    if p_offset is null or p_offset < l.base_offset or p_offset > trunkline._head(l.log) then
        perform trunkline._fail('TL006', format('offset %s is out of range: topic "%s", partition %s, has offsets %s to %s', coalesce(p_offset::text, 'null'), p_topic, p_partition,
                                                l.base_offset, trunkline._head(l.log)),
                                'Use an offset that is still stored.');
    end if;
    return trunkline._explain_at(l.log, p_offset);
end
$$;

-- Returns a description of the message at an offset of a topic, with its state for each group and queue that
-- reads the topic. Raises TL001 for an unknown partition, and TL006 if the offset is below the earliest
-- available one or beyond the head.
create or replace function trunkline.explain_offset(p_topic text, p_partition int, p_offset bigint) returns jsonb
language plpgsql
as $$
declare
    v_found jsonb;
begin
    begin
        perform trunkline._begin_read();
        v_found := trunkline._explain_offset(p_topic, p_partition, p_offset);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return v_found;
end
$$;

-- Returns the description of a committed message that has no offset yet.
create or replace function trunkline._explain_unsequenced(p_log int, p_id uuid) returns jsonb
language sql stable
as $$
    select jsonb_build_object('id', p_id, 'state', 'not_sequenced', 'topic', case t.kind when 'topic' then t.name end,
        'queue', case t.kind when 'inbox' then t.name end, 'partition', g.partition,
        'reason', 'committed, but has no offset yet: upkeep assigns it', 'readers', '[]'::jsonb)
    from trunkline.logs g join trunkline.topics t using (topic_id) where g.log = p_log
$$;

-- Returns the logs that have a message with this id in the shared store. Row ids of the store grow with the
-- time at which they were written. So a binary search finds the first row of the message's time, and 20,000
-- rows are read from there. For an id without a time, reads the newest 20,000 rows.
create or replace function trunkline._find_in_store(p_id uuid) returns setof int
language plpgsql stable
as $$
declare
    v_at   timestamptz := trunkline._uuid_time(p_id);
    v_low  bigint;
    v_high bigint;
    v_id   bigint;
    v_made timestamptz;
    s      record;
begin
    for s in select g.segment, trunkline._segment_table(0, 1, g.segment) as name from trunkline.segments g where g.log = 1 order by g.segment desc loop
        execute format('select (select id from %1$s where id >= $1 and id < $2 order by id limit 1), (select id from %1$s where id >= $1 and id < $2 order by id desc limit 1)', s.name)
            into v_low, v_high using s.segment << 30, s.segment + 1 << 30;
        continue when v_low is null;
        -- starts one second earlier, for clients whose clock is ahead
        while v_at is not null and v_low < v_high loop
            execute format('select id, created_at from %s where id >= $1 order by id limit 1', s.name) into v_id, v_made using v_low + (v_high - v_low) / 2;
            if v_made >= v_at - interval '1 second' then
                v_high := v_low + (v_high - v_low) / 2;
            else
                v_low := v_id + 1;
            end if;
        end loop;
        return query execute format('
            select distinct m.log from (select x.log, x.message_id from %s x where x.id >= $1 and x.id < $2 order by x.id %s limit 20000) m
            where m.message_id = $3', s.name, case when v_at is null then 'desc' end)
            using v_low, s.segment + 1 << 30, p_id;
        exit when found or v_at is null;
    end loop;
end
$$;

-- Returns logs that may have a message that was not found in the store near its time. These have a tick since
-- its creation; topics first. For an id without a time, any log.
create or replace function trunkline._logs_to_search(p_at timestamptz) returns setof int
language sql stable
as $$
    select l.log from trunkline.topics t join trunkline.logs l using (topic_id)
    cross join lateral (select k.cut_at from trunkline.ticks k where k.log = l.log order by k.first_offset desc limit 1) k
    where l.log <> 1 and (p_at is null or k.cut_at >= p_at) order by t.shared, k.cut_at desc
$$;

-- Searches a message by id: delayed, redriven, in the shared store, in other logs, in the dead letters. The
-- caller has called _begin_read.
create or replace function trunkline._explain_message(p_id uuid) returns jsonb
language plpgsql stable
as $$
declare
    v_offset bigint;
    v_due    record;
    v_dead   record;
    v_logs   int[];
    v_new    int[];
    v_log    int;
    l        record;
begin
    select s.due_at, t.kind, t.name into v_due
    from (select * from trunkline._delayed d where d.id = p_id offset 0) s join trunkline.topics t using (topic_id) left join trunkline.queues q on q.inbox_id = t.topic_id
    where trunkline._is_waiting(s.no, s.xid, s.due_at) and (q.queue_id is null or not trunkline._is_withdrawn(q, s.xid, s.purge_no)) limit 1;
    if found then
        return jsonb_build_object('id', p_id, 'state', 'delayed', 'topic', case v_due.kind when 'topic' then v_due.name end,
            'queue', case v_due.kind when 'inbox' then v_due.name end, 'until', v_due.due_at, 'reason', format('delayed until %s', v_due.due_at), 'readers', '[]'::jsonb);
    end if;
    -- of a redriven message, the newest offset counts
    for l in select x.log, r.at from (select * from trunkline.redriven where id = p_id order by at desc limit 1) r join trunkline.logs x using (topic_id) loop
        if exists (select from trunkline._find_unsequenced(l.log, p_id)) then
            return trunkline._explain_unsequenced(l.log, p_id) || trunkline._redrives(p_id);
        end if;
        v_offset := trunkline._find_in_ticks(l.log, trunkline._tick_at(l.log, l.at), 200, p_id);
        if v_offset is not null then
            return trunkline._explain_at(l.log, v_offset) || trunkline._redrives(p_id);
        end if;
    end loop;
    for l in select x.log from trunkline._find_in_store(p_id) x(log) loop
        v_offset := trunkline._find_offset(l.log, p_id);
        if v_offset is not null then
            return trunkline._explain_at(l.log, v_offset);
        elsif exists (select from trunkline._find_unsequenced(l.log, p_id)) then
            return trunkline._explain_unsequenced(l.log, p_id);
        end if;
    end loop;
    v_logs := array(select trunkline._logs_to_search(trunkline._uuid_time(p_id)));
    -- first where messages usually are, then without an offset, then anywhere else
    foreach v_log in array v_logs loop
        v_offset := trunkline._find_soon(v_log, p_id);
        if v_offset is not null then
            return trunkline._explain_at(v_log, v_offset);
        end if;
    end loop;
    v_new := trunkline._unsequenced_logs(array(select x.log from trunkline.topics t join trunkline.logs x using (topic_id) where not t.shared and x.log <> 1), true);
    foreach v_log in array v_new loop
        if exists (select from trunkline._find_unsequenced(v_log, p_id)) then
            return trunkline._explain_unsequenced(v_log, p_id);
        end if;
    end loop;
    foreach v_log in array v_logs loop
        v_offset := trunkline._find_late(v_log, p_id);
        if v_offset is not null then
            return trunkline._explain_at(v_log, v_offset);
        end if;
    end loop;
    select d.topic, d.partition, d.log_offset, d.reason, d.error, d.attempts, q.name into v_dead
    from trunkline.dead_letters d join trunkline.queues q using (queue_id) where d.id = p_id limit 1;
    if found then
        return jsonb_build_object('id', p_id, 'state', 'dead', 'queue', v_dead.name, 'topic', nullif(v_dead.topic, ''), 'partition', v_dead.partition, 'offset', v_dead.log_offset,
            'reason', format('dead letter of queue "%s" after %s attempts: %s; no longer in the log', v_dead.name, v_dead.attempts, coalesce(v_dead.error, v_dead.reason)),
            'readers', '[]'::jsonb);
    end if;
    return jsonb_build_object('id', p_id, 'state', 'unknown', 'readers', '[]'::jsonb,
        'reason', case when trunkline._uuid_time(p_id) is null then 'not among the newest 20,000 messages of the queues and of each topic; use explain_offset if you know topic and offset'
                       else 'message not found: not committed yet, or removed by retention' end);
end
$$;

-- Returns where a message is, which consumer holds it, why it is not delivered now, and its delivery history.
-- The state is `unknown` if the message is not found.
-- Ids that contain their time (all that Trunkline creates) are found anywhere in the log. Other ids are
-- searched in the newest 20,000 messages of the queues and of each topic. For an id that is not found near
-- its time, the cost grows with the number of logs that have newer messages.
-- sequenced_at: when the message got its offset. Each reader for which it waits has cause ('behind',
-- 'no_consumer', 'no_member', 'no_worker', 'kind_unknown', 'limit', 'rate', 'endpoint' or 'endpoint_rate'),
-- ahead (messages before it in its partition), last_claim_at, rate_per_second and expected_at: an estimate from
-- the rate of the last minutes. A leased one has claimed_at and extensions (how often its lease was extended).
create or replace function trunkline.explain_message(p_id uuid) returns jsonb
language plpgsql
as $$
declare
    v_found jsonb;
begin
    begin
        perform trunkline._begin_read();
        v_found := trunkline._explain_message(p_id);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return v_found;
end
$$;
