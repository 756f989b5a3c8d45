-- Push: endpoints, their limits, and what a dispatcher asks and tells. A dispatcher claims from bound queues like any consumer; no function
-- here makes a request, and no transaction is open while one is under way.

create or replace function trunkline._endpoint(p_name text) returns trunkline.endpoints
language plpgsql
as $$
declare
    e trunkline.endpoints;
begin
    select * into e from trunkline.endpoints where name = p_name;
    if not found then
        perform trunkline._fail('TL017', format('endpoint %L does not exist', p_name), format('create it with trunkline.create_endpoint(%L, url)', p_name));
    end if;
    return e;
end
$$;

-- Prevents the deletion of an endpoint until the transaction ends, for rows that refer to it.
create or replace function trunkline._pin_endpoint(p_name text) returns trunkline.endpoints
language plpgsql
as $$
declare
    e trunkline.endpoints;
begin
    loop
        e := trunkline._endpoint(p_name);
        select * into e from trunkline.endpoints where endpoint_id = e.endpoint_id for key share;
        if found then
            return e;
        end if;
    end loop;
end
$$;

-- How many bytes a secret has; null: it is not base64, and nothing could be signed with it.
create or replace function trunkline._secret_length(p_secret text) returns int
language plpgsql immutable
as $$
begin
    return length(decode(substr(p_secret, strpos(p_secret, '_') + 1), 'base64'));
exception when invalid_parameter_value then
    return null;
end
$$;

create or replace function trunkline._check_endpoint(e trunkline.endpoints) returns void
language plpgsql
as $$
declare
    v_bad text;
begin
    if e.rate is not null then
        perform trunkline._check_range('rate', e.rate::numeric, 0.001, 100000);
    end if;
    perform trunkline._check_range('burst', e.burst, 1, 100000);
    perform trunkline._check_range('max_in_flight', e.max_in_flight, 1, 1000);
    perform trunkline._need_duration('timeout', e.timeout, '0.1 seconds', '5 minutes');
    perform trunkline._check_range('batch_size', e.batch_size, 1, 1000);
    if e.mode is null or e.mode not in ('single', 'batch') then
        perform trunkline._fail('TL001', format('mode is %s', coalesce(quote_literal(e.mode), 'null')), 'use single or batch');
    end if;
    if e.headers is null or jsonb_typeof(e.headers) <> 'object' or length(e.headers::text) > 8000 then
        perform trunkline._fail('TL001', 'the headers are not an object, or have more than 8,000 characters', 'write them as {"authorization": "Bearer ..."}');
    end if;
    select h.key into v_bad from jsonb_each(e.headers) h
    where jsonb_typeof(h.value) <> 'string' or h.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' or h.value #>> '{}' !~ '^[\x20-\x7e]*$'
       or lower(h.key) in ('host', 'content-length', 'transfer-encoding', 'connection', 'content-type', 'te', 'upgrade', 'trailer', 'traceparent')
       or lower(h.key) ~ '^(webhook|trunkline)-' limit 1;
    if found then
        perform trunkline._fail('TL001', format('the header %L cannot be set', left(v_bad, 100)),
                                'names are those of HTTP, values plain text; those of the connection and of the delivery itself are ours');
    end if;
    select s into v_bad from unnest(e.secrets) s
    where s is null or s !~ '^(whsec|whsk)_[A-Za-z0-9+/]{32,100}={0,2}$' or not coalesce(trunkline._secret_length(s) = any (case when s ~ '^whsk' then '{32,64}'::int[] else '{}' end)
          or s ~ '^whsec' and trunkline._secret_length(s) >= 24, false) limit 1;
    if found then
        perform trunkline._fail('TL001', 'a secret is not of the form that Standard Webhooks has',
                                'whsec_ (HMAC) and 24 to 64 bytes in base64, or whsk_ (Ed25519) and 32 or 64 bytes; or leave it out to get a new one');
    end if;
end
$$;

-- Tells who made an endpoint on a private network what its dispatchers need.
create or replace function trunkline._note_network(p_name text, p_url text) returns void
language plpgsql
as $$
declare
    v_network text := trunkline.needed_network(p_url);
begin
    if v_network is not null then
        raise notice 'endpoint % is in %, which only a dispatcher with --push-allow % or TRUNKLINE_PUSH_ALLOW=% sends to', p_name, v_network, v_network, v_network;
    end if;
end
$$;

create or replace function trunkline._new_secret() returns text
language sql volatile
as $$ select 'whsec_' || encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'base64') $$;

-- Creates an endpoint and answers the secret that its deliveries are signed with. Without a burst it is a tenth of the rate, at least 2.
create or replace function trunkline.create_endpoint(
    p_name text, p_url text, p_rate float8 default null, p_burst int default null, p_max_in_flight int default 50,
    p_timeout interval default '15 seconds', p_headers jsonb default '{}', p_mode text default 'single', p_batch_size int default 100,
    p_secret text default null)
