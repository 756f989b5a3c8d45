-- What needs attention: rules over rollups, groups, endpoints, archives and the server, with thresholds in
-- `settings` (attention_...). Reads a few rows per queue, group and endpoint, and no messages.

-- Returns what needs attention, first what loses data: severity 'loss', 'stopped', 'slow' or 'note', each with
-- the earliest deadline first. rule: a stable name; kind and subject: what it is about; since: when it began,
-- as far as known; deadline: when data is lost; n: messages or requests concerned; cause and next_step:
-- sentences for people. A rule that fails is itself a row, and does not stop the others.
-- Counts are those of the newest rollups, at most some minutes old.
create or replace function trunkline.attention() returns setof trunkline.attention_row
language plpgsql
as $$
declare
    v_rule text;
    v_all  trunkline.attention_row[] := '{}';
    v_some trunkline.attention_row[];
begin
    foreach v_rule in array '{durability,upkeep,retention,sequencing,archives,queues,groups,endpoints,dead_letters,schedules,alerts,transactions,slots}'::text[] loop
        begin
            execute format('select array_agg(x) from trunkline._attention_%s() x', v_rule) into v_some;
            v_all := v_all || v_some;
        exception when others then
            v_all := v_all || row('note', 'rule_failed', 'rule', v_rule, null, null, null, format('cannot check %s: %s (%s)', replace(v_rule, '_', ' '), sqlerrm, sqlstate),
                                  'Run trunkline doctor.')::trunkline.attention_row;
        end;
    end loop;
    return query
    select x.* from unnest(v_all) x order by array_position('{loss,stopped,slow,note}', x.severity), x.deadline nulls last, x.since nulls last, x.rule, x.subject;
end
$$;

-- Returns a threshold of attention().
create or replace function trunkline._attention_setting(p_name text) returns interval
language sql stable
as $$ select trunkline._setting('attention_' || p_name)::interval $$;

-- Returns an age for people: the largest unit, and the next one below ten.
create or replace function trunkline._age_text(p_seconds float8) returns text
language sql immutable
as $$
    select case when p_seconds < 120 then round(p_seconds) || ' s' when p_seconds < 7200 then round(p_seconds / 60) || ' min'
                when p_seconds < 172800 then round(p_seconds / 3600) || ' h' else round(p_seconds / 86400) || ' d' end
$$;

-- Server settings with which a crash loses messages.
create or replace function trunkline._attention_durability() returns setof trunkline.attention_row
language sql
as $$
    select 'loss', 'not_durable', 'database', s.name, null::timestamptz, null::timestamptz, null::bigint,
           format('%s is off: a crash of the server can lose acknowledged messages', s.name), format('Set %s to on.', s.name)
    from pg_catalog.pg_settings s where s.name in ('fsync', 'full_page_writes') and s.setting = 'off' order by s.name
$$;

-- Upkeep that does not run, and tasks that fail.
create or replace function trunkline._attention_upkeep() returns setof trunkline.attention_row
language sql
as $$
    with tasks as materialized (select * from trunkline.upkeep_stats())
    select 'stopped', 'upkeep_silent', 'database', 'upkeep', min(t.last_run_at), null::timestamptz, null::bigint,
           case when min(t.age_seconds) is null then 'upkeep has never run' else format('upkeep has not run for %s', trunkline._age_text(min(t.age_seconds))) end || ': no offsets, no retries, no retention',
           'Start trunkline serve, trunkline up or a worker.'
    from tasks t having count(*) filter (where t.state in ('late', 'never')) = count(*)
    union all
    select 'stopped', 'upkeep_fails', 'task', t.task, t.failing_since, null, null, format('upkeep task %s fails: %s (%s)', t.task, t.error, t.error_code), 'Run trunkline doctor.'
    from tasks t where t.failing_since < trunkline.clock() - interval '1 minute'
$$;

-- Readers that lose messages by hard retention.
create or replace function trunkline._attention_retention() returns setof trunkline.attention_row
language plpgsql
as $$
declare
    v_topic text;
    v_until timestamptz := trunkline.clock() + trunkline._attention_setting('loss');
begin
    for v_topic in select t.name from trunkline.topics t where t.kind = 'topic' and t.hard_retention is not null order by t.name loop
        begin
            return query
            select 'loss', 'data_lost_soon', d.kind, case d.kind when 'group' then v_topic || '/' || d.reader else d.reader end, null::timestamptz, min(d.lost_at), sum(d.unread)::bigint,
                   format('%s %s has %s unread messages of topic %s, and hard retention removes the first of them in %s', d.kind, d.reader, sum(d.unread), v_topic,
                          trunkline._age_text(greatest(0, extract(epoch from min(d.lost_at) - trunkline.clock())))),
                   'Let the reader catch up, or use a longer hard_retention.'
            from trunkline.retention_deadlines(v_topic) d where d.lost_at < v_until group by d.kind, d.reader;
        exception when others then
            return next row('stopped', 'unreadable', 'topic', v_topic, null, null, null, format('cannot read the positions of topic %s: %s (%s)', v_topic, sqlerrm, sqlstate), 'Run trunkline doctor.')::trunkline.attention_row;
        end;
    end loop;
