-- Statistics that never scan messages. Depth and lag are differences of offsets, and totals are those of the
-- newest pass plus what is new since. Dead letters, and delayed messages of a topic, are counted up to 100,000
-- (more are shown as 100,000).

-- Returns the head of a log: the highest assigned offset. Committed messages without an offset do not count.
-- Returns null if the topic was deleted meanwhile.
create or replace function trunkline._head_now(p_topic_id int, p_partition int, p_segment_rows int) returns bigint
language plpgsql
as $$
begin
    return trunkline._head(p_topic_id * 64 + p_partition);
exception when others then
    perform trunkline._pass_if_gone(p_topic_id, sqlstate, sqlerrm);
    return null;
end
$$;

-- Returns statistics per partition of a topic (null: of all topics). These are the earliest available and the
-- highest offset, bytes on disk, segments, and messages per second in the last minute. delayed:
-- delayed messages of the whole topic, the same number in each row, counted up to 100,000.
create or replace function trunkline.topic_stats(p_topic text default null)
returns table (topic text, partition int, earliest_offset bigint, head bigint, bytes bigint, segments int, rate_per_second float8, delayed bigint)
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    t trunkline.topics;
    v_tick trunkline.ticks;
begin
    if p_topic is not null then
        perform trunkline._topic('topic', p_topic);
    end if;
    begin
        perform trunkline._begin_read();
        for t in select * from trunkline.topics x where x.kind = 'topic' and (p_topic is null or x.name = p_topic) order by x.name loop
            for p in 0 .. t.partitions - 1 loop
                topic := t.name;
                partition := p;
                head := trunkline._head_now(t.topic_id, p, t.segment_rows);
                exit when head is null;
                select l.base_offset into earliest_offset from trunkline.logs l where l.topic_id = t.topic_id and l.partition = p;
                select count(*), sum(pg_total_relation_size(to_regclass(format('trunkline.topic_%s_%s_%s', t.topic_id, p, s.segment))))
                  into segments, bytes from trunkline._all_segments() s where s.log = t.topic_id * 64 + p;
                rate_per_second := trunkline._rate(t.topic_id * 64 + p, head);
                select count(*) into delayed
                from (select from trunkline._delayed c where c.topic_id = t.topic_id and c.due_at > (select b.walked from trunkline.passes b order by b.pass desc limit 1) limit 100000) x;
                return next;
            end loop;
        end loop;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns the messages per second in the last minute: the offsets since the first tick of that minute,
-- divided by its age. Reads at most the newest 200,000 offsets.
create or replace function trunkline._rate(p_log int, p_head bigint) returns float8
language sql
as $$
    select coalesce(max((p_head - t.first_offset - t.n + 1) / greatest(1, extract(epoch from trunkline.clock() - t.cut_at))), 0)::float8
    from (select first_offset, n, cut_at from trunkline.ticks
          where log = p_log and first_offset > p_head - 200000 and cut_at >= trunkline.clock() - interval '1 minute'
          order by first_offset limit 1) t
$$;