returns table (name text, secret text)
language plpgsql
as $$
declare
    e trunkline.endpoints;
begin
    perform trunkline._check_name('endpoint', p_name);
    perform trunkline._check_url(p_url);
    e.url := p_url;
    e.rate := p_rate;
    e.burst := coalesce(p_burst, greatest(2, ceil(least(p_rate, 100000) / 10)));
    e.max_in_flight := p_max_in_flight;
    e.timeout := p_timeout;
    e.mode := p_mode;
    e.batch_size := p_batch_size;
    e.headers := coalesce(p_headers, '{}');
    e.secrets := array[coalesce(p_secret, trunkline._new_secret())];
    perform trunkline._check_endpoint(e);
    insert into trunkline.endpoints as x (name, url, rate, burst, max_in_flight, timeout, mode, batch_size, headers, secrets)
    values (p_name, e.url, e.rate, e.burst, e.max_in_flight, e.timeout, e.mode, e.batch_size, e.headers, e.secrets)
    on conflict do nothing returning x.endpoint_id into e.endpoint_id;
    if not found then
        perform trunkline._fail('TL020', format('endpoint %L already exists', p_name), 'use another name, or trunkline.alter_endpoint');
    end if;
    execute format('create sequence trunkline.endpoint_%s_pace minvalue 0 start 0', e.endpoint_id);
    perform trunkline._note_network(p_name, p_url);
    return query select p_name, e.secrets[1];
end
$$;

-- Changes what is given and keeps the rest. A rate of 0 takes the limit away.
create or replace function trunkline.alter_endpoint(
    p_name text, p_url text default null, p_rate float8 default null, p_burst int default null, p_max_in_flight int default null,
    p_timeout interval default null, p_headers jsonb default null, p_mode text default null, p_batch_size int default null)
returns void
language plpgsql
as $$
declare
    e trunkline.endpoints := trunkline._endpoint(p_name);
begin
    update trunkline.endpoints set
        url = coalesce(p_url, url), rate = case when p_rate = 0 then null else coalesce(p_rate, rate) end,
        burst = coalesce(p_burst, case when p_rate > 0 then greatest(2, ceil(least(p_rate, 100000) / 10)) end, burst),
        max_in_flight = coalesce(p_max_in_flight, max_in_flight), timeout = coalesce(p_timeout, timeout), headers = coalesce(p_headers, headers),
        mode = coalesce(p_mode, mode), batch_size = coalesce(p_batch_size, batch_size), updated_at = trunkline.clock()
    where endpoint_id = e.endpoint_id returning * into e;
    perform trunkline._check_endpoint(e);
    if p_url is not null then
        perform trunkline._check_url(p_url);
        perform trunkline._note_network(p_name, p_url);
        delete from trunkline.endpoint_bars where endpoint_id = e.endpoint_id;
    end if;
end
$$;

-- A new secret, given or made. The former one signs too, until the next rotation; p_keep => false drops it at once.
create or replace function trunkline.rotate_secret(p_name text, p_secret text default null, p_keep boolean default true) returns text
language plpgsql
as $$
declare
    e trunkline.endpoints := trunkline._endpoint(p_name);
begin
    e.secrets := array[coalesce(p_secret, trunkline._new_secret())] || case when p_keep then e.secrets[1:1] else '{}' end;
    perform trunkline._check_endpoint(e);
    update trunkline.endpoints set secrets = e.secrets, updated_at = trunkline.clock() where endpoint_id = e.endpoint_id;
    return e.secrets[1];
end
$$;

-- The secrets in use, the newest first.
create or replace function trunkline.endpoint_secrets(p_name text) returns text[]
language sql
as $$ select (trunkline._endpoint(p_name)).secrets $$;

create or replace function trunkline._set_endpoint_state(p_endpoint_id int, p_state text, p_reason text) returns void
language sql
as $$
    delete from trunkline.endpoint_bars where endpoint_id = p_endpoint_id;
    update trunkline.endpoints set state = p_state, reason = left(p_reason, 1000), updated_at = trunkline.clock(),
        open_until = null, openings = 0, probe_until = null, held_until = null
    where endpoint_id = p_endpoint_id
$$;

-- Its queues go on filling; nothing is sent until resume_endpoint.
create or replace function trunkline.pause_endpoint(p_name text, p_reason text default null) returns void
language sql
as $$ select trunkline._set_endpoint_state((trunkline._endpoint(p_name)).endpoint_id, 'paused', p_reason) $$;

-- Sends again, whatever stopped it: a pause, an answer 410, the breaker, a dispatcher that may not send there.
create or replace function trunkline.resume_endpoint(p_name text) returns void
language sql
as $$ select trunkline._set_endpoint_state((trunkline._endpoint(p_name)).endpoint_id, 'enabled', null) $$;

