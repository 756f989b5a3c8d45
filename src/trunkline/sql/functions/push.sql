-- Webhooks: endpoints, their limits, and the functions that dispatchers call. A dispatcher claims from bound
-- queues like any other consumer. No function here sends a request, and no transaction is open while a
-- request is in flight.

-- Returns an endpoint by its name; raises TL017 if it does not exist.
create or replace function trunkline._endpoint(p_name text) returns trunkline.endpoints
language plpgsql
as $$
declare
    e trunkline.endpoints;
begin
    select * into e from trunkline.endpoints where name = p_name;
    if not found then
        perform trunkline._fail('TL017', format('endpoint "%s" does not exist', p_name),
                                format('Create it with trunkline.create_endpoint(%L, url).', p_name));
    end if;
    return e;
end
$$;

-- Returns an endpoint and locks its row (for key share), so that it cannot be deleted until the transaction
-- ends. For callers that insert rows which refer to it.
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

-- Returns the number of bytes of a secret, or null if it is not base64, so that it cannot sign anything.
create or replace function trunkline._secret_length(p_secret text) returns int
language plpgsql immutable
as $$
begin
    return length(decode(substr(p_secret, strpos(p_secret, '_') + 1), 'base64'));
exception when invalid_parameter_value then
    return null;
end
$$;

-- Raises an error unless all settings of an endpoint are valid. The url is checked by _check_url.
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
        perform trunkline._fail('TL001', format('mode must be "single" or "batch", got %s', trunkline._quoted(e.mode)),
                                'Use "single" or "batch".');
    end if;
    if e.headers is null or jsonb_typeof(e.headers) <> 'object' or length(e.headers::text) > 8000 then
        perform trunkline._fail('TL001', 'endpoint headers must be a JSON object of at most 8,000 characters',
                                'Write headers as {"authorization": "Bearer ..."}.');
    end if;
    select h.key into v_bad from jsonb_each(e.headers) h
    where jsonb_typeof(h.value) <> 'string' or h.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' or h.value #>> '{}' !~ '^[\x20-\x7e]*$'
       or lower(h.key) in ('host', 'content-length', 'transfer-encoding', 'connection', 'content-type', 'te', 'upgrade', 'trailer', 'traceparent')
       or lower(h.key) ~ '^(webhook|trunkline)-' limit 1;
    if found then
        perform trunkline._fail('TL001', format('cannot set header "%s": name or value is not valid in HTTP, or Trunkline sets this header', left(v_bad, 100)),
                                'Use printable ASCII text, and omit headers of the connection and the names webhook-* and trunkline-*.');
    end if;
    select s into v_bad from unnest(e.secrets) s
    where s is null or s !~ '^(whsec|whsk)_[A-Za-z0-9+/]{32,100}={0,2}$' or not coalesce(trunkline._secret_length(s) = any (case when s ~ '^whsk' then '{32,64}'::int[] else '{}' end)
          or s ~ '^whsec' and trunkline._secret_length(s) >= 24, false) limit 1;
    if found then
        perform trunkline._fail('TL001', 'secret must have the form of Standard Webhooks: whsec_ or whsk_, followed by base64',
                                'Use whsec_ (HMAC) with 24 to 64 bytes or whsk_ (Ed25519) with 32 or 64 bytes, or omit the secret to generate one.');
    end if;
end
$$;

-- Raises a notice if dispatchers need --push-allow to send to this url.
create or replace function trunkline._note_network(p_name text, p_url text) returns void
language plpgsql
as $$
declare
    v_network text := trunkline.needed_network(p_url);
begin
    if v_network is not null then
        raise notice 'endpoint "%" is in private network %: dispatchers need --push-allow % or TRUNKLINE_PUSH_ALLOW=% to send to it', p_name, v_network, v_network, v_network;
    end if;
end
$$;

-- Returns a new random HMAC secret in the format of Standard Webhooks.
create or replace function trunkline._new_secret() returns text
language sql volatile
as $$ select 'whsec_' || encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'base64') $$;