-- Returns statistics per partition of consumer groups. next_offset: the first offset that is not committed.
-- fetched: the last fetched offset. lag: messages not committed, including those that a pattern or filter
-- will skip. lag_seconds: age of the first of them.
-- member: the member that has leased the partition, null if its lease has ended. deadline: when that lease
-- ends or ended.
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
    if p_topic is not null then
        perform trunkline._topic('topic', p_topic);
        if p_group is not null then
            perform trunkline._group((trunkline._topic('topic', p_topic)).topic_id, p_topic, p_group);
        end if;
    end if;
    begin
        perform trunkline._begin_read();
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
                -- If retention removed the first of them: the age of the earliest available message. If none
                -- is left: the age of the newest tick.
                select greatest(next_offset, l.base_offset) into v_from from trunkline.logs l where l.log = (r.cur).log;
                if v_from <= head then
                    select extract(epoch from trunkline.clock() - m.entered_at) into lag_seconds
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
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns statistics per queue (null: for all queues).
-- ready: can be claimed now, or after the next pass. An upper bound if a subscription has a filter, since
-- unread messages are not examined.
-- delayed: not due yet. leased: held by a consumer, or drawn by a claim that is still open. dead: dead
-- letters, counted up to 100,000. acked, expired, purged: totals.
-- oldest_age: seconds since the next message of a log entered it, or since the next returned one was
-- returned; the larger of these.
-- p_names: only queues with one of these names, * stands for any characters; unknown names have no row.
create or replace function trunkline.queue_stats(p_queue text default null, p_names text[] default null)
returns table (queue text, ready bigint, delayed bigint, leased bigint, dead bigint, acked bigint, expired bigint, purged bigint,
               oldest_age float8, paused boolean)
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_queues int[];
begin
    if p_queue is not null then
        v_queues := array[(trunkline._queue(p_queue)).queue_id];
    else
        v_queues := array(select x.queue_id from trunkline.queues x where p_names is null or x.name like any (trunkline._name_patterns(p_names)) order by x.name);
    end if;
    for i in 1 .. cardinality(v_queues) by 200 loop
        -- Rolled back at every isolation level: each sequence needs a lock, and the server's lock table has
        -- room for a few thousand.
        begin
            perform trunkline._begin_read();
            return query select * from trunkline._queue_stats(v_queues[i : i + 199]);
            raise exception using errcode = 'TLX00';
        exception when sqlstate 'TLX00' then
            null;
        end;
    end loop;
end
$$;

-- Returns the rows of queue_stats for these queues. The caller has called _begin_read.
create or replace function trunkline._queue_stats(p_queues int[]) returns setof trunkline.queue_stat
language plpgsql
as $$
declare
    q       trunkline.queues;
    t       trunkline.queue_stat;
    r       record;
    v_now   timestamptz := trunkline.clock();
    v_late  timestamptz;
    v_at    timestamptz;
    v_young bigint;
begin
    for r in select x.*, x.no = max(x.no) over (partition by (x.q).queue_id) as last
             from (select y.*, row_number() over () as no from trunkline._cursor_totals(p_queues) y) x order by (x.q).name, x.no loop
        q := r.q;
        if t.queue is distinct from q.name then
            t := row(q.name, 0, 0, 0, 0, 0, 0, 0, 0, q.paused)::trunkline.queue_stat;
            v_late := null;
        end if;
        t.ready := t.ready + r.ready;
        t.delayed := t.delayed + r.delayed + r.waiting;
        t.leased := t.leased + r.leased;
        t.acked := t.acked + r.acked;
        t.expired := t.expired + r.expired;
        t.purged := t.purged + r.purged + r.withdrawn;
        if (r.cur).kind = 'log' and r.head >= r.next then
            if q.delivery_delay > '0' then
                select greatest(0, r.head + 1 - greatest(r.next, trunkline._offset_at(x, (r.cur).partition, v_now - q.delivery_delay))) into v_young
                from trunkline.topics x where x.topic_id = (r.cur).topic_id;
                t.ready := t.ready - v_young;
                t.delayed := t.delayed + v_young;
            end if;
            select m.entered_at into v_at from trunkline._read((r.cur).topic_id, (r.cur).partition, (r.cur).segment_rows, r.next, r.next) m;
            v_late := least(v_late, v_at);
        elsif (r.cur).kind <> 'log' and r.ready > 0 then
            v_late := least(v_late, (select x.at from trunkline.returns x where x.cursor_id = (r.cur).cursor_id and x.pos >= r.next order by x.pos limit 1));
        end if;
        if r.last then
            t.dead := (select count(*) from (select from trunkline.dead_letters d where d.queue_id = q.queue_id limit 100000) x);
            t.oldest_age := coalesce(extract(epoch from v_now - v_late), 0);
            return next t;
        end if;
    end loop;
end
$$;

