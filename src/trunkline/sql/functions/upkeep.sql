-- Upkeep, the background maintenance: tasks that trunkline_owner can run at any time (by hand, by pg_cron or
-- by `trunkline up`). Each task is safe to repeat, does a bounded amount of work, and runs in one session at
-- a time. trunkline.upkeep() runs the tasks that are due.

-- Returns how many logs or cursors one run of a task processes. The task keeps its locks on all of them until
-- it ends, and the server's lock table is limited.
create or replace function trunkline._upkeep_batch() returns int
language sql immutable
as $$ select 500 $$;

-- Runs one pass, unless another session is running one. Returns 1 if there was something to do.
create or replace function trunkline._upkeep_pass() returns int
language plpgsql
as $$
begin
    if not pg_try_advisory_xact_lock(778001, 0) then
        return 0;
    end if;
    perform trunkline._note_service();
    return trunkline._run_passes()::int;
end
$$;

-- Raises the given error again, unless the topic was deleted. A concurrent deletion can make a task fail in
-- many ways; then the task skips that topic.
create or replace function trunkline._pass_if_gone(p_topic_id int, p_code text, p_error text) returns void
language plpgsql
as $$
begin
    if exists (select from trunkline.topics where topic_id = p_topic_id) then
        raise exception using errcode = p_code, message = p_error;
    end if;
end
$$;

-- Returns those of these logs that may have messages without an offset. The same as _has_unsequenced, in one
-- statement for all of them. p_unlocked: keep no locks on the sequences of ids, as in a caller's transaction.
create or replace function trunkline._unsequenced_logs(p_logs int[], p_unlocked boolean default false) returns int[]
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_slot smallint := (select slot from trunkline.epoch);
begin
    return array(
        select l.log from trunkline.logs l
        -- a tick in the current slot is newer than all others
        left join lateral (
            (select t.whole, t.last_id from trunkline.ticks t where t.slot = v_slot and t.log = l.log order by t.first_offset desc limit 1)
            union all
            (select t.whole, t.last_id from trunkline.ticks t where t.slot = 1 - v_slot and t.log = l.log order by t.first_offset desc limit 1)
            limit 1) k on true
        where l.log = any (p_logs)
          and (not coalesce(k.whole, true)
               or coalesce(case when p_unlocked then trunkline._last_value(to_regclass('trunkline.topic_' || l.topic_id || '_' || l.partition || '_ids'))
                             else pg_sequence_last_value(to_regclass('trunkline.topic_' || l.topic_id || '_' || l.partition || '_ids')) end, 0) > coalesce(k.last_id, 0)));
exception when others then
    -- a topic was deleted meanwhile: the caller checks each log
    return p_logs;
end
$$;

-- Assigns offsets to committed messages: of the shared store, and of up to 500 logs of topics in turn.
-- Returns the number of logs.
create or replace function trunkline._upkeep_sequence() returns int
language plpgsql
as $$
declare
    r       record;
    v_count int := 0;
    v_from  int := coalesce(pg_sequence_last_value('trunkline.logs_visited'), 0);
    -- topic by topic in the order of their numbers, so that the rest of the logs is not read
    v_logs  int[] := array(select l.log from (select topic_id from trunkline.topics where not shared and topic_id >= v_from / 64 order by topic_id offset 0) t
                           cross join lateral (select x.log from trunkline.logs x where x.topic_id = t.topic_id and x.log > greatest(v_from, 1) offset 0) l
                           order by t.topic_id, l.log limit trunkline._upkeep_batch());
begin
    perform setval('trunkline.logs_visited', coalesce(v_logs[trunkline._upkeep_batch()], 0));
    -- a session that holds the lock of a log is sequencing it
    perform set_config('lock_timeout', '50ms', true);
    v_count := trunkline._tick_store()::int;
    v_logs := trunkline._unsequenced_logs(v_logs);
    for r in select l.log, l.topic_id, l.partition, t.segment_rows from trunkline.logs l join trunkline.topics t using (topic_id) where l.log = any (v_logs) order by l.log loop
        begin
            continue when not trunkline._has_unsequenced(r.log, r.topic_id, r.partition);
            perform trunkline._tick(r.topic_id, r.partition, r.segment_rows);
            v_count := v_count + 1;
        exception
            when lock_not_available then
                null;
            when others then
                perform trunkline._pass_if_gone(r.topic_id, sqlstate, sqlerrm);
        end;
    end loop;
    return v_count;
end
$$;

-- Returns the positions of a lease that are not settled.
create or replace function trunkline._unsettled(l trunkline.leases) returns int8multirange
language sql stable
as $$
    select trunkline._leased(l) - coalesce(range_agg(int8range(s.pos, s.pos + s.n)), '{}') from trunkline.settled s
    where s.rotation = l.rotation and s.cursor_id = l.cursor_id and s.pos >= l.first and s.pos < l.first + l.n
$$;

-- Returns the lowest offset of a log that an unordered queue has leased and not settled, or null. p_drawn:
-- true for leases drawn from the log itself, false for leases of returned messages.
create or replace function trunkline._lowest_leased(c trunkline.cursors, p trunkline.pass_run, p_drawn boolean, p_upto bigint) returns bigint
language plpgsql stable
as $$
declare
    d        record;
    v_lowest bigint;
begin
    -- leases that the newest pass has not seen
    select min(x.log_offset) into v_lowest
    from trunkline._new_leases(p) l join trunkline.cursors k using (cursor_id) cross join lateral trunkline._entries(l, trunkline._unsettled(l)) x
    where k.queue_id = c.queue_id and x.source_id = c.cursor_id and (k.cursor_id = c.cursor_id) = p_drawn;
    -- All other leases are in `later` until they end, many in one row. Positions of the log itself are
    -- offsets, so the first rows have the lowest.
    for d in
        select y.cursor_id, y.positions from trunkline.later y
        where y.queue_id = c.queue_id and y.kind = 'l' and y.due > (p.before).walked and (y.cursor_id = c.cursor_id) = p_drawn
        order by lower(y.positions)
    loop
        exit when v_lowest <= p_upto or p_drawn and (lower(d.positions) >= v_lowest or lower(d.positions) > p_upto);
        select least(v_lowest, min(x.log_offset)) into v_lowest
        from unnest(d.positions) r
        cross join lateral (select l from trunkline.leases l where l.cursor_id = d.cursor_id and l.first >= lower(r) and l.first < upper(r) offset 0) y
        cross join lateral trunkline._entries(y.l, trunkline._unsettled(y.l)) x where x.source_id = c.cursor_id;
    end loop;
    return v_lowest;
end
$$;

-- Returns the lowest offset of a log that was returned to a queue and is not leased again, or null. p_upto:
-- any such offset up to p_upto is enough.
create or replace function trunkline._lowest_returned(c trunkline.cursors, p trunkline.pass_run, p_upto bigint) returns bigint
language plpgsql stable
as $$
declare
    q         trunkline.queues := (select x from trunkline.queues x where x.queue_id = c.queue_id);
    v_cursors int[];
    v_upto    bigint[];
    v_open    int8multirange[];
    v_lowest  bigint;
