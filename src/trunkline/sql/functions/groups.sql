-- Consumer groups: one member at a time reads each partition, in order, and settles messages with a
-- cumulative commit. The newest row of `positions` is the state of a cursor. It is only written under the
-- cursor's lock (778005).

-- Returns a group. Fails with TL012 if it does not exist.
create or replace function trunkline._group(p_topic_id int, p_topic text, p_group text) returns trunkline.subscriptions
language plpgsql
as $$
declare
    s trunkline.subscriptions;
begin
    select * into s from trunkline.subscriptions where kind = 'group' and topic_id = p_topic_id and name = p_group;
    if not found then
        perform trunkline._fail('TL012', format('group "%s" of topic "%s" does not exist', p_group, p_topic),
                                format('Create it with trunkline.create_group(%L, %L). A first fetch also creates it.', p_topic, p_group));
    end if;
    return s;
end
$$;

-- Creates a group with its cursors and returns it, or null if the name exists.
create or replace function trunkline._make_group(t trunkline.topics, p_group text, p_start text, p_pattern text, p_filter jsonb)
returns trunkline.subscriptions
language plpgsql
as $$
declare
    s       trunkline.subscriptions;
    v_regex text;
begin
    perform trunkline._check_name('group', p_group);
    if p_pattern is not null then
        v_regex := trunkline._pattern_regex(p_pattern);
    end if;
    perform trunkline._check_filter(p_filter);
    perform trunkline._need_read_committed('creating a group');
    -- Reads the current row: the topic may have more partitions than the caller has read. Retention removes
    -- nothing until this transaction ends.
    t := trunkline._lock_topic('topic', t.name, true);
    perform trunkline._sequence_topic(t.topic_id);
    insert into trunkline.subscriptions (kind, name, topic_id, pattern, pattern_regex, filter)
    values ('group', p_group, t.topic_id, p_pattern, case when p_pattern <> '#' then v_regex end, nullif(p_filter, '{}'))
    on conflict do nothing returning * into s;
    if not found then
        return null;
    end if;
    for p in 0 .. t.partitions - 1 loop
        perform trunkline._make_cursor(s, t, p, trunkline._resolve_group_position(t, p, p_start));
    end loop;
    return s;
end
$$;

-- Creates a group and returns its row. It starts at p_start: 'earliest', 'latest', an offset, a time, or
-- 'archive' for the first archived offset. With a pattern or a header filter, as in subscribe, it reads only
-- messages that match. Its position and lag still count all messages. Fails with TL020 if the group exists
-- and with TL010 if the topic does not.
create or replace function trunkline.create_group(
    p_topic text, p_group text, p_start text default 'earliest', p_pattern text default null, p_filter jsonb default null)
returns trunkline.subscriptions
language plpgsql
as $$
declare
    s trunkline.subscriptions := trunkline._make_group(trunkline._topic('topic', p_topic), p_group, p_start, p_pattern, p_filter);
begin
    if s.name is null then
        perform trunkline._fail('TL020', format('group "%s" of topic "%s" already exists', p_group, p_topic),
                                'Use another name, or trunkline.ensure_group to accept the existing group.');
    end if;
    return s;
end
$$;

-- Creates a group if it does not exist, and returns its row. An existing group keeps its position. A group's
-- pattern and filter never change: if a given one differs, the call fails with TL020. Without a pattern or
-- filter the call accepts any group.
create or replace function trunkline.ensure_group(
    p_topic text, p_group text, p_start text default 'earliest', p_pattern text default null, p_filter jsonb default null)
returns trunkline.subscriptions
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    s trunkline.subscriptions;
begin
    select * into s from trunkline.subscriptions where kind = 'group' and topic_id = t.topic_id and name = p_group;
    if not found then
        s := trunkline._make_group(t, p_group, p_start, p_pattern, p_filter);
        if s.name is null then
            t := trunkline._topic('topic', p_topic);
            s := trunkline._group(t.topic_id, p_topic, p_group);
        end if;
    end if;
    if p_pattern <> coalesce(s.pattern, '#') or p_filter <> coalesce(s.filter, '{}') then
        perform trunkline._fail('TL020', format('group "%s" of topic "%s" already exists with pattern "%s" and filter %s', p_group, p_topic, coalesce(s.pattern, '#'), coalesce(s.filter, '{}')),
                                'Omit pattern and filter, or create a group with another name.');
    end if;
    return s;
