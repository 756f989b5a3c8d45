-- For HTTP clients of other systems' habits: they settle by message id or by offset alone, without a receipt or a generation. Everything
-- here ends in the same rows as the verbs; the names start with _ because programs of our own should use those.

-- The newest lease that had an offset of a cursor, in its first pass or in the retry lane; null: it was never claimed.
create or replace function trunkline._newest_lease(c trunkline.cursors, p_offset bigint) returns trunkline.leases
language sql stable
as $$ select * from trunkline._leases_of(c, p_offset) l order by l.cursor_id = c.cursor_id, l.lease_no desc limit 1 $$;

-- How a message stands in a queue: leased (with the receipt of who has it), acked, waiting, dead or gone. No row: the queue never saw it.
create or replace function trunkline._delivery_of(p_queue text, p_id uuid, out state text, out receipt text)
returns setof record
language plpgsql
as $$
declare
    q        trunkline.queues := trunkline._queue(p_queue);
    c        trunkline.cursors;
    l        trunkline.leases;
    v_offset bigint;
    v_kind   "char";
    v_until  timestamptz;
begin
    for c in select * from trunkline.cursors where queue_id = q.queue_id and lane = 'log' order by cursor_id loop
        v_offset := trunkline._find_offset(c.log, p_id);
        continue when v_offset is null or v_offset < c.start_position;
        l := trunkline._newest_lease(c, v_offset);
        if l.cursor_id is null then
            continue when v_offset < (trunkline._lease_state(c)).position
                and not exists (select from trunkline.pending where cursor_id = c.cursor_id and log_offset = v_offset);
            state := 'waiting';
            return next;
            return;
        end if;
        select e.kind into v_kind from trunkline.lease_events e
        where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no and e.kind <> 'e' and e.offsets @> v_offset order by e.at limit 1;
        if not found then
            select max(e.until) into v_until from trunkline.lease_events e
            where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no and e.kind = 'e' and e.offsets @> v_offset;
            state := case when greatest(l.deadline, v_until) > trunkline.clock() then 'leased' else 'waiting' end;
            receipt := case state when 'leased' then format('%s.%s.%s.%s', v_offset, l.cursor_id, l.lease_no, l.token) end;
        else
            state := case when v_kind = 'a' then 'acked' when v_kind in ('b', 'd') then 'dead' when v_kind = 'g' then 'gone' else 'waiting' end;
        end if;
        return next;
        return;
    end loop;
end
$$;

-- Ends every open lease of a queue and forgets its messages: with purge_queue the queue is empty then, whoever works on what.
create or replace function trunkline._drop_leases(p_queue text) returns bigint
language plpgsql
as $$
declare
    q       trunkline.queues := trunkline._queue(p_queue);
    l       trunkline.leases;
    v_open  int8multirange;
    v_total bigint := 0;
begin
    perform trunkline._need_read_committed('purge');
    perform trunkline._commit_durably();
    for l in
        select x.* from trunkline.cursors c
        cross join lateral trunkline._open_leases(c.cursor_id) o
        cross join lateral (select * from trunkline.leases where cursor_id = o.cursor_id and lease_no = o.lease_no offset 0) x
        where c.queue_id = q.queue_id order by x.cursor_id, x.lease_no
    loop
        perform from trunkline.leases where cursor_id = l.cursor_id and lease_no = l.lease_no for update;
        -- a statement of its own: it sees what was settled while we waited for the row
        select l.offsets - coalesce(range_agg(e.offsets) filter (where e.kind <> 'e'), '{}') into v_open
        from trunkline.lease_events e where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no;
        if not isempty(v_open) then
            insert into trunkline.lease_events (slot, cursor_id, lease_no, kind, offsets, at)
            values ((select slot from trunkline.epoch), l.cursor_id, l.lease_no, 'g', v_open, trunkline.clock());
            v_total := v_total + trunkline._size(v_open);
        end if;
    end loop;
    return v_total;
end
$$;

-- Which queue receipts belong to, by the cursor that is their second part; no row for a cursor that is gone.
create or replace function trunkline._queues_of_cursors(p_cursors int[]) returns table (cursor_id int, queue text)
language sql stable
as $$ select c.cursor_id, q.name from trunkline.cursors c join trunkline.queues q using (queue_id) where c.cursor_id = any (p_cursors) $$;

-- A subscription whose name is unique in the whole database, and the only one of its queue to its topic.
create or replace function trunkline._subscribe_once(
    p_name text, p_queue text, p_topic text, p_pattern text, p_filter jsonb, p_start text)