begin
    -- a drawn position counts as leased once a pass has accounted for it
    select array_agg(k.cursor_id), array_agg(s.upto), array_agg(s.open) into v_cursors, v_upto, v_open
    from trunkline.cursors k cross join lateral trunkline._cursor_state(k) s where k.queue_id = c.queue_id and k.kind in ('returns', 'label');
    v_lowest := (select r.log_offset from trunkline.returns r cross join lateral (select array_position(v_cursors, r.cursor_id) as i) x
                 where r.source_id = c.cursor_id and (r.pos > v_upto[x.i] or v_open[x.i] @> r.pos) order by r.log_offset limit 1);
    if v_lowest <= p_upto then
        return v_lowest;
    end if;
    return least(v_lowest,
        (select min(y.log_offset) from trunkline._new_returns(p) y where y.queue_id = c.queue_id and y.source_id = c.cursor_id),
        (select min(x.log_offset) from (
            select d.log_offset from trunkline.later d
            where d.queue_id = c.queue_id and d.kind = 'r' and d.due > (p.before).walked and d.source_id = c.cursor_id and not trunkline._is_purged(q, d.purge_no, p)
              and (p_upto is null or d.log_offset <= p_upto)
            limit case when p_upto is not null then 1 end) x));
end
$$;

-- Returns whether no message of a queue is leased, returned or delayed: the totals of the newest pass say so,
-- and no lease is new since. The totals alone are not enough. A pass can account for the position of a lease
-- that committed after its snapshot; only the next pass counts that lease.
create or replace function trunkline._is_quiet(p_queue_id int, p trunkline.pass_run) returns boolean
language sql stable
as $$
    select not exists (
        select from trunkline.cursors k
        cross join lateral (select * from trunkline.cursor_states x where x.cursor_id = k.cursor_id order by x.pass desc limit 1) s
        where k.queue_id = q.queue_id and (s.delivered <> s.settled or s.delayed <> 0 or not isempty(s.open) or k.kind <> 'log' and s.head <> s.upto))
      and not exists (select from trunkline._new_leases(p) l join trunkline.cursors k using (cursor_id) where k.queue_id = q.queue_id)
    from trunkline.queues q where q.queue_id = p_queue_id
$$;

-- Returns the offset below which no reader needs anything of a log; null if it has no readers. With p_upto, a
-- result at or below p_upto only means that a reader needs something up to p_upto. This is found without
-- reading everything that is leased or delayed.
-- Stable, so that all of it reads one snapshot: a message that is leased or returned meanwhile must not be
-- missed in both tables. So the caller must prevent rotation, with _begin_read in an earlier statement.
create or replace function trunkline._needed_from(p_log int, p_upto bigint default null) returns bigint
language plpgsql stable
set plan_cache_mode = force_generic_plan
as $$
declare
    c        trunkline.cursors;
    p        trunkline.pass_run := trunkline._since_pass();
    o        record;
    v_needed bigint;
begin
    for c in select * from trunkline.cursors where log = p_log loop
        if c.queue_id is null then
            v_needed := least(v_needed, (trunkline._position(c)).committed + 1);
            continue;
        end if;
        if c.drawn_seq is null then
            -- the newest lease of an ordered partition is its whole state
            o := trunkline._ordered_state(c);
            v_needed := least(v_needed, o.next_offset, (select min(x) from unnest(o.offsets || case when o.is_open then (o.l).offsets end) x));
            continue;
        end if;
        -- a drawn position that is not accounted for may be a hole, whose message is returned
        select least(v_needed, s.upto + 1, lower(s.open)) into v_needed from trunkline._cursor_state(c) s;
        exit when v_needed <= p_upto;
        continue when trunkline._is_quiet(c.queue_id, p);
        for i in 1 .. 3 loop
            exit when v_needed <= p_upto;
            v_needed := least(v_needed, case i when 1 then trunkline._lowest_leased(c, p, true, p_upto) when 2 then trunkline._lowest_returned(c, p, p_upto)
                                               else trunkline._lowest_leased(c, p, false, p_upto) end);
        end loop;
        exit when v_needed <= p_upto;
    end loop;
    return v_needed;
end
$$;

-- Ends the current segment of a log: new ids are above its range. Returns whether it was done.
-- Moves the sequence under the lock that nextval needs, in a subtransaction that is rolled back on purpose.
-- The lock ends with it; the sequence stays moved. Fails if a publisher is open, since it holds that lock
-- until it ends. Then the segment could not be sealed either.
create or replace function trunkline._end_segment(p_topic_id int, p_partition int, p_segment_rows int) returns boolean
language plpgsql
as $$
declare
    v_ids  regclass := trunkline._ids(p_topic_id, p_partition);
    v_last bigint;
begin
    if trunkline._last_id(p_topic_id, p_partition) = 0 then
        return false;
    end if;
    perform trunkline._make_segments(p_topic_id, true);
    begin
        perform set_config('lock_timeout', '20ms', true);
        -- changes nothing, but acquires the lock
        execute format('alter sequence %s owned by none', v_ids);
        v_last := trunkline._last_id(p_topic_id, p_partition);
        perform setval(v_ids, (v_last / p_segment_rows + 1) * p_segment_rows - 1);
        raise exception using errcode = 'TLX00';
    exception
        when sqlstate 'TLX00' then
            return true;
        when lock_not_available then
            return false;
    end;
end
$$;

-- Returns those of these logs whose segments may need work. The next segment is missing, a complete one is
-- not sealed, the current one is old, or publishers may not know of a new one. Most logs need nothing, which
-- one statement finds out for all of them.
create or replace function trunkline._logs_with_segments_due(p_logs int[]) returns int[]
language plpgsql
as $$
declare
    v_now timestamptz := trunkline.clock();
begin
    return array(
        select l.log from trunkline.logs l join trunkline.topics t using (topic_id)
        cross join lateral (select coalesce(pg_sequence_last_value(to_regclass('trunkline.topic_' || l.topic_id || '_' || l.partition || '_ids')), 0) as last offset 0) i
        cross join lateral (
            select coalesce(bool_or(s.segment = trunkline._newest_segment(i.last, t.segment_rows)), false) as ahead,
                   bool_or(s.sealed_at is null and (s.segment + 1) * t.segment_rows - 1 <= i.last) as complete,
                   bool_or(s.segment = i.last / t.segment_rows and s.created_at < v_now - greatest(least(t.retention, interval '30 days') / 8, interval '1 second')) as old
            from trunkline.segments s where s.log = l.log) s
        where l.log = any (p_logs)
          and (not s.ahead or s.complete or s.old and i.last > 0 and (i.last + 1) % t.segment_rows > 0 or random() < 0.01
               -- the functions of a topic are checked with its first partition
               or l.partition = 0 and exists (select from trunkline.segments x where x.log >= l.log and x.log < l.log + 64 and x.created_at > v_now - interval '1 hour')));
exception when others then
    -- a topic was deleted meanwhile: the caller checks each log
    return p_logs;
end
$$;

-- Maintains segments: creates the next one ahead of time, ends old ones, seals complete ones. Returns the
-- number of changes.
create or replace function trunkline._upkeep_segments() returns int
language plpgsql
as $$
declare
    r        record;
    v_count  int := 0;
    v_last   bigint;
    v_oldest timestamptz;
    v_topic  int;
    v_logs   int[] := array(select s.log from (select distinct log from trunkline.segments where log <> 1) s order by random() limit trunkline._upkeep_batch());