end
$$;

-- Deletes a group and its position. Retries for up to two seconds while another session holds a lock, then
-- fails with lock_not_available (55P03). Fails with TL012 if the group does not exist.
create or replace function trunkline.delete_group(p_topic text, p_group text) returns void
language sql
as $$ select trunkline._delete(format('_delete_group(%L, %L)', p_topic, p_group)) $$;

-- Deletes a group under the topic's shared lock, for delete_group.
create or replace function trunkline._delete_group(p_topic text, p_group text) returns void
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._lock_topic('topic', p_topic, true);
    s trunkline.subscriptions := trunkline._group(t.topic_id, p_topic, p_group);
begin
    delete from trunkline.subscriptions where subscription_id = s.subscription_id;
    if not found then
        perform trunkline._group(t.topic_id, p_topic, p_group);
    end if;
end
$$;

-- Returns the groups of one topic, or of all topics, ordered by topic and name. For pages, pass p_limit and
-- the last group of the page before as p_after: 'group' if p_topic is given, else 'topic/group'. p_names: only
-- groups with one of these names, written in the same way; * stands for any characters.
create or replace function trunkline.list_groups(p_topic text default null, p_after text default null, p_limit int default null, p_names text[] default null)
returns table (topic text, name text, pattern text, filter jsonb, created_at timestamptz)
language sql stable
as $$
    select t.name, s.name, s.pattern, s.filter, s.created_at
    from trunkline.subscriptions s join trunkline.topics t using (topic_id)
    where s.kind = 'group' and (p_topic is null or t.name = p_topic)
      and (p_after is null or case when p_topic is null then (t.name, s.name) > (split_part(p_after, '/', 1), split_part(p_after, '/', 2)) else s.name > p_after end)
      and (p_names is null or case when p_topic is null then t.name || '/' || s.name else s.name end like any (trunkline._name_patterns(p_names)))
    order by t.name, s.name limit trunkline._limit(p_limit)
$$;

-- Appends the next state of a group's cursor. The caller holds the cursor's lock.
create or replace function trunkline._move(s trunkline.positions) returns void
language plpgsql
as $$
begin
    insert into trunkline.positions
    values ((select slot from trunkline.epoch), s.cursor_id, s.state_no + 1, s.committed, s.fetched, s.member, s.generation, s.deadline, trunkline.clock(), s.last_match);
end
$$;

-- Returns a group and registers p_member in it, for fetch. Creates the group if p_create is true; fails with
-- TL012 otherwise.
create or replace function trunkline._join_group(p_topic text, p_group text, p_member text, p_lease interval, p_create boolean) returns trunkline.subscriptions
language plpgsql
as $$
declare
    t     trunkline.topics := trunkline._topic('topic', p_topic);
    g     trunkline.subscriptions;
    v_now timestamptz := trunkline.clock();
begin
    loop
        select * into g from trunkline.subscriptions where kind = 'group' and topic_id = t.topic_id and name = p_group;
        if not found then
            if not p_create then
                g := trunkline._group(t.topic_id, p_topic, p_group);
            end if;
            perform trunkline._commit_durably();
            g := trunkline.ensure_group(p_topic, p_group);
        end if;
        update trunkline.members set seen_until = v_now + p_lease
        where subscription_id = g.subscription_id and member = p_member and seen_until < v_now + p_lease * 0.66;
        exit when found or exists (select from trunkline.members where subscription_id = g.subscription_id and member = p_member);
        -- Waits here for a deletion of the group that is not committed yet. After that the group may not
        -- exist.
        perform from trunkline.subscriptions where subscription_id = g.subscription_id for key share;
        if found then
            insert into trunkline.members values (g.subscription_id, p_member, v_now + p_lease) on conflict do nothing;
            exit;
        end if;
        t := trunkline._topic('topic', p_topic);
    end loop;
    return g;
