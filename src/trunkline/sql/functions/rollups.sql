-- Rollups: running totals of topics, groups, queues, endpoints and labels, and a sample of latencies, once a
-- minute. Idle queues and groups get rows less often, idle endpoints and labels none. Dashboards show the rates of the last day from them without reading
-- messages or leases; rows are kept for 25 hours. This file assigns no offsets: the head of a log is that of
-- its newest tick, which upkeep writes every 200 ms.

-- Returns when the message at an offset entered the log; null if retention removed it. This is later than its
-- publish time if the message was delayed, redriven or replayed.
create or replace function trunkline._published_at(p_cursor_id int, p_offset bigint) returns timestamptz
language plpgsql
as $$
declare
    c    trunkline.cursors;
    v_at timestamptz;
begin
    select * into c from trunkline.cursors where cursor_id = p_cursor_id;
    if c.log is null or p_offset < (select base_offset from trunkline.logs where log = c.log) then
        return null;
    end if;
    select m.entered_at into v_at from trunkline._read(c.topic_id, c.partition, c.segment_rows, p_offset, p_offset) m;
    return v_at;
end
$$;

-- Returns an empty row.
create or replace function trunkline._new_rollup(p_kind text, p_subject int, p_at timestamptz) returns trunkline.rollups
language sql immutable
as $$
    select row(p_kind, p_subject, p_at, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, null, null, null, null, null, null, null, null, null, null)::trunkline.rollups
$$;

-- Returns when the message at an offset entered the log, and its label; null if retention removed it.
create or replace function trunkline._sampled_message(p_cursor_id int, p_offset bigint, out at timestamptz, out label text)
language plpgsql
as $$
declare
    c trunkline.cursors;
begin
    select * into c from trunkline.cursors where cursor_id = p_cursor_id;
    if c.log is not null and p_offset >= (select base_offset from trunkline.logs where log = c.log) then
        select m.entered_at, m.label into at, label from trunkline._read(c.topic_id, c.partition, c.segment_rows, p_offset, p_offset) m;
    end if;
end
$$;

-- Adds the latencies of a queue to its row, and writes the rows of its labels: of up to 100 runs of
-- deliveries that were settled since the last rollup. They are read from the delivery history; a queue
-- without one has neither.
create or replace function trunkline._queue_latencies(inout r trunkline.rollups, p_last trunkline.rollups)
language plpgsql
as $$
declare
    v_since  timestamptz := coalesce(p_last.at, r.at - interval '1 minute');
    v_sizes  bigint[];
    v_waits  float8[];
    v_works  float8[];
    v_kinds  "char"[];
    v_labels text[];
begin
    select array_agg(f.n), array_agg(case when f.attempt = 1 then extract(epoch from f.claimed_at - m.at)::float8 end),
           -- settled by a consumer, not by expiry
           array_agg(case when f.kind in ('a', 'n', 'b', 'd', 'r') then extract(epoch from f.settled_at - f.claimed_at)::float8 end), array_agg(f.kind), array_agg(m.label)
      into v_sizes, v_waits, v_works, v_kinds, v_labels
      from (select h.source_id, h.first_offset, h.last_offset - h.first_offset + 1 as n, h.attempt, h.claimed_at, h.settled_at, h.kind
            from trunkline.history h where h.queue_id = r.subject and h.settled_at > v_since and h.settled_at <= r.at order by h.settled_at desc limit 100) f
      cross join lateral trunkline._sampled_message(f.source_id, f.first_offset) m;
    select w.p[1], w.p[2], w.m, k.p[1], k.p[2], k.m into r.wait_p50, r.wait_p99, r.wait_max, r.work_p50, r.work_p99, r.work_max
      from (select percentile_cont('{0.5,0.99}'::float8[]) within group (order by took) as p, max(took) as m from unnest(v_waits) took) w,
           (select percentile_cont('{0.5,0.99}'::float8[]) within group (order by took) as p, max(took) as m from unnest(v_works) took) k;
    if num_nonnulls(variadic v_labels) > 0 or exists (select from trunkline.rollup_labels l where l.queue_id = r.subject) then
        perform trunkline._write_label_rollups(r, p_last, v_sizes, v_works, v_kinds, v_labels);
    end if;
end
$$;

