-- Lists of jobs, of returned and delayed messages, and of limits. Lists have pages: each row has a position,
-- and a call with the last position as p_after returns the rows that follow.

-- Returns a time in microseconds, as in a position.
create or replace function trunkline._micros(p_at timestamptz) returns bigint
language sql immutable
as $$ select (extract(epoch from p_at) * 1000000)::bigint $$;

-- Returns the time of a number of microseconds.
create or replace function trunkline._from_micros(p_micros bigint) returns timestamptz
language sql immutable
as $$ select timestamptz '1970-01-01 00:00:00+00' + p_micros * interval '1 microsecond' $$;

-- Returns the parts of a position, or null. Raises TL001 unless it has p_names names, then a letter, then
-- numbers or an id.
create or replace function trunkline._position_parts(p_after text, p_names int) returns text[]
language plpgsql
as $$
begin
    if p_after !~ format('^([A-Za-z0-9._-]{1,200}/){%s}[a-z](/-?[0-9]{1,18}){1,4}$', p_names)
       and p_after !~ format('^([A-Za-z0-9._-]{1,200}/){%s}[a-z]/[0-9a-f-]{36}$', p_names) then
        perform trunkline._fail('TL001', format('after must be the position of a row of this list, got %s', trunkline._quoted(p_after, 100)),
                                'Pass the position of the last row, or null for the first page.');
    end if;
    return string_to_array(p_after, '/');
end
$$;

-- Returns messages that were returned to a queue and are not leased. p_part: 'r' for those that can be
-- claimed, in the order in which they are delivered; 'l' for those that are not due yet, by due time. p_key: the
-- numbers of the position after which to start, or null. Messages that were returned since the newest pass
-- are not included. The caller has called _begin_read.
create or replace function trunkline._returns_after(q trunkline.queues, p_part text, p_key text[], p_limit int)
returns table (source_id int, log_offset bigint, attempt int, why "char", error text, due_at timestamptz, place text)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    p   trunkline.pass_run := trunkline._since_pass();
    k_1 bigint := coalesce(p_key[1]::bigint, 0);
    k_2 bigint := coalesce(p_key[2]::bigint, -1);
    k_3 bigint := coalesce(p_key[3]::bigint, -1);
begin
    if q.ordered then
        return query
        select x.source_id, x.log_offset, x.attempt, x.why, x.error, x.due_at,
               case p_part when 'r' then format('r/%s/%s', x.source_id, x.log_offset) else format('l/%s/%s/%s', trunkline._micros(x.due_at), x.source_id, x.log_offset) end
        from trunkline._returned(q.queue_id) x
        where case p_part when 'r' then x.due_at <= trunkline.clock() and (x.source_id, x.log_offset) > (k_1, k_2)
                  else x.due_at > trunkline.clock() and (trunkline._micros(x.due_at), x.source_id, x.log_offset) > (k_1, k_2, k_3) end
        order by case p_part when 'l' then x.due_at end, x.source_id, x.log_offset limit p_limit;
    elsif p_part = 'r' then
        return query
        select r.source_id, r.log_offset, r.attempt, r.why, r.error, r.at, format('r/%s/%s', r.cursor_id, r.pos)
        from (select * from trunkline.cursors x where x.queue_id = q.queue_id and x.kind in ('returns', 'label') and x.cursor_id >= k_1 order by x.cursor_id) c
        cross join lateral (select greatest(trunkline._drawn(c), case when c.cursor_id = k_1 then k_2 end) as past offset 0) n
        cross join lateral (
            select distinct on (x.pos) x.* from trunkline.returns x where x.cursor_id = c.cursor_id and x.pos > n.past order by x.pos limit p_limit) r
        limit p_limit;
    else
        return query
        select d.source_id, d.log_offset, d.attempt, d.why, d.error, d.due_at, format('l/%s/%s', trunkline._micros(d.due), d.no)
        from trunkline.later d
        where d.queue_id = q.queue_id and d.kind = 'r' and d.due >= greatest((p.before).walked, trunkline._from_micros(k_1)) and d.due > (p.before).walked
          and (d.due, d.no) > (trunkline._from_micros(k_1), k_2) and not trunkline._is_purged(q, d.purge_no, p)
        order by d.due, d.no limit p_limit;
    end if;
end
$$;