end
$$;

-- Returns the cursors of a group that a member owns, the free ones, and how many of these it may take to have
-- its share of the partitions. Gives up what it owns above its share.
create or replace function trunkline._share_of(p_subscription_id int, p_member text, out mine int[], out free int[], out room int)
language plpgsql
as $$
declare
    v_now   timestamptz := trunkline.clock();
    v_all   int;
    v_share int;
begin
    select coalesce(array_agg(x.cursor_id order by x.rank) filter (where x.owned), '{}'),
           coalesce(array_agg(x.cursor_id order by x.rank) filter (where not x.owned and x.available), '{}'), count(*)
      into mine, free, v_all
      from (
        select k.cursor_id, random() as rank, coalesce(p.member = p_member and p.deadline > v_now, false) as owned,
               p.deadline is null or p.deadline <= v_now as available
        from trunkline.cursors k
        cross join lateral trunkline._position(k) p
        where k.subscription_id = p_subscription_id
      ) x;
    select ceil(v_all::numeric / greatest(1, count(*))) into v_share
    from trunkline.members where subscription_id = p_subscription_id and seen_until > v_now;
    if cardinality(mine) > v_share then
        perform trunkline._give_up(mine[v_share + 1:], p_member);
        mine := mine[:v_share];
    end if;
    room := v_share - cardinality(mine);
    if room <= 0 then
        free := '{}';
    end if;
end
$$;

-- Returns the state of a cursor for a member that is about to fetch from it: with a new lease, from the
-- committed position. Returns null if another member owns the partition, or if this one has not committed what
-- it fetched with another generation.
create or replace function trunkline._owned_by(s trunkline.positions, p_member text, p_lease interval, p_generation uuid) returns trunkline.positions
language plpgsql
as $$
declare
    v_now timestamptz := trunkline.clock();
begin
    if s.deadline > v_now and (s.member <> p_member or s.fetched > s.committed and s.generation is distinct from p_generation) then
        return null;
    end if;
    if s.deadline is null or s.deadline <= v_now or s.member <> p_member then
        s.member := p_member;
        s.generation := gen_random_uuid();
    end if;
    s.fetched := s.committed;
    s.last_match := null;
    s.deadline := v_now + p_lease;
    return s;
end
$$;

-- Moves the state of a cursor with a pattern or filter behind the next messages that match, up to p_head.
-- Returns the new state, these messages, and how many messages were looked at.
create or replace function trunkline._take_matches(c trunkline.cursors, p_head bigint, p_limit int, p_max_bytes bigint, inout s trunkline.positions,
    out taken int8multirange, out looked bigint)
language plpgsql
as $$
declare
    v_found trunkline.leases := trunkline._next_matches(c, s.fetched + 1, p_head, p_limit);
    v_last  bigint;
begin
    looked := v_found.n;
    taken := v_found.taken;
    s.fetched := s.fetched + v_found.n;
    if isempty(taken) then
        -- Commit the position, so that no other fetch reads these messages again.
        s.committed := s.fetched;
        return;
    end if;
    v_last := trunkline._last_within(c, taken, p_max_bytes);
    if v_last < upper(taken) - 1 then
        taken := taken * int8multirange(int8range(null, v_last + 1));
        s.fetched := v_last;
    end if;
    s.committed := lower(taken) - 1;
    s.last_match := upper(taken) - 1;
end
$$;