-- Writes the rows of the labels of a queue: of those in the sample, and, with rates of 0, of those that were
-- in the last one. Counters are estimates: those of the sample, in proportion to all that the queue has
-- settled. lag: how many were settled since the last row.
create or replace function trunkline._write_label_rollups(r trunkline.rollups, p_last trunkline.rollups, p_sizes bigint[], p_works float8[], p_kinds "char"[], p_labels text[]) returns void
language plpgsql
as $$
declare
    v_settled bigint := r.acked + r.returned + r.dead - coalesce(p_last.acked + p_last.returned + p_last.dead, 0);
    v_factor  float8 := greatest(1, v_settled::float8 / nullif((select sum(n) from unnest(p_sizes) n), 0));
    v_id      int;
    v_last    trunkline.rollups;
    x         record;
    l         trunkline.rollups;
begin
    for x in
        select coalesce(s.label, k.label) as label, k.label_id, coalesce(s.acked, 0) as acked, coalesce(s.returned, 0) as returned, coalesce(s.dead, 0) as dead, s.times, s.longest
        from (select y.label, sum(y.n) filter (where y.kind = 'a') as acked, sum(y.n) filter (where y.kind in ('n', 'r', 'x')) as returned,
                     sum(y.n) filter (where y.kind in ('b', 'd')) as dead,
                     percentile_cont('{0.5,0.99}'::float8[]) within group (order by y.took) as times, max(y.took) as longest
              from unnest(p_sizes, p_works, p_kinds, p_labels) y(n, took, kind, label) where y.label is not null group by y.label) s
        full join (select * from trunkline.rollup_labels z where z.queue_id = r.subject) k on k.label = s.label
    loop
        v_id := x.label_id;
        if v_id is null then
            continue when (select count(*) from trunkline.rollup_labels z where z.queue_id = r.subject) >= 200;
            insert into trunkline.rollup_labels (queue_id, label) values (r.subject, x.label) returning label_id into v_id;
        end if;
        select * into v_last from trunkline.rollups y where y.kind = 'label' and y.subject = v_id order by y.at desc limit 1;
        continue when x.times is null and x.acked + x.returned + x.dead = 0 and coalesce(v_last.lag, 0) = 0;
        l := trunkline._new_rollup('label', v_id, r.at);
        l.acked := coalesce(v_last.acked, 0) + round(x.acked * coalesce(v_factor, 1));
        l.returned := coalesce(v_last.returned, 0) + round(x.returned * coalesce(v_factor, 1));
        l.dead := coalesce(v_last.dead, 0) + round(x.dead * coalesce(v_factor, 1));
        l.delivered := l.acked + l.returned + l.dead;
        l.head := l.delivered;
        l.lag := l.delivered - coalesce(v_last.delivered, 0);
        l.work_p50 := x.times[1];
        l.work_p99 := x.times[2];
        l.work_max := x.longest;
        perform trunkline._repeat_rollup(v_last, p_last.at);
        insert into trunkline.rollups select l.* on conflict do nothing;
    end loop;
end
$$;

-- Inserts a copy of the last totals of a subject that was idle, for the time of the previous run. So rates
-- cover one interval only.
create or replace function trunkline._repeat_rollup(p_last trunkline.rollups, p_before timestamptz) returns void
language sql
as $$
    insert into trunkline.rollups (kind, subject, at, head, delivered, acked, returned, dead, expired)
    select p_last.kind, p_last.subject, p_before, p_last.head, p_last.delivered, p_last.acked, p_last.returned, p_last.dead, p_last.expired
    where p_last.at < p_before on conflict do nothing
$$;

-- Writes the rows of endpoints that had requests since their last row, and of those whose last row had some:
-- among the endpoints of these queues. Counts requests by their end, five seconds late, because dispatchers
-- report several at once. Returns how many rows.
-- head: requests; acked, returned (nacked or released) and dead: their outcomes; lag: requests since the last
-- row; work: seconds of a request. Test requests do not count.
create or replace function trunkline._roll_up_endpoints(p_queues int[], p_now timestamptz, p_before timestamptz) returns int
language plpgsql
as $$
declare
    e       record;
    a       record;
    r       trunkline.rollups;
    v_last  trunkline.rollups;
    v_since timestamptz;
    v_count int := 0;