-- Creates an endpoint and returns its name and the secret that signs its deliveries. p_rate: requests per
-- second, null for no limit. p_burst: default a tenth of the rate, at least 2. p_secret: null to generate
-- one. Raises TL020 if the endpoint exists, and a notice if the url is in a private network that dispatchers
-- must be allowed to send to.
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
        perform trunkline._fail('TL020', format('endpoint "%s" already exists', p_name),
                                'Use another name, or change the existing endpoint with trunkline.alter_endpoint.');
    end if;
    execute format('create sequence trunkline.endpoint_%s_pace minvalue 0 start 0', e.endpoint_id);
    perform trunkline._note_network(p_name, p_url);
    return query select p_name, e.secrets[1];
end
$$;

-- Changes the given settings of an endpoint and keeps the others. p_rate 0 removes the rate limit. A new rate
-- without p_burst also sets the burst to a tenth of the rate, at least 2. A new url resets the egress denials
-- of dispatchers.
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
        delete from trunkline.egress_denials where endpoint_id = e.endpoint_id;
    end if;
end
$$;

-- Sets a new signing secret, p_secret or a generated one, and returns it. Deliveries are signed with the
-- former secret too until the next rotation. p_keep => false removes the former secret now.
create or replace function trunkline.rotate_secret(p_name text, p_secret text default null, p_keep boolean default true) returns text
language plpgsql
as $$
declare
    e trunkline.endpoints := trunkline._endpoint(p_name);
begin
    e.secrets := array[coalesce(p_secret, trunkline._new_secret())] || case when p_keep then e.secrets[1:1] else '{}' end;
    perform trunkline._check_endpoint(e);
    update trunkline.endpoints set secrets = e.secrets, updated_at = trunkline.clock() where endpoint_id = e.endpoint_id;
    perform trunkline._note_endpoint(e.endpoint_id, 'secret_rotated');
    return e.secrets[1];
end
$$;

-- Returns the secrets that sign deliveries to an endpoint, the newest first.
create or replace function trunkline.endpoint_secrets(p_name text) returns text[]
language sql
as $$ select (trunkline._endpoint(p_name)).secrets $$;

-- Sets the state of an endpoint. Also closes its circuit breaker, ends a pause that the receiver asked for,
-- and resets the egress denials of dispatchers.
create or replace function trunkline._set_endpoint_state(p_endpoint_id int, p_state text, p_reason text) returns void
language sql
as $$
    delete from trunkline.egress_denials where endpoint_id = p_endpoint_id;
    update trunkline.endpoints set state = p_state, reason = left(p_reason, 1000), updated_at = trunkline.clock(),
        open_until = null, openings = 0, probe_until = null, held_until = null
    where endpoint_id = p_endpoint_id;
    select trunkline._note_endpoint(p_endpoint_id, p_state, p_reason)
$$;

-- Pauses an endpoint: no requests are sent until resume_endpoint. Bound queues still accept messages.
create or replace function trunkline.pause_endpoint(p_name text, p_reason text default null) returns void
language sql
as $$ select trunkline._set_endpoint_state((trunkline._endpoint(p_name)).endpoint_id, 'paused', p_reason) $$;

-- Resumes sending to an endpoint, whatever stopped it: a pause, a response with status 410, the circuit
-- breaker, a Retry-After, or egress denials.
create or replace function trunkline.resume_endpoint(p_name text) returns void
language sql
as $$ select trunkline._set_endpoint_state((trunkline._endpoint(p_name)).endpoint_id, 'enabled', null) $$;

-- Disables an endpoint until resume_endpoint. A dispatcher calls it when the receiver responds that it is
-- gone for good (410).
create or replace function trunkline.disable_endpoint(p_name text, p_reason text) returns void
language sql
as $$ select trunkline._set_endpoint_state((trunkline._endpoint(p_name)).endpoint_id, 'disabled', p_reason) $$;

-- Deletes an endpoint. Raises TL021 if queues are bound to it, unless p_force is true. The queues and their
-- messages are kept.
create or replace function trunkline.delete_endpoint(p_name text, p_force boolean default false) returns void
language plpgsql
as $$
declare
    e trunkline.endpoints := trunkline._endpoint(p_name);
begin
    -- Locked before the bindings are read: a session that is binding a queue to the endpoint holds this row
    -- or waits for it.
    perform from trunkline.endpoints where endpoint_id = e.endpoint_id for update;
    if not found then
        perform trunkline._endpoint(p_name);
    end if;
    if not p_force and exists (select from trunkline.bindings where endpoint_id = e.endpoint_id) then
        perform trunkline._fail('TL021', format('cannot delete endpoint "%s": queues are bound to it', p_name),
                                'Unbind the queues first, or pass p_force => true.');
    end if;
    delete from trunkline.bindings where endpoint_id = e.endpoint_id;
    delete from trunkline.endpoints where endpoint_id = e.endpoint_id;
    execute format('drop sequence if exists trunkline.endpoint_%s_pace', e.endpoint_id);