-- Leases one partition to a member and returns up to p_limit messages (at most 10,000) after the last commit.
-- Returns no row if there are none. The lease is 1 second to 12 hours. If the group does not exist, it is
-- created, unless p_create is false (TL012).
--
-- Until the messages are committed or the lease ends, no fetch returns messages of this partition. That
-- includes a member of the same name, which may be a new process without these messages. The exception is a
-- call of that member with the current p_generation. So members repeat: fetch, process, commit.
--
-- Partitions are shared evenly. A member leases a free partition only while it has fewer than its share, and
-- releases partitions above its share. The lock on a visited partition lasts until the caller's transaction
-- ends; other fetches skip the partition until then.
--
-- In a group with a pattern or filter, the position moves past messages that do not match. A call reads at
-- most 100,000 messages of a partition, and visits no further partition after 100,000 messages in total. If
-- it returns no row, the next call continues there.
--
-- p_relaxed: the lease need not be on disk when the call returns, as in claim.
-- p_max_bytes: return only as many messages as have payloads of this size together, at least one.
create or replace function trunkline.fetch(
    p_topic text, p_group text, p_member text, p_limit int default 100, p_lease interval default '30 seconds',
    p_create boolean default true, p_relaxed boolean default false, p_generation uuid default null, p_max_bytes bigint default null)
returns setof trunkline.fetched
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    g        trunkline.subscriptions;
    c        trunkline.cursors;
    s        trunkline.positions;
    v_until  timestamptz;
    v_own    record;
    v_head   bigint;
    v_last   bigint;
    v_try    int;
    v_looked bigint := 0;
    v_found  record;
begin
    perform trunkline._topic('topic', p_topic);
    perform trunkline._need_read_committed('fetch');
    perform trunkline._check_name('member', p_member);
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    perform trunkline._need_duration('lease', p_lease, '1 second', '12 hours');
    if p_relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    g := trunkline._join_group(p_topic, p_group, p_member, p_lease, p_create);
    v_own := trunkline._share_of(g.subscription_id, p_member);

    -- Free partitions first, up to the share, then partitions of this member. A second round follows if
    -- messages have got an offset in the meantime.
    for v_round in 1 .. 2 loop
        exit when v_round = 2 and not trunkline._sequence_alone(null, array(select log from trunkline.cursors where subscription_id = g.subscription_id), case when p_relaxed then 0 else 1 end);
        for v_try in
            select x.cursor_id
            from (select unnest(v_own.free) as cursor_id, 1 as turn union all select unnest(v_own.mine), 2) x
            order by x.turn, random()
        loop
            continue when v_own.room <= 0 and v_try = any (v_own.free);
            continue when not pg_try_advisory_xact_lock(778005, v_try);
            select * into c from trunkline.cursors where cursor_id = v_try;
            continue when not found;
            s := trunkline._position(c);
            v_until := s.deadline;
            s := trunkline._owned_by(s, p_member, p_lease, p_generation);
            continue when s is null;
            v_head := trunkline._head(c.log);
            continue when v_head <= s.fetched and not v_try = any (v_own.mine);
            if v_head <= s.fetched then
                -- No new messages: extend the lease, but do not write a row for each idle poll.
                if v_until < s.deadline - p_lease * 0.34 then
                    perform trunkline._move(s);
                end if;
            elsif c.pattern_regex is null and c.filter is null then
                v_last := trunkline._last_within(c, int8multirange(int8range(s.fetched + 1, least(v_head, s.fetched + p_limit) + 1)), p_max_bytes);
                return query
                select c.partition, s.generation, s.deadline, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at
                from trunkline._read(c.topic_id, c.partition, c.segment_rows, s.fetched + 1, v_last) r;
                s.fetched := v_last;
                perform trunkline._move(s);
                return;
            else
                v_found := trunkline._take_matches(c, v_head, p_limit, p_max_bytes, s);
                v_looked := v_looked + v_found.looked;
                return query
                select c.partition, (v_found.s).generation, (v_found.s).deadline, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at
                from trunkline._read_set(c, v_found.taken) r where not isempty(v_found.taken);
                perform trunkline._move(v_found.s);
                if not isempty(v_found.taken) or v_looked >= 100000 then
                    return;
                end if;
                -- no message here matches: continue with the next partition
                if v_try = any (v_own.free) then
                    v_own.room := v_own.room - 1;
                    v_own.free := array_remove(v_own.free, v_try);
                    v_own.mine := v_own.mine || v_try;
                end if;
            end if;
        end loop;
    end loop;