begin
    for e in select x.endpoint_id, x.timeout from trunkline.endpoints x
             where x.endpoint_id in (select b.endpoint_id from trunkline.bindings b where b.queue_id = any (p_queues)) order by x.endpoint_id loop
        begin
            v_last := null;
            select * into v_last from trunkline.rollups y where y.kind = 'endpoint' and y.subject = e.endpoint_id order by y.at desc limit 1;
            v_since := coalesce(v_last.at, p_before, p_now - interval '1 minute') - interval '5 seconds';
            select count(*) as n, count(*) filter (where y.outcome = 'acked') as acked, count(*) filter (where y.outcome in ('nacked', 'released')) as returned,
                   count(*) filter (where y.outcome = 'buried') as dead, percentile_cont('{0.5,0.99}'::float8[]) within group (order by y.seconds) as times, max(y.seconds) as longest
              into a from trunkline.attempts y
             where y.endpoint_id = e.endpoint_id and y.started_at > v_since - e.timeout and y.queue_id is not null
               and y.started_at + y.seconds * interval '1 second' > v_since and y.started_at + y.seconds * interval '1 second' <= p_now - interval '5 seconds';
            continue when a.n = 0 and coalesce(v_last.lag, 0) = 0;
            r := trunkline._new_rollup('endpoint', e.endpoint_id, p_now);
            r.head := coalesce(v_last.head, 0) + a.n;
            r.delivered := r.head;
            r.acked := coalesce(v_last.acked, 0) + a.acked;
            r.returned := coalesce(v_last.returned, 0) + a.returned;
            r.dead := coalesce(v_last.dead, 0) + a.dead;
            r.lag := a.n;
            r.work_p50 := a.times[1];
            r.work_p99 := a.times[2];
            r.work_max := a.longest;
            perform trunkline._repeat_rollup(v_last, p_before);
            insert into trunkline.rollups select r.* on conflict do nothing;
            v_count := v_count + 1;
        exception when others then
            raise warning 'cannot write the rollup of endpoint number %: % (%)', e.endpoint_id, sqlerrm, sqlstate;
        end;
    end loop;
    return v_count;
end
$$;

-- Returns the bytes that the segments of a topic use on disk.
create or replace function trunkline._topic_bytes(p_topic_id int) returns bigint
language sql
as $$
    select coalesce(sum(pg_total_relation_size(to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, l.partition, s.segment)))), 0)::bigint
    from trunkline.logs l
    cross join lateral (select g.segment from trunkline.segments g where g.log = l.log union all select g.segment from trunkline.staged_segments g where g.log = l.log) s
    where l.topic_id = p_topic_id
$$;

-- Writes the row of the database. head: bytes of write-ahead log; bytes: size of Trunkline's tables; lag:
-- open sessions; ready: those that hold back vacuum or will; oldest_age: age of the oldest transaction that
-- holds back vacuum; wait_max: age of the oldest one whose messages cannot get an offset yet.
create or replace function trunkline._roll_up_system(p_now timestamptz) returns void
language plpgsql
as $$
declare
    r trunkline.rollups := trunkline._new_rollup('system', 0, p_now);
begin
    r.head := pg_current_wal_lsn() - '0/0'::pg_lsn;
    select a.transaction, a.unsequenced into r.oldest_age, r.wait_max from trunkline._ages() a;
    select count(*), count(*) filter (where num_nonnulls(a.backend_xid, a.backend_xmin) > 0 and a.pid <> pg_backend_pid()) into r.lag, r.ready
      from pg_stat_activity a where a.datname = current_database() and a.backend_type = 'client backend';
    -- the tables that are not a topic's: a fixed number. Topics have written their rows before.
    r.bytes := (select coalesce(sum(pg_total_relation_size(p.relid)), 0)
                from unnest('{store,ticks,positions,leases,settled,extensions,returns,later,cursor_states,passes,delayed,dead_letters,redriven,history,idempotency,
                              attempts,job_results,job_once,inbox_keys,rollups,audit}'::text[]) name
                cross join lateral pg_partition_tree(to_regclass('trunkline.' || name)) p where p.isleaf)
               + (select coalesce(sum(x.bytes), 0) from trunkline.rollups x where x.at = p_now and x.kind = 'topic');
    insert into trunkline.rollups select r.* on conflict do nothing;