end
$$;

-- Returns how many of the live dispatchers have egress to an endpoint denied, and why; null if none has. Only
-- dispatchers that tried to send count.
create or replace function trunkline._egress_denied(p_endpoint_id int) returns text
language sql stable
as $$
    select case when d.denied = d.live then 'egress denied on all dispatchers' else format('egress denied on %s of %s dispatchers', d.denied, d.live) end || ': ' || d.reason
    from (select count(*) as live, count(b.dispatcher) as denied, max(b.reason) as reason
          from trunkline.dispatchers x left join trunkline.egress_denials b on b.dispatcher = x.dispatcher and b.endpoint_id = p_endpoint_id
          where x.seen_until >= trunkline.clock()) d
    where d.denied > 0
$$;

-- Returns why no message of a bound queue is sent now. Null: messages are sent, or the queue is not bound to
-- an endpoint.
create or replace function trunkline._not_sent(p_queue_id int) returns text
language sql stable
as $$
    select case when e.state <> 'enabled' then format('endpoint "%s" is %s', e.name, e.state || coalesce(': ' || e.reason, ''))
                when not exists (select from trunkline.dispatchers x where x.seen_until >= trunkline.clock()) then format('no dispatcher is running for endpoint "%s"', e.name)
                when e.openings > 0 then format('circuit breaker of endpoint "%s" is open', e.name)
                when e.held_until > trunkline.clock() then format('endpoint "%s" is backing off until %s', e.name, e.held_until)
                else format('endpoint "%s": ', e.name) || trunkline._egress_denied(e.endpoint_id) end
    from trunkline.bindings b join trunkline.endpoints e using (endpoint_id) where b.queue_id = p_queue_id
$$;

-- Returns all endpoints by name, without their secrets (the number of secrets only) and header values (names
-- only). burst is null without a rate. reason: why the endpoint is not enabled, or which dispatchers have
-- egress to it denied.
create or replace function trunkline.list_endpoints()
returns table (name text, url text, state text, reason text, rate float8, burst int, max_in_flight int, timeout interval, mode text, batch_size int,
               headers text[], secrets int, queues text[], breaker text, open_until timestamptz, held_until timestamptz, created_at timestamptz, updated_at timestamptz)
language sql
as $$
    select e.name, e.url, e.state, coalesce(e.reason, case when e.state = 'enabled' then trunkline._egress_denied(e.endpoint_id) end), e.rate,
           case when e.rate is not null then e.burst end, e.max_in_flight, e.timeout, e.mode, e.batch_size,
           array(select k from jsonb_object_keys(e.headers) k order by k), cardinality(e.secrets),
           array(select q.name from trunkline.bindings b join trunkline.queues q using (queue_id) where b.endpoint_id = e.endpoint_id order by q.name),
           case when e.openings = 0 then 'closed' when e.open_until > trunkline.clock() then 'open' else 'half-open' end,
           e.open_until, e.held_until, e.created_at, e.updated_at
    from trunkline.endpoints e order by e.name
$$;

-- Binds a queue to an endpoint: dispatchers send all its messages there, including those already in the
-- queue. A queue has one endpoint, so a second binding replaces the first. An endpoint may have many queues.
-- Locks the definition of the queue until the transaction ends.
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

-- Ends the sending of a queue's messages. The messages stay in the queue.
create or replace function trunkline.unbind_queue(p_queue text) returns void
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._queue(p_queue);
begin
    delete from trunkline.bindings where queue_id = q.queue_id;
    if not found then
        perform trunkline._fail('TL017', format('queue "%s" is not bound to an endpoint', p_queue),
                                'List the bindings with trunkline.list_endpoints.');
    end if;
end
$$;

-- Requests a test request to an endpoint and returns its id. The next dispatcher that polls its plan sends
-- the request, signed like a delivery. list_attempts with p_id shows its outcome.
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