-- What a dispatcher does when the receiver says that it is gone for good.
create or replace function trunkline.disable_endpoint(p_name text, p_reason text) returns void
language sql
as $$ select trunkline._set_endpoint_state((trunkline._endpoint(p_name)).endpoint_id, 'disabled', p_reason) $$;

-- Deletes an endpoint; refused while queues are bound to it, unless forced. The queues stay, with what they hold.
create or replace function trunkline.delete_endpoint(p_name text, p_force boolean default false) returns void
language plpgsql
as $$
declare
    e trunkline.endpoints := trunkline._endpoint(p_name);
begin
    -- before the bindings are read: a session that binds a queue to it has the row or waits for it
    perform from trunkline.endpoints where endpoint_id = e.endpoint_id for update;
    if not found then
        perform trunkline._endpoint(p_name);
    end if;
    if not p_force and exists (select from trunkline.bindings where endpoint_id = e.endpoint_id) then
        perform trunkline._fail('TL021', format('queues are bound to endpoint %L', p_name), 'unbind them first, or pass p_force => true');
    end if;
    delete from trunkline.bindings where endpoint_id = e.endpoint_id;
    delete from trunkline.endpoints where endpoint_id = e.endpoint_id;
    execute format('drop sequence if exists trunkline.endpoint_%s_pace', e.endpoint_id);
end
$$;

-- Which of the dispatchers that live may not send to an endpoint, and why; null: each may, as far as it has tried.
create or replace function trunkline._barred(p_endpoint_id int) returns text
language sql stable
as $$
    select case when d.barred = d.live then 'no dispatcher may send to it' else format('%s of %s dispatchers may not send to it', d.barred, d.live) end || ': ' || d.reason
    from (select count(*) as live, count(b.dispatcher) as barred, max(b.reason) as reason
          from trunkline.dispatchers x left join trunkline.endpoint_bars b on b.dispatcher = x.dispatcher and b.endpoint_id = p_endpoint_id
          where x.seen_until >= trunkline.clock()) d
    where d.barred > 0
$$;

-- Why nothing of a bound queue is sent now; null: it is, or the queue is bound to no endpoint.
create or replace function trunkline._not_sent(p_queue_id int) returns text
language sql stable
as $$
    select case when e.state <> 'enabled' then format('endpoint %s is %s', e.name, e.state || coalesce(': ' || e.reason, ''))
                when not exists (select from trunkline.dispatchers x where x.seen_until >= trunkline.clock()) then format('no dispatcher runs that would send it to endpoint %s', e.name)
                when e.openings > 0 then format('the breaker of endpoint %s is open', e.name)
                when e.held_until > trunkline.clock() then format('endpoint %s asked for a pause until %s', e.name, e.held_until)
                else format('endpoint %s: ', e.name) || trunkline._barred(e.endpoint_id) end
    from trunkline.bindings b join trunkline.endpoints e using (endpoint_id) where b.queue_id = p_queue_id
$$;

-- Everything but secrets; of the headers only their names; no burst without a rate. The reason says why it is not enabled, or which dispatchers may not send to it.
create or replace function trunkline.list_endpoints()
returns table (name text, url text, state text, reason text, rate float8, burst int, max_in_flight int, timeout interval, mode text, batch_size int,
               headers text[], secrets int, queues text[], breaker text, open_until timestamptz, held_until timestamptz, created_at timestamptz, updated_at timestamptz)
language sql
as $$
    select e.name, e.url, e.state, coalesce(e.reason, case when e.state = 'enabled' then trunkline._barred(e.endpoint_id) end), e.rate,
           case when e.rate is not null then e.burst end, e.max_in_flight, e.timeout, e.mode, e.batch_size,
           array(select k from jsonb_object_keys(e.headers) k order by k), cardinality(e.secrets),
           array(select q.name from trunkline.bindings b join trunkline.queues q using (queue_id) where b.endpoint_id = e.endpoint_id order by q.name),
           case when e.openings = 0 then 'closed' when e.open_until > trunkline.clock() then 'open' else 'half-open' end,
           e.open_until, e.held_until, e.created_at, e.updated_at
    from trunkline.endpoints e order by e.name
$$;

-- Everything of this queue is sent to the endpoint from now on. A queue has one endpoint; an endpoint has many queues.
create or replace function trunkline.bind_queue(p_queue text, p_endpoint text) returns void
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._lock_queue(p_queue);
    e trunkline.endpoints := trunkline._pin_endpoint(p_endpoint);
begin
    insert into trunkline.bindings (queue_id, endpoint_id) values (q.queue_id, e.endpoint_id)
    on conflict (queue_id) do update set endpoint_id = excluded.endpoint_id;
