-- Numbers that never scan messages: offsets are arithmetic, leases are looked at only while they are open, and the rows
-- of exceptions are counted up to 100,000 (more shows as 100,000).

create or replace function trunkline._count_pending(p_queue_id int, p_now timestamptz, p_due boolean) returns bigint
language sql
as $$
    select count(*) from (
        select from trunkline.pending where queue_id = p_queue_id and (due_at <= p_now) = p_due limit 100000) x
$$;

-- The head of a log, everything committed counted; null when its topic was deleted while we asked. Once there is an answer, the topic cannot go
-- before our transaction ends.
create or replace function trunkline._head_now(p_topic_id int, p_partition int, p_segment_rows int) returns bigint
language plpgsql
as $$
begin
    return trunkline._tick(p_topic_id, p_partition, p_segment_rows);
exception when others then
    perform trunkline._pass_if_gone(p_topic_id, sqlstate, sqlerrm);
    return null;
end
$$;

-- Per partition: lowest and highest offset, bytes on disk, and messages in the last minute.
create or replace function trunkline.topic_stats(p_topic text default null)
returns table (topic text, partition int, lowest_offset bigint, head bigint, bytes bigint, segments int, rate_per_second float8, scheduled bigint)
language plpgsql
as $$
declare
    t trunkline.topics;
    v_tick trunkline.ticks;
begin
    perform trunkline._need_read_committed('topic_stats');
    if p_topic is not null then
        perform trunkline._topic('topic', p_topic);
    end if;
    for t in select * from trunkline.topics x where x.kind = 'topic' and (p_topic is null or x.name = p_topic) order by x.name loop
        for p in 0 .. t.partitions - 1 loop
            topic := t.name;
            partition := p;
            head := trunkline._head_now(t.topic_id, p, t.segment_rows);
            exit when head is null;
            select l.base_offset into lowest_offset from trunkline.logs l where l.topic_id = t.topic_id and l.partition = p;
            select count(*), sum(pg_total_relation_size(to_regclass(format('trunkline.topic_%s_%s_%s', t.topic_id, p, s.segment))))
              into segments, bytes from trunkline._all_segments() s where s.log = t.topic_id * 64 + p;
            rate_per_second := trunkline._rate(t.topic_id * 64 + p, head);
            select count(*) into scheduled from (select from trunkline.scheduled c where c.topic_id = t.topic_id limit 100000) x;
            return next;
        end loop;
    end loop;
end
$$;

-- Messages per second over the last minute: the distance between two offsets and two times.
create or replace function trunkline._rate(p_log int, p_head bigint) returns float8
language sql
as $$
    select coalesce(max((p_head - t.first_offset - t.n + 1) / greatest(1, extract(epoch from trunkline.clock() - t.cut_at))), 0)::float8
    from (select first_offset, n, cut_at from trunkline.ticks
          where log = p_log and first_offset > p_head - 200000 and cut_at >= trunkline.clock() - interval '1 minute'
          order by first_offset limit 1) t
$$;

-- Per partition: position (next offset to deliver), lag in messages and in seconds, and the owner. The lag of a group with a pattern or filter
-- counts what it will pass by too.
create or replace function trunkline.group_stats(p_topic text default null, p_group text default null)
returns table (topic text, group_name text, partition int, next_offset bigint, fetched bigint, head bigint, lag bigint, lag_seconds float8,
               member text, deadline timestamptz)
language plpgsql
as $$
declare
    r      record;
    s      trunkline.positions;
    v_from bigint;