-- Returns the attempts (HTTP requests) of an endpoint, of one message, or of all endpoints, the newest first.
-- Attempts are kept for the setting attempts_kept (3 days). p_limit is 1 to 10,000.
--
-- p_outcome: acked, nacked, buried, released or tested. p_status: a status such as 503, or the class of all
-- that begin with a digit, 1 to 5; 0 for attempts without a response. p_from, p_to: attempts that started from
-- p_from until before p_to; p_from replaces p_since. p_before, p_before_id: the start and the id of the last
-- row of the former page.
create or replace function trunkline.list_attempts(
    p_endpoint text default null, p_id uuid default null, p_since interval default '1 day', p_limit int default 100, p_outcome text default null,
    p_status int default null, p_from timestamptz default null, p_to timestamptz default null, p_before timestamptz default null, p_before_id uuid default null)
returns table (endpoint text, queue text, id uuid, attempt int, started_at timestamptz, seconds float8, status int, outcome text, error text,
               snippet text, dispatcher text)
language plpgsql
as $$
declare
    v_from     timestamptz := coalesce(p_from, trunkline.clock() - p_since);
    v_to       timestamptz := coalesce(p_to, 'infinity');
    v_before   timestamptz := coalesce(p_before, 'infinity');
    v_id       uuid := coalesce(p_before_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff');
    v_low      int := case when p_status between 1 and 5 then p_status * 100 else p_status end;
    v_high     int := case when p_status between 1 and 5 then p_status * 100 + 99 else p_status end;
    v_endpoint int;
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    if p_outcome not in ('acked', 'nacked', 'buried', 'released', 'tested') then
        perform trunkline._fail('TL001', format('outcome must be "acked", "nacked", "buried", "released" or "tested", got %s', trunkline._quoted(p_outcome, 50)),
                                'Use one of these outcomes, or null for all.');
    elsif p_status not between 0 and 599 or p_status between 6 and 99 then
        perform trunkline._fail('TL001', format('status must be 0, 1 to 5 or 100 to 599, got %s', p_status), 'Use a status, the first digit of a status, or 0 for no response.');
    end if;
    if p_endpoint is not null then
        v_endpoint := (trunkline._endpoint(p_endpoint)).endpoint_id;
    end if;
    begin
        if p_id is not null then
            return query
            select e.name, q.name, a.id, a.attempt, a.started_at, a.seconds, a.status, a.outcome, a.error || '', a.snippet || '', a.dispatcher || ''
            -- offset 0 makes Postgres use the index on the id; otherwise it may read all attempts of an endpoint.
            from (select * from trunkline.attempts x where x.id = p_id offset 0) a join trunkline.endpoints e using (endpoint_id) left join trunkline.queues q on q.queue_id = a.queue_id
            where a.started_at > v_from and a.started_at < v_to and (a.started_at, a.id) < (v_before, v_id) and (v_endpoint is null or e.endpoint_id = v_endpoint)
              and (p_outcome is null or a.outcome = p_outcome) and (p_status is null or coalesce(a.status, 0) between v_low and v_high)
            order by a.started_at desc, a.id desc limit p_limit;
        elsif p_outcome <> 'acked' or p_status < 200 and p_status <> 2 or p_status >= 300 then
            -- by the index of attempts that were not acked
            return query
            select e.name, q.name, a.id, a.attempt, a.started_at, a.seconds, a.status, a.outcome, a.error || '', a.snippet || '', a.dispatcher || ''
            from trunkline.endpoints e
            cross join lateral (
                select * from trunkline.attempts x
                where x.endpoint_id = e.endpoint_id and x.outcome <> 'acked' and x.started_at > v_from and x.started_at < v_to and x.started_at <= v_before
                  and (x.started_at, x.id) < (v_before, v_id)
                  and (p_outcome is null or x.outcome = p_outcome) and (p_status is null or coalesce(x.status, 0) between v_low and v_high)
                order by x.started_at desc, x.id desc limit p_limit) a
            left join trunkline.queues q on q.queue_id = a.queue_id
            where v_endpoint is null or e.endpoint_id = v_endpoint
            order by a.started_at desc, a.id desc limit p_limit;
        else
            return query
            select e.name, q.name, a.id, a.attempt, a.started_at, a.seconds, a.status, a.outcome, a.error || '', a.snippet || '', a.dispatcher || ''
            from trunkline.endpoints e
            cross join lateral (
                select * from trunkline.attempts x
                where x.endpoint_id = e.endpoint_id and x.started_at > v_from and x.started_at < v_to and x.started_at <= v_before
                  and (x.started_at, x.id) < (v_before, v_id)
                  and (p_outcome is null or x.outcome = p_outcome) and (p_status is null or coalesce(x.status, 0) between v_low and v_high)
                order by x.started_at desc, x.id desc limit p_limit) a
            left join trunkline.queues q on q.queue_id = a.queue_id
            where v_endpoint is null or e.endpoint_id = v_endpoint
            order by a.started_at desc, a.id desc limit p_limit;
        end if;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Records a change of an endpoint's state or breaker.
create or replace function trunkline._note_endpoint(p_endpoint_id int, p_event text, p_detail text default null) returns void
language sql
as $$
    insert into trunkline.endpoint_events (slot, endpoint_id, at, event, detail)
    select w.slot, p_endpoint_id, trunkline.clock(), p_event, left(p_detail, 1000) from trunkline.windows w where w.name = 'endpoint_events'
$$;

-- Returns the changes of an endpoint's state and circuit breaker, the newest first. event: paused, disabled,
-- enabled, breaker_opened, breaker_closed, backing_off (the receiver sent Retry-After) or secret_rotated. Kept
-- for the setting events_kept (30 days). For more rows, pass the last event_no as p_before.
create or replace function trunkline.list_endpoint_events(p_endpoint text, p_before bigint default null, p_limit int default 100)
returns table (event_no bigint, at timestamptz, event text, detail text)
language plpgsql
as $$
declare
    e trunkline.endpoints := trunkline._endpoint(p_endpoint);
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    begin
        return query
        select x.no, x.at, x.event, x.detail || ''
        from trunkline.endpoint_events x where x.endpoint_id = e.endpoint_id and (p_before is null or x.no < p_before) order by x.no desc limit p_limit;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns one row per endpoint, by name: its state, its attempts of the last minute by outcome, and their
-- durations. Only the newest 1,000 attempts of an endpoint count; per_second is then computed over the time
-- that these cover. p_limit: the maximum number of endpoints, null for all.
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
            -- A scalar subquery is evaluated once, so that its value bounds the index range.
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

-- Returns each reader of a topic, whether a message with this routing key and these headers matches it, and
-- the endpoint that its queue is bound to. Publishes nothing.
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

-- Enqueues acked messages of a queue again and returns their number. Select them by id, or by the time of the
-- ack: from p_from, before p_to. Without p_from, the acks of the last 30 days are searched. Messages keep
-- their ids; attempts start again from 1.
--
-- A message is found only while both its log and the queue's delivery history keep it; other ids are skipped.
-- If more than p_limit (1 to 10,000) messages match, raises TL004 and enqueues none.
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
        perform trunkline._fail('TL001', 'replay needs message ids or the start of a time range', 'Pass p_ids or p_from.');
    end if;
    select count(*)::int as n, array_agg(payload order by entered_at, id) as payloads, array_agg(id order by entered_at, id) as ids,
           array_agg(key order by entered_at, id) as keys, array_agg(routing_key order by entered_at, id) as routing_keys,
           array_agg(label order by entered_at, id) as labels, array_agg(headers order by entered_at, id) as headers,
           array_agg(content_type order by entered_at, id) as content_types, array_agg(occurred_at order by entered_at, id) as occurred_ats,
           array_agg(row(created_at, origin_topic)::trunkline.origin order by entered_at, id) as origins
      into m
      from (select distinct on (a.id) a.*, r.occurred_at, r.entered_at, coalesce(r.topic, a.topic) as origin_topic from trunkline.list_completed(p_queue, trunkline.clock() - v_from, 1000000) a
            join trunkline.cursors c on c.queue_id = (trunkline._queue(p_queue)).queue_id and c.kind = 'log' and c.topic is not distinct from a.topic and c.partition = a.partition
            cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, a.log_offset, a.log_offset) r
            where (p_ids is null or a.id = any (p_ids)) and a.processed_at >= v_from and (p_to is null or a.processed_at < p_to)
            order by a.id, a.processed_at desc limit p_limit + 1) f;
    if m.n > p_limit then
        perform trunkline._fail('TL004', format('cannot replay more than %s deliveries', p_limit),
                                'Narrow the time range, or raise p_limit (at most 10,000).');
    end if;
    if m.n > 0 then
        insert into trunkline.redriven (id, topic_id, at) select i, t.topic_id, trunkline.clock() from unnest(m.ids) i;
        perform trunkline._append(t, m.payloads, m.ids, m.keys, m.routing_keys, m.labels, m.headers, m.content_types, m.occurred_ats, null, m.origins);
    end if;
    return m.n;
