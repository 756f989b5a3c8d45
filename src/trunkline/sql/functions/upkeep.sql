-- Upkeep: tasks that anyone may run at any time (by hand, pg_cron, or `trunkline up`). Each task is safe to repeat, does a
-- bounded amount of work, and is done by one session at a time. trunkline.upkeep() runs those that are due.

-- Moves due messages from `scheduled` into their log, at most p_limit; for one topic or all.
create or replace function trunkline._release_due(p_topic_id int, p_limit int) returns int
language plpgsql
as $$
declare
    v_now   timestamptz := trunkline.clock();
    v_first timestamptz;
    v_count int := 0;
    g       record;
begin
    -- in this form it reads one entry of an index, whatever the statistics say
    select least((select due_at from trunkline.scheduled where topic_id = p_topic_id order by due_at limit 1),
                 (select due_at from trunkline.scheduled where p_topic_id is null order by due_at limit 1)) into v_first;
    if v_first is null or v_first > v_now then
        return 0;
    end if;
    for g in
        with due as (
            select schedule_id, due_at, length(payload) as bytes from trunkline.scheduled
            where due_at <= v_now and (p_topic_id is null or topic_id = p_topic_id)
            order by due_at limit p_limit for update skip locked
        ), step as (
            -- an array has a limit of 1 GB, so a step has one too
            select schedule_id from (select *, sum(bytes) over (order by due_at, schedule_id) - bytes as before from due) d where before < 33554432
        ), gone as (
            delete from trunkline.scheduled s using step where s.schedule_id = step.schedule_id returning s.*
        )
        select topic_id, count(*)::int as n, array_agg(payload order by due_at, schedule_id) as payloads, array_agg(id order by due_at, schedule_id) as ids,
               array_agg(key order by due_at, schedule_id) as keys, array_agg(routing_key order by due_at, schedule_id) as routing_keys,
               array_agg(label order by due_at, schedule_id) as labels, array_agg(headers order by due_at, schedule_id) as headers,
               array_agg(content_type order by due_at, schedule_id) as content_types, array_agg(occurred_at order by due_at, schedule_id) as occurred_ats,
               array_agg(priority order by due_at, schedule_id) as priorities,
               array_agg(case when published_at is not null then row(published_at, null)::trunkline.origin end order by due_at, schedule_id) as origins
        from gone group by topic_id
    loop
        perform trunkline._append((select x from trunkline.topics x where x.topic_id = g.topic_id), g.payloads, g.ids, g.keys, g.routing_keys, g.labels, g.headers, g.content_types, g.occurred_ats, g.priorities, g.origins);
        v_count := v_count + g.n;
    end loop;
    return v_count;
end
$$;

-- How many logs or cursors one run of a task takes on, any of them: the locks it needs for each are kept to its end, and the server has only so many.
create or replace function trunkline._upkeep_batch() returns int
language sql immutable
as $$ select 500 $$;

-- One pass, unless a consumer's is running.
create or replace function trunkline._upkeep_pass() returns int
language plpgsql
as $$
begin
    if not pg_try_advisory_xact_lock(778001, 0) then
        return 0;
    end if;
    perform trunkline._note_service();
    return (trunkline._pass() is not null)::int;
end
$$;

create or replace function trunkline._upkeep_due() returns int
language sql
as $$ select trunkline._release_due(null, 5000) $$;

-- A topic may be deleted while a task is at it, which shows in many ways: then there is nothing to look after. Any other error is raised again.
create or replace function trunkline._pass_if_gone(p_topic_id int, p_code text, p_error text) returns void
language plpgsql
as $$
begin
    if exists (select from trunkline.topics where topic_id = p_topic_id) then
        raise exception using errcode = p_code, message = p_error;
    end if;
end
$$;

-- Those of these logs that may have messages without an offset: as _has_unsequenced, in one statement for all of them.
create or replace function trunkline._unsequenced_logs(p_logs int[]) returns int[]
language plpgsql
as $$
begin
    return array(
        select l.log from trunkline.logs l
        left join lateral (select t.whole, t.last_id from trunkline.ticks t where t.log = l.log order by t.first_offset desc limit 1) k on true
        where l.log = any (p_logs)
          and (not coalesce(k.whole, true)
               or coalesce(pg_sequence_last_value(to_regclass('trunkline.topic_' || l.topic_id || '_' || l.partition || '_ids')), 0) > coalesce(k.last_id, 0)));
exception when others then
    -- a topic was deleted meanwhile: the caller checks each of them
    return p_logs;
end
$$;

-- Gives offsets to what was committed in the logs, some hundred of them in turn.
create or replace function trunkline._upkeep_sequence() returns int
language plpgsql
as $$
declare
    r       record;
    v_count int := 0;
    v_from  int := coalesce(pg_sequence_last_value('trunkline.logs_visited'), 0);
    v_logs  int[] := array(select l.log from trunkline.topics t join trunkline.logs l using (topic_id) where not t.shared and l.log > greatest(v_from, 1) order by l.log limit trunkline._upkeep_batch());