end
$$;

-- Writes the row of a queue. p_before: time of the previous run. A queue that was idle has no row of that
-- time. Then a copy of its last totals is inserted for that time, so that rates cover one interval only.
create or replace function trunkline._write_queue_rollup(r trunkline.rollups, p_before timestamptz) returns void
language plpgsql
as $$
declare
    v_last trunkline.rollups;
begin
    select * into v_last from trunkline.rollups x where x.kind = 'queue' and x.subject = r.subject order by x.at desc limit 1;
    if v_last.at < p_before and (r.head, r.delivered, r.acked, r.returned, r.dead, r.expired)
                                <> (v_last.head, v_last.delivered, v_last.acked, v_last.returned, v_last.dead, v_last.expired) then
        insert into trunkline.rollups (kind, subject, at, head, delivered, acked, returned, dead, expired)
        values (v_last.kind, v_last.subject, p_before, v_last.head, v_last.delivered, v_last.acked, v_last.returned, v_last.dead, v_last.expired)
        on conflict do nothing;
        v_last.at := p_before;
    end if;
    r := trunkline._queue_latencies(r, v_last);
    insert into trunkline.rollups select r.* on conflict do nothing;
end
$$;

-- Writes the rows of several queues, and returns how many. What is new since the newest pass is read once for
-- all of them.
create or replace function trunkline._roll_up_queues(p_queues int[], p_now timestamptz, p_before timestamptz) returns int
language plpgsql
as $$
declare
    r       trunkline.rollups;
    t       record;
    v_late  timestamptz;
    v_count int := 0;
begin
    -- ordered by queue
    for t in select * from trunkline._cursor_totals(p_queues) loop
        if r.subject is distinct from (t.q).queue_id then
            if r.subject is not null then
                perform trunkline._write_queue_rollup(r, p_before);
            end if;
            r := trunkline._new_rollup('queue', (t.q).queue_id, p_now);
            v_late := null;
            v_count := v_count + 1;
        end if;
        r.delivered := r.delivered + t.delivered;
        r.acked := r.acked + t.acked;
        r.returned := r.returned + t.returned;
        r.dead := r.dead + t.dead;
        r.expired := r.expired + t.expired;
        r.leased := r.leased + t.leased;
        r.ready := r.ready + t.ready;
        r.lag := r.ready;
        if (t.cur).kind = 'log' then
            r.head := r.head + t.head - (t.cur).start_position + 1 - t.skipped;
            if t.head >= t.next then
                v_late := least(v_late, trunkline._published_at((t.cur).cursor_id, t.next));
            end if;
        elsif t.ready > 0 then
            v_late := least(v_late, (select x.at from trunkline.returns x where x.cursor_id = (t.cur).cursor_id and x.pos >= t.next order by x.pos limit 1));
        end if;
        r.oldest_age := coalesce(extract(epoch from p_now - v_late), 0);
    end loop;
    if r.subject is not null then
        perform trunkline._write_queue_rollup(r, p_before);
    end if;
    return v_count;
end
$$;

-- Writes the row of a group.
create or replace function trunkline._roll_up_group(p_subscription_id int, p_now timestamptz) returns void
language plpgsql
as $$
declare
    r       trunkline.rollups;
    c       trunkline.cursors;
    s       trunkline.positions;
    v_head  bigint;
    v_since timestamptz;