end
$$;

-- Returns the last of these offsets up to which the payloads have at most p_max_bytes together, at least the
-- first one; the last one of all if p_max_bytes is null.
create or replace function trunkline._last_within(c trunkline.cursors, p_offsets int8multirange, p_max_bytes bigint) returns bigint
language plpgsql
as $$
begin
    if p_max_bytes is null then
        return upper(p_offsets) - 1;
    end if;
    return (select max(x.log_offset)
            from (select r.log_offset, sum(length(r.payload)) over (order by r.log_offset) as bytes from trunkline._read_set(c, p_offsets) r) x
            where x.bytes <= p_max_bytes or x.log_offset = lower(p_offsets));
end
$$;

-- Returns up to p_limit offsets from p_from on whose messages match the cursor (taken), and the number of
-- offsets read (n). Uses the scan of claims, without labels, ttl and delivery delay. Reads at most 100,000
-- offsets.
create or replace function trunkline._next_matches(c trunkline.cursors, p_from bigint, p_head bigint, p_limit int) returns trunkline.leases
language plpgsql
as $$
declare
    s     trunkline.leases;
    q     trunkline.queues;
    v_all trunkline.leases;
begin
    q.delivery_delay := '0';
    v_all.n := 0;
    v_all.taken := '{}';
    p_head := least(p_head, p_from + 99999);
    while p_from + v_all.n <= p_head and trunkline._size(v_all.taken) < p_limit loop
        s.first := p_from + v_all.n;
        s := trunkline._scan_log(s, c, q, p_head, p_limit - trunkline._size(v_all.taken)::int, null);
        v_all.taken := v_all.taken + s.taken;
        v_all.n := v_all.n + s.n;
    end loop;
    return v_all;
end
$$;

-- Releases those of these partitions that the member owns, and returns their number. Messages that are not
-- committed are delivered again. Waits for the lock of each cursor.
create or replace function trunkline._give_up(p_cursors int[], p_member text) returns int
language plpgsql
as $$
declare
    c       trunkline.cursors;
    s       trunkline.positions;
    v_count int := 0;
begin
    for c in select * from trunkline.cursors where cursor_id = any (p_cursors) order by cursor_id loop
        perform pg_advisory_xact_lock(778005, c.cursor_id);
        s := trunkline._position(c);
        if s.member = p_member and s.deadline is not null then
            s.member := null;
            s.generation := null;
            s.deadline := null;
            s.fetched := s.committed;
            s.last_match := null;
            perform trunkline._move(s);
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end
$$;

-- Releases all partitions of a member and returns their number. Other members then need not wait for the end
-- of its lease. Messages that are not committed are delivered again. Waits for open transactions that have
-- fetched or committed in this group.
create or replace function trunkline.leave(p_topic text, p_group text, p_member text) returns int
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    g trunkline.subscriptions := trunkline._group(t.topic_id, p_topic, p_group);
begin
    perform trunkline._need_read_committed('leave');
    delete from trunkline.members where subscription_id = g.subscription_id and member = p_member;
    return trunkline._give_up(array(select cursor_id from trunkline.cursors where subscription_id = g.subscription_id), p_member);
end
$$;

-- Extends the leases of a member's partitions to p_lease from now (1 second to 12 hours), without a fetch.
-- Returns the number of partitions that the member still owns. Waits for open transactions that have fetched
-- or committed in this group.
create or replace function trunkline.heartbeat(p_topic text, p_group text, p_member text, p_lease interval default '30 seconds') returns int
language plpgsql
as $$
declare
    t       trunkline.topics := trunkline._topic('topic', p_topic);
    g       trunkline.subscriptions := trunkline._group(t.topic_id, p_topic, p_group);
    c       trunkline.cursors;
    s       trunkline.positions;
    v_count int := 0;