begin
    perform setval('trunkline.logs_visited', coalesce(v_logs[trunkline._upkeep_batch()], 0));
    -- a session that holds a log is sequencing it
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

-- The positions of a lease that are not settled.
create or replace function trunkline._unsettled(l trunkline.leases) returns int8multirange
language sql stable
as $$
    select trunkline._leased(l) - coalesce(range_agg(int8range(s.pos, s.pos + s.n)), '{}') from trunkline.settled s
    where s.rotation = l.rotation and s.cursor_id = l.cursor_id and s.pos >= l.first and s.pos < l.first + l.n
$$;

-- The lowest offset of a log that a queue, not an ordered one, has leased and not settled, or null. p_drawn: of the leases of the log itself, or of all
-- others, which have what came back.
create or replace function trunkline._lowest_leased(c trunkline.cursors, p trunkline.pass_run, p_drawn boolean) returns bigint
language plpgsql stable
as $$
declare
    d        record;
    v_lowest bigint;
begin
    -- what the newest pass has not seen
    select min(x.log_offset) into v_lowest
    from trunkline._new_leases(p) l join trunkline.cursors k using (cursor_id) cross join lateral trunkline._entries(l, trunkline._unsettled(l)) x
    where k.queue_id = c.queue_id and x.source_id = c.cursor_id and (k.cursor_id = c.cursor_id) = p_drawn;
    -- All others are in `later` until they end, many in one row. Positions of the log itself are offsets, so the first rows have the lowest.
    for d in
        select y.cursor_id, y.positions from trunkline.later y
        where y.queue_id = c.queue_id and y.kind = 'l' and y.due > (p.before).walked and (y.cursor_id = c.cursor_id) = p_drawn
        order by lower(y.positions)
    loop
        exit when p_drawn and lower(d.positions) >= v_lowest;
        select least(v_lowest, min(x.log_offset)) into v_lowest
        from unnest(d.positions) r
        cross join lateral (select l from trunkline.leases l where l.cursor_id = d.cursor_id and l.first >= lower(r) and l.first < upper(r) offset 0) y
        cross join lateral trunkline._entries(y.l, trunkline._unsettled(y.l)) x where x.source_id = c.cursor_id;
    end loop;
    return v_lowest;
end
$$;

-- The lowest offset of a log that came back to a queue and is not leased again, or null. p_upto: one at or below it is enough.
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
    -- what is drawn counts as leased when a pass has accounted for it
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

-- Whether nothing of a queue is leased, returned or delayed: by the totals of the newest pass, and no lease is new since. A pass may account for the position of a lease
-- that committed after its snapshot and is counted by the next pass only, so the totals alone are not enough.
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

-- The offset below which no reader of the log needs anything any more. With p_upto the result says only whether something up to there is needed: it is at or
-- below p_upto then. That is found out without reading all that is leased or delayed.
-- Stable, so that all of it is read in one snapshot: a message that is leased or returned meanwhile must not be missed in both places. So the caller keeps tables
-- from being rotated (_begin_read), in a statement before.
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
            -- the newest lease of an ordered partition is all of its state
            o := trunkline._ordered_state(c);
            v_needed := least(v_needed, o.next_offset, (select min(x) from unnest(o.offsets || case when o.is_open then (o.l).offsets end) x));
            continue;
        end if;
        -- what is drawn and not accounted for may come back
        select least(v_needed, s.upto + 1, lower(s.open)) into v_needed from trunkline._cursor_state(c) s;
        continue when trunkline._is_quiet(c.queue_id, p);
        for i in 1 .. 3 loop
            exit when v_needed <= p_upto;
            v_needed := least(v_needed, case i when 1 then trunkline._lowest_leased(c, p, true) when 2 then trunkline._lowest_returned(c, p, p_upto)
                                               else trunkline._lowest_leased(c, p, false) end);
        end loop;
        exit when v_needed <= p_upto;
    end loop;
    return v_needed;
end
$$;

-- Starts the next segment of a log: new ids are above those of the current one. Moves the sequence under the lock that nextval needs, in a subtransaction that
-- is rolled back on purpose: the lock ends with it, the sequence stays moved. Not while a publisher is open, which has that lock until it ends; then
-- the segment could not be sealed either. Returns whether it was done.
create or replace function trunkline._end_segment(p_topic_id int, p_partition int, p_segment_rows int) returns boolean
language plpgsql
as $$
declare
    v_ids  regclass := trunkline._ids(p_topic_id, p_partition);
    v_last bigint;
begin
    perform trunkline._make_segments(p_topic_id);
    begin
        perform set_config('lock_timeout', '20ms', true);
        -- changes nothing, but takes the lock
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