end
$$;

-- A transaction that keeps committed messages from getting an offset.
create or replace function trunkline._attention_sequencing() returns setof trunkline.attention_row
language sql
as $$
    select 'stopped', 'no_offsets', 'database', 'sequencing', trunkline.clock() - a.unsequenced * interval '1 second', null::timestamptz, null::bigint,
           format('a transaction that publishes has been open for %s', trunkline._age_text(a.unsequenced)), 'Commit or end it: its messages are not delivered before.'
    from trunkline._ages() a where a.unsequenced > extract(epoch from trunkline._attention_setting('idle'))
$$;

-- Required archives that stand still: retention waits for them.
create or replace function trunkline._attention_archives() returns setof trunkline.attention_row
language sql
as $$
    select 'stopped', 'archive_stands_still', 'topic', t.name, min(s.sealed_at), null::timestamptz, null::bigint,
           format('topic %s must be archived, and a segment has waited for %s: retention removes nothing', t.name, trunkline._age_text(extract(epoch from trunkline.clock() - min(s.sealed_at)))),
           'Run the archive pipeline.'
    from trunkline.archives a join trunkline.topics t using (topic_id) join trunkline.logs l using (topic_id)
    cross join lateral (select g.sealed_at from trunkline.segments g
                        where g.log = l.log and g.sealed_at < (select trunkline.clock() - trunkline._attention_setting('idle')) - t.retention
                          and g.last_offset > trunkline._archived_upto(l.topic_id, l.partition) and g.last_offset >= l.base_offset order by g.segment limit 1) s
    where a.required group by t.name
$$;

-- Queues whose next message waits longer than usual, and paused ones with messages.
create or replace function trunkline._attention_queues() returns setof trunkline.attention_row
language plpgsql
as $$
declare
    v_now  timestamptz := trunkline.clock();
    v_wait float8 := extract(epoch from trunkline._attention_setting('wait'));
    v_idle interval := trunkline._attention_setting('idle');
    q      record;
    v_late float8;
    v_last timestamptz;
    v_p99  float8;
begin
    for q in
        select x.queue_id, x.name, x.paused, x.updated_at, r.at, r.ready, r.delivered, r.oldest_age
        from trunkline.queues x
        cross join lateral (select y.at, y.ready, y.delivered, y.oldest_age from trunkline.rollups y where y.kind = 'queue' and y.subject = x.queue_id order by y.at desc limit 1) r
        where r.ready > 0 and (x.paused or r.oldest_age > v_wait)
        -- the reasons below are read for the longest waits only
        order by r.oldest_age desc limit 100
    loop
        if q.paused then
            return next row('note', 'queue_paused', 'queue', q.name, q.updated_at, null, q.ready, format('queue %s is paused, %s messages wait', q.name, q.ready), 'Resume the queue.')::trunkline.attention_row;
            continue;
        end if;
        -- the endpoint is listed instead
        continue when trunkline._not_sent(q.queue_id) is not null;
        v_late := q.oldest_age + greatest(0, extract(epoch from v_now - q.at));
        v_last := (select y.at from trunkline.rollups y where y.kind = 'queue' and y.subject = q.queue_id and y.delivered < q.delivered order by y.at desc limit 1);
        if coalesce(v_last, '-infinity') < v_now - v_idle
           and (select min(y.at) from trunkline.rollups y where y.kind = 'queue' and y.subject = q.queue_id and y.at > coalesce(v_last, '-infinity')) < v_now - v_idle then
            return next row('stopped', 'no_consumer', 'queue', q.name, v_now - v_late * interval '1 second', null, q.ready,
                            format('%s messages wait in queue %s, and no consumer has claimed any %s', q.ready, q.name,
                                   coalesce('for ' || trunkline._age_text(extract(epoch from v_now - v_last)), 'in the last day')), 'Start a consumer or a worker for this queue.')::trunkline.attention_row;
            continue;
        end if;
        v_p99 := (select percentile_cont(0.5) within group (order by z.wait_p99)
                  from (select y.wait_p99 from trunkline.rollups y where y.kind = 'queue' and y.subject = q.queue_id and y.wait_p99 is not null order by y.at desc offset 10 limit 60) z);
        if v_late > coalesce(5 * v_p99, 0) then
            return next row('slow', 'queue_waits', 'queue', q.name, v_now - v_late * interval '1 second', null, q.ready,
                            format('the next message of queue %s has waited for %s%s', q.name, trunkline._age_text(v_late),
                                   coalesce(', usually at most ' || trunkline._age_text(v_p99), '')), 'Add consumers, or find out what slows them down.')::trunkline.attention_row;
        end if;
    end loop;