-- Returns delayed messages of a topic, or of a queue's own log, that have not entered it yet, by due time. The
-- caller has called _begin_read.
create or replace function trunkline._delayed_after(p_topic_id int, q trunkline.queues, p_key text[], p_limit int)
returns table (id uuid, key text, label text, due_at timestamptz, published_at timestamptz, place text)
language sql stable
as $$
    select s.id, s.key, s.label, s.due_at, s.published_at, format('d/%s/%s', trunkline._micros(s.due_at), s.no)
    from trunkline._delayed s
    where s.topic_id = p_topic_id and s.due_at >= trunkline._from_micros(coalesce(p_key[1]::bigint, 0))
      and s.due_at > (select b.walked from trunkline.passes b order by b.pass desc limit 1)
      and (s.due_at, s.no) > (trunkline._from_micros(coalesce(p_key[1]::bigint, 0)), coalesce(p_key[2]::bigint, -1))
      and (q.queue_id is null or not trunkline._is_withdrawn(q, s.xid, s.purge_no))
    order by s.due_at, s.no limit p_limit
$$;

-- Returns the messages of a queue that were returned to it or were published with a delay, and are not
-- leased; or the delayed messages of a topic. Give either p_queue or p_topic. Returned messages that can be
-- claimed are first (state ready), then those that wait for a retry (delayed), then those that were published
-- with a delay and are not in the log yet (offset null); the last two by due time.
--
-- why: how the last delivery ended. error: the error that it ended with. p_after: position of the last row of
-- the former page. p_limit is 1 to 10,000. Not included: messages that a setting delivery_delay of the queue
-- delays, and those that were returned after the newest pass, which runs several times a second.
create or replace function trunkline.list_delayed(p_queue text default null, p_topic text default null, p_after text default null, p_limit int default 100)
returns table (state text, topic text, partition int, log_offset bigint, id uuid, key text, label text, due_at timestamptz, attempt int, why text, error text,
               created_at timestamptz, "position" text)
