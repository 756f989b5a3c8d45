-- The system: sessions that endanger it, storage, and alerts.

-- Returns the sessions of this server that hold back vacuum (longer than p_longer_than), the locks of Trunkline
-- that others wait for, or a transaction in which they are idle, the oldest first. holds: xmin, idle, locks.
-- blocks: sessions that wait for it. query: its first 80 characters; null if the caller's role may not see it.
-- For trunkline_owner only: queries can contain data.
create or replace function trunkline.list_sessions(p_longer_than interval default '10 seconds', p_limit int default 100)
returns table (pid int, role text, application text, state text, holds text[], blocks int, began_at timestamptz, age_seconds float8, query text)
language plpgsql
as $$
#variable_conflict use_column
begin
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    return query
    with waits as (
        select b.pid as holder, count(*)::int as n
        from pg_stat_activity w cross join lateral unnest(pg_blocking_pids(w.pid)) b(pid)
        where w.wait_event_type = 'Lock' and w.datname = current_database() group by 1
    )
    select a.pid, a.usename::text, a.application_name, a.state,
           array_remove(array[case when coalesce(a.backend_xid, a.backend_xmin) is not null and a.xact_start < clock_timestamp() - p_longer_than then 'xmin' end,
                              case when a.state like 'idle in transaction%' and a.state_change < clock_timestamp() - p_longer_than then 'idle' end,
                              case when w.n > 0 then 'locks' end], null),
           coalesce(w.n, 0), a.xact_start, extract(epoch from clock_timestamp() - a.xact_start)::float8, left(a.query, 80)
    from pg_stat_activity a left join waits w on w.holder = a.pid
    where a.pid <> pg_backend_pid() and a.xact_start is not null
      and (w.n > 0 or a.xact_start < clock_timestamp() - p_longer_than and (coalesce(a.backend_xid, a.backend_xmin) is not null or a.state like 'idle in transaction%'))
    order by a.xact_start limit p_limit;
end
$$;

-- Returns the segments of a topic, a queue's own log or, without p_topic and p_queue, of all, by log. state:
-- open (messages can still be added), sealed (complete) or staged (rows of Spark writers). last_offset: null
-- while it is open. bytes: with indexes. For more rows, pass the last log and segment. p_limit is 1 to 10,000.
create or replace function trunkline.list_segments(
    p_topic text default null, p_queue text default null, p_after_log int default null, p_after_segment bigint default null, p_limit int default 100)
returns table (log int, kind text, name text, partition int, segment bigint, state text, last_offset bigint, sealed_at timestamptz, bytes bigint)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_topic int;
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    if p_topic is not null then
        v_topic := (trunkline._topic('topic', p_topic)).topic_id;
    elsif p_queue is not null then
        v_topic := (trunkline._queue(p_queue)).inbox_id;
    end if;
    return query
    select s.log, case t.kind when 'inbox' then 'queue' else t.kind end, t.name, l.partition, s.segment,
           case when s.staged then 'staged' when s.sealed_at is null then 'open' else 'sealed' end, case when s.sealed_at is not null then s.last_offset end, s.sealed_at,
           pg_total_relation_size(to_regclass(case t.kind when 'store' then format('trunkline.store_%s', s.segment % 8)
                                                          else format('trunkline.topic_%s_%s_%s', l.topic_id, l.partition, s.segment) end))
    from (select * from trunkline._all_segments() x
          where (p_after_log is null or (x.log, x.segment) > (p_after_log, coalesce(p_after_segment, -1)))
            and (v_topic is null or x.log in (select y.log from trunkline.logs y where y.topic_id = v_topic))
          order by x.log, x.segment limit p_limit) s
    join trunkline.logs l on l.log = s.log join trunkline.topics t on t.topic_id = l.topic_id
    order by s.log, s.segment;
end
$$;

-- Returns the size of the schema by part, the largest first: log (messages of topics and queues), deliveries
-- (leases and what belongs to them), history, attempts, dead_letters, delayed, idempotency, jobs, other. tables:
-- their number; bytes: with indexes. Reads the size of every table, which takes about 10 us for each.
create or replace function trunkline.list_sizes() returns table (part text, tables int, bytes bigint)
language sql
as $$
    select x.part, count(*)::int, sum(x.bytes)::bigint
    from (
        select case when c.relname ~ '^(topic_|store)' then 'log'
                    when c.relname ~ '^(leases|settled|extensions|returns|later|cursor_states|passes|ticks|positions)(_|$)' then 'deliveries'
                    when c.relname ~ '^history' then 'history' when c.relname ~ '^attempts' then 'attempts' when c.relname ~ '^dead_letters' then 'dead_letters'
                    when c.relname ~ '^delayed' then 'delayed' when c.relname ~ '^(idempotency|inbox_keys)' then 'idempotency' when c.relname ~ '^job_' then 'jobs'
                    else 'other' end as part,
               pg_total_relation_size(c.oid) as bytes
        from pg_class c where c.relnamespace = 'trunkline'::regnamespace and c.relkind = 'r'
    ) x
    group by x.part order by sum(x.bytes) desc, x.part
$$;

-- Returns alerts, the newest first. p_open: only alerts that are not closed. For more rows, pass the last
-- alert_id as p_before. p_limit is 1 to 10,000.
create or replace function trunkline.list_alerts(p_open boolean default true, p_before bigint default null, p_limit int default 100) returns setof trunkline.alerts
language plpgsql stable
as $$
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    return query
    select * from trunkline.alerts a
    where (p_before is null or a.alert_id < p_before) and (not p_open or a.done_at is null) order by a.alert_id desc limit p_limit;
end
$$;

-- Closes an alert: an operator has dealt with it. p_by: by whom; the role of the session if null. Returns false
-- if it was closed before. Raises TL001 if it does not exist.
create or replace function trunkline.close_alert(p_alert_id bigint, p_by text default null) returns boolean
language plpgsql
as $$
begin
    update trunkline.alerts set done_at = trunkline.clock(), done_by = coalesce(left(p_by, 200), session_user) where alert_id = p_alert_id and done_at is null;
    if not found and not exists (select from trunkline.alerts where alert_id = p_alert_id) then
        perform trunkline._fail('TL001', format('alert %s does not exist', coalesce(p_alert_id::text, 'null')), 'List alerts with trunkline.list_alerts.');
    end if;
    return found;
end
$$;
