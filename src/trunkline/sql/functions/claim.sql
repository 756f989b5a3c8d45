-- Claiming (docs/adr/0019). A queue reads cursors. It has one per partition of the queue's log and of each
-- subscribed topic. It has one for returned messages (kind 'returns'), and one per label once consumers claim
-- by label. The position of a cursor is a sequence. It moves at once and is never rolled back, and no lock on
-- it lasts longer than the draw. A claim that is rolled back or dies after its draw leaves a hole. The pass
-- (pass.sql) finds holes and returns their messages.

-- Returns the key of a mark, by which an open claim shows its draw in the lock table. The key has the cursor
-- (22 bits), the low 32 bits of the first position, and the number of positions - 1 (10 bits). 1023 means
-- 1,024 or more.
create or replace function trunkline._mark(p_cursor_id int, p_first bigint, p_n bigint) returns bigint
language sql immutable parallel safe
as $$ select ((p_cursor_id & 4194303)::bigint << 42) | ((p_first & 4294967295) << 10) | (least(p_n, 1024) - 1) $$;

-- Returns the newest position that was drawn. A sequence is not versioned, so the value is current at every
-- isolation level.
create or replace function trunkline._drawn(c trunkline.cursors) returns bigint
language plpgsql
as $$
begin
    return coalesce(pg_sequence_last_value(c.drawn_seq), c.start_position - 1);
end
$$;

-- Returns the newest position that may be drawn.
create or replace function trunkline._drawable(c trunkline.cursors) returns bigint
language plpgsql
as $$
begin
    if c.kind = 'log' then
        return trunkline._head(c.log);
    end if;
    return coalesce(pg_sequence_last_value(c.head_seq), 0);
end
$$;

-- Waits for the draw lock of a cursor. It first retries for about 10 ms. A session that waits in the lock
-- queue gets the lock while it sleeps, and no other session can use the lock until it is awake. That costs
-- more than half of the throughput if many sessions claim one by one (docs/adr/0008).
create or replace function trunkline._lock_cursor(p_cursor_id int) returns void
language plpgsql
as $$
declare
    v_waits boolean;
begin
    for i in 1 .. 20 loop
        if pg_try_advisory_xact_lock(778005, p_cursor_id) then
            return;
        end if;
        perform pg_sleep(0.0005);
    end loop;
    v_waits := trunkline._wait_ten_seconds();
    perform pg_advisory_xact_lock(778005, p_cursor_id);
    perform trunkline._wait_as_before(v_waits);
end
$$;

-- Returns an empty draw: the drawn positions of a cursor and the outcome of each. It is filled while the draw
-- lock is held and stored by _lease.
create or replace function trunkline._new_draw(c trunkline.cursors) returns trunkline.leases
language plpgsql
as $$
declare
    s trunkline.leases;
begin
    s.cursor_id := c.cursor_id;
    s.n := 0;
    s.skipped := 0;
    s.expired := 0;
    return s;
end
$$;

-- Returns the next positions of a log that contain up to p_want messages for the queue. A message that does
-- not match is skipped. A message older than the ttl has expired. A message with another label is left to
-- other consumers (passed). A message that is younger than the delivery delay ends the scan. Reads at most
-- 1,023 messages.
create or replace function trunkline._scan_log(
    inout s trunkline.leases, c trunkline.cursors, q trunkline.queues, p_head bigint, p_want int, p_labels text[])
language plpgsql
as $$
declare
    v_now      timestamptz := trunkline.clock();
    v_oldest   timestamptz := v_now - q.ttl;
    -- Read before the sequence moves, so that a later purge includes messages that are left for their label.
    v_purge    bigint := case when p_labels is not null then trunkline._newest_purge() end;
    v_youngest timestamptz := case when q.delivery_delay > '0' then v_now - q.delivery_delay end;
