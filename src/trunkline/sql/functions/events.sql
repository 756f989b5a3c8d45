-- System events: messages about Trunkline itself in topic trunkline.events. They are published while the topic
-- exists and the setting `events` is not 'off'. Bind a queue that subscribes to the topic to an endpoint to get
-- alerts.
--
-- The routing key is the event: dead_lettered, endpoint_disabled, endpoint_paused, endpoint_failing (its breaker
-- is open), endpoint_recovered, schedule_paused, schedule_resumed, run_stopped, alert. The payload is an object
-- with `event`, `at` and what it is about.
--
-- Upkeep publishes them every ten seconds, at most about 100 at a time; more dead letters are summed up. There
-- are no events about dead letters of this topic, or about endpoints that get nothing but events, so that an
-- event never causes another one.

-- Publishes one event.
create or replace function trunkline._publish_event(p_event text, p_key text, p_detail jsonb) returns void
language plpgsql
as $$
begin
    perform trunkline.publish('trunkline.events', jsonb_strip_nulls(jsonb_build_object('event', p_event, 'at', trunkline.clock()) || p_detail), p_key => left(p_key, 1000), p_routing_key => p_event);
end
$$;

-- Returns the position of a source of events, or notes p_newest and returns it if there is none: nothing that
-- happened before the topic was created is an event.
create or replace function trunkline._event_position(p_source text, p_newest bigint) returns bigint
language plpgsql
as $$
declare
    v_position bigint := (select position from trunkline.event_sources where source = p_source);
begin
    if v_position is null then
        insert into trunkline.event_sources values (p_source, coalesce(p_newest, 0));
        return coalesce(p_newest, 0);
    end if;
    return v_position;
end
$$;

-- Publishes an event for each group of new dead letters, at most 50, and one for those of all other groups.
-- Returns the number of events. Reads at most 10,000 dead letters. Does not see one whose transaction is open
-- longer than that of a later one, or one that was redriven or purged within ten seconds.
create or replace function trunkline._dead_letter_events() returns int
language plpgsql
as $$
declare
    v_from  bigint := trunkline._event_position('dead_letters', (select max(dead_id) from trunkline.dead_letters));
    v_last  bigint;
    v_count int := 0;
    v_group record;
begin
    for v_group in
        with new as materialized (
            select d.dead_id, d.queue_id, d.fingerprint, d.topic, d.id, d.label, d.error, d.reason from trunkline.dead_letters d where d.dead_id > v_from order by d.dead_id limit 10000
        ), grouped as (
            select n.queue_id, n.fingerprint, count(*) as messages, max(n.dead_id) as dead_id, row_number() over (order by count(*) desc, n.queue_id, n.fingerprint) as place
            from new n where n.topic <> 'trunkline.events' group by n.queue_id, n.fingerprint
        )
        select q.name as queue, g.fingerprint, g.messages, n.id, n.label, trunkline._masked(coalesce(n.error, n.reason)) as error, null::bigint as groups
        from grouped g join new n using (dead_id) join trunkline.queues q on q.queue_id = g.queue_id where g.place <= 50
        union all
        select null, null, sum(g.messages)::bigint, null, null, null, count(*) from grouped g where g.place > 50 having count(*) > 0
    loop
        perform trunkline._publish_event('dead_lettered', v_group.queue, jsonb_build_object('queue', v_group.queue, 'fingerprint', v_group.fingerprint, 'label', v_group.label, 'error', v_group.error,
                                                                                      'messages', v_group.messages, 'last_id', v_group.id, 'groups', v_group.groups));
        v_count := v_count + 1;
    end loop;
    select max(x.dead_id) into v_last from (select d.dead_id from trunkline.dead_letters d where d.dead_id > v_from order by d.dead_id limit 10000) x;
    if v_last > v_from then
        update trunkline.event_sources set position = v_last where source = 'dead_letters';
    end if;
    return v_count;
end
$$;