-- Those of these logs whose segments may need something: the next one is missing, one is complete and not sealed, the current one is old, or a new one may not be
-- counted on by publishers. Most logs need nothing; one statement finds that out for all of them.
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
            select coalesce(bool_or(s.segment = (i.last + 1) / t.segment_rows + 1), false) as ahead,
                   bool_or(s.sealed_at is null and (s.segment + 1) * t.segment_rows - 1 <= i.last) as complete,
                   bool_or(s.segment = i.last / t.segment_rows and s.created_at < v_now - greatest(least(t.retention, interval '30 days') / 8, interval '1 second')) as old
            from trunkline.segments s where s.log = l.log) s
        where l.log = any (p_logs)
          and (not s.ahead or s.complete or s.old and i.last > 0 and (i.last + 1) % t.segment_rows > 0 or random() < 0.01
               -- the functions of a topic are checked with its first partition
               or l.partition = 0 and exists (select from trunkline.segments x where x.log >= l.log and x.log < l.log + 64 and x.created_at > v_now - interval '1 hour')));
exception when others then
    -- a topic was deleted meanwhile: the caller checks each of them
    return p_logs;
end
$$;

-- Segments: keeps one ahead, rolls those that are old, seals those that are complete.
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
        -- publishers and readers may have to wait for what we lock here
        exit when v_count >= trunkline._upkeep_batch() / 10;
        begin
            v_last := trunkline._last_id(r.topic_id, r.partition);
            -- The topic's lock comes before those we hold now, so it is only tried: who has it changes or deletes the topic, and the next run comes soon.
            if (not exists (select from trunkline.segments s where s.log = r.log and s.segment = (v_last + 1) / r.segment_rows + 1)
                or r.partition = 0 and trunkline._limits_lag(r.topic_id)) and pg_try_advisory_xact_lock(778003, r.topic_id) then
                v_count := v_count + trunkline._make_segments(r.topic_id);
                v_topic := r.topic_id;
            end if;
            -- old enough to be worth a segment of its own
            if (v_last + 1) % r.segment_rows > 0 and v_last > 0
               and to_regclass(format('trunkline.topic_%s_%s_%s', r.topic_id, r.partition, v_last / r.segment_rows)) is not null then
                execute format('select created_at from trunkline.topic_%s_%s_%s order by id limit 1', r.topic_id, r.partition, v_last / r.segment_rows) into v_oldest;
                -- publishers must count on the next segment before, or they would wait for us
                if v_oldest < trunkline.clock() - greatest(least(r.retention, interval '30 days') / 8, interval '1 second')
                   and v_topic is distinct from r.topic_id and not trunkline._limits_lag(r.topic_id) and pg_try_advisory_xact_lock(778003, r.topic_id) then
                    v_count := v_count + trunkline._end_segment(r.topic_id, r.partition, r.segment_rows)::int;
                end if;
            end if;
            v_count := v_count + trunkline._seal(r.topic_id, r.partition, r.segment_rows);
        exception
            -- somebody keeps it locked; the others are not to wait for that
            when lock_not_available then
                null;
            when others then
                perform trunkline._pass_if_gone(r.topic_id, sqlstate, sqlerrm);
        end;
    end loop;
    return v_count;
end
$$;

-- Seals segments whose ids were all drawn by transactions that have ended: what is not visible by then never will be.
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
        -- Transaction numbers start over in a restored cluster: a number that is not used yet is one of the old cluster, where all have ended.
        exit when v_xmin < s.drained_xid and s.drained_xid <= pg_snapshot_xmax(pg_current_snapshot()) and trunkline._has_owner_below(p_topic_id, p_partition, s.drained_xid);
        if v_log = 1 then
            perform trunkline._tick_store(true);
        else
            perform trunkline._tick(p_topic_id, p_partition, p_segment_rows, true);
        end if;
        -- the newest tick that has an id of this segment or of one before it; ids mostly grow with offsets, so it is near the end
        select coalesce(max(t.first_offset + trunkline._size(t.ids * int8multirange(int8range(null, (s.segment + 1) * p_segment_rows))) - 1), 0) into v_last_offset
        from trunkline.ticks t where t.log = v_log and t.shared = (v_log = 1) and lower(t.ids) < (s.segment + 1) * p_segment_rows;
        update trunkline.segments set sealed_at = trunkline.clock(), last_offset = v_last_offset where log = v_log and segment = s.segment;
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;