begin
    with m as materialized (
        select r.log_offset,
               (c.pattern_regex is null or coalesce(r.routing_key, '') ~ c.pattern_regex)
                 and (c.filter is null or trunkline._filter_matches(c.filter, coalesce(r.headers, '{}'))) as hit,
               -- The ordered queue was purged while a delivery was open. Its other messages are dropped when
               -- they are due.
               coalesce(r.entered_at < v_oldest, false) or q.ordered and r.log_offset <= c.purged_upto as old,
               p_labels is null or coalesce(r.label = any (p_labels), false) as wanted,
               coalesce(r.entered_at > v_youngest, false) as young
        from trunkline._read(c.topic_id, c.partition, c.segment_rows, s.first, least(p_head, s.first + 1022)) r
    ), cut as (
        select least((select min(log_offset) - 1 from m where young),
                     (select log_offset from m where hit and not old and wanted order by log_offset offset p_want - 1 limit 1),
                     (select max(log_offset) from m)) as last_offset
    )
    select coalesce(max(cut.last_offset) - s.first + 1, 0),
           coalesce(range_agg(int8range(m.log_offset, m.log_offset + 1)) filter (where hit and not old and wanted), '{}'),
           range_agg(int8range(m.log_offset, m.log_offset + 1)) filter (where hit and not old and not wanted),
           count(*) filter (where not hit), count(*) filter (where hit and old)
      into s.n, s.taken, s.passed, s.skipped, s.expired
      from cut join m on m.log_offset <= cut.last_offset;
    -- The lease starts at the time for which the ttl was checked.
    s.claimed_at := v_now;
    if s.passed is not null then
        s.purge_no := v_purge;
    end if;
end
$$;

-- Returns the next positions of returned messages. A message has expired if retention has removed it or its
-- subscription was deleted. A pass that had not seen a purge may have returned a purged message. Such a
-- message is left (passed) with purge number 0, and the next pass, which has seen the purge, drops it. A scan
-- contains either only such messages or none.
create or replace function trunkline._scan_returns(inout s trunkline.leases, q trunkline.queues, p_head bigint, p_want int, p_labels text[])
language plpgsql
as $$
declare
    v_now    timestamptz := trunkline.clock();
    v_oldest timestamptz := v_now - q.ttl;
    v_purge  bigint := case when p_labels is not null then trunkline._newest_purge() end;
    v_purged boolean;
begin
    with r as materialized (
        select x.pos, x.source_id, x.log_offset, x.attempt, x.why, k.cursor_id is not null and x.log_offset >= l.base_offset as there, k as source,
               -- A message from a hole in a log has no purge number. Its offset is compared with purged_upto
               -- of its cursor.
               q.purge_xids <> '{}' and coalesce(case when x.purge_no is null then x.log_offset <= k.purged_upto else x.purge_no < q.purge_nos[cardinality(q.purge_nos)] end, false) as purged
        from (select y.*, row_number() over (order by y.pos) as no from trunkline._returns_at(s.cursor_id, s.first, least(p_head, s.first + p_want - 1)) y) x
        left join trunkline.cursors k on k.cursor_id = x.source_id
        left join trunkline.logs l on l.log = k.log
        -- Only positions without gaps: if tables were rotated twice since their names were read, only newer
        -- rows are found.
        where x.pos = s.first + x.no - 1
    ), m as (
        select r.pos, r.source_id, r.log_offset, r.attempt, r.why, r.purged, r.purged or r.there and not coalesce(x.entered_at < v_oldest, false) as alive,
               not r.purged and (p_labels is null or coalesce(x.label = any (p_labels), false)) as wanted
        from r
        left join lateral (select y.entered_at, y.label from trunkline._read_left(r.source, r.log_offset) y where q.ttl is not null or p_labels is not null) x on r.there
        where r.pos < coalesce((select min(y.pos) from r y where y.purged <> (select z.purged from r z where z.pos = s.first)), 9223372036854775807)
    )
    select count(*), array_agg(m.source_id order by m.pos), array_agg(m.log_offset order by m.pos), array_agg(m.attempt order by m.pos),
           array_agg(m.why order by m.pos),
           coalesce(range_agg(int8range(m.pos, m.pos + 1)) filter (where m.alive and m.wanted), '{}'),
           range_agg(int8range(m.pos, m.pos + 1)) filter (where m.alive and not m.wanted),
           count(*) filter (where not m.alive), bool_or(m.purged)
      into s.n, s.source_ids, s.offsets, s.attempts, s.whys, s.taken, s.passed, s.expired, v_purged
      from m;
    s.claimed_at := v_now;
    if s.passed is not null then
        s.purge_no := case when v_purged then 0 else v_purge end;
    end if;