end
$$;

create or replace function trunkline.unbind_queue(p_queue text) returns void
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._queue(p_queue);
begin
    delete from trunkline.bindings where queue_id = q.queue_id;
    if not found then
        perform trunkline._fail('TL017', format('queue %L is bound to no endpoint', p_queue), 'see trunkline.list_endpoints');
    end if;
end
$$;

-- Asks for a test request, signed like a delivery. The next dispatcher that looks sends it; list_attempts shows what came of it.
create or replace function trunkline.test_endpoint(p_name text) returns uuid
language plpgsql
as $$
declare
    e    trunkline.endpoints := trunkline._pin_endpoint(p_name);
    v_id uuid := trunkline.new_id();
begin
    insert into trunkline.endpoint_tests (id, endpoint_id, asked_at) values (v_id, e.endpoint_id, trunkline.clock());
    return v_id;
end
$$;

-- Requests of an endpoint, or for one message, newest first. How far back it goes is the setting attempts_kept.
create or replace function trunkline.list_attempts(
    p_endpoint text default null, p_id uuid default null, p_since interval default '1 day', p_limit int default 100)
returns table (endpoint text, queue text, id uuid, attempt int, started_at timestamptz, seconds float8, status int, outcome text, error text,
               snippet text, dispatcher text)
language plpgsql
as $$
declare
    v_since    timestamptz := trunkline.clock() - p_since;
    v_endpoint int;
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    if p_endpoint is not null then
        v_endpoint := (trunkline._endpoint(p_endpoint)).endpoint_id;
    end if;
    begin
        return query
        select e.name, q.name, a.id, a.attempt, a.started_at, a.seconds, a.status, a.outcome, a.error || '', a.snippet || '', a.dispatcher
        from trunkline.endpoints e
        cross join lateral (
            select * from trunkline.attempts x where x.endpoint_id = e.endpoint_id and x.started_at > v_since and p_id is null order by x.started_at desc limit p_limit) a
        left join trunkline.queues q on q.queue_id = a.queue_id
        where p_id is null and (v_endpoint is null or e.endpoint_id = v_endpoint)
        union all
        select e.name, q.name, a.id, a.attempt, a.started_at, a.seconds, a.status, a.outcome, a.error || '', a.snippet || '', a.dispatcher
        -- by the id alone, or all requests of an endpoint would be looked through
        from (select * from trunkline.attempts x where x.id = p_id offset 0) a join trunkline.endpoints e using (endpoint_id) left join trunkline.queues q on q.queue_id = a.queue_id
        where a.started_at > v_since and (v_endpoint is null or e.endpoint_id = v_endpoint)
        order by started_at desc, id limit p_limit;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- How endpoints fare: requests of the last minute by outcome and their times, from the newest thousand of each; per_second is over the time
-- that these cover. At most p_limit endpoints, by name.
create or replace function trunkline.endpoint_stats(p_limit int default 500)
returns table (endpoint text, state text, breaker text, queues text[], acked int, nacked int, buried int, released int, tested int, per_second float8,
               seconds_p50 float8, seconds_p99 float8)
language plpgsql
as $$
#variable_conflict use_column
begin
    begin
        return query
        select e.name, e.state, case when e.openings = 0 then 'closed' when e.open_until > trunkline.clock() then 'open' else 'half-open' end,
               array(select q.name from trunkline.bindings b join trunkline.queues q on q.queue_id = b.queue_id where b.endpoint_id = e.endpoint_id order by 1),
               a.acked, a.nacked, a.buried, a.released, a.tested,
               a.n / greatest(0.001, case when a.n < 1000 then 60 else extract(epoch from trunkline.clock() - a.first) end)::float8,
               a.times[1], a.times[2]
        from (select * from trunkline.endpoints x order by x.name limit trunkline._limit(p_limit)) e
        cross join lateral (
            select count(*)::int as n, min(x.started_at) as first, count(*) filter (where x.outcome = 'acked')::int as acked,
                   count(*) filter (where x.outcome = 'nacked')::int as nacked, count(*) filter (where x.outcome = 'buried')::int as buried,
                   count(*) filter (where x.outcome = 'released')::int as released, count(*) filter (where x.outcome = 'tested')::int as tested,
                   percentile_cont(array[0.5, 0.99]) within group (order by x.seconds) as times
            -- the time in a query of its own: looked up once, it bounds the range of the index
            from (select * from trunkline.attempts y
                  where y.endpoint_id = e.endpoint_id and y.started_at > (select trunkline.clock() - interval '1 minute')
                  order by y.started_at desc limit 1000) x) a
        order by e.name;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Who would get a message with this routing key and these headers, and where it would be sent. Publishes nothing.