end
$$;

-- Returns the endpoints that have bound queues or pending tests, with the settings that a dispatcher needs. A
-- dispatcher calls it once a second. The call also registers the dispatcher as live for p_lease (1 second to
-- 1 hour).
--
-- share: the part of max_in_flight for this dispatcher; live dispatchers divide it among them. wait: seconds
-- that a new dispatcher waits until the others have read the new shares. held_for: seconds until it may send
-- to the endpoint.
--
-- A dispatcher whose egress is denied has no share until it may try again. The others reduce their shares
-- three seconds before. tests: the ids of test requests that this dispatcher has to send; no other dispatcher
-- gets them.
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
    -- Renewed when a third of p_lease has passed, not in each call.
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
                       -- A dispatcher whose egress is denied gets a test only if all live dispatchers are
                       -- denied.
                       where not exists (select from trunkline.egress_denials b where b.endpoint_id = y.endpoint_id and b.dispatcher = p_dispatcher)
                          or not exists (select from trunkline.dispatchers z where z.seen_until >= v_now and not exists (
                                 select from trunkline.egress_denials b where b.endpoint_id = y.endpoint_id and b.dispatcher = z.dispatcher))
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
        from trunkline.egress_denials y join trunkline.dispatchers x on x.dispatcher = y.dispatcher
        where y.endpoint_id = e.endpoint_id and x.seen_until >= v_now and y.until > case when x.dispatcher = p_dispatcher then v_now else v_now + interval '3 seconds' end) r
    cross join lateral (select greatest(1, v_live - r.n) as n) s
    where b.ids is not null or t.ids is not null;