-- Removes segments that retention lets go and that every reader has passed. Rows go by truncate, which locks only the
-- segment itself; the empty table goes when its parent can be locked without waiting.
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
        -- until the end of the task nothing is rotated
        perform trunkline._begin_read();
    exception when lock_not_available then
        return v_count;
    end;
    for r in
        -- what may go by its age; all segments where the size counts, since only there it is worth to ask for the size of each
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
        -- below it lies what is gone; and what was staged and passed by others, or got no offset at all: its rows need not wait for the table to go
        if r.last_offset < v_base then
            if r.staged and pg_relation_size(to_regclass(format('trunkline.topic_%s_%s_%s', r.topic_id, r.partition, r.segment))) > 0 then
                v_count := v_count + trunkline._empty_segment(r.topic_id, r.partition, r.segment, r.last_offset);
            end if;
            continue;
        end if;
        continue when not (r.sealed_at < trunkline.clock() - r.retention or coalesce(r.bytes_from_here > r.retention_bytes, false));
        -- Only a prefix may go. What is staged needs no look at others: every offset up to its last one was given before it was sealed.
        continue when not r.staged and exists (
            select from trunkline.segments s where s.log = r.log and s.segment < r.segment and coalesce(s.last_offset, 9223372036854775807) >= v_base);
        continue when trunkline._archive_waits(r.topic_id, r.partition, r.last_offset);
        -- Only tried: a session that adds a reader or moves one has chosen a position that is not visible yet. Queues' own logs get no readers.
        continue when r.kind = 'topic' and not pg_try_advisory_xact_lock(778012, r.topic_id);
        v_forced := r.hard_retention is not null and r.sealed_at < trunkline.clock() - r.hard_retention;
        -- the alert names the lowest one
        v_needed := coalesce(trunkline._needed_from(r.log, case when not v_forced then r.last_offset end), 9223372036854775807);
        if v_needed <= r.last_offset and not v_forced then
            continue;
        end if;
        begin
            v_gone := trunkline._empty_segment(r.topic_id, r.partition, r.segment, r.last_offset);
            if v_gone > 0 and v_needed <= r.last_offset then
                insert into trunkline.alerts (at, kind, detail) values (trunkline.clock(), 'retention_overtook_reader',
                    jsonb_build_object('topic', r.name, 'partition', r.partition, 'reader_needed', v_needed, 'lowest_offset', r.last_offset + 1));
                raise warning 'retention of topic % removed offsets % to % that a reader still needed', r.name, v_needed, r.last_offset;
            end if;
            v_count := v_count + v_gone;
        exception when lock_not_available then
            -- a claim that is kept open has the cursor: the segment stays until a later run
            null;
        end;
    end loop;
    perform trunkline._drop_empty_segments();
    return v_count + trunkline._drop_deleted();
end
$$;

-- Drops the tables and functions of topics and queues that were deleted. A transaction that read `topics` before may know the topic by its number and
-- use its tables later, so the first run notes these transactions, and the tables go in a run that finds none of them. Returns the number of topics.
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
                raise warning 'the tables of deleted topic % cannot be dropped: % (%)', d.topic_id, sqlerrm, sqlstate;
        end;
    end loop;
    return v_count;
end
$$;

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

-- Drops segments that were emptied, and blocks that have none left. Publishers that overlap hold the topic's table and the block they write to without end, so the
-- last segments of a busy topic stay until its next block begins, and then only the block does, which has no storage.
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
          -- a later segment must know where the log goes on
          and (s.staged or exists (select from trunkline.segments n where n.log = s.log and n.segment > s.segment))
        order by random() limit trunkline._upkeep_batch() / 5
    loop
        -- others wait behind a lock that is waited for, so each table is tried once
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
            -- Under the lock of sessions that attach segments. Dropping a block would drop its segments, so it is checked again, by the catalog's own snapshot.
            if pg_try_advisory_xact_lock(778003, r.topic_id) and (select count(*) = 1 from pg_partition_tree(r.block)) then
                execute format('drop table if exists %s', r.block);
            end if;
        exception when lock_not_available then
            v_busy := v_busy || r.parent;
        end;
    end loop;
end
$$;

-- Segments of both kinds: of what was published, and of what Spark's tasks have written.
create or replace function trunkline._all_segments() returns table (log int, segment bigint, sealed_at timestamptz, last_offset bigint, staged boolean)
language sql stable
as $$
    select s.log, s.segment, s.sealed_at, s.last_offset, false from trunkline.segments s
    union all
    select g.log, g.segment, g.sealed_at, g.last_offset, true from trunkline.staged_segments g
$$;

-- Removes what a queue has finished with now, without waiting for its retention. What is in the shared store cannot be read from then on, and its space
-- is reused with its segment; segments of the queue's own tables are emptied. Returns how many segments and parts of the store these were.
create or replace function trunkline.cleanup_queue(p_name text) returns int
language plpgsql
as $$
declare
    q        trunkline.queues := trunkline._queue(p_name);
    r        record;
    v_count  int := 0;
    v_needed bigint;
begin
    perform trunkline._need_read_committed('cleanup_queue');
    -- what was settled until now
    perform trunkline._sequence_alone(array[q.queue_id], null);
    perform trunkline._begin_read();
    for r in select l.*, t.segment_rows, t.shared from trunkline.logs l join trunkline.topics t using (topic_id) where l.topic_id = q.inbox_id loop
        if r.shared then
            -- what is finished in the shared store cannot be read any more; its space is reused with its segment
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
        -- once to note the horizon, once to seal: nobody can be left when no publisher is open
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