create or replace function trunkline.test_routing(p_topic text, p_routing_key text default null, p_headers jsonb default null)
returns table (kind text, name text, subscription text, pattern text, filter jsonb, endpoint text, matches boolean)
language sql
as $$
    select s.kind, s.name, s.subscription, s.pattern, s.filter, e.name, s.matches
    from trunkline.test_subscriptions(p_topic, p_routing_key, p_headers) s
    left join trunkline.queues q on q.name = s.name and s.kind <> 'group'
    left join trunkline.bindings b on b.queue_id = q.queue_id left join trunkline.endpoints e on e.endpoint_id = b.endpoint_id
    order by s.kind, s.name, s.subscription
$$;

-- Delivers again what was delivered: messages by id, or those acked in a time range. Same ids, a fresh count of attempts. All of them or
-- none; answers how many. Goes back as far as both the log and the queue's history do.
create or replace function trunkline.replay(
    p_queue text, p_ids uuid[] default null, p_from timestamptz default null, p_to timestamptz default null, p_limit int default 1000)
returns int
language plpgsql
as $$
declare
    t       trunkline.topics := trunkline._topic('inbox', p_queue);
    v_from  timestamptz := coalesce(p_from, trunkline.clock() - interval '30 days');
    m       record;
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    if p_ids is null and p_from is null then
        perform trunkline._fail('TL001', 'neither ids nor the start of a time range are given', 'pass p_ids or p_from');
    end if;
    select count(*)::int as n, array_agg(payload order by created_at, id) as payloads, array_agg(id order by created_at, id) as ids,
           array_agg(key order by created_at, id) as keys, array_agg(routing_key order by created_at, id) as routing_keys,
           array_agg(label order by created_at, id) as labels, array_agg(headers order by created_at, id) as headers,
           array_agg(content_type order by created_at, id) as content_types, array_agg(occurred_at order by created_at, id) as occurred_ats,
           array_agg(row(created_at, origin_topic)::trunkline.origin order by created_at, id) as origins
      into m
      from (select distinct on (a.id) a.*, r.occurred_at, coalesce(r.topic, a.topic) as origin_topic from trunkline.list_archive(p_queue, trunkline.clock() - v_from, 1000000) a
            join trunkline.cursors c on c.queue_id = (trunkline._queue(p_queue)).queue_id and c.kind = 'log' and c.topic is not distinct from a.topic and c.partition = a.partition
            cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, a.log_offset, a.log_offset) r
            where (p_ids is null or a.id = any (p_ids)) and a.processed_at >= v_from and (p_to is null or a.processed_at < p_to)
            order by a.id, a.processed_at desc limit p_limit + 1) f;
    if m.n > p_limit then
        perform trunkline._fail('TL004', format('there are more than %s deliveries to replay', p_limit), 'narrow the time range, or raise p_limit (at most 10,000)');
    end if;
    if m.n > 0 then
        insert into trunkline.redriven (id, topic_id, at) select i, t.topic_id, trunkline.clock() from unnest(m.ids) i;
        perform trunkline._append(t, m.payloads, m.ids, m.keys, m.routing_keys, m.labels, m.headers, m.content_types, m.occurred_ats, null, m.origins);
    end if;
    return m.n;
end
$$;

-- What a dispatcher must know, once a second: the endpoints that have queues, and what each may do now. It also says that the dispatcher lives;
-- max_in_flight is shared out among those that do. A new one waits until the others have seen it and made room (wait, in seconds). One that may not
-- send to an endpoint has no share of it and is held (held_for) until it may try again; the others make room for it three seconds before.
create or replace function trunkline.dispatch_plan(p_dispatcher text, p_lease interval default '10 seconds')
returns table (now timestamptz, wait float8, endpoint_id int, name text, url text, rate float8, share int, timeout float8, mode text, batch_size int,
               headers jsonb, secrets text[], enabled boolean, openings int, open_for float8, held_for float8,
               queue_ids int[], queues text[], ordered boolean[], leases float8[], tests uuid[])
language plpgsql
as $$
declare
    v_now  timestamptz := trunkline.clock();
    d      trunkline.dispatchers;
    v_live int;
    v_rank int;