language plpgsql
as $$
#variable_conflict use_column
declare
    q       trunkline.queues;
    t       trunkline.topics;
    v_after text[] := trunkline._position_parts(p_after, 0);
    v_part  text;
    v_left  int := p_limit;
    v_count int;
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    if num_nonnulls(p_queue, p_topic) <> 1 then
        perform trunkline._fail('TL001', format('a queue or a topic is required, got %s', case when p_topic is null then 'neither' else 'both' end),
                                'Pass either p_queue or p_topic.');
    elsif p_queue is not null then
        q := trunkline._queue(p_queue);
    else
        t := trunkline._topic('topic', p_topic);
    end if;
    begin
        perform trunkline._begin_read();
        foreach v_part in array '{r,l,d}'::text[] loop
            -- The parts are not in the order of the alphabet.
            continue when strpos('rld', v_part) < strpos('rld', v_after[1]);
            exit when v_left <= 0;
            if v_part = 'd' then
                return query
                select 'delayed', t.name, null::int, null::bigint, s.id, s.key || '', s.label || '', s.due_at, 0, null::text, null::text, s.published_at, s.place
                from trunkline._delayed_after(coalesce(q.inbox_id, t.topic_id), q, case when v_part = v_after[1] then v_after[2:] end, v_left) s;
            elsif q.queue_id is not null then
                return query
                select case v_part when 'r' then 'ready' else 'delayed' end, c.topic, c.partition, m.log_offset, m.id, m.key || '', m.label || '', x.due_at, x.attempt,
                       trunkline._outcome(x.why), x.error || '', m.created_at, x.place
                from trunkline._returns_after(q, v_part, case when v_part = v_after[1] then v_after[2:] end, v_left) x
                join trunkline.cursors c on c.cursor_id = x.source_id
                cross join lateral trunkline._read_left(c, x.log_offset) m;
            else
                continue;
            end if;
            get diagnostics v_count = row_count;
            v_left := v_left - v_count;
        end loop;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns the consumers that hold deliveries of a queue or had some settled in the last p_since (at most as
-- long as the setting `history`), the one that was active last first. leased: deliveries that it holds.
-- settled, failed: among the newest 10,000 rows of the delivery history; failed are those that were not acked.
-- Consumers that claimed without a name are one row with a null name.
create or replace function trunkline.list_consumers(p_queue text, p_since interval default '1 hour', p_limit int default 100)
returns table (consumer text, leased bigint, oldest_claim_at timestamptz, settled bigint, failed bigint, last_claim_at timestamptz, last_settle_at timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
    q       trunkline.queues := trunkline._queue(p_queue);
    v_since timestamptz := trunkline.clock() - p_since;
begin
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    begin
        perform trunkline._begin_read();
        return query
        select x.consumer || '', coalesce(sum(x.n) filter (where x.kind is null), 0)::bigint, min(x.claimed_at) filter (where x.kind is null),
               coalesce(sum(x.n) filter (where x.kind is not null), 0)::bigint, coalesce(sum(x.n) filter (where x.kind <> 'a'), 0)::bigint,
               max(x.claimed_at), max(x.settled_at)
        from (
            select l.consumer, l.last_offset - l.first_offset + 1 as n, l.kind, l.claimed_at, l.settled_at from trunkline._live_deliveries(q.queue_id) l
            union all
            (select h.consumer, h.last_offset - h.first_offset + 1, h.kind, h.claimed_at, h.settled_at
             from trunkline.history h where h.queue_id = q.queue_id and h.settled_at > v_since order by h.settled_at desc limit 10000)
        ) x
        group by x.consumer order by greatest(max(x.claimed_at), max(x.settled_at)) desc, x.consumer limit p_limit;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns jobs of one queue and state, at most p_limit, and p_kind if it is not null. p_part, p_key: the
-- position after which to start, or null. The caller has called _begin_read.
create or replace function trunkline._jobs_after(q trunkline.queues, p_state text, p_kind text, p_part text, p_key text[], p_limit int)
returns table (id uuid, kind text, attempt int, due_at timestamptz, worker text, error text, created_at timestamptz, ended_at timestamptz, place text)
language plpgsql
as $$
#variable_conflict use_column
declare
    -- how many messages to read to find p_limit jobs: messages without a label, or of other kinds, are passed
    v_most   int := case when p_kind is null then greatest(p_limit, 1000) else 10000 end;
    v_left   int := p_limit;
    v_count  int;
    v_part   text;
    v_key    text[];
    v_now    timestamptz := trunkline.clock();
    v_walked timestamptz;
    k_1      bigint;
    k_2      bigint;
    k_3      bigint;
    k_4      bigint;
begin
    foreach v_part in array case p_state when 'running' then '{a}' when 'ready' then '{r,g}' when 'delayed' then '{l,g,d}' when 'blocked' then '{b}'
                                         when 'dead' then '{e}' else '{z}' end::text[] loop
        -- Parts before that of the position are done.
        if p_part is not null and v_part <> p_part then
            continue;
        end if;
        v_key := case when v_part = p_part then p_key end;
        p_part := null;
        exit when v_left <= 0;
        if v_part not in ('b') then
            k_1 := v_key[1]::bigint;
            k_2 := v_key[2]::bigint;
            k_3 := v_key[3]::bigint;
            k_4 := v_key[4]::bigint;
        end if;
        if v_part = 'a' then
            return query
            select m.id, m.label, d.attempt, null::timestamptz, d.consumer, null::text, m.created_at, null::timestamptz, format('a/%s/%s', d.source_id, m.log_offset)
            from (select * from trunkline._live_deliveries(q.queue_id) l
                  where l.kind is null and (k_1 is null or (l.source_id, l.last_offset) > (k_1, k_2)) order by l.source_id, l.first_offset) d
            join trunkline.cursors c on c.cursor_id = d.source_id
            cross join lateral (select greatest(d.first_offset, case when d.source_id = k_1 then k_2 + 1 end) as lo offset 0) s
            cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, s.lo, least(d.last_offset, s.lo + v_most - 1)) m
            where m.label is not null and (p_kind is null or m.label = p_kind)
            limit v_left;
        elsif v_part in ('r', 'l') then
            return query
            select m.id, m.label, x.attempt, x.due_at, null::text, x.error, m.created_at, null::timestamptz, x.place
            from trunkline._returns_after(q, v_part, v_key, v_most) x
            join trunkline.cursors c on c.cursor_id = x.source_id
            cross join lateral trunkline._read_left(c, x.log_offset) m
            where m.label is not null and (p_kind is null or m.label = p_kind)
            limit v_left;
        elsif v_part = 'g' then
            return query
            select m.id, m.label, 0, case p_state when 'delayed' then m.entered_at + q.delivery_delay end, null::text, null::text, m.created_at, null::timestamptz,
                   format('g/%s/%s', c.cursor_id, m.log_offset)
            from (select * from trunkline.cursors x where x.queue_id = q.queue_id and x.kind = 'log' and x.topic_id = q.inbox_id
                  and x.cursor_id >= coalesce(k_1, 0) order by x.cursor_id) c
            cross join lateral (select greatest(trunkline._next_offset(c), case when c.cursor_id = k_1 then k_2 + 1 end) as lo, trunkline._head(c.log) as head offset 0) s
            cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, s.lo, least(s.head, s.lo + v_most - 1)) m
            where m.label is not null and (p_kind is null or m.label = p_kind) and (m.entered_at + q.delivery_delay > v_now) = (p_state = 'delayed')
            limit v_left;
        elsif v_part = 'd' then
            return query
            select s.id, s.label, 0, s.due_at, null::text, null::text, s.published_at, null::timestamptz, s.place
            from trunkline._delayed_after(q.inbox_id, q, v_key, v_most) s where s.label is not null and (p_kind is null or s.label = p_kind)
            limit v_left;
        elsif v_part = 'b' then
            return query
            select w.waiting_id, w.label, 0, null::timestamptz, null::text, null::text, w.created_at, null::timestamptz, format('b/%s', w.waiting_id)
            from trunkline.job_waiting w
            where w.queue = q.name and w.waiting_id > coalesce(v_key[1]::uuid, '00000000-0000-0000-0000-000000000000') and (p_kind is null or w.label = p_kind)
            order by w.waiting_id limit v_left;
        elsif v_part = 'e' then
            return query
            select d.id, d.label, d.attempts, null::timestamptz, null::text, coalesce(d.error, d.reason), d.created_at, d.dead_at, format('e/%s', d.dead_id)
            from (select * from trunkline.dead_letters x where x.queue_id = q.queue_id and x.dead_id > coalesce(k_1, 0) order by x.dead_id limit v_most) d
            where d.label is not null and (p_kind is null or d.label = p_kind)
            order by d.dead_id limit v_left;
        else
            return query
            select m.id, m.label, h.attempt, null::timestamptz, h.consumer, null::text, m.created_at, h.settled_at,
                   format('z/%s/%s/%s/%s', trunkline._micros(h.settled_at), h.source_id, h.first_offset, m.log_offset)
            from (select * from trunkline.history x
                  where x.queue_id = q.queue_id and x.kind = 'a' and x.settled_at > v_now - q.history
                    and (k_1 is null or x.settled_at <= trunkline._from_micros(k_1) and (x.settled_at, x.source_id, x.first_offset) <= (trunkline._from_micros(k_1), k_2, k_3))
                  order by x.settled_at desc, x.source_id desc, x.first_offset desc limit v_most) h
            join trunkline.cursors c on c.cursor_id = h.source_id
            cross join lateral (
                select greatest(h.first_offset, l.base_offset,
                                case when (trunkline._micros(h.settled_at), h.source_id, h.first_offset) = (k_1, k_2, k_3) then k_4 + 1 end) as lo
                from trunkline.logs l where l.log = c.log offset 0) s
            cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, s.lo, least(h.last_offset, s.lo + v_most - 1)) m
            where s.lo <= h.last_offset and m.label is not null and (p_kind is null or m.label = p_kind)
            limit v_left;
        end if;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