begin
    r := trunkline._new_rollup('group', p_subscription_id, p_now);
    select x.at into v_since from trunkline.rollups x where x.kind = 'group' and x.subject = p_subscription_id order by x.at desc limit 1;
    v_since := coalesce(v_since, p_now - interval '1 minute');
    for c in select * from trunkline.cursors where subscription_id = p_subscription_id loop
        s := trunkline._position(c);
        v_head := trunkline._head(c.log);
        r.head := r.head + v_head;
        r.delivered := r.delivered + s.fetched;
        r.acked := r.acked + s.committed;
        if v_head > s.committed then
            r.lag := r.lag + v_head - s.committed;
            r.ready := r.ready + v_head - greatest(s.committed, s.fetched);
            r.leased := r.leased + greatest(0, s.fetched - s.committed);
            r.oldest_age := greatest(r.oldest_age, extract(epoch from p_now - trunkline._published_at(c.cursor_id, s.committed + 1)));
        end if;
    end loop;
    -- The newest 100 states of each partition. In a fetch, more is fetched than committed; a commit is the
    -- state after it.
    with states as (
        select p.*, lag(p.committed) over w as was_committed, lag(p.fetched) over w as was_fetched, lag(p.at) over w as was_at
        from trunkline.cursors k
        cross join lateral (select * from trunkline.positions x where x.cursor_id = k.cursor_id order by x.state_no desc limit 100) p
        where k.subscription_id = p_subscription_id
        window w as (partition by p.cursor_id order by p.state_no)
    ), waits as (
        select extract(epoch from at - trunkline._published_at(cursor_id, committed + 1))::float8 as took from states
        where fetched > committed and at >= v_since and (was_fetched is null or was_fetched <= committed)
    ), works as (
        select extract(epoch from at - was_at)::float8 as took from states where committed > was_committed and was_fetched > was_committed and at >= v_since
    )
    select w.p[1], w.p[2], w.m, k.p[1], k.p[2], k.m into r.wait_p50, r.wait_p99, r.wait_max, r.work_p50, r.work_p99, r.work_max
    from (select percentile_cont('{0.5,0.99}'::float8[]) within group (order by took) as p, max(took) as m from waits) w,
         (select percentile_cont('{0.5,0.99}'::float8[]) within group (order by took) as p, max(took) as m from works) k;
    insert into trunkline.rollups select r.* on conflict do nothing;
end
$$;

-- Returns the queues that need a row: those that changed since the run before the last one, and those that
-- have messages. So the first idle minute has a row with rates of 0. Other queues get a row every six to ten
-- minutes, spread over different runs.
create or replace function trunkline._queues_to_roll_up(p_now timestamptz, p_before timestamptz, p_pass bigint) returns setof trunkline.queues
language sql stable
as $$
    select q.* from trunkline.queues q
    left join lateral (
        -- totals only grow, so their sum shows whether one of them did
        select x.at, x.ready, x.leased, x.total is distinct from lag(x.total) over (order by x.at) as moved
        from (select y.at, y.ready, y.leased, y.head + y.delivered + y.acked + y.returned + y.dead + y.expired as total
              from trunkline.rollups y where y.kind = 'queue' and y.subject = q.queue_id order by y.at desc limit 2) x
        order by x.at desc limit 1) r on true
    where p_before is null or r.ready is null or r.ready > 0 or r.leased > 0 or r.moved
       or r.at <= p_now - interval '1 minute' * (6 + q.queue_id % 5)
       or q.queue_id in (select k.queue_id from trunkline.cursor_states s join trunkline.cursors k using (cursor_id) where s.pass > p_pass)
       or exists (select from trunkline.cursors k
                  cross join lateral (select t.cut_at from trunkline.ticks t where t.log = k.log order by t.first_offset desc limit 1) t
                  -- a tick may commit after a run that began after it was written
                  where k.queue_id = q.queue_id and t.cut_at >= p_before - interval '1 minute')
    order by q.queue_id
$$;

-- Returns groups with a member seen in the last hour, and up to 100 others in turn. So the cost of a run does
-- not depend on the number of idle groups.
create or replace function trunkline._groups_to_roll_up() returns setof int
language plpgsql
as $$
declare
    v_from int := (select mark[3] from trunkline.upkeep_tasks where task = 'rollups');
    v_turn int[] := array(select g.subscription_id from trunkline.subscriptions g where g.subscription_id > v_from and g.kind = 'group'
                          order by g.subscription_id limit trunkline._upkeep_batch() / 5);
begin
    update trunkline.upkeep_tasks set mark[3] = coalesce(v_turn[trunkline._upkeep_batch() / 5], 0) where task = 'rollups';
    return query select m.subscription_id from trunkline.members m union select unnest(v_turn) order by 1;
end
$$;