begin
    perform trunkline._need_read_committed('group_stats');
    if p_topic is not null then
        perform trunkline._topic('topic', p_topic);
        if p_group is not null then
            perform trunkline._group((trunkline._topic('topic', p_topic)).topic_id, p_topic, p_group);
        end if;
    end if;
    for r in
        select t.name as topic_name, g.name, t.segment_rows as rows, c as cur
        from trunkline.subscriptions g join trunkline.topics t on t.topic_id = g.topic_id join trunkline.cursors c on c.subscription_id = g.subscription_id
        where g.kind = 'group' and (p_topic is null or t.name = p_topic) and (p_group is null or g.name = p_group)
        order by t.name, g.name, c.partition
    loop
        s := trunkline._position(r.cur);
        topic := r.topic_name;
        group_name := r.name;
        partition := (r.cur).partition;
        next_offset := s.committed + 1;
        fetched := s.fetched;
        head := trunkline._head_now((r.cur).topic_id, partition, r.rows);
        continue when head is null;
        lag := head - s.committed;
        lag_seconds := 0;
        if lag > 0 then
            -- below retention: at least as old as the lowest one left, or as the last tick when none is left
            select greatest(next_offset, l.base_offset) into v_from from trunkline.logs l where l.log = (r.cur).log;
            if v_from <= head then
                select extract(epoch from trunkline.clock() - m.created_at) into lag_seconds
                from trunkline._read((r.cur).topic_id, partition, r.rows, v_from, v_from) m;
            else
                select extract(epoch from trunkline.clock() - k.cut_at) into lag_seconds
                from trunkline.ticks k where k.log = (r.cur).log order by k.first_offset desc limit 1;
            end if;
        end if;
        member := case when s.deadline > trunkline.clock() then s.member end;
        deadline := s.deadline;
        return next;
    end loop;
end
$$;

-- Per queue. ready: can be claimed now (an upper bound where a subscription filters, since unread messages are not looked at);
-- delayed: waits for its time; leased: out with a consumer; dead: dead letters; oldest_age: seconds since the oldest ready one came.
create or replace function trunkline.queue_stats(p_queue text default null)
returns table (queue text, ready bigint, delayed bigint, leased bigint, dead bigint, acked bigint, expired bigint, purged bigint,
               oldest_age float8, paused boolean)
language plpgsql
as $$
declare
    q       trunkline.queues;
    r       record;
    v_now   timestamptz;
    v_late  timestamptz;
    v_at    timestamptz;
    v_head  bigint;
    v_young bigint;
begin
    perform trunkline._need_read_committed('queue_stats');
    if p_queue is not null then
        perform trunkline._queue(p_queue);
    end if;
    for q in select * from trunkline.queues x where p_queue is null or x.name = p_queue order by x.name loop
        v_now := trunkline.clock();
        queue := q.name;
        paused := q.paused;
        ready := trunkline._count_pending(q.queue_id, v_now, true);
        delayed := trunkline._count_pending(q.queue_id, v_now, false)
                   + (select count(*) from (select from trunkline.scheduled c where c.topic_id = q.inbox_id limit 100000) x);
        leased := 0;
        acked := 0;
        expired := 0;
        purged := 0;
        v_late := null;
        select count(*) into dead from (select from trunkline.dead_letters d where d.queue_id = q.queue_id limit 100000) x;
        for r in select c as cur, o.* from trunkline.cursors c cross join lateral trunkline._lease_totals(c.cursor_id) o where c.queue_id = q.queue_id loop
            leased := leased + r.open;
            acked := acked + r.acked;
            expired := expired + r.expired;
            purged := purged + r.purged;
            if (r.cur).lane = 'log' then
                v_head := trunkline._head_now((r.cur).topic_id, (r.cur).partition, (r.cur).segment_rows);
                continue when v_head is null;
                r.position := coalesce(r.position, (r.cur).start_position);
                ready := ready + greatest(0, v_head - r.position + 1);
                if q.delivery_delay > '0' and v_head >= r.position then
                    select greatest(0, v_head + 1 - greatest(r.position, trunkline._offset_at(x, (r.cur).partition, v_now - q.delivery_delay))) into v_young
                    from trunkline.topics x where x.topic_id = (r.cur).topic_id;
                    ready := ready - v_young;
                    delayed := delayed + v_young;
                end if;
                if v_head >= r.position then
                    select m.created_at into v_at from trunkline._read((r.cur).topic_id, (r.cur).partition, (r.cur).segment_rows, r.position, r.position) m;
                    v_late := least(v_late, v_at);
                end if;
            end if;
        end loop;
        select least(v_late, (select due_at from trunkline.pending p where p.queue_id = q.queue_id and p.due_at <= v_now order by p.due_at limit 1)) into v_late;
        oldest_age := coalesce(extract(epoch from v_now - v_late), 0);
        continue when not exists (select from trunkline.queues x where x.queue_id = q.queue_id);
        return next;
    end loop;
end
$$;