begin
    perform trunkline._need_read_committed('heartbeat');
    perform trunkline._need_duration('lease', p_lease, '1 second', '12 hours');
    update trunkline.members set seen_until = trunkline.clock() + p_lease
    where subscription_id = g.subscription_id and member = p_member and seen_until < trunkline.clock() + p_lease * 0.66;
    for c in select * from trunkline.cursors where subscription_id = g.subscription_id order by cursor_id loop
        perform pg_advisory_xact_lock(778005, c.cursor_id);
        s := trunkline._position(c);
        if s.member = p_member and s.deadline > trunkline.clock() then
            s.deadline := trunkline.clock() + p_lease;
            perform trunkline._move(s);
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
end
$$;

-- Commits all offsets of a partition up to p_offset. Returns 'done', or 'lost' if the generation no longer
-- owns the partition or its lease has ended; then nothing changes. Committing an offset below the last commit
-- returns 'done' and changes nothing. Fails with TL007 if p_offset is above the last fetched offset. In a
-- transaction of the caller, the position moves if and only if that transaction commits. The lock on the
-- partition lasts until then.
create or replace function trunkline.commit(p_topic text, p_group text, p_partition int, p_generation uuid, p_offset bigint) returns text
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    g trunkline.subscriptions := trunkline._group(t.topic_id, p_topic, p_group);
    c trunkline.cursors;
    s trunkline.positions;
begin
    perform trunkline._need_read_committed('commit');
    perform trunkline._check_partition(t, p_partition);
    perform trunkline._commit_durably();
    select * into c from trunkline.cursors where subscription_id = g.subscription_id and partition = p_partition;
    perform pg_advisory_xact_lock(778005, c.cursor_id);
    s := trunkline._position(c);
    if s.generation is distinct from p_generation or p_generation is null or s.deadline <= trunkline.clock() then
        return 'lost';
    end if;
    if p_offset is null or p_offset > s.fetched then
        perform trunkline._fail('TL007', format('cannot commit offset %s: the last fetched offset is %s', coalesce(p_offset::text, 'null'), s.fetched),
                                'Commit only offsets of the current batch.');
    end if;
    if p_offset >= s.last_match then
        p_offset := s.fetched;
    end if;
    if p_offset > s.committed then
        s.committed := p_offset;
        perform trunkline._move(s);
    end if;
    return 'done';
end
$$;

-- Claims the next range of a partition at most once, and returns its offsets. The range counts as committed:
-- if the caller fails after that, the group does not receive these messages again. Returns no row if there
-- are none. Creates the group if it does not exist. p_limit is at most 1,000,000. Skips partitions that a
-- member holds through fetch. Fails with TL023 if the group has a pattern or filter, because a range would
-- include messages that do not match.
create or replace function trunkline.claim_range(p_topic text, p_group text, p_limit bigint default 100)
returns table (partition int, first_offset bigint, last_offset bigint)
language plpgsql
as $$
declare
    t      trunkline.topics := trunkline._topic('topic', p_topic);
    g      trunkline.subscriptions;
    c      trunkline.cursors;
    s      trunkline.positions;
    v_head bigint;
begin
    perform trunkline._need_read_committed('claim_range');
    perform trunkline._check_range('limit', p_limit, 1, 1000000);
    g := trunkline.ensure_group(p_topic, p_group);
    if g.pattern_regex is not null or g.filter is not null then
        perform trunkline._fail('TL023', format('cannot claim a range for group "%s": it has a pattern or filter', p_group),
                                'Use trunkline.fetch.');
    end if;
    perform trunkline._commit_durably();
    for c in select * from trunkline.cursors k where k.subscription_id = g.subscription_id order by k.log loop
        -- With one partition, wait for its lock. With several, use one that is not locked.
        if t.partitions = 1 then
            perform pg_advisory_xact_lock(778005, c.cursor_id);
        else
            continue when not pg_try_advisory_xact_lock(778005, c.cursor_id);
        end if;
        s := trunkline._position(c);
        continue when s.deadline > trunkline.clock();
        v_head := trunkline._head(c.log);
        if v_head < s.committed + p_limit and trunkline._sequence_alone(null, array[c.log]) then
            v_head := trunkline._head(c.log);
        end if;
        continue when v_head <= s.committed;
        partition := c.partition;
        first_offset := s.committed + 1;
        last_offset := least(v_head, s.committed + p_limit);
        s.committed := last_offset;
        s.fetched := last_offset;
        s.last_match := null;
        s.member := null;
        s.generation := null;
        s.deadline := null;
        perform trunkline._move(s);
        return next;
        return;
    end loop;