begin
    perform trunkline._need_duration('lease', p_lease, '1 second', '1 hour');
    select * into d from trunkline.dispatchers x where x.dispatcher = p_dispatcher;
    -- written when a third of its time is over, not at each look
    if d.dispatcher is null or d.seen_until < v_now then
        insert into trunkline.dispatchers as x values (p_dispatcher, v_now, v_now + p_lease)
        on conflict (dispatcher) do update set joined_at = v_now, seen_until = v_now + p_lease returning * into d;
        delete from trunkline.dispatchers x where x.seen_until < v_now - interval '1 minute';
    elsif d.seen_until < v_now + p_lease * 2 / 3 then
        update trunkline.dispatchers x set seen_until = v_now + p_lease where x.dispatcher = p_dispatcher;
    end if;
    select count(*), count(*) filter (where (x.joined_at, x.dispatcher) < (d.joined_at, p_dispatcher)) into v_live, v_rank
    from trunkline.dispatchers x where x.seen_until >= v_now;
    return query
    with asked as (
        delete from trunkline.endpoint_tests x
        where x.id in (select y.id from trunkline.endpoint_tests y
                       -- by who may send it, if there is one
                       where not exists (select from trunkline.endpoint_bars b where b.endpoint_id = y.endpoint_id and b.dispatcher = p_dispatcher)
                          or not exists (select from trunkline.dispatchers z where z.seen_until >= v_now and not exists (
                                 select from trunkline.endpoint_bars b where b.endpoint_id = y.endpoint_id and b.dispatcher = z.dispatcher))
                       order by y.asked_at limit 100 for update skip locked) returning x.id, x.endpoint_id
    )
    select v_now, case when v_live = 1 then 0 else greatest(0, extract(epoch from d.joined_at + interval '3 seconds' - v_now)) end::float8,
           e.endpoint_id, e.name, e.url, e.rate,
           case when r.mine is null then e.max_in_flight / s.n + (v_rank - r.before < e.max_in_flight % s.n)::int else 0 end,
           extract(epoch from e.timeout)::float8, e.mode, e.batch_size, e.headers, e.secrets, e.state = 'enabled', e.openings,
           extract(epoch from e.open_until - v_now)::float8, greatest(0, extract(epoch from greatest(e.held_until, r.mine) - v_now))::float8,
           b.ids, b.names, b.ordered, b.leases, t.ids
    from trunkline.endpoints e
    cross join lateral (
        select array_agg(q.queue_id order by q.queue_id) as ids, array_agg(q.name order by q.queue_id) as names, array_agg(q.ordered order by q.queue_id) as ordered,
               array_agg(extract(epoch from q.lease)::float8 order by q.queue_id) as leases
        from trunkline.bindings x join trunkline.queues q on q.queue_id = x.queue_id where x.endpoint_id = e.endpoint_id) b
    cross join lateral (select array_agg(a.id) as ids from asked a where a.endpoint_id = e.endpoint_id) t
    cross join lateral (
        select count(*)::int as n, (count(*) filter (where (x.joined_at, x.dispatcher) < (d.joined_at, p_dispatcher)))::int as before, max(y.until) filter (where x.dispatcher = p_dispatcher) as mine
        from trunkline.endpoint_bars y join trunkline.dispatchers x on x.dispatcher = y.dispatcher
        where y.endpoint_id = e.endpoint_id and x.seen_until >= v_now and y.until > case when x.dispatcher = p_dispatcher then v_now else v_now + interval '3 seconds' end) r
    cross join lateral (select greatest(1, v_live - r.n) as n) s
    where b.ids is not null or t.ids is not null;
end
$$;

-- The dispatcher ends: the others take its share at once.
create or replace function trunkline.leave_dispatch(p_dispatcher text) returns void
language sql
as $$ delete from trunkline.dispatchers where dispatcher = p_dispatcher $$;

-- Permits to start requests, at most p_want, for all dispatchers together: a start may lie in [now + delay, now + delay + valid], where now is the
-- time of this call. Permit times follow GCRA with an inner burst that is smaller than the endpoint's by what can start within `valid`, so in any
-- window of w seconds at most rate x w + burst requests start, however late within its validity each of them does. A permit that was not
-- used in time is void. With none to give, wait says when to ask again. Permits reach half a second ahead, so one call serves many requests.
create or replace function trunkline.take_permits(p_endpoint_id int, p_want int)
returns table (delays float8[], valid float8, wait float8)
language plpgsql
as $$
declare
    v_pace  regclass := to_regclass(format('trunkline.endpoint_%s_pace', p_endpoint_id));
    v_rate  float8;
    v_burst int;
    v_step  bigint;
    v_slack bigint;
    v_inner int;
    v_now   bigint;
    v_last  bigint;
    v_used  bigint;
    v_start bigint;
    v_list  float8[] := '{}';