-- Copies the ticks of the slot that is emptied next to the current one, many small ones as one of about 1,000 offsets. Whoever
-- looks for an offset meanwhile finds it in either: both say the same. The newest tick of a log is left out: it is more than a map.
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
        -- Offsets of one tick go up with the ids: a tick with lower ones starts a new run. So does another store, and a staged segment: those before it may be
        -- far away, or gone.
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

-- Empties the older slot of ticks and positions and makes it the current one. Whatever is still needed is carried over first, while no session
-- can read or write that slot: others wait at most for the lock time-out and the copying.
create or replace function trunkline._swap_slots() returns int
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
        -- ticks that were not copied before, among them the newest of each log
        insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, snapshot, last_id, whole, own_xid, own_ids, shared)
        select v_cur, t.log, t.first_offset, t.n, t.ids, t.cut_at, t.snapshot, t.last_id, t.whole, t.own_xid, t.own_ids, t.shared
        from trunkline.logs l join trunkline.ticks t on t.slot = v_new and t.log = l.log and t.first_offset > l.carried_upto;
        insert into trunkline.positions
        select v_cur, p.cursor_id, p.state_no, p.committed, p.fetched, p.member, p.generation, p.deadline, p.at, p.last_match
        from trunkline.cursors c
        cross join lateral (select * from trunkline.positions x where x.cursor_id = c.cursor_id order by x.state_no desc limit 1) p
        where p.slot = v_new;
        execute format('truncate trunkline.ticks_%1$s, trunkline.positions_%1$s', v_new);
        update trunkline.epoch set slot = v_new, rotated_at = trunkline.clock();
        update trunkline.logs set carried_upto = 0 where carried_upto > 0;
    exception when lock_not_available then
        return 0;
    end;
    return 1;
end
$$;

