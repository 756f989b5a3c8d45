-- Compatibility layer for HTTP clients of other systems, which settle by message id or offset, without a
-- receipt or generation. These functions write the same rows as the public ones. Their names start with _
-- because new programs should use the public functions.

-- Returns the state of a message in a queue: leased (with the receipt of its consumer), acked, ready, dead
-- or gone. Returns no row if the message is not in the queue's logs, or was drawn without a lease that still
-- exists.
create or replace function trunkline._delivery_of(p_queue text, p_id uuid, out state text, out receipt text)
returns setof record
language plpgsql
as $$
declare
    q        trunkline.queues := trunkline._queue(p_queue);
    c        trunkline.cursors;
    r        record;
    v_offset bigint;
    v_kind   "char";
begin
    -- called in transactions of the HTTP service, which are short
    perform trunkline._begin_read();
    for c in select * from trunkline.cursors where queue_id = q.queue_id and kind = 'log' order by cursor_id loop
        v_offset := trunkline._find_offset(c.log, p_id);
        if v_offset is null and exists (select from trunkline._find_unsequenced(c.log, p_id)) then
            state := 'ready';
            return next;
            return;
        end if;
        continue when v_offset is null or v_offset < c.start_position;
        if exists (select from trunkline._returned_at(c, v_offset)) then
            state := 'ready';
            return next;
            return;
        end if;
        select y.l, y.pos into r from trunkline._leases_of(c, v_offset) y order by (y.l).claimed_at desc, (y.l).cursor_id desc limit 1;
        if not found then
            continue when v_offset < trunkline._next_offset(c);
            state := 'ready';
            return next;
            return;
        end if;
        select e.kind into v_kind from trunkline.settled e
        where e.rotation = (r.l).rotation and e.cursor_id = (r.l).cursor_id and e.pos >= (r.l).first and e.pos <= r.pos and e.pos + e.n > r.pos;
        if not found then
            state := case when trunkline._ends_at_position(r.l, r.pos) > trunkline.clock() then 'leased' else 'ready' end;
            receipt := case state when 'leased' then format('%s.%s.%s.%s.%s', r.pos, (r.l).cursor_id, (r.l).first, (r.l).rotation, (r.l).token) end;
        else
            state := case when v_kind = 'a' then 'acked' when v_kind in ('b', 'd') then 'dead' when v_kind in ('g', 'p') then 'gone' else 'ready' end;
        end if;
        return next;
        return;
    end loop;
end
$$;

-- Ends every open lease of a queue, marks their messages as purged, and returns how many these were. After
-- purge_queue and this function the queue is empty, whatever its consumers hold. Waits for the lock of each
-- lease row.
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
    perform trunkline._begin_read();
    for l in select (o.l).* from trunkline._open_leases(q.queue_id) o order by (o.l).cursor_id, (o.l).first loop
        perform trunkline._lock_lease(l.rotation, l.cursor_id, l.first, true);
        -- a new statement: it sees what was settled while this session waited for the row
        select trunkline._leased(l) - coalesce(range_agg(int8range(e.pos, e.pos + e.n)), '{}') into v_open from trunkline._settled_of(l) e;
        v_total := v_total + trunkline._size(trunkline._write_settled(l, 'p', v_open, trunkline.clock(), true));
    end loop;
    return v_total;
end
$$;

-- Creates a subscription whose name is unique in the database and which is the only one of its queue to its
-- topic. Raises TL020 otherwise.
create or replace function trunkline._subscribe_once(
    p_name text, p_queue text, p_topic text, p_pattern text, p_filter jsonb, p_start text)
returns trunkline.subscriptions
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    q trunkline.queues := trunkline._queue(p_queue);
begin
    -- a key below those of all topics, so it conflicts with none of them
    perform pg_advisory_xact_lock(778003, -2000000000);
    if exists (select from trunkline.subscriptions s where s.kind = 'queue' and s.name <> '@inbox'
                  and (s.name = p_name or s.queue_id = q.queue_id and s.topic_id = t.topic_id)) then
        perform trunkline._fail('TL020', format('subscription "%s" already exists, or queue "%s" already has a subscription to topic "%s"', p_name, p_queue, p_topic),
                                'Use another id, or delete the existing subscription first.');
    end if;
    return trunkline.subscribe(p_queue, p_topic, p_pattern, p_filter, p_start, p_name);
end
$$;

-- Fetches for a member that may not know its generation. While its lease lasts, the member gets its
-- uncommitted messages again.
create or replace function trunkline._pull(p_topic text, p_group text, p_member text, p_limit int, p_lease interval, p_max_bytes bigint)
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
    cross join lateral trunkline._position(c) p
    where g.kind = 'group' and g.topic_id = t.topic_id and g.name = p_group and p.member = p_member and p.deadline > trunkline.clock();
    return query select * from trunkline.fetch(p_topic, p_group, p_member, p_limit, p_lease, true, false, v_generation, p_max_bytes);
end
$$;

-- Commits everything up to an offset without a generation, whichever member fetched it. Returns the committed
-- offset. Never moves the position backwards, and raises TL007 beyond the head. Holds the cursor lock until
-- the transaction ends.
-- The member that has leased the partition keeps it, with an extended lease, until the end of its batch is
-- committed.
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
        perform trunkline._sequence_alone(null, array[c.log]);
        v_head := trunkline._head(c.log);
        if p_offset > v_head then
            perform trunkline._fail('TL007', format('cannot ack offset %s: the head is %s', p_offset, v_head),
                                    'Ack only offsets that were pulled.');
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

-- Returns the committed offset of a group in a topic with one partition; 0 if the group does not exist.
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

-- Returns the offset of a message that was just published to a topic with one partition; null while it has
-- none.
create or replace function trunkline._offset_of(p_topic text, p_id uuid) returns bigint
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._single_log(p_topic, 'publish');
begin
    return trunkline._find_offset(t.topic_id * 64, p_id);
end
$$;