-- Returns the same as pg_sequence_last_value, whose lock lasts until the transaction ends. The lock of this
-- function ends with the subtransaction at the latest.
do $do$
begin
    if current_setting('server_version_num')::int >= 180000 then
        execute $f$
            create or replace function trunkline._last_value(p_sequence regclass) returns bigint
            language plpgsql
            as $$
            declare
                s record := pg_get_sequence_data(p_sequence);
            begin
                return case when s.is_called then s.last_value end;
            end
            $$
        $f$;
    else
        execute $f$
            create or replace function trunkline._last_value(p_sequence regclass) returns bigint
            language plpgsql
            as $$
            declare
                v_last bigint;
            begin
                execute format('select last_value from %s where is_called', p_sequence) into v_last;
                return v_last;
            end
            $$
        $f$;
    end if;
end
$do$;

-- Returns for each cursor of these queues the state after the newest pass, and sums of what is new since. One
-- statement reads all that passes write, so that it has one snapshot.
create or replace function trunkline._cursor_sums(p_queues int[])
returns table (queue trunkline.queues, cur trunkline.cursors, state trunkline.cursor_states, delivered bigint, passed bigint, skipped bigint, expired bigint,
               passed_purged bigint, settled bigint, acked bigint, returned bigint, dead bigint, gone bigint, purged bigint, ready bigint, delayed bigint, waiting bigint)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = on
as $$
#variable_conflict use_column
declare
    v_now timestamptz := trunkline.clock();
begin
    return query
    with p as materialized (
        select trunkline._since_pass() as run
    ), k as materialized (
        select x.cursor_id, x.queue_id, x as cur, y as queue from trunkline.queues y join trunkline.cursors x using (queue_id) where y.queue_id = any (p_queues)
    ), new_leases as materialized (
        -- read once for all cursors
        select z.*, trunkline._leased(z) as leased from p cross join lateral trunkline._new_leases(p.run) z
    ), new_settled as materialized (
        select z.* from p cross join lateral trunkline._new_settled(p.run) z
    ), new_returns as materialized (
        select z.* from p cross join lateral trunkline._new_returns(p.run) z
    ), l as materialized (
        select z.cursor_id, sum(trunkline._size(z.leased))::bigint as delivered, coalesce(sum(trunkline._size(z.passed)), 0)::bigint as passed,
               sum(z.skipped) as skipped, sum(z.expired) as expired,
               coalesce(sum(trunkline._size(z.passed)) filter (where z.passed is not null and trunkline._is_purged(k.queue, z.purge_no, p.run)), 0)::bigint as passed_purged
        from p cross join new_leases z join k using (cursor_id) group by z.cursor_id
    ), x as materialized (
        select z.cursor_id, sum(z.n) as settled, coalesce(sum(z.n) filter (where z.kind = 'a'), 0) as acked, coalesce(sum(z.n) filter (where z.kind in ('n', 'r', 'x')), 0) as returned,
               coalesce(sum(z.n) filter (where z.kind in ('b', 'd')), 0) as dead, coalesce(sum(z.n) filter (where z.kind = 'g'), 0) as gone,
               coalesce(sum(z.n) filter (where z.kind = 'p' or z.kind in ('n', 'r') and (k.cur).drawn_seq is not null and trunkline._is_purged(k.queue, z.purge_no, p.run)), 0) as purged
        from p cross join new_settled z join k using (cursor_id) group by z.cursor_id
    ), r as materialized (
        select z.returns_id, count(*) filter (where z.due <= v_now) as ready, count(*) filter (where z.due > v_now) as delayed
        from new_returns z where z.queue_id = any (p_queues) group by z.returns_id
    ), w as materialized (
        select z.topic_id, count(*) as waiting from p cross join lateral trunkline._new_delayed(p.run) z group by z.topic_id
    )
    select k.queue, k.cur, s.state,
           coalesce(l.delivered, 0) as delivered, coalesce(l.passed, 0) as passed, coalesce(l.skipped, 0) as skipped, coalesce(l.expired, 0) as expired,
           coalesce(l.passed_purged, 0) as passed_purged, coalesce(x.settled, 0) as settled, coalesce(x.acked, 0) as acked, coalesce(x.returned, 0) as returned,
           coalesce(x.dead, 0) as dead, coalesce(x.gone, 0) as gone, coalesce(x.purged, 0) as purged, coalesce(r.ready, 0) as ready, coalesce(r.delayed, 0) as delayed,
           coalesce(w.waiting, 0) as waiting
    from k
    left join lateral (select y as state from trunkline.cursor_states y where y.cursor_id = k.cursor_id order by y.pass desc limit 1) s on true
    left join l on l.cursor_id = k.cursor_id left join x on x.cursor_id = k.cursor_id left join r on r.returns_id = k.cursor_id
    left join w on w.topic_id = (k.queue).inbox_id and (k.cur).topic_id = w.topic_id and (k.cur).kind = 'log' and (k.cur).partition = 0
    order by k.queue_id, k.cursor_id;