end
$$;

-- Moves a group, in one partition or in all, to p_to: 'earliest', 'latest', an offset, a time, or 'archive'
-- for the first archived offset. Returns the next offset of each moved partition. Members lose these
-- partitions, and their commits return 'lost'. Waits for open transactions that have fetched or committed in
-- this group. Fails with TL006 if retention has removed the offset and it is not archived, and with TL007 if
-- it is above head + 1. undo_run restores the former positions: list_runs has the number of the seek.
create or replace function trunkline.seek(p_topic text, p_group text, p_to text, p_partition int default null)
returns table (partition int, next_offset bigint)
language plpgsql
as $$
begin
    return query select s.partition, s.next_offset from trunkline._seek(p_topic, p_group, p_to, p_partition, null) s;
end
$$;

-- Moves a group as seek does; p_places: the position of each partition, by its number, instead of p_to. Notes
-- the former positions in `runs`, so that undo_run can restore them.
create or replace function trunkline._seek(p_topic text, p_group text, p_to text, p_partition int, p_places jsonb)
returns table (partition int, next_offset bigint)
language plpgsql
as $$
declare
    -- Retention removes nothing until this transaction ends, because it cannot see the new position before.
    t trunkline.topics := trunkline._lock_topic('topic', p_topic, true);
    g trunkline.subscriptions := trunkline._group(t.topic_id, p_topic, p_group);
    c trunkline.cursors;
    s trunkline.positions;
    v_before jsonb := '{}';
    v_moved  int := 0;
begin
    perform trunkline._need_read_committed('seek');
    perform trunkline._commit_durably();
    perform trunkline._sequence_topic(t.topic_id);
    if p_partition is not null then
        perform trunkline._check_partition(t, p_partition);
    end if;
    -- Lock all cursors in the order of their numbers before the first one is moved: see the lock order in
    -- ../README.md.
    perform pg_advisory_xact_lock(778005, k.cursor_id)
    from (select cursor_id from trunkline.cursors where subscription_id = g.subscription_id order by cursor_id offset 0) k;
    for c in select * from trunkline.cursors k where k.subscription_id = g.subscription_id
                and (p_partition is null or k.partition = p_partition) and (p_places is null or p_places ? k.partition::text) order by k.log loop
        s := trunkline._position(c);
        partition := c.partition;
        v_before := v_before || jsonb_build_object(c.partition::text, (s.committed + 1)::text);
        v_moved := v_moved + 1;
        next_offset := trunkline._resolve_group_position(t, c.partition, coalesce(p_places ->> c.partition::text, p_to));
        s.committed := next_offset - 1;
        s.fetched := s.committed;
        s.last_match := null;
        s.member := null;
        s.generation := null;
        s.deadline := null;
        perform trunkline._move(s);
        return next;
    end loop;
    insert into trunkline.runs (kind, state, selector, options, made_by, made_at, start_at, ended_at, total, done, before)
    select 'seek', 'done', jsonb_strip_nulls(jsonb_build_object('topic', p_topic, 'group', p_group, 'partition', p_partition, 'to', coalesce(p_places, to_jsonb(p_to)))), '{}',
           session_user, x.now, x.now, x.now, v_moved, v_moved, v_before
    from trunkline.clock() x(now);
end
$$;
