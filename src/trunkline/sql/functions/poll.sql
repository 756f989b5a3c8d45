-- What a process asks, about once a second, for all its waiting consumers together.

-- When the next open lease of a queue ends; null: none is open. Looks at no more than the oldest hundred of each cursor.
create or replace function trunkline._next_deadline(p_queue_id int) returns timestamptz
language sql stable
as $$
    select min(greatest(l.deadline, (select max(e.until) from trunkline.lease_events e
                                     where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no and e.kind = 'e')))
    from trunkline.cursors c
    cross join lateral (select * from trunkline._open_leases(c.cursor_id) order by lease_no limit 100) o
    cross join lateral (select * from trunkline.leases where cursor_id = o.cursor_id and lease_no = o.lease_no offset 0) l
    where c.queue_id = p_queue_id
$$;

-- Which of these queues, groups (topic, group, member) and topics have something to take: kinds 'queue', 'group' and 'topic' (with the sum of
-- its heads). Does what is due for them meanwhile (ends leases, lets delayed messages in), and says in a last row of kind 'wait' after how many
-- seconds the next such thing is due. Gives offsets to what has none, so it is not for standbys.
create or replace function trunkline.poll(p_queues text[], p_topics text[], p_groups text[], p_members text[], p_tails text[])
returns table (kind text, name text, group_name text, member text, head bigint, seconds float8)
language plpgsql
as $$
declare
    q       record;
    v_now   timestamptz := trunkline.clock();
    v_ready boolean;
    v_ends  timestamptz;
    v_next  timestamptz;
    v_soon  timestamptz;
begin
    perform trunkline._need_read_committed('poll');
    for q in select * from trunkline.queues x where x.name = any (p_queues) and not x.paused order by x.queue_id loop
        perform trunkline._release_due(t.topic_id, 1000)
        from (select distinct c.topic_id from trunkline.cursors c where c.queue_id = q.queue_id and c.lane = 'log' order by c.topic_id) t;
        v_ends := trunkline._next_deadline(q.queue_id);
        if v_ends <= v_now then
            perform trunkline._check_queue_leases(q.queue_id);
            v_ends := trunkline._next_deadline(q.queue_id);
        end if;
        v_ready := exists (select from (select p.due_at from trunkline.pending p where p.queue_id = q.queue_id order by p.due_at limit 1) p where p.due_at <= v_now)
            or exists (select from trunkline.cursors c
                       where c.queue_id = q.queue_id and c.lane = 'log'
                         and trunkline._tick(c.topic_id, c.partition, c.segment_rows) >= coalesce(
                             (select l.position from trunkline.leases l where l.cursor_id = c.cursor_id order by l.lease_no desc limit 1), c.start_position));
        if v_ready then
            return query select 'queue', q.name, null::text, null::text, null::bigint, null::float8;
        end if;
        select min(x.at) into v_next from (
            select (select p.due_at from trunkline.pending p where p.queue_id = q.queue_id and p.due_at > v_now order by p.due_at limit 1) as at
            union all
            select (select s.due_at from trunkline.scheduled s where s.topic_id = t.topic_id order by s.due_at limit 1)
            from (select distinct c.topic_id from trunkline.cursors c where c.queue_id = q.queue_id and c.lane = 'log') t
            union all
            select v_ends
        ) x where x.at > v_now;
        v_soon := least(v_soon, v_next);
    end loop;

    return query
    select 'group', g.topic, g.name, g.member, null::bigint, null::float8
    from unnest(p_topics, p_groups, p_members) g(topic, name, member)
    join trunkline.topics t on t.kind = 'topic' and t.name = g.topic
    join trunkline.subscriptions s on s.topic_id = t.topic_id and s.kind = 'group' and s.name = g.name
    where exists (
        select from trunkline.cursors c
        left join lateral (select * from trunkline.positions x where x.cursor_id = c.cursor_id order by x.state_no desc limit 1) p on true
        where c.subscription_id = s.subscription_id
          -- free, ended, or this member's own and all of it committed
          and case when p.deadline is null or p.deadline <= v_now or p.member = g.member and p.fetched = p.committed
                   then trunkline._tick(c.topic_id, c.partition, c.segment_rows) >= coalesce(p.committed + 1, c.start_position)
                   else false end);

    return query
    select 'topic', t.name, null::text, null::text, sum(trunkline._tick(t.topic_id, l.partition, t.segment_rows))::bigint, null::float8
    from trunkline.topics t join trunkline.logs l using (topic_id)
    where t.kind = 'topic' and t.name = any (p_tails) group by t.name;

    -- what a group waits for besides new messages: delayed ones, and the end of another member's lease
    select min(x.at) into v_next from (
        select (select s.due_at from trunkline.scheduled s where s.topic_id = t.topic_id order by s.due_at limit 1) as at
        from trunkline.topics t where t.kind = 'topic' and t.name = any (p_topics || p_tails)
        union all
        select p.deadline
        from unnest(p_topics, p_groups) g(topic, name)
        join trunkline.topics t on t.kind = 'topic' and t.name = g.topic
        join trunkline.subscriptions s on s.topic_id = t.topic_id and s.kind = 'group' and s.name = g.name
        join trunkline.cursors c on c.subscription_id = s.subscription_id
        cross join lateral (select * from trunkline.positions x where x.cursor_id = c.cursor_id order by x.state_no desc limit 1) p
        where p.fetched > p.committed
    ) x where x.at > v_now;
    v_soon := least(v_soon, v_next);
    return query select 'wait', null::text, null::text, null::text, null::bigint, extract(epoch from v_soon - trunkline.clock())::float8 where v_soon is not null;
end
$$;