-- Deletes old rollups and writes new ones; returns how many. A queue or group that cannot be read (a damaged
-- log) causes a warning and does not stop the others.
create or replace function trunkline._upkeep_rollups() returns int
language plpgsql
as $$
declare
    v_now    timestamptz := trunkline.clock();
    -- of the run before: milliseconds since 1970, the newest pass, the last group (_groups_to_roll_up)
    v_mark   bigint[] := (select mark from trunkline.upkeep_tasks where task = 'rollups');
    v_before timestamptz := to_timestamp(nullif(v_mark[1], 0) / 1000.0);
    v_pass   bigint := v_mark[2];
    v_newest bigint := (select pass from trunkline.passes order by pass desc limit 1);
    v_count  int;
    v_queues int[];
    v_queue  int;
    v_group  int;
begin
    if v_before >= v_now then
        -- the server's clock was set back
        v_before := null;
    end if;
    delete from trunkline.rollups where at < v_now - interval '25 hours';
    insert into trunkline.rollups (kind, subject, at, head, bytes, removed)
    -- the size is read again only if something has changed
    select 'topic', x.topic_id, v_now, x.head, case when (x.head, x.removed) = (y.head, y.removed) then y.bytes else trunkline._topic_bytes(x.topic_id) end, x.removed
    from (select l.topic_id, sum(trunkline._head(l.log))::bigint as head, sum(l.base_offset - 1)::bigint as removed
          from trunkline.logs l join trunkline.topics t using (topic_id) where t.kind = 'topic' group by l.topic_id) x
    left join lateral (select z.head, z.removed, z.bytes from trunkline.rollups z where z.kind = 'topic' and z.subject = x.topic_id order by z.at desc limit 1) y on true
    -- no new row if the server's clock stands still or was set back
    on conflict do nothing;
    get diagnostics v_count = row_count;
    v_queues := array(select q.queue_id from trunkline._queues_to_roll_up(v_now, v_before, v_pass) q);
    for i in 1 .. cardinality(v_queues) by 200 loop
        begin
            v_count := v_count + trunkline._roll_up_queues(v_queues[i : i + 199], v_now, v_before);
        exception when others then
            foreach v_queue in array v_queues[i : i + 199] loop
                begin
                    v_count := v_count + trunkline._roll_up_queues(array[v_queue], v_now, v_before);
                exception when others then
                    raise warning 'cannot write the rollup of queue "%": % (%)', (select name from trunkline.queues where queue_id = v_queue), sqlerrm, sqlstate;
                end;
            end loop;
        end;
    end loop;
    for v_group in select * from trunkline._groups_to_roll_up() loop
        begin
            perform trunkline._roll_up_group(v_group, v_now);
            v_count := v_count + 1;
        exception when others then
            raise warning 'cannot write the rollup of group number %: % (%)', v_group, sqlerrm, sqlstate;
        end;
    end loop;
    v_count := v_count + trunkline._roll_up_endpoints(v_queues, v_now, v_before);
    begin
        perform trunkline._roll_up_system(v_now);
    exception when others then
        raise warning 'cannot write the rollup of the database: % (%)', sqlerrm, sqlstate;
    end;
    update trunkline.upkeep_tasks set mark[1] = floor(extract(epoch from v_now) * 1000), mark[2] = v_newest where task = 'rollups';
    return v_count;
end
$$;

-- Returns the rows of one subject in steps, each with the seconds since the row of the previous step. The
-- newest row of a step represents it. Latencies of a step: the median of the medians, and the maximum of the
-- others.
create or replace function trunkline._rollup_steps(p_kind text, p_subject int, p_since interval, p_step interval)
returns table (step timestamptz, seconds float8, r trunkline.rollups, was trunkline.rollups)
language plpgsql
as $$
declare
    v_from timestamptz;