begin
    perform set_config('lock_timeout', '100ms', true);
    v_count := trunkline._roll_store() + trunkline._seal(0, 1, 1073741824);
    v_logs := trunkline._logs_with_segments_due(v_logs);
    for r in
        select t.*, l.log, l.partition from trunkline.logs l join trunkline.topics t using (topic_id)
        where l.log = any (v_logs) order by l.log
    loop
        -- publishers and readers may have to wait for the locks acquired here, so one run is limited
        exit when v_count >= trunkline._upkeep_batch() / 10;
        begin
            v_last := trunkline._last_id(r.topic_id, r.partition);
            -- In the lock order, the topic's lock comes before those held here, so it is only tried. A
            -- session that holds it changes or deletes the topic; the next run repeats this check.
            if (not exists (select from trunkline.segments s where s.log = r.log and s.segment = trunkline._newest_segment(v_last, r.segment_rows))
                or r.partition = 0 and trunkline._limits_lag(r.topic_id)) and pg_try_advisory_xact_lock(778003, r.topic_id) then
                v_count := v_count + trunkline._make_segments(r.topic_id);
                v_topic := r.topic_id;
            end if;
            -- end the segment if its oldest message is old
            if (v_last + 1) % r.segment_rows > 0 and v_last > 0
               and to_regclass(format('trunkline.topic_%s_%s_%s', r.topic_id, r.partition, v_last / r.segment_rows)) is not null then
                execute format('select created_at from trunkline.topic_%s_%s_%s order by id limit 1', r.topic_id, r.partition, v_last / r.segment_rows) into v_oldest;
                if v_oldest < trunkline.clock() - greatest(least(r.retention, interval '30 days') / 8, interval '1 second')
                   and v_topic is distinct from r.topic_id and pg_try_advisory_xact_lock(778003, r.topic_id) then
                    -- The topic's functions must know the next segment before, or publishers would wait for
                    -- this task. So one run creates it, and a later one ends this segment.
                    if trunkline._limits_lag(r.topic_id) or not exists (select from trunkline.segments s where s.log = r.log and s.segment > v_last / r.segment_rows) then
                        v_count := v_count + trunkline._make_segments(r.topic_id, true);
                        v_topic := r.topic_id;
                    else
                        v_count := v_count + trunkline._end_segment(r.topic_id, r.partition, r.segment_rows)::int;
                    end if;
                end if;
            end if;
            v_count := v_count + trunkline._seal(r.topic_id, r.partition, r.segment_rows);
        exception
            -- another session holds the lock; the other logs must not wait for it
            when lock_not_available then
                null;
            when others then
                perform trunkline._pass_if_gone(r.topic_id, sqlstate, sqlerrm);
        end;
    end loop;
    return v_count;
end
$$;

-- Seals complete segments whose ids all belong to transactions that have ended: rows that are not visible
-- then never will be. The first run notes a horizon in drained_xid, a later one seals. Returns the number of
-- sealed segments.
create or replace function trunkline._seal(p_topic_id int, p_partition int, p_segment_rows int) returns int
language plpgsql
as $$
declare
    v_log   int := p_topic_id * 64 + p_partition;
    v_last  bigint := trunkline._last_id(p_topic_id, p_partition);
    v_xmin  xid8;
    v_last_offset bigint;
    v_count int := 0;
    s       record;
begin
    for s in select * from trunkline.segments where log = v_log and sealed_at is null and (segment + 1) * p_segment_rows - 1 <= v_last order by segment loop
        if s.drained_xid is null then
            update trunkline.segments set drained_xid = trunkline._horizon(v_log) where log = v_log and segment = s.segment;
            continue;
        end if;
        v_xmin := pg_snapshot_xmin(pg_current_snapshot());
        -- Transaction numbers start over in a restored cluster. A number that is not in use yet is from the
        -- old cluster, where all transactions have ended.
        exit when v_xmin < s.drained_xid and s.drained_xid <= pg_snapshot_xmax(pg_current_snapshot()) and trunkline._has_owner_below(p_topic_id, p_partition, s.drained_xid);
        if v_log = 1 then
            perform trunkline._tick_store(true);
        else
            perform trunkline._tick(p_topic_id, p_partition, p_segment_rows, true);
        end if;
        -- the newest tick with an id of this segment or of one before; ids mostly grow with offsets, so it is
        -- near the end
        select coalesce(max(t.first_offset + trunkline._size(t.ids * int8multirange(int8range(null, (s.segment + 1) * p_segment_rows))) - 1), 0) into v_last_offset
        from trunkline.ticks t where t.log = v_log and t.shared = (v_log = 1) and lower(t.ids) < (s.segment + 1) * p_segment_rows;
        update trunkline.segments set sealed_at = trunkline.clock(), last_offset = v_last_offset where log = v_log and segment = s.segment;
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;

-- Removes segments whose retention is over and that every reader has passed. After hard_retention, removes
-- them in any case, and writes an alert if a reader still needed them. Truncates first, which locks only the
-- segment itself. The empty table is dropped once its parent can be locked without waiting.
create or replace function trunkline._upkeep_retention() returns int
language plpgsql
as $$
declare
    r        record;
    v_count  int := 0;
    v_base   bigint;
    v_needed bigint;
    v_forced boolean;
    v_gone   int;
    v_now    timestamptz := trunkline.clock();
begin
    perform set_config('lock_timeout', '100ms', true);
    begin
        v_count := trunkline._retire_segment();
    exception when lock_not_available then
        v_count := 0;
    end;
    begin
        -- prevents rotation until the task ends
        perform trunkline._begin_read();
    exception when lock_not_available then
        return v_count;
    end;
    for r in
        -- segments that are old enough; and all segments of topics with a size limit, since only these need
        -- the size of each
        select t.topic_id, t.name, t.kind, t.retention, t.retention_bytes, t.hard_retention, t.segment_rows, l.log, l.partition,
               s.segment, s.sealed_at, s.last_offset, s.staged,
               sum(case when t.retention_bytes is not null then pg_total_relation_size(to_regclass(format('trunkline.topic_%s_%s_%s', t.topic_id, l.partition, s.segment))) end)
                   over (partition by l.log order by s.last_offset desc nulls first, s.segment desc) as bytes_from_here
        from trunkline.topics t join trunkline.logs l using (topic_id) join trunkline._all_segments() s using (log)
        where l.log <> 1 and (t.retention_bytes is not null or s.sealed_at < v_now - t.retention or s.staged and s.last_offset < l.base_offset)
        order by l.log, s.last_offset, s.segment
    loop
        exit when v_count >= trunkline._upkeep_batch() / 5;
        select base_offset into v_base from trunkline.logs where log = r.log;
        continue when r.sealed_at is null;
        -- Everything below base_offset is removed already. A staged segment below it, or one without any
        -- offset, still has rows: they are truncated now and do not wait for the drop of the table.
        if r.last_offset < v_base then
            if r.staged and pg_relation_size(to_regclass(format('trunkline.topic_%s_%s_%s', r.topic_id, r.partition, r.segment))) > 0 then
                v_count := v_count + trunkline._empty_segment(r.topic_id, r.partition, r.segment, r.last_offset);
            end if;
            continue;
        end if;
        continue when not (r.sealed_at < trunkline.clock() - r.retention or coalesce(r.bytes_from_here > r.retention_bytes, false));
        -- Only a prefix of the log may be removed. A staged segment needs no such check: every offset up to
        -- its last one was assigned before it was sealed.
        continue when not r.staged and exists (
            select from trunkline.segments s where s.log = r.log and s.segment < r.segment and coalesce(s.last_offset, 9223372036854775807) >= v_base);
        continue when trunkline._archive_waits(r.topic_id, r.partition, r.last_offset);
        -- Only tried: a session that adds or moves a reader holds it shared and has chosen a position that is
        -- not visible yet. The queues' own logs get no new readers.
        continue when r.kind = 'topic' and not pg_try_advisory_xact_lock(778012, r.topic_id);
        v_forced := r.hard_retention is not null and r.sealed_at < trunkline.clock() - r.hard_retention;
        -- the alert names the lowest offset that a reader needs, so a forced removal computes it exactly
        v_needed := coalesce(trunkline._needed_from(r.log, case when not v_forced then r.last_offset end), 9223372036854775807);
        if v_needed <= r.last_offset and not v_forced then
            continue;
        end if;
        begin
            v_gone := trunkline._empty_segment(r.topic_id, r.partition, r.segment, r.last_offset);
            if v_gone > 0 and v_needed <= r.last_offset then
                insert into trunkline.alerts (at, kind, detail) values (trunkline.clock(), 'retention_overtook_reader',
                    jsonb_build_object('topic', r.name, 'partition', r.partition, 'reader_needed', v_needed, 'earliest_offset', r.last_offset + 1));
                raise warning 'hard retention removed unread messages of topic "%": offsets % to %', r.name, v_needed, r.last_offset;
            end if;
            v_count := v_count + v_gone;
        exception when lock_not_available then
            -- another session has locked the log's row: the segment stays until a later run
            null;
        end;
    end loop;
    perform trunkline._drop_empty_segments();
    return v_count + trunkline._drop_deleted();