end
$$;

-- Removes a dispatcher that stops, so that the others take over its share at their next plan.
create or replace function trunkline.leave_dispatch(p_dispatcher text) returns void
language sql
as $$ delete from trunkline.dispatchers where dispatcher = p_dispatcher $$;

-- Acquires up to p_want permits (at most 1,000) to start requests, under the endpoint's rate limit over all
-- dispatchers. Each delay is a permit: its request may start in [now + delay, now + delay + valid], where now
-- is the time of this call. A permit that is not used in that time is void. wait: without permits, the
-- seconds until the next call is worthwhile.
--
-- Permits follow GCRA with an inner burst, which is smaller than the endpoint's by the starts that fit into
-- `valid`. So in any window of w seconds at most rate x w + burst requests start, however late each of them
-- is. Permits reach half a second ahead, so one call serves many requests. An endpoint without a rate grants
-- all, valid for one second.
--
-- Locks the rate of the endpoint (778007) until the transaction ends. Needs read committed.
create or replace function trunkline.acquire_permits(p_endpoint_id int, p_want int)
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
    perform trunkline._need_read_committed('acquire_permits');
    select e.rate, e.burst into v_rate, v_burst from trunkline.endpoints e where e.endpoint_id = p_endpoint_id;
    if v_rate is null or v_pace is null then
        return query select array_fill(0::float8, array[p_want]), 1::float8, 0::float8;
        return;
    end if;
    -- All times are in microseconds.
    v_step := ceil(1000000 / v_rate);
    if v_burst = 1 then
        -- A start may be late by a fifth of a step. Permits are six fifths of a step apart, so starts are at
        -- least one step apart.
        v_slack := v_step / 5;
        v_step := v_step + v_slack;
        v_inner := 1;
    else
        v_slack := least(1000000, v_burst / 2 * v_step);
        v_inner := v_burst - ceil(v_slack / v_step::float8);
    end if;
    -- Granted permits must survive a crash.
    perform trunkline._commit_durably();
    perform pg_advisory_xact_lock(778007, p_endpoint_id);
    v_now := extract(epoch from trunkline.clock()) * 1000000;
    -- At most what the current settings can have used. A former slower rate, or a clock that was ahead, must
    -- not delay permits.
    v_last := coalesce(pg_sequence_last_value(v_pace), 0);
    v_used := least(v_last, v_now + 500000 + v_inner * v_step);
    while cardinality(v_list) < least(p_want, 1000) loop
        v_start := greatest(v_now, v_used - (v_inner - 1) * v_step);
        exit when v_start > v_now + 500000;
        v_used := greatest(v_used, v_start) + v_step;
        v_list := v_list || ((v_start - v_now) / 1000000.0)::float8;
    end loop;
    -- Stored even if nothing was granted: the bound above moves with the clock, so the wait would never end
    -- without it.
    if v_used <> v_last then
        perform setval(v_pace, v_used);
    end if;
    return query select v_list, v_slack / 1000000::float8, greatest(0, v_start - v_now - 500000) / 1000000::float8;