end
$$;

-- Returns the totals of each cursor of these queues: those of the newest pass plus what is new since.
create or replace function trunkline._cursor_totals(p_queues int[])
returns table (q trunkline.queues, cur trunkline.cursors, head bigint, next bigint, ready bigint, delayed bigint, leased bigint, delivered bigint, skipped bigint,
               expired bigint, acked bigint, returned bigint, dead bigint, purged bigint, waiting bigint, withdrawn bigint)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = on
as $$
#variable_conflict use_column
declare
    v_now timestamptz := trunkline.clock();
    c     trunkline.cursors;
    s     trunkline.cursor_states;
    e     record;
    o     record;
begin
    for e in
        -- the sequences are read after it: what was drawn since then counts as leased
        select * from trunkline._cursor_sums(p_queues)
    loop
        q := e.queue;
        c := e.cur;
        cur := c;
        if e.state is null then
            s := trunkline._cursor_state(c);
        else
            s := e.state;
        end if;
        delivered := s.delivered + e.delivered;
        skipped := s.skipped + e.skipped;
        expired := s.expired + e.expired + s.gone + e.gone;
        acked := s.acked + e.acked;
        returned := s.returned + e.returned;
        dead := s.dead + e.dead;
        purged := s.purged + e.purged + e.passed_purged;
        waiting := s.waiting + e.waiting;
        withdrawn := s.withdrawn;
        if s.waiting > 0 and q.purge_nos <> '{}' then
            select waiting - x.n, withdrawn + x.n into waiting, withdrawn from trunkline._count_withdrawn(q) x(n);
        end if;
        if c.drawn_seq is not null then
            head := case when c.kind = 'log' then trunkline._head(c.log) else s.head end;
            -- the sequence has the current value, the rest is from the snapshot
            next := least(coalesce(trunkline._last_value(c.drawn_seq), c.start_position - 1), head) + 1;
            delayed := s.delayed + e.delayed;
            if c.kind = 'returns' and q.purge_nos <> '{}' and delayed > 0 then
                -- purged already; a pass drops it when it is due
                select delayed - count(*), purged + count(*) into delayed, purged from trunkline.later d
                where d.queue_id = q.queue_id and d.kind = 'r' and d.due > (select p.walked from trunkline.passes p order by p.pass desc limit 1) and d.purge_no < q.purge_nos[cardinality(q.purge_nos)];
            end if;
            leased := next - c.start_position - s.passed - e.passed - skipped - s.expired - e.expired - s.holes - s.settled - e.settled;
            if c.kind = 'log' then
                select greatest(next, x.base_offset), expired + greatest(0, x.base_offset - next) into next, expired from trunkline.logs x where x.log = c.log;
            end if;
            ready := greatest(0, head - next + 1) + e.ready;
        else
            o := trunkline._ordered_state(c);
            head := trunkline._head(c.log);
            next := greatest(o.next_offset, (select x.base_offset from trunkline.logs x where x.log = c.log));
            leased := s.delivered + e.delivered - s.settled - e.settled;
            expired := expired + next - o.next_offset;
            ready := greatest(0, head - next + 1) + (select count(*) from unnest(o.dues) d where d <= v_now);
            delayed := (select count(*) from unnest(o.dues) d where d > v_now);
        end if;
        return next;
    end loop;