end
$$;

-- Drops the tables and functions of deleted topics and queues. Returns the number of topics.
-- A transaction that read `topics` before the deletion may know the topic's number and use its tables later.
-- So the first run notes the open transactions that hold a lock on `topics`. A later run drops the tables
-- when none of these is left.
create or replace function trunkline._drop_deleted() returns int
language plpgsql
as $$
declare
    d       record;
    v_open  text[];
    v_drop  text;
    v_count int := 0;
begin
    for d in select * from trunkline.deletions order by at limit trunkline._upkeep_batch() / 25 for update skip locked loop
        v_open := trunkline._holders(array['trunkline.topics'::regclass::oid]);
        if d.holders is null then
            update trunkline.deletions set holders = v_open where topic_id = d.topic_id;
            continue;
        end if;
        continue when d.holders && v_open;
        begin
            perform set_config('lock_timeout', '100ms', true);
            for v_drop in
                select format('drop sequence trunkline.%I', relname) from pg_class
                where relnamespace = 'trunkline'::regnamespace and relkind = 'S' and relname ~ format('^topic_%s_[0-9]+_(ids|staged)$', d.topic_id)
                union all
                select format('drop function %s', oid::regprocedure) from pg_proc
                where pronamespace = 'trunkline'::regnamespace and proname ~ format('^topic_%s_[a-z]+$', d.topic_id)
            loop
                execute v_drop;
            end loop;
            execute format('drop table if exists trunkline.topic_%s', d.topic_id);
            delete from trunkline.deletions where topic_id = d.topic_id;
            v_count := v_count + 1;
        exception
            when lock_not_available then
                null;
            when others then
                raise warning 'cannot drop the tables of deleted topic %, will retry in the next run of upkeep: % (%)', d.topic_id, sqlerrm, sqlstate;
        end;
    end loop;
    return v_count;
end
$$;

-- Truncates a segment and moves the log's base_offset behind it. Returns 1, or 0 if the segment could not be
-- locked within 100 ms.
create or replace function trunkline._empty_segment(p_topic_id int, p_partition int, p_segment bigint, p_last_offset bigint) returns int
language plpgsql
as $$
declare
    v_name text := format('topic_%s_%s_%s', p_topic_id, p_partition, p_segment);
    v_wait text := current_setting('lock_timeout');
begin
    begin
        perform set_config('lock_timeout', '100ms', true);
        execute format('truncate trunkline.%I', v_name);
        perform set_config('lock_timeout', v_wait, true);
    exception when lock_not_available then
        return 0;
    end;
    update trunkline.logs set base_offset = greatest(base_offset, p_last_offset + 1) where topic_id = p_topic_id and partition = p_partition;
    return 1;
end
$$;

-- Drops emptied segments, and blocks without segments. Overlapping publishers hold locks on the topic's table
-- and on the block they write to all the time. So the last segments of a busy topic stay until its next block
-- begins. After that only the block stays, which has no storage. The first segment of a partition has no
-- block: in a busy topic its empty table stays.
create or replace function trunkline._drop_empty_segments() returns void
language plpgsql
as $$
declare
    r      record;
    v_busy oid[] := '{}';
begin
    for r in
        select l.topic_id, l.partition, s.log, s.segment,
               (select i.inhparent from pg_inherits i where i.inhrelid = to_regclass(format('trunkline.topic_%s_%s_%s', l.topic_id, l.partition, s.segment))) as parent
        from trunkline._all_segments() s join trunkline.logs l using (log)
        where s.log <> 1 and s.sealed_at is not null and s.last_offset < l.base_offset
          -- the newest segment stays: it has the position where the log continues
          and (s.staged or exists (select from trunkline.segments n where n.log = s.log and n.segment > s.segment))
        order by random() limit trunkline._upkeep_batch() / 5
    loop
        -- other sessions queue behind a lock request that waits, so each parent is tried once
        continue when r.parent = any (v_busy);
        begin
            perform set_config('lock_timeout', '20ms', true);
            execute format('drop table if exists trunkline.topic_%s_%s_%s', r.topic_id, r.partition, r.segment);
            delete from trunkline.segments where log = r.log and segment = r.segment;
            delete from trunkline.staged_segments where log = r.log and segment = r.segment;
        exception when lock_not_available then
            v_busy := v_busy || r.parent;
        end;
    end loop;
    for r in
        select c.oid::regclass as block, i.inhparent as parent, substring(c.relname from '^topic_([0-9]+)_')::int as topic_id
        from pg_class c join pg_inherits i on i.inhrelid = c.oid
        where c.relnamespace = 'trunkline'::regnamespace and c.relkind = 'p' and c.relname ~ '^topic_[0-9]+_[0-9]+_block_[0-9]+$'
          and not exists (select from pg_inherits x where x.inhparent = c.oid)
        order by random() limit trunkline._upkeep_batch() / 5
    loop
        continue when r.parent = any (v_busy);
        begin
            perform set_config('lock_timeout', '20ms', true);
            -- Under the lock of sessions that attach segments. Dropping a block also drops its segments, so
            -- it is checked again, in the current catalog snapshot.
            if pg_try_advisory_xact_lock(778003, r.topic_id) and (select count(*) = 1 from pg_partition_tree(r.block)) then
                execute format('drop table if exists %s', r.block);
            end if;
        exception when lock_not_available then
            v_busy := v_busy || r.parent;
        end;
    end loop;
end
$$;

-- Returns segments of both kinds: of published messages, and of rows that Spark's tasks have staged.
create or replace function trunkline._all_segments() returns table (log int, segment bigint, sealed_at timestamptz, last_offset bigint, staged boolean)
language sql stable
as $$
    select s.log, s.segment, s.sealed_at, s.last_offset, false from trunkline.segments s
    union all
    select g.log, g.segment, g.sealed_at, g.last_offset, true from trunkline.staged_segments g
$$;

-- Removes completed messages of a queue now, without waiting for its retention. Returns the number of emptied
-- segments, plus one for each log in the shared store that was trimmed.
-- Trimmed messages in the shared store cannot be read any more; their space is reused with their segment.
-- Segments of the queue's own tables are truncated. A segment stays if a publisher of the queue is open or a
-- lock cannot be acquired. Requires a READ COMMITTED transaction.
create or replace function trunkline.trim_queue(p_name text) returns int
language plpgsql
as $$
declare
    q        trunkline.queues := trunkline._queue(p_name);
    r        record;
    v_count  int := 0;
    v_needed bigint;