end
$$;

-- Groups that no member reads, and groups that fall behind.
create or replace function trunkline._attention_groups() returns setof trunkline.attention_row
language plpgsql
as $$
declare
    v_now  timestamptz := trunkline.clock();
    v_wait float8 := extract(epoch from trunkline._attention_setting('wait'));
    v_idle interval := trunkline._attention_setting('idle');
    g      record;
    v_was  trunkline.rollups;
    v_late float8;
begin
    for g in
        select s.subscription_id, t.name || '/' || s.name as name, r.at, r.lag, r.acked, r.oldest_age
        from trunkline.subscriptions s join trunkline.topics t using (topic_id)
        cross join lateral (select y.at, y.lag, y.acked, y.oldest_age from trunkline.rollups y where y.kind = 'group' and y.subject = s.subscription_id order by y.at desc limit 1) r
        where s.kind = 'group' and r.lag > 0 order by r.oldest_age desc limit 100
    loop
        begin
            v_late := g.oldest_age + greatest(0, extract(epoch from v_now - g.at));
            continue when v_late < v_wait;
            if not exists (select from trunkline.cursors c cross join lateral trunkline._position(c) p where c.subscription_id = g.subscription_id and p.deadline > v_now) then
                -- a group without members can still be moved, as Spark does
                continue when exists (select from trunkline.rollups y where y.kind = 'group' and y.subject = g.subscription_id and y.at > v_now - v_idle and y.acked < g.acked);
                return next row('stopped', 'no_member', 'group', g.name, v_now - v_late * interval '1 second', null, g.lag,
                                format('no member reads group %s, which is %s messages behind', g.name, g.lag), 'Start a member, or delete the group.')::trunkline.attention_row;
                continue;
            end if;
            select * into v_was from trunkline.rollups y where y.kind = 'group' and y.subject = g.subscription_id and y.at <= g.at - interval '10 minutes' order by y.at desc limit 1;
            if g.lag > v_was.lag and g.oldest_age > v_was.oldest_age then
                return next row('slow', 'falls_behind', 'group', g.name, v_now - v_late * interval '1 second', null, g.lag,
                                format('group %s is %s messages and %s behind, and falls further behind', g.name, g.lag, trunkline._age_text(v_late)), 'Add members or partitions.')::trunkline.attention_row;
            end if;
        exception when others then
            return next row('stopped', 'unreadable', 'group', g.name, null, null, null, format('cannot read the position of group %s: %s (%s)', g.name, sqlerrm, sqlstate), 'Run trunkline doctor.')::trunkline.attention_row;
        end;
    end loop;
end
$$;

-- Endpoints to which nothing is sent while messages wait, and disabled ones.
create or replace function trunkline._attention_endpoints() returns setof trunkline.attention_row
language sql
as $$
    select case when e.state = 'paused' then 'note' else 'stopped' end,
           case when e.state <> 'enabled' then 'endpoint_' || e.state when b.openings > 0 then 'endpoint_breaker' else 'endpoint_not_sent' end,
           'endpoint', e.name, e.updated_at, null::timestamptz, w.waiting, format('%s; %s messages wait', w.why, w.waiting),
           case when e.state <> 'enabled' then 'Resume the endpoint when its receiver works.' when b.openings > 0 then 'Test the endpoint, and look at its attempts.'
                else 'Start a dispatcher that may reach the address, or wait for the receiver.' end
    from trunkline.endpoints e
    cross join lateral (select e.openings) b
    cross join lateral (
        select coalesce(sum(r.ready + r.leased), 0)::bigint as waiting, min(trunkline._not_sent(x.queue_id)) as why
        from trunkline.bindings x
        left join lateral (select y.ready, y.leased from trunkline.rollups y where y.kind = 'queue' and y.subject = x.queue_id order by y.at desc limit 1) r on true
        where x.endpoint_id = e.endpoint_id) w
    where w.why is not null and (w.waiting > 0 or e.state = 'disabled')
$$;

-- New dead letters.
create or replace function trunkline._attention_dead_letters() returns setof trunkline.attention_row
language plpgsql
as $$
declare
    -- a variable bounds an index range; the clock is read once
    v_from timestamptz := trunkline.clock() - trunkline._attention_setting('recent') - interval '11 minutes';