begin
    perform trunkline._need_duration('since', p_since, '1 minute', '25 hours');
    perform trunkline._need_duration('step', p_step, '1 minute', '25 hours');
    v_from := date_bin(p_step, trunkline.clock() - p_since, 'epoch');
    return query
    with picked as (
        -- one step earlier, as the start of the first
        select date_bin(p_step, x.at, 'epoch') as step, x as r from trunkline.rollups x
        where x.kind = p_kind and x.subject = p_subject and x.at >= v_from - greatest(p_step, interval '11 minutes')
    ), steps as (
        select p.step, (array_agg(p.r order by (p.r).at desc))[1] as r,
               percentile_cont(0.5) within group (order by (p.r).wait_p50) as wait_p50, max((p.r).wait_p99) as wait_p99, max((p.r).wait_max) as wait_max,
               percentile_cont(0.5) within group (order by (p.r).work_p50) as work_p50, max((p.r).work_p99) as work_p99, max((p.r).work_max) as work_max
        from picked p group by p.step
    ), pairs as (
        select s.*, lag(s.r) over (order by s.step) as was from steps s
    )
    select p.step, extract(epoch from (p.r).at - (p.was).at)::float8,
           row((p.r).kind, (p.r).subject, (p.r).at, (p.r).head, (p.r).delivered, (p.r).acked, (p.r).returned, (p.r).dead, (p.r).expired,
               (p.r).lag, (p.r).ready, (p.r).leased, (p.r).oldest_age,
               p.wait_p50, p.wait_p99, p.wait_max, p.work_p50, p.work_p99, p.work_max, null, null, (p.r).bytes, (p.r).removed)::trunkline.rollups,
           p.was
    from pairs p where p.step >= v_from order by p.step;
end
$$;

-- Returns how much a running total grew per second; null for the first step. After a seek backwards the rate
-- is 0, not negative.
create or replace function trunkline._per_second(p_now bigint, p_was bigint, p_seconds float8) returns float8
language sql immutable
as $$ select greatest(0, p_now - p_was) / nullif(p_seconds, 0) $$;

-- Returns the head and the published messages per second of a topic, in steps, oldest first. p_since and
-- p_step: 1 minute to 25 hours. bytes: size on disk; removed: messages that retention has removed; both over
-- all partitions, and null where an earlier release has written the row.
create or replace function trunkline.topic_rollups(p_topic text, p_since interval default '1 day', p_step interval default '1 minute')
returns table (at timestamptz, head bigint, published_per_second float8, bytes bigint, removed bigint)
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
begin
    return query
    select x.step, (x.r).head, trunkline._per_second((x.r).head, (x.was).head, x.seconds), (x.r).bytes, (x.r).removed
    from trunkline._rollup_steps('topic', t.topic_id, p_since, p_step) x;
end
$$;

-- Returns rates, totals, depth and latencies of a queue in steps, oldest first. p_since and p_step: 1 minute
-- to 25 hours.
-- wait: seconds from entering the log to the first claim; work: from claim to settle. ready counts all
-- unclaimed messages of the logs, including those that a filter will skip or a delivery delay holds back.
create or replace function trunkline.queue_rollups(p_queue text, p_since interval default '1 day', p_step interval default '1 minute')
returns table (at timestamptz, accepted_per_second float8, delivered_per_second float8, acked_per_second float8, returned_per_second float8,
               dead_per_second float8, expired_per_second float8, accepted bigint, delivered bigint, acked bigint, returned bigint, dead bigint,
               expired bigint, ready bigint, leased bigint, oldest_age float8,
               wait_p50 float8, wait_p99 float8, wait_max float8, work_p50 float8, work_p99 float8, work_max float8)
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._queue(p_queue);
begin
    return query
    select x.step, trunkline._per_second((x.r).head, (x.was).head, x.seconds), trunkline._per_second((x.r).delivered, (x.was).delivered, x.seconds),
           trunkline._per_second((x.r).acked, (x.was).acked, x.seconds), trunkline._per_second((x.r).returned, (x.was).returned, x.seconds),
           trunkline._per_second((x.r).dead, (x.was).dead, x.seconds), trunkline._per_second((x.r).expired, (x.was).expired, x.seconds),
           (x.r).head, (x.r).delivered, (x.r).acked, (x.r).returned, (x.r).dead, (x.r).expired, (x.r).ready, (x.r).leased, (x.r).oldest_age,
           (x.r).wait_p50, (x.r).wait_p99, (x.r).wait_max, (x.r).work_p50, (x.r).work_p99, (x.r).work_max
    from trunkline._rollup_steps('queue', q.queue_id, p_since, p_step) x;
end
$$;