end
$$;

-- Settles deliveries and records their attempts, in one transaction. Returns done, lost or unknown for each
-- item. The arrays have one element per delivery. Outcomes: acked, nacked, buried, released, tested.
--
-- Tests have no receipt. An item without an outcome (null) was settled together with another item. An item
-- without p_seconds is not recorded as an attempt. p_delays: null for the queue's backoff. Items that are not
-- settled here return done.
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
        -- Acks come first: in an ordered queue, a message that is returned also returns the messages behind
        -- it.
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

-- The circuit breaker. Dispatchers read its state in their plan; it is written only when it changes.

-- Opens the circuit breaker of an endpoint and returns for how many seconds it is open. The time doubles with
-- each opening, from 1 to 60 seconds, with 10 % of random variation. p_openings: the count that the caller
-- has read. If it has changed, another dispatcher has opened the breaker for the same failures, and this call
-- only returns the time.
create or replace function trunkline.open_breaker(p_endpoint_id int, p_openings int) returns float8
language plpgsql
as $$
begin
    update trunkline.endpoints e set openings = e.openings + 1, probe_until = null, updated_at = trunkline.clock(),
        open_until = trunkline.clock() + least(60, power(2, least(e.openings, 10))) * (0.9 + 0.2 * random()) * interval '1 second'
    where e.endpoint_id = p_endpoint_id and e.openings = p_openings;
    if found then
        perform trunkline._note_endpoint(p_endpoint_id, 'breaker_opened', format('opening %s in a row', p_openings + 1));
    end if;
    return (select extract(epoch from e.open_until - trunkline.clock())::float8 from trunkline.endpoints e where e.endpoint_id = p_endpoint_id);
end
$$;

-- Acquires the probe of a half-open breaker; returns true if the caller may send one request to test the
-- receiver. One caller at a time gets it, for the endpoint's timeout plus 10 seconds.
create or replace function trunkline.acquire_probe(p_endpoint_id int) returns boolean
language plpgsql
as $$
begin
    update trunkline.endpoints set probe_until = trunkline.clock() + timeout + interval '10 seconds'
    where endpoint_id = p_endpoint_id and openings > 0 and open_until <= trunkline.clock() and (probe_until is null or probe_until <= trunkline.clock());
    return found;
end
$$;

-- Closes the breaker of an endpoint: its queues are sent again.
create or replace function trunkline.close_breaker(p_endpoint_id int) returns void
language plpgsql
as $$
begin
    update trunkline.endpoints set openings = 0, open_until = null, probe_until = null, updated_at = trunkline.clock()
    where endpoint_id = p_endpoint_id and openings > 0;
    if found then
        perform trunkline._note_endpoint(p_endpoint_id, 'breaker_closed');
    end if;
end
$$;

-- Pauses requests to an endpoint for p_for, at most one hour, because the receiver asked for it
-- (Retry-After). Applies to all dispatchers. Never shortens a pause.
create or replace function trunkline.defer_endpoint(p_endpoint_id int, p_for interval) returns void
language plpgsql
as $$
begin
    -- Once per pause, not for each response that asks for it.
    perform trunkline._note_endpoint(p_endpoint_id, 'backing_off', trunkline._duration_text(date_trunc('second', least(p_for, interval '1 hour'))))
    from trunkline.endpoints e where e.endpoint_id = p_endpoint_id and coalesce(e.held_until, '-infinity') <= trunkline.clock();
    update trunkline.endpoints set held_until = greatest(held_until, trunkline.clock() + least(p_for, interval '1 hour'))
    where endpoint_id = p_endpoint_id;
end
$$;