begin
    perform trunkline._need_read_committed('take_permits');
    select e.rate, e.burst into v_rate, v_burst from trunkline.endpoints e where e.endpoint_id = p_endpoint_id;
    if v_rate is null or v_pace is null then
        return query select array_fill(0::float8, array[p_want]), 1::float8, 0::float8;
        return;
    end if;
    -- microseconds
    v_step := ceil(1000000 / v_rate);
    if v_burst = 1 then
        -- starts that may be late by a fifth of a step are a step apart if their permits are six fifths apart
        v_slack := v_step / 5;
        v_step := v_step + v_slack;
        v_inner := 1;
    else
        v_slack := least(1000000, v_burst / 2 * v_step);
        v_inner := v_burst - ceil(v_slack / v_step::float8);
    end if;
    -- what was granted must be known after a crash too
    perform trunkline._commit_durably();
    perform pg_advisory_xact_lock(778007, p_endpoint_id);
    v_now := extract(epoch from trunkline.clock()) * 1000000;
    -- never more than what these settings can have used up: what a slower rate used up, or a clock that was ahead, must not hold back this one
    v_last := coalesce(pg_sequence_last_value(v_pace), 0);
    v_used := least(v_last, v_now + 500000 + v_inner * v_step);
    while cardinality(v_list) < least(p_want, 1000) loop
        v_start := greatest(v_now, v_used - (v_inner - 1) * v_step);
        exit when v_start > v_now + 500000;
        v_used := greatest(v_used, v_start) + v_step;
        v_list := v_list || ((v_start - v_now) / 1000000.0)::float8;
    end loop;
    -- also when nothing was granted: a limit that moves with the clock would never be reached
    if v_used <> v_last then
        perform setval(v_pace, v_used);
    end if;
    return query select v_list, v_slack / 1000000::float8, greatest(0, v_start - v_now - 500000) / 1000000::float8;
end
$$;