begin
    return query
    select 'note', 'dead_letters', 'queue', q.name, w.at, null::timestamptz, r.dead - w.dead,
           format('%s new dead letters of queue %s in %s%s', r.dead - w.dead, q.name, trunkline._age_text(extract(epoch from r.at - w.at)), coalesce(': ' || left(d.error, 200), '')),
           'Look at the errors, then redrive or purge the dead letters.'
    from trunkline.queues q
    cross join lateral (select y.at, y.dead from trunkline.rollups y where y.kind = 'queue' and y.subject = q.queue_id order by y.at desc limit 1) r
    cross join lateral (select y.at, y.dead from trunkline.rollups y where y.kind = 'queue' and y.subject = q.queue_id and y.at >= v_from order by y.at limit 1) w
    left join lateral (select x.error from trunkline.dead_letters x where x.queue_id = q.queue_id order by x.dead_id desc limit 1) d on true
    where r.dead > w.dead;
end
$$;

-- Schedules that were paused by an error, and schedules that are late.
create or replace function trunkline._attention_schedules() returns setof trunkline.attention_row
language sql
as $$
    select 'stopped', 'schedule_paused', 'schedule', s.name, a.at, null::timestamptz, null::bigint, format('schedule %s was paused by an error: %s', s.name, a.detail ->> 'error'),
           'Correct the target, then resume the schedule.'
    from trunkline.schedules s
    cross join lateral (select x.at, x.detail from (select * from trunkline.alerts y order by y.alert_id desc limit 1000) x
                        where x.kind = 'schedule_paused' and x.detail ->> 'schedule' = s.name order by x.at desc limit 1) a
    where s.paused
    union all
    select 'slow', 'schedule_late', 'schedule', s.name, s.next_at, null, null, format('schedule %s has not fired since %s', s.name, s.next_at), 'Check that upkeep runs.'
    from trunkline.schedules s where not s.paused and s.next_at < trunkline.clock() - trunkline._setting('schedule_grace')::interval
$$;

-- Recent alerts, except those of other rules.
create or replace function trunkline._attention_alerts() returns setof trunkline.attention_row
language sql
as $$
    select case a.kind when 'retention_overtook_reader' then 'loss' else 'note' end, a.kind, case when a.detail ? 'topic' then 'topic' else 'database' end, coalesce(a.detail ->> 'topic', a.kind),
           min(a.at), null::timestamptz, count(*),
           case a.kind when 'retention_overtook_reader' then format('hard retention has removed unread messages of topic %s', a.detail ->> 'topic')
                       when 'clock_went_back' then 'the clock of the server went back' else replace(a.kind, '_', ' ') end,
           case a.kind when 'retention_overtook_reader' then 'Use a longer hard_retention, or a required archive.' else 'Look at the alerts.' end
    from (select * from trunkline.alerts x order by x.alert_id desc limit 1000) a
    where a.at > trunkline.clock() - trunkline._attention_setting('recent') and a.kind <> 'schedule_paused'
    group by a.kind, a.detail ? 'topic', a.detail ->> 'topic'
$$;

-- Sessions and prepared transactions that hold back vacuum.
create or replace function trunkline._attention_transactions() returns setof trunkline.attention_row
language sql
as $$
    select 'note', 'old_transaction', 'session', a.pid::text, a.xact_start, null::timestamptz, null::bigint,
           format('session %s (%s, %s) has had a transaction open for %s: vacuum removes nothing newer', a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'no program name'),
                  trunkline._age_text(extract(epoch from clock_timestamp() - a.xact_start))), 'End it, unless it is expected. Queues and topics do not slow down.'
    from pg_catalog.pg_stat_activity a
    where num_nonnulls(a.backend_xid, a.backend_xmin) > 0 and a.pid <> pg_backend_pid() and a.datname = current_database()
      and a.xact_start < (select clock_timestamp() - trunkline._attention_setting('transaction'))
    union all
    select 'note', 'old_transaction', 'prepared transaction', x.gid, x.prepared, null, null,
           format('prepared transaction %s of %s is %s old', x.gid, x.owner, trunkline._age_text(extract(epoch from clock_timestamp() - x.prepared))), 'Commit it or roll it back.'
    from pg_catalog.pg_prepared_xacts x where x.database = current_database() and x.prepared < clock_timestamp() - trunkline._attention_setting('transaction')
$$;

-- Replication slots that no standby reads: they keep write-ahead log.
create or replace function trunkline._attention_slots() returns setof trunkline.attention_row
language sql
as $$
    select case when s.wal_status in ('unreserved', 'lost') then 'stopped' else 'note' end, 'unused_slot', 'slot', s.slot_name::text, null::timestamptz, null::timestamptz, null::bigint,
           format('replication slot %s has no reader and keeps write-ahead log (%s)', s.slot_name, coalesce(s.wal_status, 'lost')), 'Start its reader, or drop the slot.'
    from pg_catalog.pg_replication_slots s where not s.active and not s.temporary
$$;