-- Records that the egress policy of a dispatcher denies an endpoint's address, and returns for how many
-- seconds. The dispatcher leaves the endpoint to the others for that time: 10 seconds at first, doubled each
-- time up to 300. p_probing: the caller held the probe of a half-open breaker, which others may acquire now.
create or replace function trunkline.deny_egress(p_dispatcher text, p_endpoint_id int, p_reason text, p_probing boolean default false) returns float8
language plpgsql
as $$
declare
    v_now   timestamptz := trunkline.clock();
    v_until timestamptz;
begin
    insert into trunkline.egress_denials as b (endpoint_id, dispatcher, times, until, reason)
    select e.endpoint_id, d.dispatcher, 1, v_now + interval '10 seconds', left(p_reason, 1000)
    from trunkline.endpoints e cross join trunkline.dispatchers d where e.endpoint_id = p_endpoint_id and d.dispatcher = p_dispatcher
    on conflict (endpoint_id, dispatcher) do update
        set times = b.times + 1, reason = excluded.reason, until = v_now + least(300, 10 * power(2, least(b.times, 10))) * interval '1 second'
        where b.until <= v_now;
    if p_probing then
        update trunkline.endpoints set probe_until = null where endpoint_id = p_endpoint_id and openings > 0;
    end if;
    select b.until into v_until from trunkline.egress_denials b where b.endpoint_id = p_endpoint_id and b.dispatcher = p_dispatcher;
    return coalesce(extract(epoch from v_until - v_now), 1)::float8;
end
$$;

-- Requests a test again that a dispatcher may not send, and returns true; false if every live dispatcher is
-- denied, as deny_egress has recorded.
create or replace function trunkline.return_test(p_endpoint_id int, p_id uuid) returns boolean
language sql
as $$
    with again as (
        insert into trunkline.endpoint_tests (id, endpoint_id, asked_at)
        select p_id, e.endpoint_id, trunkline.clock() from trunkline.endpoints e
        where e.endpoint_id = p_endpoint_id and exists (
            select from trunkline.dispatchers d where d.seen_until >= trunkline.clock() and not exists (
                select from trunkline.egress_denials b where b.endpoint_id = e.endpoint_id and b.dispatcher = d.dispatcher))
        returning id)
    select exists (select from again)
$$;

-- Removes the egress denial of a dispatcher for an endpoint, after one of its requests was sent.
create or replace function trunkline.allow_egress(p_dispatcher text, p_endpoint_id int) returns void
language sql
as $$ delete from trunkline.egress_denials where endpoint_id = p_endpoint_id and dispatcher = p_dispatcher $$;

-- Returns true if a receiver has not received this delivery before, and records it. Call it in the
-- transaction of the delivery's effects: these then happen exactly once. A concurrent repeat waits until the
-- first transaction ends; if that commits, the repeat returns false. Deliveries are remembered for one to two
-- windows (setting inbox_window, 7 days).
create or replace function trunkline.receive(p_receiver text, p_id text) returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := trunkline.clock();
    v_win bigint := floor(extract(epoch from v_now) / extract(epoch from trunkline._setting('inbox_window')::interval));
begin
    perform trunkline._check_name('receiver', p_receiver);
    if p_id is null or length(p_id) not between 1 and 255 then
        perform trunkline._fail('TL001', format('id must have 1 to 255 characters, got %s', coalesce(length(p_id)::text, 'null')),
                                'Pass the value of the header webhook-id.');
    end if;
    insert into trunkline.inbox_keys (slot, win, receiver, id, at) values (v_win % 4, v_win, p_receiver, p_id, v_now) on conflict do nothing;
    if not found then
        return false;
    end if;
    insert into trunkline.inbox_keys (slot, win, receiver, id, at) values ((v_win + 1) % 4, v_win + 1, p_receiver, p_id, v_now) on conflict do nothing;
    -- Not inserted: a session that read a later time has recorded the delivery in the next window.
    return found;
end
$$;

-- Empties the oldest partition of attempts when its time is over, and the inbox window that no receiver can
-- use any more. Returns the number of partitions emptied.
create or replace function trunkline._upkeep_attempts() returns int
language plpgsql
as $$
declare
    v_win bigint := floor(extract(epoch from trunkline.clock()) / extract(epoch from trunkline._setting('inbox_window')::interval));
begin
    return trunkline._turn_window('attempts', trunkline._setting('attempts_kept')::interval) + trunkline._empty_partition('inbox_keys_' || (v_win + 2) % 4);
end
$$;