end
$$;

-- Returns rows of `returns` from the two rotation partitions that can have rows that are not drawn yet. So a
-- claim in an open transaction does not prevent the third one from being emptied.
create or replace function trunkline._returns_at(p_cursor_id int, p_first bigint, p_last bigint) returns setof trunkline.returns
language plpgsql
as $$
begin
    case (select current from trunkline.rotation)
        when 0 then return query select * from trunkline.returns_0 where cursor_id = p_cursor_id and pos between p_first and p_last
                                 union all select * from trunkline.returns_2 where cursor_id = p_cursor_id and pos between p_first and p_last;
        when 1 then return query select * from trunkline.returns_1 where cursor_id = p_cursor_id and pos between p_first and p_last
                                 union all select * from trunkline.returns_0 where cursor_id = p_cursor_id and pos between p_first and p_last;
        else return query select * from trunkline.returns_2 where cursor_id = p_cursor_id and pos between p_first and p_last
                          union all select * from trunkline.returns_1 where cursor_id = p_cursor_id and pos between p_first and p_last;
    end case;
end
$$;

-- Counts the marks of this transaction. Fails with TL004 after 500: they fill the lock table, which all
-- sessions share.
create or replace function trunkline._count_mark() returns void
language plpgsql
as $$
declare
    v_marks int := coalesce(nullif(current_setting('trunkline.marks', true), ''), '0');
    v_set   text;
begin
    if v_marks >= 500 then
        perform trunkline._fail('TL004', 'cannot claim more than 500 times in one transaction', 'Commit, then claim again.');
    end if;
    v_set := set_config('trunkline.marks', (v_marks + 1)::text, true);
end
$$;

-- Shows a draw in the lock table and returns whether the caller may lease it. The epoch was read before the
-- heads, and is read again after the mark is set. If two passes have begun since, one of them may have judged
-- these positions without the mark. Then the caller must not lease them, and the pass finds them as a hole.
-- The mark belongs to the caller's transaction: it is released after the lease is visible, or when it never
-- will be. Fails with TL004 after 500 draws in one transaction.
create or replace function trunkline._show_draw(p_cursor_id int, p_first bigint, p_n bigint, p_epoch bigint) returns boolean
language plpgsql
as $$
begin
    perform trunkline._count_mark();
    return pg_try_advisory_xact_lock_shared(trunkline._mark(p_cursor_id, p_first, p_n)) and coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0) <= p_epoch + 1;
end
$$;

-- Draws positions of a cursor for the caller. n is 0 if there are none. The draw is a subtransaction that is
-- rolled back on purpose. So its lock ends with it, whatever error or cancel ends it, and the sequence stays
-- moved. The mark is set after that (_show_draw). p_skip: only move past these positions, which the caller
-- has read and of which none matches the queue. n is 0 if another claim was faster. p_plain: every next message
-- is for the queue, so none is read here.
create or replace function trunkline._draw(
    c trunkline.cursors, q trunkline.queues, p_head bigint, p_want int, p_labels text[], p_epoch bigint, p_skip int8range default null, p_plain boolean default false)
returns trunkline.leases
language plpgsql
as $$
declare
    s       trunkline.leases;
    v_base  bigint;
    v_from  bigint;
    v_epoch bigint := p_epoch;
begin
    if c.kind = 'log' then
        v_base := (select base_offset from trunkline.logs where log = c.log);
    end if;
    for i in 1 .. 3 loop
        s := trunkline._new_draw(c);
        begin
            perform trunkline._lock_cursor(c.cursor_id);
            v_from := trunkline._drawn(c) + 1;
            s.first := greatest(v_from, v_base);
            if p_head >= s.first and (p_skip is null or s.first = lower(p_skip)) then
                if p_skip is not null then
                    s.n := upper(p_skip) - s.first;
                    s.taken := '{}';
                    s.skipped := s.n;
                elsif p_plain then
                    s.n := least(p_want, p_head - s.first + 1);
                elsif c.kind = 'log' then
                    s := trunkline._scan_log(s, c, q, p_head, p_want, p_labels);
                else
                    s := trunkline._scan_returns(s, q, p_head, p_want, case when c.kind = 'returns' then p_labels end);
                end if;
                if s.n > 0 and s.first > v_from then
                    -- Retention has removed the positions before. They are drawn too and count as expired.
                    s.taken := trunkline._leased(s);
                    s.expired := s.expired + s.first - v_from;
                    s.n := s.n + s.first - v_from;
                    s.first := v_from;
                end if;
                if s.n > 0 then
                    perform setval(c.drawn_seq, s.first + s.n - 1);
                end if;
            end if;
            raise exception using errcode = 'TLX00';
        exception when sqlstate 'TLX00' then
            null;
        end;
        exit when s.n = 0 or trunkline._show_draw(c.cursor_id, s.first, s.n, v_epoch);
        s.n := 0;
        v_epoch := coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0);
    end loop;
    return s;