end
$$;

-- Returns the names of the queues that can have jobs in a state. Without p_queue, reads the totals of all
-- queues once instead of looking for jobs in each of them.
create or replace function trunkline._queues_with_jobs(p_queue text, p_state text) returns text[]
language sql
as $$
    select case when p_queue is not null then array[p_queue]
                when p_state = 'blocked' then array(select q.name from trunkline.queues q where exists (select from trunkline.job_waiting w where w.queue = q.name))
                when p_state in ('running', 'dead', 'ready', 'delayed') then
                    array(select s.queue from trunkline.queue_stats() s
                          where case p_state when 'running' then s.leased when 'dead' then s.dead when 'ready' then s.ready else s.delayed end > 0)
                else array(select q.name from trunkline.queues q) end
$$;

-- Returns jobs of a queue, or of all queues (null), by state, then by queue. p_state: running, ready,
-- delayed, blocked, dead or done; null for all but done. p_kind: only jobs of this kind.
--
-- Returns up to p_limit jobs (1 to 10,000). For more, call it again with the position of the last row as
-- p_after. Jobs that change their state between two calls can be missing or returned twice.
--
-- Done jobs are listed newest first, as long as both the log and the delivery history keep them. Of the
-- messages that were not delivered yet, lists only direct messages of the queue; messages of subscribed
-- topics are listed from their first delivery on. With p_kind it reads at most 10,000 messages of a queue and
-- state in one call, and continues with the next queue or state if there are fewer jobs of that kind in them.
create or replace function trunkline.list_jobs(p_queue text default null, p_state text default null, p_limit int default 100, p_kind text default null, p_after text default null)
returns table (id uuid, queue text, kind text, state text, attempt int, due_at timestamptz, worker text, error text, created_at timestamptz, ended_at timestamptz,
               "position" text)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_states text[] := '{running,ready,delayed,blocked,dead,done}';
    v_after  text[] := trunkline._position_parts(p_after, 2);
    v_left   int := p_limit;
    v_state  text;
    v_names  text[];
    v_count  int;
    q        trunkline.queues;
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    if p_state <> all (v_states) or v_after[1] <> all (v_states) then
        perform trunkline._fail('TL001', format('state must be "running", "ready", "delayed", "blocked", "dead" or "done", got %s',
                                                trunkline._quoted(case when p_state <> all (v_states) then p_state else v_after[1] end, 50)),
                                'Use one of these states, or null for all but "done".');
    elsif p_queue is not null then
        perform trunkline._queue(p_queue);
    end if;
    begin
        perform trunkline._begin_read();
        foreach v_state in array case when p_state is null then v_states[:5] else array[p_state] end loop
            continue when array_position(v_states, v_state) < array_position(v_states, v_after[1]);
            exit when v_left <= 0;
            v_names := trunkline._queues_with_jobs(p_queue, v_state);
            for q in
                select * from trunkline.queues x
                where x.name = any (v_names) and (v_state is distinct from v_after[1] or x.name >= v_after[2] collate "C") order by x.name collate "C"
            loop
                exit when v_left <= 0;
                return query
                select j.id, q.name, j.kind || '', v_state, j.attempt, j.due_at, j.worker || '', j.error || '', j.created_at, j.ended_at,
                       format('%s/%s/%s', v_state, q.name, j.place)
                from trunkline._jobs_after(q, v_state, p_kind, case when v_state = v_after[1] and q.name = v_after[2] then v_after[3] end,
                                           case when v_state = v_after[1] and q.name = v_after[2] then v_after[4:] end, v_left) j;
                get diagnostics v_count = row_count;
                v_left := v_left - v_count;
            end loop;
        end loop;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Withdraws a cancel request. Returns withdrawn, or the state of the job if there is none: its request was