-- Publishes an event for each run that stopped, at most 25, and for each new alert, at most 25. Returns their
-- number.
create or replace function trunkline._log_events() returns int
language plpgsql
as $$
declare
    v_runs   bigint := trunkline._event_position('runs', (select max(no) from trunkline.run_log));
    v_alerts bigint := trunkline._event_position('alerts', (select max(alert_id) from trunkline.alerts));
    v_count  int := 0;
    r        record;
begin
    for r in select l.no, l.run_id, l.detail, x.kind, x.selector, x.total, x.done, x.failed from trunkline.run_log l join trunkline.runs x using (run_id)
             where l.no > v_runs and l.event in ('stopped', 'failed') order by l.no limit 25 loop
        perform trunkline._publish_event('run_stopped', 'run ' || r.run_id, jsonb_build_object('run_id', r.run_id, 'kind', r.kind, 'queue', r.selector ->> 'queue', 'reason', r.detail,
                                                                                               'total', r.total, 'done', r.done, 'failed', r.failed));
        update trunkline.event_sources set position = r.no where source = 'runs';
        v_count := v_count + 1;
    end loop;
    for r in select a.alert_id, a.kind, a.detail from trunkline.alerts a where a.alert_id > v_alerts order by a.alert_id limit 25 loop
        perform trunkline._publish_event('alert', r.kind, jsonb_build_object('kind', r.kind, 'detail', r.detail));
        update trunkline.event_sources set position = r.alert_id where source = 'alerts';
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;

-- Publishes an event for each endpoint and schedule whose state has changed, at most 50. Returns their number.
create or replace function trunkline._state_events() returns int
language plpgsql
as $$
declare
    v_first boolean := not exists (select from trunkline.event_sources where source = 'states');
    v_count int := 0;
    r       record;
begin
    perform trunkline._event_position('states', 0);
    for r in
        select x.*, s.state as before from (
            select 'endpoint' as kind, e.name as subject, case when e.state <> 'enabled' then e.state when e.openings > 0 then 'failing' else 'recovered' end as state, e.reason
            from trunkline.endpoints e
            where not exists (select from trunkline.bindings b where b.endpoint_id = e.endpoint_id)
               or exists (select from trunkline.bindings b where b.endpoint_id = e.endpoint_id
                          and not exists (select from trunkline.subscriptions u join trunkline.topics t using (topic_id) where u.queue_id = b.queue_id and t.name = 'trunkline.events'))
            union all
            select 'schedule', h.name, case when h.paused then 'paused' else 'resumed' end, null from trunkline.schedules h
        ) x
        left join trunkline.event_states s using (kind, subject)
        where x.state is distinct from coalesce(s.state, case x.kind when 'endpoint' then 'recovered' else 'resumed' end)
        order by x.kind, x.subject limit case when v_first then null else 50 end
    loop
        insert into trunkline.event_states values (r.kind, r.subject, r.state) on conflict (kind, subject) do update set state = excluded.state;
        if not v_first then
            perform trunkline._publish_event(r.kind || '_' || r.state, r.subject, jsonb_build_object(r.kind, r.subject, 'reason', r.reason));
            v_count := v_count + 1;
        end if;
    end loop;
    delete from trunkline.event_states s where s.kind = 'endpoint' and not exists (select from trunkline.endpoints e where e.name = s.subject);
    delete from trunkline.event_states s where s.kind = 'schedule' and not exists (select from trunkline.schedules h where h.name = s.subject);
    return v_count;
end
$$;

-- Publishes what has happened since the last run as system events, if the topic exists. Returns their number.
create or replace function trunkline._upkeep_events() returns int
language plpgsql
as $$
begin
    if not exists (select from trunkline.topics where kind = 'topic' and name = 'trunkline.events') or trunkline._setting('events') = 'off' then
        delete from trunkline.event_sources;
        delete from trunkline.event_states;
        return 0;
    end if;
    return trunkline._dead_letter_events() + trunkline._log_events() + trunkline._state_events();
end
$$;
