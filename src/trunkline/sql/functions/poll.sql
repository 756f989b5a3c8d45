-- Polling: a process calls these about once a second for all of its waiting consumers.

-- Returns the queues, groups and topics of a process that have messages, and when the next message is due.
-- Rows have the kind 'queue', 'group' (topic, group, member) or 'topic' (with the sum of its heads). If
-- something is due later, a last row of kind 'wait' has the seconds until then. This function only reads:
-- call trunkline.sequence() before, so that committed messages have an offset and due messages are returned.
-- p_labels has for each queue the labels of its consumers as a JSON array, or null for all. A queue is
-- returned with its labels in the column member.
create or replace function trunkline.poll(p_queues text[], p_topics text[], p_groups text[], p_members text[], p_tails text[], p_labels text[] default null)
returns table (kind text, name text, group_name text, member text, head bigint, seconds float8)
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    q       record;
    v_now   timestamptz := trunkline.clock();
    v_ready boolean;
    v_next  timestamptz;
    v_soon  timestamptz;
begin
    begin
        perform trunkline._begin_read();
        for q in
            select x.*, u.labels, array(select jsonb_array_elements_text(u.labels::jsonb)) as wanted
            from unnest(p_queues, p_labels) u(name, labels) join trunkline.queues x using (name) where not x.paused order by x.queue_id
        loop
            v_ready := exists (
                select from trunkline.cursors x where x.queue_id = q.queue_id and (x.kind <> 'label' or q.labels is null or x.label = any (q.wanted))
                   and case when x.drawn_seq is not null then trunkline._drawable(x) > trunkline._drawn(x) else trunkline._ordered_ready(x, v_now) end);
            if v_ready then
                return query select 'queue', q.name, null::text, q.labels, null::bigint, null::float8;
            end if;
            select min(x.at) into v_next from (
                select (select d.due from trunkline.later d where d.queue_id = q.queue_id and d.due > v_now order by d.due limit 1) as at
                union all
                select (select s.due_at from trunkline.delayed s where s.topic_id = t.topic_id and s.due_at > v_now order by s.due_at limit 1)
                from (select distinct k.topic_id from trunkline.cursors k where k.queue_id = q.queue_id and k.kind = 'log') t
                union all
                select (select min(u.due) from unnest(o.dues) u(due)) from trunkline.cursors k cross join lateral trunkline._ordered_state(k) o
                where q.ordered and k.queue_id = q.queue_id
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
            cross join lateral trunkline._position(c) p
            where c.subscription_id = s.subscription_id
              -- The lease does not exist or has ended, or this member holds it and has committed everything.
              and case when p.deadline is null or p.deadline <= v_now or p.member = g.member and p.fetched = p.committed
                       then trunkline._head(c.log) > p.committed
                       else false end);

        return query
        select 'topic', t.name, null::text, null::text, sum(trunkline._head(l.log))::bigint, null::float8
        from trunkline.topics t join trunkline.logs l using (topic_id)
        where t.kind = 'topic' and t.name = any (p_tails) group by t.name;

        -- A group also waits for delayed messages and for the end of another member's lease.
        select min(x.at) into v_next from (
            select (select s.due_at from trunkline.delayed s where s.topic_id = t.topic_id and s.due_at > v_now order by s.due_at limit 1) as at
            from trunkline.topics t where t.kind = 'topic' and t.name = any (p_topics || p_tails)
            union all
            select p.deadline
            from unnest(p_topics, p_groups) g(topic, name)
            join trunkline.topics t on t.kind = 'topic' and t.name = g.topic
            join trunkline.subscriptions s on s.topic_id = t.topic_id and s.kind = 'group' and s.name = g.name
            join trunkline.cursors c on c.subscription_id = s.subscription_id
            cross join lateral trunkline._position(c) p
            where p.fetched > p.committed
        ) x where x.at > v_now;
        v_soon := least(v_soon, v_next);
        return query select 'wait', null::text, null::text, null::text, null::bigint, extract(epoch from v_soon - trunkline.clock())::float8 where v_soon is not null;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Assigns offsets to messages that were committed for the waiting consumers of a process, and polls, in one
-- round trip. p_found returns the rows of poll, each as an array. A pass takes longer than a poll. So it
-- runs, followed by a second poll, only if the first poll finds no queue with messages and next_pass()
-- returns 0. A row of kind 'wait' is added if a pass is due that has not run, or if another transaction has
-- locked a log. Begins with a commit, so it cannot be called in a transaction of the caller.
create or replace procedure trunkline.pass_and_poll(
    p_queues text[], p_topics text[], p_groups text[], p_members text[], p_tails text[], p_labels text[], inout p_found jsonb default null)
language plpgsql
as $$
declare
    v_whole boolean;
    v_pass  float8;
begin
    commit;
    set transaction isolation level read committed;
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    v_whole := trunkline.sequence_logs(p_queues, p_topics || p_tails);
    commit;
    set transaction isolation level read committed;
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    for i in 1 .. 2 loop
        p_found := (select coalesce(jsonb_agg(jsonb_build_array(f.kind, f.name, f.group_name, f.member, f.head, f.seconds)), '[]')
                    from trunkline.poll(p_queues, p_topics, p_groups, p_members, p_tails, p_labels) f);
        exit when i = 2 or p_queues = '{}' and not trunkline._has_due(array(select t.topic_id from trunkline.topics t where t.kind = 'topic' and t.name = any (p_topics || p_tails)));
        v_pass := trunkline.next_pass();
        exit when v_pass is null or v_pass > 0 or jsonb_path_exists(p_found, '$[*][0] ? (@ == "queue")');
        v_pass := null;
        commit;
        set transaction isolation level read committed;
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        v_whole := trunkline.run_pass(p_queues, p_topics || p_tails) and v_whole;
        commit;
        set transaction isolation level read committed;
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    end loop;
    if v_pass is not null or not v_whole then
        p_found := p_found || jsonb_build_array(jsonb_build_array('wait', null, null, null, null, coalesce(v_pass, 0.1)));
    end if;
end
$$;

-- Returns whether a partition of an ordered queue has messages to deliver now.
create or replace function trunkline._ordered_ready(c trunkline.cursors, p_now timestamptz) returns boolean
language plpgsql
as $$
declare
    o record;
begin
    o := trunkline._ordered_state(c);
    if o.is_open and trunkline._ends_at(o.l) > p_now then
        return false;
    end if;
    return case when o.is_open then true when o.offsets is not null then o.dues[1] <= p_now else trunkline._head(c.log) >= o.next_offset end;
end
$$;