-- Rotation of leases and what belongs to them. Three partitions: new rows go to the current one, the next one is empty or about to be emptied. A
-- settle touches only the partition of its lease, so one that is open keeps no other from being emptied.
create or replace function trunkline._rotate() returns int
language plpgsql
as $$
declare
    r       trunkline.rotation;
    v_next  smallint;
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
            -- nothing of it is new to the next pass
            perform trunkline._pass();
            perform trunkline._carry(v_next, r.current);
            execute format('truncate trunkline.leases_%1$s, trunkline.settled_%1$s, trunkline.extensions_%1$s, trunkline.returns_%1$s, trunkline.later_%1$s,
                            trunkline.cursor_states_%1$s, trunkline.passes_%1$s', v_next);
            update trunkline.rotation set emptied = true;
            v_moved := 1;
        exception when lock_not_available then
            return 0;
        end;
    end if;
    -- worth it when the partition is large, and much larger than what would have to be carried: so each row is carried a bounded number of times
    if trunkline._rotation_bytes(r.current) >= trunkline._setting('rotate_bytes')::bigint then
        update trunkline.rotation set current = v_next, emptied = false, rotated_at = trunkline.clock();
        -- claims read returns from the current partition and the one before it
        insert into trunkline.returns
        select v_next, x.cursor_id, x.pos, x.source_id, x.log_offset, x.attempt, x.why, x.error, x.at, x.purge_no
        from trunkline.returns x join trunkline.cursors c using (cursor_id) cross join lateral trunkline._cursor_state(c) s
        where x.rotation = (v_next + 1) % 3 and (x.pos > s.upto or s.open @> x.pos);
        v_moved := v_moved + 1;
    end if;
    return v_moved;
end
$$;

create or replace function trunkline._rotation_bytes(p_rotation int) returns bigint
language sql
as $$
    select sum(pg_relation_size(format('trunkline.%s_%s', t, p_rotation)::regclass)) from unnest('{leases,settled,later,cursor_states,passes,returns}'::text[]) t
$$;

-- Copies what is still needed of a partition that is about to be emptied, whose tables the caller has locked.
create or replace function trunkline._carry(p_from smallint, p_to smallint) returns void
language plpgsql
as $$
declare
    v_walked timestamptz := (select walked from trunkline.passes order by pass desc limit 1);
begin
    create temporary table if not exists carried (cursor_id int, first bigint) on commit delete rows;
    insert into carried
    select l.cursor_id, l.first from trunkline.leases l join trunkline.cursors c using (cursor_id)
    where l.rotation = p_from and (
        trunkline._size(trunkline._leased(l)) > coalesce((select sum(s.n) from trunkline.settled s where s.rotation = p_from and s.cursor_id = l.cursor_id and s.pos >= l.first and s.pos < l.first + l.n), 0)
        -- no pass has accounted for its draw: without the lease it would be a hole
        or c.drawn_seq is not null and exists (
            select from trunkline._cursor_state(c) s where l.first + l.n - 1 > s.upto or s.open && int8range(l.first, l.first + l.n))
        -- the state of an ordered partition
        or c.drawn_seq is null and not exists (select from trunkline.leases y where y.cursor_id = l.cursor_id and y.first > l.first));
    insert into trunkline.leases
    select p_to, l.xid, l.cursor_id, l.first, l.n, l.taken, l.passed, l.skipped, l.expired, l.source_ids, l.offsets, l.attempts, l.whys, l.token, l.consumer, l.claimed_at, l.deadline,
           l.next_offset, l.held_offsets, l.held_attempts, l.held_dues, l.held_errors, l.purge_no
    from carried k join trunkline.leases l on l.rotation = p_from and l.cursor_id = k.cursor_id and l.first = k.first;
    insert into trunkline.settled
    select p_to, s.xid, s.cursor_id, s.pos, s.n, s.first, s.kind, s.due, s.error, s.at, s.purge_no from carried k join trunkline.settled s on s.rotation = p_from and s.cursor_id = k.cursor_id and s.first = k.first;
    insert into trunkline.extensions
    select p_to, e.cursor_id, e.first, e.positions, e.until from carried k join trunkline.extensions e on e.rotation = p_from and e.cursor_id = k.cursor_id and e.first = k.first;
    insert into trunkline.later
    select p_to, d.due, d.no, d.kind, d.queue_id, d.cursor_id, d.positions, d.source_id, d.log_offset, d.attempt, d.why, d.error, d.due_at, d.at, d.purge_no
    from trunkline.later d where d.rotation = p_from and d.due > v_walked;
    insert into trunkline.cursor_states
    select p_to, s.cursor_id, s.pass, s.drawn, s.drawn_before, s.upto, s.open, s.head, s.delivered, s.passed, s.skipped, s.expired, s.holes, s.settled, s.acked, s.returned, s.dead, s.gone, s.purged, s.delayed
    from trunkline.cursors c cross join lateral (select * from trunkline.cursor_states x where x.cursor_id = c.cursor_id order by x.pass desc limit 1) s
    where s.rotation = p_from;
    insert into trunkline.passes
    select p_to, p.pass, p.xid, p.snapshot, p.walked, p.at from (select * from trunkline.passes order by pass desc limit 1) p where p.rotation = p_from;
    delete from carried;
end
$$;

create or replace function trunkline._upkeep_rotate() returns int
language sql
as $$ select trunkline._swap_slots() + trunkline._rotate() $$;

-- Empties a slot of a table, if it has rows and nobody is at it just now; answers 1 or 0. run_upkeep puts the time-out back.
create or replace function trunkline._empty_slot(p_slot text) returns int
language plpgsql
as $$
declare
    v_any boolean;
begin
    execute format('select exists (select from trunkline.%I)', p_slot) into v_any;
    if v_any then
        perform set_config('lock_timeout', '50ms', true);
        begin
            execute format('truncate trunkline.%I', p_slot);
        exception when lock_not_available then
            return 0;
        end;
    end if;
    return v_any::int;
end
$$;

-- The partition for new rows of a table that keeps them for some days.
create or replace function trunkline._window(p_table text) returns smallint
language sql stable
as $$ select slot from trunkline.windows where name = p_table $$;

-- Moves on to the next of a table's four partitions when the current one was in use for a third of p_keep: what the next one has is older than p_keep, and
-- is removed. Returns whether there was something to remove.
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
        -- the clock was set back
        update trunkline.windows set began_at = v_now where name = p_table;
    end if;
    if v_now < w.began_at + greatest(p_keep / 3, interval '1 hour') then
        return 0;
    end if;
    v_gone := trunkline._empty_slot(p_table || '_' || (w.slot + 1) % 4);
    execute format('select exists (select from trunkline.%I)', p_table || '_' || (w.slot + 1) % 4) into v_any;
    if not v_any then
        update trunkline.windows set slot = (w.slot + 1) % 4, began_at = v_now where name = p_table;
    end if;
    return v_gone;
end
$$;

-- Drops the sequences of cursors that are gone, unless a claim of theirs is still open.
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

-- Empties idempotency windows that nobody can look into any more, and forgets members that left without a word and old redrives.
create or replace function trunkline._upkeep_windows() returns int
language plpgsql
as $$
declare
    v_win bigint := floor(extract(epoch from trunkline.clock()) / extract(epoch from trunkline._setting('idempotency_window')::interval));
begin
    delete from trunkline.members where seen_until < trunkline.clock() - interval '1 hour';
    perform trunkline._drop_sequences();
    delete from trunkline.redriven where at < trunkline.clock() - interval '30 days';
    return trunkline._empty_slot('idempotency_' || (v_win + 2) % 4);
end
$$;

-- All upkeep tasks and their intervals.
create or replace function trunkline._upkeep_tasks() returns table (task text, every interval)
language sql stable
as $$
    values
    ('pass', interval '200 milliseconds'), ('due', '200 milliseconds'), ('schedules', '1 second'), ('sequence', '200 milliseconds'),
    ('segments', '5 seconds'), ('retention', '15 seconds'), ('rotate', trunkline._setting('rotate_every')::interval), ('windows', '1 minute'),
    ('history', '1 hour'), ('attempts', '1 hour'), ('stages', '10 minutes'), ('rollups', '1 minute'), ('jobs', '2 seconds')
$$;

-- How long ago a task ran, in seconds; null if it never ran. Negative: its mark was set by a clock that was ahead.
create or replace function trunkline._upkeep_age(p_task text) returns float8
language sql
as $$
    select extract(epoch from trunkline.clock())::float8 - nullif(pg_sequence_last_value(format('trunkline.upkeep_%s', p_task)::regclass), 0) / 1000.0
$$;

-- A task is due unless it ran within the last p_every. A mark in the future says nothing, so the task is due.
create or replace function trunkline._upkeep_is_due(p_task text, p_every interval) returns boolean
language sql
as $$
    select not coalesce(x.age >= 0 and x.age < extract(epoch from p_every), false) from (select trunkline._upkeep_age(p_task) as age) x
$$;

-- Runs one upkeep task if it is due and no other session runs it. Returns how much it did, or null if it did not run.
create or replace function trunkline.run_upkeep(p_task text, p_every interval default '0') returns int
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_done int;
    v_wait text := current_setting('lock_timeout');
begin
    if not exists (select from trunkline._upkeep_tasks() t where t.task = p_task) then
        perform trunkline._fail('TL001', format('there is no upkeep task %L', p_task),
                                'use one of: ' || (select string_agg(t.task, ', ') from trunkline._upkeep_tasks() t));
    end if;
    perform trunkline._need_read_committed('upkeep');
    -- Checked again under the lock: between the two another session may have finished the task.
    if not trunkline._upkeep_is_due(p_task, p_every) or not pg_try_advisory_xact_lock(778004, hashtext(p_task))
       or not trunkline._upkeep_is_due(p_task, p_every) then
        return null;
    end if;
    -- Set before the work and kept if that fails: a failing task waits for its interval like any other.
    perform setval(format('trunkline.upkeep_%s', p_task)::regclass, floor(extract(epoch from trunkline.clock()) * 1000)::bigint);
    -- A lock that another session keeps must not stop the other tasks.
    if v_wait = '0' then
        perform set_config('lock_timeout', '2s', true);
    end if;
    execute format('select trunkline._upkeep_%s()', p_task) into v_done;
    perform set_config('lock_timeout', v_wait, true);
    delete from trunkline.upkeep_failures where task = p_task;
    if found then
        raise notice 'upkeep task % works again', p_task;
    end if;
    return v_done;
end
$$;

-- Records that a task failed. Returns whether that is news: it worked before, or failed differently (numbers in the message aside).
create or replace function trunkline._upkeep_failed(p_task text, p_code text, p_error text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    f trunkline.upkeep_failures;
begin
    select * into f from trunkline.upkeep_failures where task = p_task;
    if f.code = p_code and regexp_replace(f.error, '\d+', '', 'g') = regexp_replace(p_error, '\d+', '', 'g') then
        return false;
    end if;
    insert into trunkline.upkeep_failures (task, since, code, error) values (p_task, trunkline.clock(), p_code, p_error)
    on conflict (task) do update set code = excluded.code, error = excluded.error;
    return true;
end
$$;

-- Upkeep tasks: interval, last run, and whether the task works. States: ok; never (has not run yet); late (has not run for twice its interval
-- and 30 seconds); ahead (the last run is in the future: the server's clock went back); failing (the last run failed).
create or replace function trunkline.upkeep_stats()
returns table (task text, state text, every interval, last_run_at timestamptz, age_seconds float8, failing_since timestamptz, error_code text, error text)
language sql
as $$
    select t.task,
           case when a.age < -1 then 'ahead' when f.task is not null then 'failing' when a.age is null then 'never'
                when a.age > extract(epoch from t.every) * 2 + 30 then 'late' else 'ok' end,
           t.every, trunkline.clock() - a.age * interval '1 second', a.age, f.since, f.code, f.error
    from trunkline._upkeep_tasks() t
    cross join lateral (select trunkline._upkeep_age(t.task) as age) a
    left join trunkline.upkeep_failures f on f.task = t.task
    order by t.task
$$;

-- Puts right what was written while the server's clock was ahead and would otherwise wait until the clock gets there again. Upkeep notes the
-- time of its last call in upkeep_clock: if that is over a minute in the future, the clock went back. Returns by how much, or null.
-- Not touched: deadlines of leases and due times of messages. The latter cannot be told from long delays.
create or replace function trunkline._repair_clock() returns interval
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz := trunkline.clock();
    v_by   interval := to_timestamp(pg_sequence_last_value('trunkline.upkeep_clock') / 1000.0) - v_now;
    -- a time beyond this was set while the clock was ahead
    v_from timestamptz;
    c      trunkline.cursors;
    g      trunkline.positions;
    h      trunkline.schedules;
begin
    -- normal: the last call was a moment ago
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
    -- A row that another session has locked is being renewed with the right time.
    for h in select * from trunkline.schedules where not paused and next_at > v_now for update skip locked loop
        begin
            update trunkline.schedules set next_at = x.tick
            from (select trunkline._cron_next(trunkline._parse_cron(h.cron), h.timezone, v_now) as tick) x where schedule_id = h.schedule_id and x.tick < next_at;
        exception when others then
            raise warning 'schedule % keeps its next run: % (%)', h.name, sqlerrm, sqlstate;
        end;
    end loop;
    update trunkline.members m set seen_until = m.seen_until - v_by
    from (select subscription_id, member from trunkline.members where seen_until > v_from for update skip locked) x
    where m.subscription_id = x.subscription_id and m.member = x.member;
    update trunkline.dispatchers d set seen_until = d.seen_until - v_by
    from (select dispatcher from trunkline.dispatchers where seen_until > v_from for update skip locked) x where d.dispatcher = x.dispatcher;
    update trunkline.endpoint_bars b set until = b.until - v_by
    from (select endpoint_id, dispatcher from trunkline.endpoint_bars where until > v_from for update skip locked) x
    where b.endpoint_id = x.endpoint_id and b.dispatcher = x.dispatcher;
    update trunkline.endpoints e
    set open_until = case when e.open_until > v_from then e.open_until - v_by else e.open_until end,
        probe_until = case when e.probe_until > v_from then e.probe_until - v_by else e.probe_until end,
        held_until = case when e.held_until > v_from then e.held_until - v_by else e.held_until end
    from (select endpoint_id from trunkline.endpoints where greatest(open_until, probe_until, held_until) > v_from for update skip locked) x
    where e.endpoint_id = x.endpoint_id;
    update trunkline.job_slots s set until = s.until - v_by
    from (select limit_name, worker from trunkline.job_slots where until > v_from for update skip locked) x
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
    -- the newest row is what the next one is compared with
    delete from trunkline.rollups where at > v_now;
    insert into trunkline.alerts (at, kind, detail) values (v_now, 'clock_went_back', jsonb_build_object('seconds', round(extract(epoch from v_by))));
    delete from trunkline.upkeep_failures where task = 'clock';
    -- last: it is not rolled back, and without it nothing would try again
    perform setval('trunkline.upkeep_clock', floor(extract(epoch from v_now) * 1000)::bigint);
    raise warning 'upkeep: the server clock went back by %; schedules and time limits set meanwhile were corrected', date_trunc('second', v_by);
    return v_by;
end
$$;

-- The tasks in the order of a call: the one that waits longest first, before it those without a mark or with one in the future.
create or replace function trunkline._upkeep_order() returns table (task text, every interval)
language sql set search_path = pg_catalog, pg_temp
as $$
    select t.task, t.every from trunkline._upkeep_tasks() t cross join lateral (select trunkline._upkeep_age(t.task) as age) a
    order by case when a.age >= 0 then a.age end desc nulls first, t.every
$$;

-- Runs every task that is due, each in its own transaction, the one that waits longest first: if a statement timeout of the caller ends the call,
-- the next call starts with the tasks that had no turn. A failing task does not stop the others and does not end the call: upkeep_stats() shows
-- it, a warning reports it when it starts to fail or fails differently, and it runs again after its interval.
create or replace procedure trunkline.upkeep()
language plpgsql
as $$
declare
    r      record;
    v_text text;
    v_code text;
begin
    -- Each transaction sets its level, since the default of the database or role may be another, and its path: a procedure that commits cannot have
    -- settings (pin.sql).
    commit;
    set transaction isolation level read committed;
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    begin
        perform trunkline._repair_clock();
    exception when others then
        get stacked diagnostics v_text = message_text, v_code = returned_sqlstate;
        if trunkline._upkeep_failed('clock', v_code, v_text) then
            raise warning 'upkeep: the server clock went back, and correcting what was written meanwhile fails: %', v_text using errcode = v_code;
        end if;
    end;
    commit;
    set transaction isolation level read committed;
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    for r in select * from trunkline._upkeep_order() loop
        begin
            perform trunkline.run_upkeep(r.task, r.every);
        exception when others then
            get stacked diagnostics v_text = message_text, v_code = returned_sqlstate;
            if trunkline._upkeep_failed(r.task, v_code, v_text) then
                raise warning 'upkeep task % fails: %', r.task, v_text using errcode = v_code;
            end if;
        end;
        commit;
        set transaction isolation level read committed;
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    end loop;
end
$$;
