-- What a log looks like: its segments, the times of its offsets, and where its readers are; the members of a
-- group; and when retention will remove messages that a reader has not seen.

-- Returns one row per partition of a topic: what it holds, from the archive to messages without an offset.
-- unsequenced: ids that were drawn after the newest scan, some of which may belong to transactions that are
-- rolled back. staged: rows that Spark tasks have stored and no commit has published.
-- segments: newest 200, oldest first, each with segment, first_offset, last_offset (null: none assigned),
-- created_at, sealed_at, bytes and staged. times: up to 24 offsets, each with the time at which it got its
-- offset. readers: groups and queues, each with kind, name, next_offset, lag, and member. archive: ranges of
-- adjoining files among the newest 1,000, each with first_offset, last_offset, files and bytes.
-- keeps: when retention may remove the oldest segment, and when hard retention will.
create or replace function trunkline.topic_map(p_topic text)
returns table (partition int, earliest_offset bigint, head bigint, unsequenced bigint, staged bigint, segments jsonb, times jsonb, readers jsonb, archive jsonb, keeps jsonb)
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
begin
    begin
        perform trunkline._begin_read();
        return query
        select l.partition, l.base_offset, trunkline._head(l.log),
               greatest(0, trunkline._last_id(t.topic_id, l.partition) - coalesce((trunkline._tick_of(l.log, null)).last_id, 0)),
               coalesce((select sum(s.n) from trunkline.staged s where s.log = l.log), 0)::bigint,
               trunkline._map_segments(t, l), trunkline._map_times(l), trunkline._map_readers(t, l), trunkline._map_archive(t, l), trunkline._map_keeps(t, l)
        from trunkline.logs l where l.topic_id = t.topic_id order by l.partition;
        -- Rolled back at every isolation level: the sequence of ids needs a lock that a publisher would have.
        raise exception using errcode = 'TLX00';
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns the newest 200 segments of a log, oldest first.
create or replace function trunkline._map_segments(t trunkline.topics, l trunkline.logs) returns jsonb
language sql
as $$
    select coalesce(jsonb_agg(jsonb_build_object('segment', x.segment, 'first_offset', case when x.last_offset >= x.first_offset or x.last_offset is null then greatest(x.first_offset, l.base_offset) end,
               'last_offset', case when x.last_offset >= x.first_offset then x.last_offset end, 'created_at', x.created_at, 'sealed_at', x.sealed_at,
               'bytes', pg_total_relation_size(to_regclass(trunkline._segment_table(t.topic_id, l.partition, x.segment))), 'staged', x.staged) order by x.staged, x.segment), '[]')
    from (select y.*, case when y.staged then 1 else coalesce(max(y.last_offset) over (partition by y.staged order by y.segment rows between unbounded preceding and 1 preceding), l.base_offset - 1) + 1 end as first_offset
          from ((select s.segment, s.created_at, s.sealed_at, s.last_offset, false as staged from trunkline.segments s where s.log = l.log order by s.segment desc limit 200)
                union all
                (select s.segment, s.created_at, s.sealed_at, s.last_offset, true from trunkline.staged_segments s where s.log = l.log order by s.segment desc limit 200)) y) x
$$;

-- Returns up to 24 offsets of a log with the time of their tick, evenly spaced.
create or replace function trunkline._map_times(l trunkline.logs) returns jsonb
language sql
as $$
    select coalesce(jsonb_agg(jsonb_build_object('offset', x.at_offset, 'at', x.cut_at) order by x.at_offset), '[]')
    from (select distinct on (k.first_offset) greatest(k.first_offset, l.base_offset) as at_offset, k.cut_at
          from (select trunkline._head(l.log) as head) h
          cross join generate_series(0, 23) i
          cross join lateral (select (y.k).* from (select trunkline._tick_of(l.log, l.base_offset + ((h.head - l.base_offset) * i / 23.0)::bigint) as k) y) k
          where h.head >= l.base_offset and k.first_offset is not null) x
$$;

-- Returns the readers of a log. next_offset of a queue: the first offset that it has not claimed yet.
create or replace function trunkline._map_readers(t trunkline.topics, l trunkline.logs) returns jsonb
language sql
as $$
    select coalesce(jsonb_agg(jsonb_build_object('kind', x.kind, 'name', x.name, 'next_offset', x.next_offset, 'lag', greatest(0, trunkline._head(l.log) + 1 - x.next_offset),
                                                 'member', x.member) order by x.kind, x.name), '[]')
    from (
        select s.kind, coalesce(q.name, s.name) as name, case s.kind when 'group' then (p.p).committed + 1 else trunkline._next_offset(c) end as next_offset,
               case when (p.p).deadline > trunkline.clock() then (p.p).member end as member
        from trunkline.cursors c join trunkline.subscriptions s using (subscription_id) left join trunkline.queues q on q.queue_id = s.queue_id
        cross join lateral (select case when s.kind = 'group' then trunkline._position(c) end as p) p
        where c.log = l.log) x
$$;