begin
    perform trunkline._need_read_committed('trim_queue');
    -- so that everything settled up to now counts
    perform trunkline._sequence_alone(array[q.queue_id], null);
    perform trunkline._begin_read();
    for r in select l.*, t.segment_rows, t.shared from trunkline.logs l join trunkline.topics t using (topic_id) where l.topic_id = q.inbox_id loop
        if r.shared then
            -- completed messages cannot be read after this; their space is reused with their segment
            v_needed := least(trunkline._needed_from(r.log), trunkline._head(r.log) + 1);
            if r.base_offset < v_needed then
                update trunkline.logs set base_offset = v_needed where log = r.log;
                r.base_offset := v_needed;
                v_count := v_count + 1;
            end if;
            continue when not exists (select from trunkline._all_segments() s where s.log = r.log);
        end if;
        if (trunkline._last_id(r.topic_id, r.partition) + 1) % r.segment_rows > 0 then
            perform trunkline._end_segment(r.topic_id, r.partition, r.segment_rows);
        end if;
        -- The first call notes the horizon, the second one seals. Without an open publisher no id can have an
        -- owner then.
        perform trunkline._seal(r.topic_id, r.partition, r.segment_rows);
        perform trunkline._seal(r.topic_id, r.partition, r.segment_rows);
        perform trunkline._seal_staged(r.log);
        select v_count + coalesce(sum(trunkline._empty_segment(r.topic_id, r.partition, s.segment, s.last_offset)), 0) into v_count
        from (select * from trunkline._all_segments() a where a.log = r.log and a.sealed_at is not null and (a.last_offset >= r.base_offset
                    or a.staged and pg_relation_size(to_regclass(format('trunkline.topic_%s_%s_%s', r.topic_id, r.partition, a.segment))) > 0)
                and a.last_offset < trunkline._needed_from(r.log) order by a.last_offset) s;
    end loop;
    return v_count;
end
$$;

-- Copies ticks from the partition that is emptied next to the current one, and merges small ones to about
-- 1,000 offsets each. Meanwhile a reader finds an offset in either partition: both have the same content.
-- Does not copy the newest tick of a log, which also has the state of its scan.
create or replace function trunkline._copy_ticks(p_from smallint, p_to smallint) returns void
language sql
as $$
    with l as materialized (
        select l.log, l.base_offset, l.carried_upto, t.segment_rows, k.first_offset - 1 as upto
        from (select distinct log from trunkline.ticks where slot = p_from) x join trunkline.logs l using (log) join trunkline.topics t using (topic_id)
        cross join lateral (select first_offset from trunkline.ticks k where k.log = l.log order by k.first_offset desc limit 1) k
        where k.first_offset - 1 > l.carried_upto
    ), old as (
        -- of the store itself only the newest tick is needed
        select k.*, l.segment_rows, lag(upper(k.ids)) over w as before, lag(k.shared) over w as shared_before
        from l join trunkline.ticks k on k.slot = p_from and k.log = l.log
        where l.log <> 1 and k.first_offset > l.carried_upto and k.first_offset <= l.upto and k.first_offset + k.n > l.base_offset
        window w as (partition by k.log order by k.first_offset)
    ), runs as (
        -- Within one tick, offsets grow with the ids. So a tick with lower ids starts a new run. A change
        -- between shared store and own tables does too, and so does a staged segment: the segments before it
        -- may be far away or removed.
        select *, count(*) filter (where lower(ids) < before or shared <> shared_before
                                         or not shared and lower(ids) >= trunkline._staged_from(segment_rows) and lower(ids) / segment_rows <> (before - 1) / segment_rows)
                  over (partition by log order by first_offset) as run
        from old
    ), copied as (
        insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, shared)
        select p_to, log, min(first_offset), sum(n), range_agg(ids), max(cut_at), bool_and(shared) from runs group by log, run, first_offset / 1000
    )
    update trunkline.logs x set carried_upto = l.upto from l where x.log = l.log
$$;

-- Fails with lock_not_available while pg_dump is connected. A rotation calls it as its last step, which undoes
-- the rotation. TRUNCATE is not versioned: a dump whose snapshot is older than the copied rows, and that has
-- not locked the tables yet, would save neither these nor the rows that were truncated.
create or replace function trunkline._yield_to_dumps() returns void
language plpgsql
as $$
begin
    if exists (select from pg_stat_activity where datname = current_database() and application_name like 'pg\_dump%') then
        raise exception using errcode = 'lock_not_available', message = 'pg_dump is running';
    end if;
end
$$;

-- Empties the older of the two partitions of `ticks` and `positions`, and makes it the current one. Before
-- that, copies the rows that are still needed, while no other session can use the partition. Other sessions
-- wait at most for the lock timeout (20 ms) and the copying. Returns 1, or 0 if the locks were not available.
create or replace function trunkline._swap_partitions() returns int
language plpgsql
as $$
declare
    v_new smallint := 1 - (select slot from trunkline.epoch);
    v_cur smallint := 1 - v_new;
begin
    perform trunkline._copy_ticks(v_new, v_cur);
    perform set_config('lock_timeout', '20ms', true);
    begin
        execute format('lock table trunkline.ticks_%1$s, trunkline.positions_%1$s in access exclusive mode', v_new);
        -- ticks that were not copied before, including the newest of each log
        insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, snapshot, last_id, whole, own_xid, own_ids, shared)
        select v_cur, t.log, t.first_offset, t.n, t.ids, t.cut_at, t.snapshot, t.last_id, t.whole, t.own_xid, t.own_ids, t.shared
        from trunkline.logs l join trunkline.ticks t on t.slot = v_new and t.log = l.log and t.first_offset > l.carried_upto;
        -- one search of the index for each cursor in the slot, not for each that exists
        with recursive c(cursor_id) as (
            (select p.cursor_id from trunkline.positions p where p.slot = v_new order by p.cursor_id limit 1)
            union all
            select (select p.cursor_id from trunkline.positions p where p.slot = v_new and p.cursor_id > c.cursor_id order by p.cursor_id limit 1) from c where c.cursor_id is not null
        )
        insert into trunkline.positions
        select v_cur, p.cursor_id, p.state_no, p.committed, p.fetched, p.member, p.generation, p.deadline, p.at, p.last_match
        from c join trunkline.cursors k using (cursor_id)
        cross join lateral (select * from trunkline.positions x where x.cursor_id = c.cursor_id order by x.state_no desc limit 1) p
        where p.slot = v_new;
        execute format('truncate trunkline.ticks_%1$s, trunkline.positions_%1$s', v_new);
        update trunkline.epoch set slot = v_new, rotated_at = trunkline.clock();
        update trunkline.logs set carried_upto = 0 where carried_upto > 0;
        perform trunkline._yield_to_dumps();
    exception when lock_not_available then
        return 0;
    end;
    return 1;
end
$$;

-- Rotates `leases` and the tables that belong to it. Each has three partitions: new rows go to the current
-- one, and the next one is empty or will be emptied. A settle uses only the partition of its lease, so an
-- open settle does not prevent the others from being emptied. Holds the lock of passes (778001, 0). Returns
-- the number of steps done.
create or replace function trunkline._rotate() returns int
language plpgsql
as $$
declare
    r       trunkline.rotation;
    v_next  smallint;
    v_bytes bigint := trunkline._setting('rotate_bytes');
    v_moved int := 0;