-- A cursor's running totals: those of its last check and of its last row, and what is open since.
create or replace function trunkline._lease_totals(p_cursor_id int)
returns table (open bigint, acked bigint, dead bigint, returned bigint, "position" bigint, delivered bigint, passed bigint, skipped bigint, expired bigint, purged bigint)
language sql stable
as $$
    with open_ones as (
        select l.n,
               trunkline._size(range_agg(e.offsets) filter (where e.kind = 'a')) as acked,
               trunkline._size(range_agg(e.offsets) filter (where e.kind in ('b', 'd'))) as dead,
               trunkline._size(range_agg(e.offsets) filter (where e.kind in ('n', 'r', 'x'))) as returned,
               trunkline._size(range_agg(e.offsets) filter (where e.kind = 'g')) as gone
        from trunkline._open_leases(p_cursor_id) o
        cross join lateral (select * from trunkline.leases where cursor_id = o.cursor_id and lease_no = o.lease_no offset 0) l
        left join lateral (select * from trunkline.lease_events where cursor_id = l.cursor_id and lease_no = l.lease_no offset 0) e on true
        group by l.lease_no, l.n
    ), sums as (
        select coalesce(sum(n), 0)::bigint as n, coalesce(sum(acked), 0)::bigint as acked, coalesce(sum(dead), 0)::bigint as dead,
               coalesce(sum(returned), 0)::bigint as returned, coalesce(sum(gone), 0)::bigint as gone from open_ones
    )
    select s.n - s.acked - s.dead - s.returned - s.gone, s.acked + coalesce(k.acked, 0), s.dead + coalesce(k.dead, 0), s.returned + coalesce(k.returned, 0),
           l.position, coalesce(l.delivered, 0), coalesce(l.passed, 0), coalesce(l.skipped, 0),
           coalesce(l.expired, 0) + s.gone + coalesce(k.gone, 0), coalesce(l.purged, 0)
    from sums s
    left join lateral (select * from trunkline.lease_checks x where x.cursor_id = p_cursor_id order by x.check_no desc limit 1) k on true
    left join lateral (select * from trunkline.leases x where x.cursor_id = p_cursor_id order by x.lease_no desc limit 1) l on true
$$;

-- Whether a rotation has committed since the snapshot of this transaction: then the row of `epoch` that it sees was replaced by a transaction that
-- has committed. xmax is the low half of the number of that transaction; an older one than the snapshot was rolled back, since the row is seen.
create or replace function trunkline._rotated_since_snapshot() returns boolean
language sql
as $$
    select coalesce(bool_or(pg_xact_status((y.seen - y.seen % 4294967296 + y.low)::text::xid8) = 'committed'), false)
    from (select e.xmax::text::bigint as low, pg_snapshot_xmin(pg_current_snapshot())::text::bigint as seen from trunkline.epoch e offset 0) y
    where y.low >= y.seen % 4294967296
$$;

-- The conservation law of a queue (promise Q1), exact when called in a REPEATABLE READ transaction; for checkers, not for dashboards:
-- accepted = ready + delayed + leased + acked + dead + expired + purged. Truncated tables look empty to every snapshot, so one that is older than
-- a rotation cannot be used: then it fails with 40001, and a new transaction works.
create or replace function trunkline.audit_queue(p_queue text)
returns table (accepted bigint, ready bigint, pending bigint, leased bigint, acked bigint, dead bigint, expired bigint, purged bigint)
language plpgsql
as $$
begin
    perform trunkline._queue(p_queue);
    return query
    with t as materialized (
        select c.lane, c.start_position, trunkline._head(c.log) as head, coalesce(o.position, c.start_position) as next_offset,
               o.open, o.acked, o.dead, o.skipped, o.expired, o.purged
        from trunkline.queues q join trunkline.cursors c using (queue_id) cross join lateral trunkline._lease_totals(c.cursor_id) o
        where q.name = p_queue
    )
    select (sum(t.head - t.start_position + 1 - t.skipped) filter (where t.lane = 'log'))::bigint,
           (sum(t.head - t.next_offset + 1) filter (where t.lane = 'log'))::bigint,
           (select count(*) from trunkline.pending p join trunkline.queues q using (queue_id) where q.name = p_queue),
           sum(t.open)::bigint, sum(t.acked)::bigint, sum(t.dead)::bigint, sum(t.expired)::bigint, sum(t.purged)::bigint
    from t;
    if current_setting('transaction_isolation') <> 'read committed' and trunkline._rotated_since_snapshot() then
        raise exception using errcode = '40001', message = 'cannot audit a queue in a snapshot that is older than a rotation', hint = 'Retry in a new transaction.';
    end if;
end
$$;