-- carried out, or it never had one. A worker that has read the request stops the job anyway. Raises
-- TL018 if there is no such job.
create or replace function trunkline.uncancel_job(p_id uuid) returns text
language plpgsql
as $$
declare
    v_state text;
begin
    if p_id is null then
        perform trunkline._fail('TL001', 'id must not be null', 'Pass the id that enqueue returned.');
    end if;
    delete from trunkline.job_cancels where job_id = p_id;
    if found then
        return 'withdrawn';
    end if;
    v_state := trunkline._job_state(p_id);
    if v_state is null then
        perform trunkline._fail_job(p_id);
    end if;
    return v_state;
end
$$;

-- Returns all limits by name. tokens: tokens that can be taken now; null without a rate. holders: the workers
-- with a share, the largest share first: worker, running (jobs that it may run), waits (it wanted more when
-- its share was written) and until (when the share ends). running: the sum of their shares.
create or replace function trunkline.list_limits()
returns table (name text, max_running int, rate float8, burst float8, tokens float8, running bigint, waiting bigint, holders jsonb)
language sql stable
as $$
    select l.name, l.max_running, l.rate, l.burst,
           case when l.rate is not null then least(l.burst, l.tokens + l.rate * greatest(0, extract(epoch from trunkline.clock() - l.at)::float8)) end,
           coalesce(h.running, 0), coalesce(h.waiting, 0), coalesce(h.holders, '[]')
    from trunkline.job_limits l
    cross join lateral (
        select sum(s.held) as running, count(*) filter (where s.wanted > s.held) as waiting,
               jsonb_agg(jsonb_build_object('worker', s.worker, 'running', s.held, 'waits', coalesce(s.wanted > s.held, false), 'until', s.until) order by s.held desc, s.worker) as holders
        from trunkline.job_limit_shares s where s.limit_name = l.name and s.until > trunkline.clock() and (s.held > 0 or s.wanted > s.held)) h
    order by l.name
$$;