begin
    if not pg_try_advisory_xact_lock(778001, 0) then
        return 0;
    end if;
    select * into r from trunkline.rotation;
    v_next := (r.current + 1) % 3;
    if not r.emptied then
        perform set_config('lock_timeout', '20ms', true);
        begin
            execute format('lock table trunkline.leases_%1$s, trunkline.settled_%1$s, trunkline.extensions_%1$s, trunkline.returns_%1$s, trunkline.later_%1$s,
                            trunkline.cursor_states_%1$s, trunkline.passes_%1$s in access exclusive mode', v_next);
            -- a pass now, so that no row of the partition is new to the next pass
            perform trunkline._pass();
            r.carried_bytes := trunkline._rotation_bytes(r.current);
            perform trunkline._carry(v_next, r.current);
            r.carried_bytes := trunkline._rotation_bytes(r.current) - r.carried_bytes;
            execute format('truncate trunkline.leases_%1$s, trunkline.settled_%1$s, trunkline.extensions_%1$s, trunkline.returns_%1$s, trunkline.later_%1$s,
                            trunkline.cursor_states_%1$s, trunkline.passes_%1$s', v_next);
            update trunkline.rotation set emptied = true, carried_bytes = r.carried_bytes;
            perform trunkline._yield_to_dumps();
            v_moved := 1;
        exception when lock_not_available then
            return 0;
        end;
    end if;
    -- Only when the partition has grown by `rotate_bytes`, and by as much as was copied into it: so copying costs
    -- no more than writing, however many leases and delays are open.
    if trunkline._rotation_bytes(r.current) >= r.carried_bytes + greatest(v_bytes, least(r.carried_bytes, 64 * v_bytes)) then
        update trunkline.rotation set current = v_next, emptied = false, rotated_at = trunkline.clock();
        -- claims read `returns` only from the current partition and the one before it
        insert into trunkline.returns
        select v_next, x.cursor_id, x.pos, x.source_id, x.log_offset, x.attempt, x.why, x.error, x.at, x.purge_no
        from trunkline.returns x join trunkline.cursors c using (cursor_id) cross join lateral trunkline._cursor_state(c) s
        where x.rotation = (v_next + 1) % 3 and (x.pos > s.upto or s.open @> x.pos);
        v_moved := v_moved + 1;
    end if;
    return v_moved;
end
$$;

-- Returns the size of a rotation partition, without indexes and extensions.
create or replace function trunkline._rotation_bytes(p_rotation int) returns bigint
language sql
as $$
    select sum(pg_relation_size(format('trunkline.%s_%s', t, p_rotation)::regclass)) from unnest('{leases,settled,later,cursor_states,passes,returns}'::text[]) t
$$;

-- Copies the rows that are still needed out of a partition that is about to be emptied. The caller has locked
-- its tables.
create or replace function trunkline._carry(p_from smallint, p_to smallint) returns void
language plpgsql
set enable_hashjoin = on
as $$
declare
    v_walked timestamptz := (select walked from trunkline.passes order by pass desc limit 1);
begin
    create temporary table if not exists carried (cursor_id int, first bigint, n bigint) on commit delete rows;
    insert into carried
    with s as materialized (
        -- once for each cursor, not for each lease
        select c.cursor_id, c.drawn_seq is null as ordered, x.upto, x.open
        from (select distinct y.cursor_id from trunkline.leases y where y.rotation = p_from) y join trunkline.cursors c using (cursor_id) cross join lateral trunkline._cursor_state(c) x
    )
    select l.cursor_id, l.first, l.n from trunkline.leases l join s using (cursor_id)
    where l.rotation = p_from and (
        trunkline._size(trunkline._leased(l)) > coalesce((select sum(e.n) from trunkline.settled e where e.rotation = p_from and e.cursor_id = l.cursor_id and e.pos >= l.first and e.pos < l.first + l.n), 0)
        -- no pass has accounted for its draw: without the lease it would count as a hole
        or not s.ordered and (l.first + l.n - 1 > s.upto or s.open && int8range(l.first, l.first + l.n))
        -- settled by the pass of this rotation: the next pass counts it
        or (l.cursor_id, l.first) in (select e.cursor_id, e.first from trunkline.settled e where e.rotation = p_from and e.xid = pg_current_xact_id())
        -- the state of an ordered partition
        or s.ordered and not exists (select from trunkline.leases y where y.cursor_id = l.cursor_id and y.first > l.first));
    insert into trunkline.leases
    select p_to, l.xid, l.cursor_id, l.first, l.n, l.taken, l.passed, l.skipped, l.expired, l.source_ids, l.offsets, l.attempts, l.whys, l.token, l.consumer, l.claimed_at, l.deadline,
           l.next_offset, l.held_offsets, l.held_attempts, l.held_dues, l.held_errors, l.purge_no
    from carried k join trunkline.leases l on l.rotation = p_from and l.cursor_id = k.cursor_id and l.first = k.first;
    insert into trunkline.settled
    select p_to, s.xid, s.cursor_id, s.pos, s.n, s.first, s.kind, s.due, s.error, s.at, s.purge_no from carried k
    -- the index has positions: without their bounds each lease would read all settles of its cursor
    join trunkline.settled s on s.rotation = p_from and s.cursor_id = k.cursor_id and s.pos >= k.first and s.pos < k.first + k.n and s.first = k.first;
    insert into trunkline.extensions
    select p_to, e.cursor_id, e.first, e.positions, e.until from carried k join trunkline.extensions e on e.rotation = p_from and e.cursor_id = k.cursor_id and e.first = k.first;
    insert into trunkline.later
    select p_to, d.due, d.no, d.kind, d.queue_id, d.cursor_id, d.positions, d.source_id, d.log_offset, d.attempt, d.why, d.error, d.due_at, d.at, d.purge_no
    from trunkline.later d where d.rotation = p_from and d.due > v_walked
      and (d.kind <> 'd' or exists (select from trunkline.topics t where t.topic_id = d.source_id));
    insert into trunkline.cursor_states
    select p_to, s.cursor_id, s.pass, s.drawn, s.drawn_before, s.upto, s.open, s.head, s.delivered, s.passed, s.skipped, s.expired, s.holes, s.settled, s.acked, s.returned, s.dead, s.gone, s.purged, s.delayed, s.waiting,
           s.withdrawn
    from trunkline.cursors c cross join lateral (select * from trunkline.cursor_states x where x.cursor_id = c.cursor_id order by x.pass desc limit 1) s
    where s.rotation = p_from;
    insert into trunkline.passes
    select p_to, p.pass, p.xid, p.snapshot, p.walked, p.at from (select * from trunkline.passes order by pass desc limit 1) p where p.rotation = p_from;
    delete from carried;
end
$$;

-- Rotates ticks and positions, then leases and the tables that belong to them.
create or replace function trunkline._upkeep_rotate() returns int
language sql
-- in this order: claims read ticks, and wait for locks on these only while partitions are swapped
as $$ select trunkline._rotate() + trunkline._swap_partitions() $$;

-- Truncates a partition if it has rows and can be locked within 50 ms. Returns 1 or 0. run_upkeep restores
-- the lock timeout.
create or replace function trunkline._empty_partition(p_partition text) returns int
language plpgsql
as $$
declare
    v_any boolean;
begin
    execute format('select exists (select from trunkline.%I)', p_partition) into v_any;
    if v_any then
        perform set_config('lock_timeout', '50ms', true);
        begin
            execute format('truncate trunkline.%I', p_partition);
        exception when lock_not_available then
            return 0;
        end;
    end if;
    return v_any::int;
end
$$;

-- Returns the current partition of a table that keeps its rows for a number of days.
create or replace function trunkline._window(p_table text) returns smallint
language sql stable
as $$ select slot from trunkline.windows where name = p_table $$;

-- Moves to the next of a table's three partitions once the current one was in use for half of p_keep, and at
-- least for one hour. The rows in the next partition are older than p_keep by then, and are removed.
-- Returns 1 if there were any.
create or replace function trunkline._turn_window(p_table text, p_keep interval) returns int
language plpgsql
as $$
declare
    v_now  timestamptz := trunkline.clock();
    v_gone int;
    v_any  boolean;
    w      trunkline.windows;
begin
    select * into w from trunkline.windows where name = p_table;
    if w.began_at > v_now then
        -- the server's clock was set back
        update trunkline.windows set began_at = v_now where name = p_table;
    end if;
    if v_now < w.began_at + greatest(p_keep / 2, interval '1 hour') then
        return 0;
    end if;
    v_gone := trunkline._empty_partition(p_table || '_' || (w.slot + 1) % 3);
    execute format('select exists (select from trunkline.%I)', p_table || '_' || (w.slot + 1) % 3) into v_any;
    if not v_any then
        update trunkline.windows set slot = (w.slot + 1) % 3, began_at = v_now where name = p_table;
    end if;
    return v_gone;
end
$$;

-- Drops the sequences of deleted cursors, except those that an open claim has locked.
create or replace function trunkline._drop_sequences() returns void
language plpgsql
as $$
declare
    v_name regclass;
begin
    for v_name in
        select c.oid from pg_class c
        where c.relnamespace = 'trunkline'::regnamespace and c.relkind = 'S' and c.relname ~ '^cursor_[0-9]+_(drawn|head)$'
          and not exists (select from trunkline.cursors k where k.cursor_id = split_part(c.relname, '_', 2)::int)
        limit trunkline._upkeep_batch()
    loop
        begin
            perform set_config('lock_timeout', '20ms', true);
            execute format('drop sequence if exists %s', v_name);
        exception when lock_not_available then
            null;
        end;
    end loop;
end
$$;

-- Empties idempotency windows that no publish checks any more. Deletes group members not seen for an hour,
-- sequences of deleted cursors, and redrives older than 30 days.
create or replace function trunkline._upkeep_windows() returns int
language plpgsql
as $$
declare
    v_win bigint := floor(extract(epoch from trunkline.clock()) / extract(epoch from trunkline._setting('idempotency_window')::interval));
begin
    delete from trunkline.members where seen_until < trunkline.clock() - interval '1 hour';
    perform trunkline._drop_sequences();
    delete from trunkline.redriven where at < trunkline.clock() - interval '30 days';
    return trunkline._empty_partition('idempotency_' || (v_win + 2) % 4);
end
$$;

-- Returns all upkeep tasks and their intervals.
create or replace function trunkline._upkeep_tasks() returns table (task text, every interval)
language sql stable
as $$
    values
    ('pass', interval '200 milliseconds'), ('schedules', '1 second'), ('sequence', '200 milliseconds'), ('delayed', '1 second'),
    ('segments', '5 seconds'), ('retention', '15 seconds'), ('rotate', trunkline._setting('rotate_every')::interval), ('windows', '1 minute'),
    ('history', '1 hour'), ('attempts', '1 hour'), ('stages', '10 minutes'), ('rollups', '1 minute'), ('jobs', '2 seconds'), ('runs', '500 milliseconds'), ('events', '10 seconds')
$$;

-- Returns the seconds since a task last ran; null if it never ran. A negative age means that the last run was
-- recorded while the server's clock was ahead. Frequent tasks have a sequence for it, which leaves no dead
-- rows; the others have a row in upkeep_tasks.
create or replace function trunkline._upkeep_age(p_task text) returns float8
language sql
as $$
    select extract(epoch from trunkline.clock())::float8 - nullif(coalesce(
        (select ran_at from trunkline.upkeep_tasks where task = p_task), pg_sequence_last_value(to_regclass('trunkline.upkeep_' || p_task))), 0) / 1000.0
$$;

-- Returns whether a task is due: it did not run within the last p_every. A last run in the future proves
-- nothing, so then the task is due.
create or replace function trunkline._upkeep_is_due(p_task text, p_every interval) returns boolean
language sql
as $$
    select not coalesce(x.age >= 0 and x.age < extract(epoch from p_every), false) from (select trunkline._upkeep_age(p_task) as age) x
$$;

-- Begins a run of a task: acquires its lock until the transaction ends, and records the time. Returns false if
-- the task is not due or runs in another session.
create or replace function trunkline._begin_run(p_task text, p_every interval) returns boolean
language plpgsql
as $$
declare
    v_now bigint := floor(extract(epoch from trunkline.clock()) * 1000);
begin
    -- Checked again under the lock: another session may have finished the task in between.
    if not trunkline._upkeep_is_due(p_task, p_every) or not pg_try_advisory_xact_lock(778004, hashtext(p_task))
       or not trunkline._upkeep_is_due(p_task, p_every) then
        return false;
    end if;
    if to_regclass('trunkline.upkeep_' || p_task) is not null then
        perform setval(('trunkline.upkeep_' || p_task)::regclass, v_now);
    else
        insert into trunkline.upkeep_tasks (task, ran_at) values (p_task, v_now) on conflict (task) do update set ran_at = excluded.ran_at;
    end if;
    return true;
end
$$;

-- Runs one upkeep task if it did not run within p_every and no other session runs it. Returns the amount of
-- work done, or null if the task did not run. Raises TL001 for an unknown task. Requires a READ COMMITTED
-- transaction. Waits at most two seconds for a lock, unless the session has its own lock_timeout.
create or replace function trunkline.run_upkeep(p_task text, p_every interval default '0') returns int
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_done  int;
    v_wait  text := current_setting('lock_timeout');
    v_began timestamptz;
    v_took  regclass;
begin
    if not exists (select from trunkline._upkeep_tasks() t where t.task = p_task) then
        perform trunkline._fail('TL001', format('upkeep task %s does not exist', trunkline._quoted(p_task)),
                                format('Use one of: %s.', (select string_agg(t.task, ', ') from trunkline._upkeep_tasks() t)));
    end if;
    perform trunkline._need_read_committed('upkeep');
    if not trunkline._begin_run(p_task, p_every) then
        return null;
    end if;
    -- A lock that another session keeps must not stop the other tasks.
    if v_wait = '0' then
        perform set_config('lock_timeout', '2s', true);
    end if;
    v_began := clock_timestamp();
    v_took := to_regclass(format('trunkline.upkeep_took_%s', p_task));
    execute format('select trunkline._upkeep_%s()', p_task) into v_done;
    -- The time that the task took, if it did something: most runs find nothing to do.
    if v_took is not null and v_done > 0 then
        perform setval(v_took, greatest(0, extract(epoch from clock_timestamp() - v_began) * 1000000)::bigint);
    end if;
    perform set_config('lock_timeout', v_wait, true);
    update trunkline.upkeep_tasks set since = null, code = null, error = null where task = p_task and since is not null;
    if found then
        raise notice 'upkeep task "%" recovered', p_task;
    end if;
    return v_done;
end
$$;

-- Records that a task failed. Returns true if the task worked before or failed with another error; numbers in
-- the message are ignored.
create or replace function trunkline._upkeep_failed(p_task text, p_code text, p_error text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    f trunkline.upkeep_tasks;
begin
    select * into f from trunkline.upkeep_tasks where task = p_task;
    if f.code = p_code and regexp_replace(f.error, '\d+', '', 'g') = regexp_replace(p_error, '\d+', '', 'g') then
        return false;
    end if;
    insert into trunkline.upkeep_tasks (task, since, code, error) values (p_task, trunkline.clock(), p_code, p_error)
    on conflict (task) do update set since = coalesce(upkeep_tasks.since, excluded.since), code = excluded.code, error = excluded.error;
    return true;
end
$$;

-- Returns interval, last run and state of each upkeep task. States: ok; never (has not run yet); late (has
-- not run for twice its interval plus 30 seconds); ahead (the last run is in the future, because the server's
-- clock was set back); failing (the last run failed). took_seconds: how long the last run took that succeeded
-- and had something to do; null if there was none.
create or replace function trunkline.upkeep_stats()
returns table (task text, state text, every interval, last_run_at timestamptz, age_seconds float8, failing_since timestamptz, error_code text, error text,
               took_seconds float8)
language sql
as $$
    select t.task,
           case when a.age < -1 then 'ahead' when f.since is not null then 'failing' when a.age is null then 'never'
                when a.age > extract(epoch from t.every) * 2 + 30 then 'late' else 'ok' end,
           t.every, trunkline.clock() - a.age * interval '1 second', a.age, f.since, f.code, f.error,
           pg_sequence_last_value(to_regclass(format('trunkline.upkeep_took_%s', t.task))) / 1000000.0
    from trunkline._upkeep_tasks() t
    cross join lateral (select trunkline._upkeep_age(t.task) as age) a
    left join trunkline.upkeep_tasks f on f.task = t.task
    order by t.task
$$;

-- Corrects times that were written while the server's clock was ahead. Otherwise these rows would wait until
-- the clock reaches those times again. Returns the size of the correction, or null.
-- Upkeep records the time of its last call in upkeep_clock. If that is more than a minute in the future, the
-- clock was set back. Does not change lease deadlines and due times of messages: a due time cannot be
-- distinguished from a long delay.
create or replace function trunkline._repair_clock() returns interval
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz := trunkline.clock();
    v_by   interval := to_timestamp(pg_sequence_last_value('trunkline.upkeep_clock') / 1000.0) - v_now;
    -- a later time was written while the clock was ahead
    v_from timestamptz;
    c      trunkline.cursors;
    g      trunkline.positions;
    h      trunkline.schedules;
begin
    -- normal: the last call was less than a second ago
    if v_by between interval '-1 second' and interval '0' or not pg_try_advisory_xact_lock(778004, hashtext('clock')) then
        return null;
    end if;
    if v_by is null or v_by <= interval '1 minute' then
        perform setval('trunkline.upkeep_clock', floor(extract(epoch from v_now) * 1000)::bigint);
        return null;
    end if;
    if current_setting('lock_timeout') = '0' then
        perform set_config('lock_timeout', '2s', true);
    end if;
    v_from := v_now + v_by / 2;
    -- A row that another session has locked is being updated with the correct time.
    for h in select * from trunkline.schedules where not paused and next_at > v_now for update skip locked loop
        begin
            update trunkline.schedules set next_at = x.tick
            from (select trunkline._cron_next(trunkline._parse_cron(h.cron), h.timezone, v_now) as tick) x where schedule_id = h.schedule_id and x.tick < next_at;
        exception when others then
            raise warning 'cannot correct the next run of schedule "%": % (%)', h.name, sqlerrm, sqlstate;
        end;
    end loop;
    update trunkline.members m set seen_until = m.seen_until - v_by
    from (select subscription_id, member from trunkline.members where seen_until > v_from for update skip locked) x
    where m.subscription_id = x.subscription_id and m.member = x.member;
    update trunkline.dispatchers d set seen_until = d.seen_until - v_by
    from (select dispatcher from trunkline.dispatchers where seen_until > v_from for update skip locked) x where d.dispatcher = x.dispatcher;
    update trunkline.egress_denials b set until = b.until - v_by
    from (select endpoint_id, dispatcher from trunkline.egress_denials where until > v_from for update skip locked) x
    where b.endpoint_id = x.endpoint_id and b.dispatcher = x.dispatcher;
    update trunkline.endpoints e
    set open_until = case when e.open_until > v_from then e.open_until - v_by else e.open_until end,
        probe_until = case when e.probe_until > v_from then e.probe_until - v_by else e.probe_until end,
        held_until = case when e.held_until > v_from then e.held_until - v_by else e.held_until end
    from (select endpoint_id from trunkline.endpoints where greatest(open_until, probe_until, held_until) > v_from for update skip locked) x
    where e.endpoint_id = x.endpoint_id;
    update trunkline.job_limit_shares s set until = s.until - v_by
    from (select limit_name, worker from trunkline.job_limit_shares where until > v_from for update skip locked) x
    where s.limit_name = x.limit_name and s.worker = x.worker;
    update trunkline.job_workers w set seen_at = w.seen_at - v_by
    from (select worker from trunkline.job_workers where seen_at > v_now for update skip locked) x where w.worker = x.worker;
    for c in select k.* from trunkline.cursors k
             cross join lateral (select p.at, p.deadline from trunkline.positions p where p.cursor_id = k.cursor_id order by p.state_no desc limit 1) p
             where k.queue_id is null and p.at > v_now and p.deadline is not null order by k.cursor_id loop
        continue when not pg_try_advisory_xact_lock(778005, c.cursor_id);
        g := trunkline._position(c);
        if g.at > v_now and g.deadline is not null then
            g.deadline := g.deadline - v_by;
            perform trunkline._move(g);
        end if;
    end loop;
    -- each new rollup is compared with the newest row
    delete from trunkline.rollups where at > v_now;
    insert into trunkline.alerts (at, kind, detail) values (v_now, 'clock_went_back', jsonb_build_object('seconds', round(extract(epoch from v_by))));
    delete from trunkline.upkeep_tasks where task = 'clock';
    -- Last, because setval is not rolled back: after an error above, the next call must try again.
    perform setval('trunkline.upkeep_clock', floor(extract(epoch from v_now) * 1000)::bigint);
    raise warning 'server clock went back by %; corrected schedules and time limits that were set in between', date_trunc('second', v_by);
    return v_by;
end
$$;

-- Returns the tasks that are due, in the order of one call: tasks that never ran or have a last run in the
-- future, then the one that ran longest ago.
create or replace function trunkline._upkeep_order() returns table (task text, every interval)
language sql set search_path = pg_catalog, pg_temp
as $$
    select t.task, t.every from trunkline._upkeep_tasks() t cross join lateral (select trunkline._upkeep_age(t.task) as age offset 0) a
    where not coalesce(a.age >= 0 and a.age < extract(epoch from t.every), false)
    order by case when a.age >= 0 then a.age end desc nulls first, t.every
$$;

-- Runs every upkeep task that is due, each in its own transaction. The task that ran longest ago is first. If
-- the caller's statement timeout ends the call, the next call starts with the remaining tasks. Commits, so it
-- cannot be called inside a transaction.
-- A failing task does not stop the others and does not end the call. upkeep_stats() shows it, and it runs
-- again after its interval. A warning reports it when it starts to fail or fails with another error.
create or replace procedure trunkline.upkeep()
language plpgsql
as $$
declare
    r      record;
    v_text text;
    v_code text;
begin
    -- Each transaction sets its isolation level, since the default of the database or role may differ. It
    -- also sets its path: a procedure that commits cannot have settings (pin.sql).
    commit;
    set transaction isolation level read committed;
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    begin
        perform trunkline._repair_clock();
    exception when others then
        get stacked diagnostics v_text = message_text, v_code = returned_sqlstate;
        if trunkline._upkeep_failed('clock', v_code, v_text) then
            raise warning 'server clock went back; cannot correct schedules and time limits that were set in between: %', v_text using errcode = v_code;
        end if;
    end;
    commit;
    set transaction isolation level read committed;
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    for r in select * from trunkline._upkeep_order() loop
        -- Recorded before the work, and kept if that fails or is cancelled: a failing task waits for its
        -- interval like any other.
        if to_regclass('trunkline.upkeep_' || r.task) is null then
            continue when not trunkline._begin_run(r.task, r.every);
            r.every := '0';
            commit;
            set transaction isolation level read committed;
            perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        end if;
        begin
            perform trunkline.run_upkeep(r.task, r.every);
        exception when others then
            get stacked diagnostics v_text = message_text, v_code = returned_sqlstate;
            if trunkline._upkeep_failed(r.task, v_code, v_text) then
                raise warning 'upkeep task "%" failed: %', r.task, v_text using errcode = v_code;
            end if;
        end;
        commit;
        set transaction isolation level read committed;
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    end loop;
end
$$;