end
$$;

-- Inserts the lease of a draw and returns its deliveries. The caller has the mark of the draw, or owns the
-- partition of an ordered queue.
create or replace function trunkline._lease(s trunkline.leases, c trunkline.cursors, p_lease interval, p_consumer text) returns setof trunkline.delivery
language plpgsql
as $$
declare
    v_tail text;
begin
    s.token := gen_random_uuid();
    s.rotation := (select current from trunkline.rotation);
    s.claimed_at := coalesce(s.claimed_at, trunkline.clock());
    s.deadline := s.claimed_at + p_lease;
    v_tail := '.' || s.cursor_id || '.' || s.first || '.' || s.rotation || '.' || s.token;
    insert into trunkline.leases (rotation, xid, cursor_id, first, n, taken, passed, skipped, expired, source_ids, offsets, attempts, whys, token, consumer,
                                  claimed_at, deadline, next_offset, held_offsets, held_attempts, held_dues, held_errors, purge_no)
    values (s.rotation, pg_current_xact_id(), s.cursor_id, s.first, s.n, s.taken, s.passed, s.skipped, s.expired, s.source_ids, s.offsets, s.attempts, s.whys, s.token, p_consumer,
            s.claimed_at, s.deadline, s.next_offset, s.held_offsets, s.held_attempts, s.held_dues, s.held_errors, s.purge_no);
    if s.offsets is null then
        return query select r.log_offset || v_tail, 1, s.deadline, c.topic, c.partition, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at
                     from trunkline._read_set(c, trunkline._leased(s)) r;
    else
        return query
        with e as materialized (
            select s.first + i - 1 as pos, s.source_ids[i] as source_id, s.offsets[i] as log_offset, s.attempts[i] as attempt from generate_series(1, s.n) i
            where s.taken is null or s.taken @> s.first + i - 1
        )
        select e.pos || v_tail, e.attempt + 1, s.deadline, k.topic, k.partition, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at
        from (select source_id, range_agg(int8range(log_offset, log_offset + 1)) as offsets from e group by source_id) g
        join trunkline.cursors k on k.cursor_id = g.source_id
        cross join lateral trunkline._read_set(k, g.offsets) r
        join e on e.source_id = g.source_id and e.log_offset = r.log_offset
        order by e.pos;
    end if;
end
$$;

-- Returns the weight of a priority level. The highest level of a queue is tried first 64 times as often as
-- the lowest one. The other levels have equal steps between.
create or replace function trunkline._weight(p_priority int, p_priorities int) returns float8
language sql immutable
as $$ select power(64, p_priority / (p_priorities - 1)::float8) $$;

-- Returns the cursors of a queue that have positions to draw, in the order in which a claim tries them.
-- p_levels: the number of priority levels, or null. plain: every next message is for the queue. Stable, so that
-- the planner can inline it.
create or replace function trunkline._drawable_cursors(q trunkline.queues, p_levels int, p_labels text[])
returns setof trunkline.drawable
language sql stable
as $$
    select k, x.head, k.kind = 'log' and k.pattern_regex is null and k.filter is null and p_labels is null and q.ttl is null and q.delivery_delay = '0'
    from trunkline.cursors k
    left join lateral (select t.first_offset + t.n - 1 as head from trunkline.ticks t where t.log = k.log order by t.first_offset desc limit 1) t on true
    -- The same as _drawable and _drawn. Calling these would cost more than the rest of an empty claim.
    cross join lateral (
        select case when k.kind = 'log' then t.head else pg_sequence_last_value(k.head_seq) end as head,
               coalesce(pg_sequence_last_value(k.drawn_seq), k.start_position - 1) as drawn offset 0) x
    where k.queue_id = q.queue_id and x.head > x.drawn
      and (k.kind <> 'label' or p_labels is null or k.label = any (p_labels))
    -- Returned messages come first in three of four draws. A message that is returned without a delay must
    -- not delay new ones for ever. With priorities, logs are in random order, and higher levels are first
    -- more often.
    order by case when k.kind = 'log' then 1 when x.drawn % 4 = 3 then 2 else 0 end,
             case when k.kind <> 'log' then k.cursor_id
                  else -ln(1 - random()) / case when p_levels is null or k.topic_id <> q.inbox_id then 1 else trunkline._weight(k.partition, p_levels) end end