-- Returns ranges of adjoining archive files, among the newest 1,000.
create or replace function trunkline._map_archive(t trunkline.topics, l trunkline.logs) returns jsonb
language sql
as $$
    select coalesce(jsonb_agg(jsonb_build_object('first_offset', x.first_offset, 'last_offset', x.last_offset, 'files', x.files, 'bytes', x.bytes) order by x.first_offset), '[]')
    from (select min(y.first_offset) as first_offset, max(y.last_offset) as last_offset, count(*) as files, sum(y.bytes) as bytes
          from (select z.*, count(*) filter (where z.is_new) over (order by z.first_offset) as run
                from (select f.first_offset, f.last_offset, f.bytes, f.first_offset is distinct from lag(f.last_offset) over (order by f.first_offset) + 1 as is_new
                      from (select * from trunkline.archive_files a where a.topic_id = t.topic_id and a.partition = l.partition order by a.first_offset desc limit 1000) f) z) y
          group by y.run) x
$$;

-- Returns until when the oldest segment is kept: a reader that is behind, or an archive that is required,
-- keeps it beyond retention, and only the archive beyond hard retention.
create or replace function trunkline._map_keeps(t trunkline.topics, l trunkline.logs) returns jsonb
language sql
as $$
    select jsonb_build_object('last_offset', s.last_offset, 'until', s.sealed_at + t.retention, 'at_most', s.sealed_at + t.hard_retention)
    from trunkline.segments s where s.log = l.log and s.sealed_at is not null and s.last_offset >= l.base_offset order by s.segment limit 1
$$;

-- Returns the members of a group that fetched lately, with the partitions that each has leased, by name.
-- seen_until: when the member leaves unless it fetches again or sends a heartbeat.
create or replace function trunkline.list_members(p_topic text, p_group text)
returns table (member text, seen_until timestamptz, partitions int[], deadline timestamptz)
language plpgsql
as $$
declare
    g trunkline.subscriptions := trunkline._group((trunkline._topic('topic', p_topic)).topic_id, p_topic, p_group);
begin
    return query
    with owned as materialized (
        select (p.p).member as member, array_agg(p.partition order by p.partition) as partitions, min((p.p).deadline) as deadline
        from (select c.partition, trunkline._position(c) as p from trunkline.cursors c where c.subscription_id = g.subscription_id offset 0) p
        where (p.p).deadline > trunkline.clock() group by (p.p).member
    )
    select coalesce(m.member, o.member), coalesce(m.seen_until, o.deadline), coalesce(o.partitions, '{}'), o.deadline
    from (select x.member, x.seen_until from trunkline.members x where x.subscription_id = g.subscription_id and x.seen_until > trunkline.clock()) m
    left join owned o on o.member = m.member
    union all
    select o.member, o.deadline, o.partitions, o.deadline from owned o
    where o.member is not null and not exists (select from trunkline.members x where x.subscription_id = g.subscription_id and x.member = o.member and x.seen_until > trunkline.clock())
    order by 1;
end
$$;

-- Returns when hard retention removes the message that a reader needs next; null: not yet known, because its
-- segment is still being written, or an archive is required that does not have it.
create or replace function trunkline._lost_at(c trunkline.cursors, p_next_offset bigint, p_hard_retention interval) returns timestamptz
language sql
as $$
    select s.sealed_at + p_hard_retention
    from (select g.sealed_at, g.last_offset from trunkline.segments g where g.log = c.log and coalesce(g.last_offset, 9223372036854775807) >= p_next_offset order by g.segment limit 1) s
    where s.sealed_at is not null and not trunkline._archive_waits(c.topic_id, c.partition, s.last_offset)
$$;

-- Returns when each reader of a topic (null: of all topics) loses messages, one row per partition in which a
-- reader is behind, the earliest first. Only topics with hard_retention remove messages that a reader has not
-- seen. next_offset: the first offset that the group has not committed, or that the queue has not settled or
-- set aside for a retry. unread: messages from there to the head. lost_at: null if that is not known yet.
create or replace function trunkline.retention_deadlines(p_topic text default null)
returns table (topic text, partition int, kind text, reader text, next_offset bigint, unread bigint, lost_at timestamptz)
language plpgsql
as $$
begin
    if p_topic is not null then
        perform trunkline._topic('topic', p_topic);
    end if;
    begin
        perform trunkline._begin_read();
        return query
        select t.name, c.partition, s.kind, coalesce(q.name, s.name), n.next_offset, h.head - n.next_offset + 1, trunkline._lost_at(c, n.next_offset, t.hard_retention)
        from trunkline.topics t join trunkline.subscriptions s using (topic_id) join trunkline.cursors c on c.subscription_id = s.subscription_id
        left join trunkline.queues q on q.queue_id = s.queue_id
        cross join lateral (select trunkline._head(c.log) as head offset 0) h
        cross join lateral (select greatest(trunkline._unread_from(c), (select l.base_offset from trunkline.logs l where l.log = c.log)) as next_offset offset 0) n
        where t.kind = 'topic' and t.hard_retention is not null and (p_topic is null or t.name = p_topic) and h.head >= n.next_offset
        order by 7 nulls last, t.name, s.kind, 4, c.partition;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns the first offset of its log that a reader still needs, without messages that wait for a retry.
create or replace function trunkline._unread_from(c trunkline.cursors) returns bigint
language plpgsql
as $$
declare
    s trunkline.cursor_states;
begin
    if c.queue_id is null then
        return (trunkline._position(c)).committed + 1;
    elsif c.drawn_seq is null then
        return (select o.next_offset from trunkline._ordered_state(c) o);
    end if;
    s := trunkline._cursor_state(c);
    return least(s.upto + 1, lower(s.open));
end
$$;