-- Settles deliveries and writes down the requests, in one transaction. One item per delivery; tests have no receipt. Outcomes: acked, nacked
-- (p_delays: null for the queue's backoff), buried, released, tested; what has none (null) was settled together with another. Answers per
-- item as settle does.
create or replace function trunkline.settle_attempts(
    p_dispatcher text, p_endpoints int[], p_queues int[], p_receipts text[], p_ids uuid[], p_attempts int[], p_ages float8[], p_seconds float8[],
    p_statuses int[], p_outcomes text[], p_delays interval[], p_errors text[], p_snippets text[])
returns text[]
language plpgsql
as $$
declare
    v_now     timestamptz := trunkline.clock();
    v_results text[] := array_fill('done'::text, array[cardinality(p_ids)]);
    v_part    text[];
    g         record;
begin
    perform trunkline._commit_durably();
    insert into trunkline.attempts (slot, endpoint_id, queue_id, id, attempt, started_at, seconds, status, outcome, error, snippet, dispatcher)
    select (select trunkline._window('attempts')), u.endpoint_id, u.queue_id, u.id, u.attempt, v_now - u.age * interval '1 second', u.seconds, u.status, u.outcome,
           left(u.error, 1000), left(u.snippet, 4000), p_dispatcher
    from unnest(p_endpoints, p_queues, p_ids, p_attempts, p_ages, p_seconds, p_statuses, p_outcomes, p_errors, p_snippets)
         u(endpoint_id, queue_id, id, attempt, age, seconds, status, outcome, error, snippet)
    where u.seconds is not null;
    for g in
        select u.outcome, case u.outcome when 'acked' then substr(u.receipt, strpos(u.receipt, '.') + 1) end as lease, u.delay, u.error,
               array_agg(u.receipt order by u.ord) as receipts, array_agg(u.ord::int order by u.ord) as ords
        from unnest(p_receipts, p_outcomes, p_delays, p_errors) with ordinality u(receipt, outcome, delay, error, ord)
        where u.receipt is not null and u.outcome is not null
        -- acks first: what is sent back in an ordered queue takes along what is behind it
        group by 1, 2, 3, 4 order by u.outcome
    loop
        if g.outcome = 'acked' then
            v_part := trunkline.ack_lease(g.lease, array(select split_part(r, '.', 1)::bigint from unnest(g.receipts) with ordinality x(r, n) order by n));
        elsif g.outcome = 'nacked' then
            v_part := array(select r.result from trunkline.nack(g.receipts, g.delay, g.error) r order by r.ord);
        elsif g.outcome = 'buried' then
            v_part := array(select r.result from trunkline.bury(g.receipts, g.error) r order by r.ord);
        elsif g.outcome = 'released' then
            v_part := array(select r.result from trunkline.release(g.receipts) r order by r.ord);
        else
            continue;
        end if;
        if v_part is not null then
            for i in 1 .. cardinality(v_part) loop
                v_results[g.ords[i]] := v_part[i];
            end loop;
        end if;
    end loop;
    return v_results;
end
$$;

-- The breaker. Dispatchers see its state in their plan; it is written only when it changes.

-- Opens it for longer each time, from one second to one minute. p_openings: what the caller saw, so that of many who see the same
-- failures one acts. Answers for how many seconds it is open.
create or replace function trunkline.open_breaker(p_endpoint_id int, p_openings int) returns float8
language sql
as $$
    update trunkline.endpoints e set openings = e.openings + 1, probe_until = null, updated_at = trunkline.clock(),
        open_until = trunkline.clock() + least(60, power(2, least(e.openings, 10))) * (0.9 + 0.2 * random()) * interval '1 second'
    where e.endpoint_id = p_endpoint_id and e.openings = p_openings;
    select extract(epoch from e.open_until - trunkline.clock())::float8 from trunkline.endpoints e where e.endpoint_id = p_endpoint_id;
$$;

-- Whether the caller may send one request to see whether the receiver is back.
create or replace function trunkline.take_probe(p_endpoint_id int) returns boolean
language plpgsql
as $$
begin
    update trunkline.endpoints set probe_until = trunkline.clock() + timeout + interval '10 seconds'
    where endpoint_id = p_endpoint_id and openings > 0 and open_until <= trunkline.clock() and (probe_until is null or probe_until <= trunkline.clock());
    return found;
end
$$;

create or replace function trunkline.close_breaker(p_endpoint_id int) returns void
language sql
as $$
    update trunkline.endpoints set openings = 0, open_until = null, probe_until = null, updated_at = trunkline.clock()
    where endpoint_id = p_endpoint_id and openings > 0
$$;

-- The receiver asked for a pause: nobody sends to it before.
create or replace function trunkline.hold_endpoint(p_endpoint_id int, p_for interval) returns void
language sql
as $$
    update trunkline.endpoints set held_until = greatest(held_until, trunkline.clock() + least(p_for, interval '1 hour'))
    where endpoint_id = p_endpoint_id
$$;

-- The egress guard of this dispatcher does not let requests go to the endpoint's address. For a while, longer each time, it leaves the endpoint to the
-- others; answers for how many seconds. p_probing: it had the probe of a half-open breaker, which others may take now.
create or replace function trunkline.bar_dispatcher(p_dispatcher text, p_endpoint_id int, p_reason text, p_probing boolean default false) returns float8
language plpgsql
as $$
declare
    v_now   timestamptz := trunkline.clock();
    v_until timestamptz;
begin
    insert into trunkline.endpoint_bars as b (endpoint_id, dispatcher, times, until, reason)
    select e.endpoint_id, d.dispatcher, 1, v_now + interval '10 seconds', left(p_reason, 1000)
    from trunkline.endpoints e cross join trunkline.dispatchers d where e.endpoint_id = p_endpoint_id and d.dispatcher = p_dispatcher
    on conflict (endpoint_id, dispatcher) do update
        set times = b.times + 1, reason = excluded.reason, until = v_now + least(300, 10 * power(2, least(b.times, 10))) * interval '1 second'
        where b.until <= v_now;
    if p_probing then
        update trunkline.endpoints set probe_until = null where endpoint_id = p_endpoint_id and openings > 0;
    end if;
    select b.until into v_until from trunkline.endpoint_bars b where b.endpoint_id = p_endpoint_id and b.dispatcher = p_dispatcher;
    return coalesce(extract(epoch from v_until - v_now), 1)::float8;
end
$$;

-- A request of this dispatcher went out after all.
create or replace function trunkline.lift_bar(p_dispatcher text, p_endpoint_id int) returns void
language sql
as $$ delete from trunkline.endpoint_bars where endpoint_id = p_endpoint_id and dispatcher = p_dispatcher $$;

-- For receivers: whether this delivery is new to them. In the same transaction as its effects it makes these happen exactly once: a repeat
-- that comes at the same time waits for the first and is told that it is not new. Remembered for one to two windows (setting inbox_window).
create or replace function trunkline.receive(p_receiver text, p_id text) returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := trunkline.clock();
    v_win bigint := floor(extract(epoch from v_now) / extract(epoch from trunkline._setting('inbox_window')::interval));
begin
    perform trunkline._check_name('receiver', p_receiver);
    if p_id is null or length(p_id) not between 1 and 255 then
        perform trunkline._fail('TL001', 'the id is null, empty or longer than 255 characters', 'pass the header webhook-id');
    end if;
    insert into trunkline.inbox_keys (slot, win, receiver, id, at) values (v_win % 4, v_win, p_receiver, p_id, v_now) on conflict do nothing;
    if not found then
        return false;
    end if;
    insert into trunkline.inbox_keys (slot, win, receiver, id, at) values ((v_win + 1) % 4, v_win + 1, p_receiver, p_id, v_now) on conflict do nothing;
    -- somebody with a clock beyond the border was faster
    return found;
end
$$;

-- Removes attempts that are not kept any more, and empties the inbox window that nobody can read.
create or replace function trunkline._upkeep_attempts() returns int
language plpgsql
as $$
declare
    v_win bigint := floor(extract(epoch from trunkline.clock()) / extract(epoch from trunkline._setting('inbox_window')::interval));
begin
    return trunkline._turn_window('attempts', trunkline._setting('attempts_kept')::interval) + trunkline._empty_slot('inbox_keys_' || (v_win + 2) % 4);
end
$$;