$$;

-- Claims messages that can be drawn now from the cursors of an unordered queue.
create or replace function trunkline._claim_drawn(q trunkline.queues, p_levels int, p_want int, p_lease interval, p_labels text[], p_consumer text)
returns setof trunkline.delivery
language plpgsql
as $$
declare
    c       trunkline.drawable;
    v_found trunkline.drawable[];
    k       trunkline.cursors;
    s       trunkline.leases;
    v_want  int := p_want;
    v_count int;
    v_draws int := 0;
    -- Read before the heads.
    v_epoch bigint := coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0);
begin
    begin
        v_found := array(select x from trunkline._drawable_cursors(q, p_levels, p_labels) x);
        raise exception using errcode = 'TLX00';
    exception when sqlstate 'TLX00' then
        null;
    end;
    foreach c in array v_found loop
        -- A filter may need several draws of about 1,000 messages: at most 20 per cursor, and 100 per claim.
        exit when v_want <= 0 or v_draws >= 100;
        k := c.cur;
        for i in 1 .. 20 loop
            s := trunkline._draw(k, q, c.head, v_want, p_labels, v_epoch, null, c.plain);
            exit when s.n = 0;
            v_draws := v_draws + 1;
            return query select * from trunkline._lease(s, k, p_lease, p_consumer);
            get diagnostics v_count = row_count;
            v_want := v_want - v_count;
            exit when v_want <= 0 or s.first + s.n > c.head;
        end loop;
    end loop;
end
$$;

-- Claims in the general way: from any queue, and from a direct one if claim_next.sql cannot draw from it
-- directly. The arguments are those of `claim`, which has applied p_relaxed: offsets that were given since then
-- need a durable commit.
create or replace function trunkline._claim_any(
    p_queue text, p_limit int, p_lease interval, p_labels text[], p_consumer text, p_relaxed boolean)
returns setof trunkline.delivery
language plpgsql
as $$
declare
    q        trunkline.queues;
    v_levels int;
    v_lease  interval;
    v_found  boolean;
begin
    perform trunkline._need_read_committed('claim');
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    perform trunkline._check_duration('lease', p_lease, '1 second', '12 hours');
    q := trunkline._queue(p_queue);
    if p_labels = '{}' then
        perform trunkline._fail('TL001', 'labels must have at least one label or be null, got an empty array',
                                'Use null for messages of all labels.');
    end if;
    if q.ordered and p_labels is not null then
        perform trunkline._fail('TL023', format('cannot claim from queue "%s" by label: it is ordered', p_queue),
                                'Use one queue per label.');
    end if;
    if q.paused then
        return;
    end if;
    v_lease := coalesce(p_lease, q.lease);
    v_levels := (select t.priorities from trunkline.topics t where t.topic_id = q.inbox_id);
    if v_levels is not null then
        -- A new message may have a higher priority than those that have an offset.
        perform trunkline._sequence_alone(array[q.queue_id], null, 0);
    end if;
    for i in 1 .. 2 loop
        if q.ordered then
            return query select * from trunkline._claim_ordered(q, p_limit, v_lease, p_consumer);
        else
            return query select * from trunkline._claim_drawn(q, v_levels, p_limit, v_lease, p_labels, p_consumer);
        end if;
        v_found := found;
        -- Nothing found, perhaps because no pass has run.
        exit when v_found or i = 2 or not trunkline._sequence_alone(array[q.queue_id], null, case when p_relaxed then 0 else 1 end);
    end loop;
end
$$;