-- Returns rates, lag and latencies of a group in steps, oldest first. p_since and p_step: 1 minute to 25
-- hours. wait: seconds from entering the log to fetch; work: from fetch to commit.
create or replace function trunkline.group_rollups(p_topic text, p_group text, p_since interval default '1 day', p_step interval default '1 minute')
returns table (at timestamptz, published_per_second float8, committed_per_second float8, head bigint, committed bigint, lag bigint, oldest_age float8,
               wait_p50 float8, wait_p99 float8, wait_max float8, work_p50 float8, work_p99 float8, work_max float8)
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    g trunkline.subscriptions := trunkline._group(t.topic_id, p_topic, p_group);
begin
    return query
    select x.step, trunkline._per_second((x.r).head, (x.was).head, x.seconds), trunkline._per_second((x.r).acked, (x.was).acked, x.seconds),
           (x.r).head, (x.r).acked, (x.r).lag, (x.r).oldest_age,
           (x.r).wait_p50, (x.r).wait_p99, (x.r).wait_max, (x.r).work_p50, (x.r).work_p99, (x.r).work_max
    from trunkline._rollup_steps('group', g.subscription_id, p_since, p_step) x;
end
$$;

-- Returns totals over all topics and queues per step, oldest first: messages per second published to topics
-- and acked by queues, the median of the queues' median waits and their longest p99 in seconds, ready messages and
-- dead letters (totals of the newest rollups of the step). p_since and p_step: 1 minute to 25 hours.
create or replace function trunkline._total_rollups(p_since interval, p_step interval)
returns table (at timestamptz, published_per_second float8, acked_per_second float8, wait_p50 float8, wait_p99 float8, ready bigint, dead bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_from timestamptz;
begin
    perform trunkline._need_duration('since', p_since, '1 minute', '25 hours');
    perform trunkline._need_duration('step', p_step, '1 minute', '25 hours');
    v_from := date_bin(p_step, trunkline.clock() - p_since, 'epoch');
    return query
    with picked as (
        select distinct on (x.kind, x.subject, date_bin(p_step, x.at, 'epoch')) date_bin(p_step, x.at, 'epoch') as step, x.kind, x.subject, x.at, x.head, x.acked,
               x.wait_p50, x.wait_p99, x.ready, x.dead
        from trunkline.rollups x where x.kind in ('topic', 'queue') and x.at >= v_from - greatest(p_step, interval '11 minutes')
        order by x.kind, x.subject, date_bin(p_step, x.at, 'epoch'), x.at desc
    ), pairs as (
        select p.*, extract(epoch from p.at - lag(p.at) over w)::float8 as seconds, lag(p.head) over w as was_head, lag(p.acked) over w as was_acked
        from picked p window w as (partition by p.kind, p.subject order by p.step)
    )
    select p.step, sum(trunkline._per_second(p.head, p.was_head, p.seconds)) filter (where p.kind = 'topic'),
           sum(trunkline._per_second(p.acked, p.was_acked, p.seconds)) filter (where p.kind = 'queue'),
           percentile_cont(0.5) within group (order by p.wait_p50), max(p.wait_p99), coalesce(sum(p.ready), 0)::bigint, coalesce(sum(p.dead), 0)::bigint
    from pairs p where p.step >= v_from group by p.step order by p.step;
end
$$;

-- Returns the messages published per second to each topic per step, by topic, oldest first. p_since and p_step:
-- 1 minute to 25 hours.
create or replace function trunkline._topic_rates(p_since interval, p_step interval)
returns table (topic text, at timestamptz, published_per_second float8)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_from timestamptz;
begin
    perform trunkline._need_duration('since', p_since, '1 minute', '25 hours');
    perform trunkline._need_duration('step', p_step, '1 minute', '25 hours');
    v_from := date_bin(p_step, trunkline.clock() - p_since, 'epoch');
    return query
    with picked as (
        select distinct on (x.subject, date_bin(p_step, x.at, 'epoch')) date_bin(p_step, x.at, 'epoch') as step, x.subject, x.at, x.head
        from trunkline.rollups x where x.kind = 'topic' and x.at >= v_from - greatest(p_step, interval '11 minutes')
        order by x.subject, date_bin(p_step, x.at, 'epoch'), x.at desc
    ), pairs as (
        select p.*, extract(epoch from p.at - lag(p.at) over w)::float8 as seconds, lag(p.head) over w as was_head
        from picked p window w as (partition by p.subject order by p.step)
    )
    select t.name, p.step, trunkline._per_second(p.head, p.was_head, p.seconds)
    from pairs p join trunkline.topics t on t.topic_id = p.subject where p.step >= v_from order by t.name, p.step;
end
$$;