end
$$;

-- Returns whether a rotation has committed since the snapshot of this transaction. If so, a row of `epoch` or
-- `rotation` that the snapshot sees was replaced by a committed transaction.
-- xmax has the low 32 bits of that transaction's number. A number older than the snapshot belongs to a
-- transaction that was rolled back, since the row is still visible.
create or replace function trunkline._rotated_since_snapshot() returns boolean
language sql
as $$
    select coalesce(bool_or(pg_xact_status((y.seen - y.seen % 4294967296 + y.low)::text::xid8) = 'committed'), false)
    from (select x.xmax::text::bigint as low, pg_snapshot_xmin(pg_current_snapshot())::text::bigint as seen
          from (select xmax from trunkline.epoch union all select xmax from trunkline.rotation union all select xmax from trunkline.delayed_rotation) x offset 0) y
    where y.low >= y.seen % 4294967296
$$;

-- Returns the totals of a queue for which this equation holds (guarantee Q1): accepted = ready + pending +
-- leased + acked + dead + expired + purged. pending: delayed messages. For checks, not for dashboards: exact
-- only while no claim is open and no pass runs.
-- Above READ COMMITTED, raises 40001 if a rotation has committed since the snapshot of the transaction.
create or replace function trunkline.audit_queue(p_queue text)
returns table (accepted bigint, ready bigint, pending bigint, leased bigint, acked bigint, dead bigint, expired bigint, purged bigint)
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
begin
    begin
        perform trunkline._begin_read();
        return query
        select (coalesce(sum(t.head - (t.cur).start_position + 1 - t.skipped) filter (where (t.cur).kind = 'log'), 0) + sum(t.waiting + t.withdrawn))::bigint,
               sum(t.ready)::bigint, sum(t.delayed + t.waiting)::bigint, sum(t.leased)::bigint, sum(t.acked)::bigint, sum(t.dead)::bigint, sum(t.expired)::bigint,
               sum(t.purged + t.withdrawn)::bigint
        from trunkline._cursor_totals(array[(trunkline._queue(p_queue)).queue_id]) t;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    if current_setting('transaction_isolation') <> 'read committed' and trunkline._rotated_since_snapshot() then
        raise exception using errcode = '40001', message = 'cannot audit a queue in a snapshot that is older than the last rotation of tables', hint = 'Retry in a new transaction.';
    end if;
end
$$;

-- Returns two ages in seconds: of the oldest transaction that holds back vacuum, and of the oldest
-- transaction that has drawn message ids and may still commit them.
create or replace function trunkline._ages(out transaction float8, out unsequenced float8)
language sql
as $$
    select coalesce((select extract(epoch from clock_timestamp() - min(a.xact_start)) from pg_stat_activity a
                     where a.datname = current_database() and a.backend_type = 'client backend'
                       and num_nonnulls(a.backend_xid, a.backend_xmin) > 0 and a.pid <> pg_backend_pid()), 0)::float8,
           coalesce((select extract(epoch from clock_timestamp() - min(a.xact_start)) from pg_locks k join pg_stat_activity a using (pid) join pg_class c on c.oid = k.relation
                     where k.locktype = 'relation' and k.database = (select oid from pg_database where datname = current_database()) and a.pid <> pg_backend_pid()
                       and a.backend_xid is not null and c.relkind = 'S' and c.relnamespace = 'trunkline'::regnamespace and (c.relname like 'topic\_%\_ids' or c.relname = 'store_ids')), 0)::float8
$$;