returns trunkline.subscriptions
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    q trunkline.queues := trunkline._queue(p_queue);
begin
    -- below every number that a topic has
    perform pg_advisory_xact_lock(778003, -2000000000);
    if exists (select from trunkline.subscriptions s where s.kind = 'queue' and s.name <> '@inbox'
                  and (s.name = p_name or s.queue_id = q.queue_id and s.topic_id = t.topic_id)) then
        perform trunkline._fail('TL020', format('subscription %L exists, or queue %L has one to topic %L', p_name, p_queue, p_topic),
                                'use another id, or delete the other one first');
    end if;
    return trunkline.subscribe(p_queue, p_topic, p_pattern, p_filter, p_start, p_name);
end
$$;

-- fetch for a member that may have forgotten its generation: while its lease lasts it gets again what it has not committed.
create or replace function trunkline._pull(p_topic text, p_group text, p_member text, p_max int, p_lease interval)
returns setof trunkline.fetched
language plpgsql
as $$
declare
    t            trunkline.topics := trunkline._single_log(p_topic, 'pull');
    v_generation uuid;
begin
    select p.generation into v_generation
    from trunkline.subscriptions g
    join trunkline.cursors c using (subscription_id)
    cross join lateral (select * from trunkline.positions x where x.cursor_id = c.cursor_id order by x.state_no desc limit 1) p
    where g.kind = 'group' and g.topic_id = t.topic_id and g.name = p_group and p.member = p_member and p.deadline > trunkline.clock();
    return query select * from trunkline.fetch(p_topic, p_group, p_member, p_max, p_lease, true, false, v_generation);
end
$$;

-- Everything up to an offset is done, whoever fetched it: a cumulative ack without a generation. Never goes back, never beyond the head.
-- The holder of the partition keeps it while it has more of its batch, and gives it back with the end of it. Answers what is committed.
create or replace function trunkline._ack_upto(p_topic text, p_group text, p_offset bigint, p_lease interval default '30 seconds') returns bigint
language plpgsql
as $$
declare
    t      trunkline.topics := trunkline._single_log(p_topic, 'ack');
    g      trunkline.subscriptions := trunkline.ensure_group(p_topic, p_group);
    c      trunkline.cursors;
    s      trunkline.positions;
    v_head bigint;
begin
    perform trunkline._need_read_committed('ack');
    perform trunkline._commit_durably();
    select * into c from trunkline.cursors where subscription_id = g.subscription_id;
    perform pg_advisory_xact_lock(778005, c.cursor_id);
    s := trunkline._position(c);
    if p_offset <= s.committed then
        return s.committed;
    end if;
    if p_offset > s.fetched then
        v_head := trunkline._tick(c.topic_id, c.partition, c.segment_rows);
        if p_offset > v_head then
            perform trunkline._fail('TL007', format('offset %s is beyond the head, %s', p_offset, v_head), 'ack only what was pulled');
        end if;
    end if;
    if p_offset >= s.last_match then
        p_offset := greatest(p_offset, s.fetched);
    end if;
    s.committed := p_offset;
    if p_offset >= s.fetched then
        s.fetched := p_offset;
        s.last_match := null;
        s.member := null;
        s.generation := null;
        s.deadline := null;
    elsif s.deadline is not null then
        s.deadline := greatest(s.deadline, trunkline.clock() + p_lease);
    end if;
    perform trunkline._move(s);
    return s.committed;
end
$$;

-- What a group has committed in a topic with one partition; 0 for a group that is not there.
create or replace function trunkline._committed(p_topic text, p_group text) returns bigint
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._single_log(p_topic, 'pull');
    c trunkline.cursors;
begin
    select k.* into c from trunkline.subscriptions g join trunkline.cursors k using (subscription_id)
    where g.kind = 'group' and g.topic_id = t.topic_id and g.name = p_group;
    if not found then
        return 0;
    end if;
    return (trunkline._position(c)).committed;
end
$$;

-- The offset of a message that was just published to a topic with one partition; null while it has none.
create or replace function trunkline._offset_of(p_topic text, p_id uuid) returns bigint
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._single_log(p_topic, 'publish');
begin
    perform trunkline._tick(t.topic_id, 0, t.segment_rows);
    return trunkline._find_offset(t.topic_id * 64, p_id);
end
$$;

-- Seconds: the oldest transaction that holds back vacuum, and the oldest gap that sequencing still waits for.
create or replace function trunkline._ages(out transaction float8, out unsequenced float8)
language sql
as $$
    select coalesce((select extract(epoch from clock_timestamp() - min(a.xact_start)) from pg_stat_activity a
                     where a.datname = current_database() and a.backend_type = 'client backend'
                       and num_nonnulls(a.backend_xid, a.backend_xmin) > 0 and a.pid <> pg_backend_pid()), 0)::float8,
           coalesce((select extract(epoch from trunkline.clock() - min(t.old_since)) from trunkline.logs l
                     cross join lateral (select x.old_gaps, x.old_since from trunkline.ticks x where x.log = l.log order by x.first_offset desc limit 1) t
                     where not isempty(t.old_gaps)), 0)::float8
$$;
