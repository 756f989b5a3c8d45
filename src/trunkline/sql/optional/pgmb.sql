-- Compatibility layer: the functions and tables of pgmb on top of Trunkline, for programs that use them.
-- Installed by `trunkline migrate --with pgmb`. All messages go to the topic pgmb. A worker is an endpoint. A
-- queue is a queue that subscribes to the topic and is bound to the endpoint of its worker.

create schema if not exists pgmb;

-- pgmb identifies workers and queues by uuid.
create table if not exists pgmb.worker_ids (
    id          uuid primary key default gen_random_uuid(),
    endpoint_id int  not null unique references trunkline.endpoints on delete cascade
);
create table if not exists pgmb.queue_ids (
    id          uuid primary key default gen_random_uuid(),
    queue_id    int  not null unique references trunkline.queues on delete cascade,
    binding_key text not null
);
-- The queue's name, by which its views are found. Stored here, because the queue no longer exists when they
-- are dropped.
alter table pgmb.queue_ids add column if not exists name text;
update pgmb.queue_ids i set name = q.name from trunkline.queues q where q.queue_id = i.queue_id and i.name is null;

do $do$
begin
    perform trunkline.ensure_topic('pgmb');
end
$do$;

create or replace view pgmb.workers as
    select w.id, e.name, ceil(e.rate)::int as rps, e.url as endpoint, e.created_at,
           -- Now, while a dispatcher is registered for some time to come; null if none is.
           (select least(max(d.seen_until), now()) from trunkline.dispatchers d where d.seen_until > now()) as last_heartbeat
    from pgmb.worker_ids w join trunkline.endpoints e using (endpoint_id);

create or replace view pgmb.queues as
    select i.id, q.name, i.binding_key, w.id as worker_id, q.max_attempts - 1 as max_retries, q.created_at
    from pgmb.queue_ids i join trunkline.queues q using (queue_id)
    left join trunkline.bindings b using (queue_id) left join pgmb.worker_ids w using (endpoint_id);

do $do$
begin
    execute format($v$
create or replace view pgmb.messages as
    select m.message_id as id, m.routing_key, convert_from(m.payload, 'UTF8')::jsonb as body, m.headers, m.created_at as enqueued_at,
           coalesce(m.occurred_at, (m.origin).published_at, m.created_at) as occurred_at
    from trunkline.topic_%1$s m
    union all
    select s.id, s.routing_key, convert_from(s.payload, 'UTF8')::jsonb, s.headers, s.due_at, coalesce(s.occurred_at, s.published_at, s.due_at)
    from trunkline._delayed s
    where s.topic_id = %1$s and s.due_at > (select b.walked from trunkline.passes b order by b.pass desc limit 1)$v$, trunkline.topic_number('topic', 'pgmb'));
end
$do$;

-- Creates a worker, an HTTP endpoint with a limit of requests per second (1 to 100,000), and returns its id.
create or replace function pgmb.worker(name varchar, endpoint varchar, rps int) returns uuid
language plpgsql
as $$
declare
    v_id uuid;
begin
    if rps is null then
        perform trunkline._fail('TL001', 'rps must be between 1 and 100000, got null', 'Use a value from 1 to 100000.');
    end if;
    perform trunkline._check_range('rps', rps, 1, 100000);
    perform trunkline.create_endpoint($1, $2, p_rate => rps);
    insert into pgmb.worker_ids (endpoint_id) select e.endpoint_id from trunkline.endpoints e where e.name = $1 returning id into v_id;
    return v_id;
end
$$;

-- Returns the regular expression of a binding key. * matches any characters, including dots; other characters
-- match themselves.
create or replace function pgmb._pattern(p_binding_key text) returns text
language sql immutable
as $$ select '^' || replace(regexp_replace(p_binding_key, '([^A-Za-z0-9_*])', '\\\1', 'g'), '*', '.*') || '$' $$;

-- Creates a queue that receives matching messages from now on, binds it to the worker, and returns its id.
create or replace function pgmb.create(name varchar, binding_key varchar, max_retries int, worker_id uuid) returns uuid
language plpgsql
as $$
declare
    v_id       uuid;
    v_endpoint text := (select e.name from pgmb.worker_ids w join trunkline.endpoints e using (endpoint_id) where w.id = worker_id);
    s          trunkline.subscriptions;
    q          trunkline.queues;
begin
    if v_endpoint is null then
        perform trunkline._fail('TL017', format('worker %s does not exist', coalesce(worker_id::text, 'null')),
                                'Create it with pgmb.worker.');
    end if;
    if coalesce(length(binding_key), 0) not between 1 and 1000 then
        perform trunkline._fail('TL001', format('binding_key must have 1 to 1,000 characters, got %s', coalesce(length(binding_key)::text, 'null')),
                                'Use a key such as order.*.');
    end if;
    perform trunkline._check_range('max_retries', max_retries, 0, 999);
    q := trunkline.create_queue($1, p_max_attempts => max_retries + 1);
    s := trunkline.subscribe($1, 'pgmb');
    -- A binding key of pgmb, which a pattern of the kernel cannot express.
    update trunkline.subscriptions x set pattern = $2, pattern_regex = pgmb._pattern($2) where x.subscription_id = s.subscription_id;
    update trunkline.cursors x set pattern_regex = pgmb._pattern($2) where x.subscription_id = s.subscription_id;
    perform trunkline.bind_queue($1, v_endpoint);
    insert into pgmb.queue_ids (queue_id, binding_key, name) values (q.queue_id, $2, $1) returning id into v_id;
    perform pgmb._make_views($1);
    return v_id;
end
$$;

-- The order of arguments in pgmb's quick start.
create or replace function pgmb.create(name varchar, binding_key varchar, worker_id uuid, max_retries int) returns uuid
language sql
as $$ select pgmb.create($1, $2, $4, $3) $$;

-- Returns what pgmb stores in a table per queue: one row for each message of the queue that is acked, leased,
-- returned or new. Acked messages are listed for up to 30 days, if the log and the delivery history keep
-- them.
create or replace function pgmb._references(p_queue text)
returns table (id bigint, message_id uuid, acknoledge boolean, retries int, locked boolean, enqueued_at timestamptz, acknowledged_at timestamptz)
language sql
as $$
    with q as materialized (select * from trunkline._queue(p_queue)),
    c as materialized (select k.* from q join trunkline.cursors k on k.queue_id = q.queue_id and k.kind = 'log'),
    done as (
        select distinct on (a.id) a.log_offset, a.id as message_id, true as acknoledge, a.attempts - 1 as retries, false as locked, a.created_at, a.processed_at
        from trunkline.list_completed(p_queue, '30 days', 1000000) a order by a.id, a.processed_at desc
    ), leased as (
        select r.log_offset, r.id, false, d.attempt - 1, true, r.created_at, null::timestamptz
        from q cross join lateral trunkline._live_deliveries(q.queue_id) d join c on c.cursor_id = d.source_id
        cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, d.first_offset, d.last_offset) r
        where d.kind is null
    ), again as (
        select r.log_offset, r.id, false, p.attempt, false, r.created_at, null::timestamptz
        from q cross join lateral trunkline._returned(q.queue_id) p join c on c.cursor_id = p.source_id
        cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, p.log_offset, p.log_offset) r
    ), fresh as (
        select r.log_offset, r.id, false, 0, false, r.created_at, null::timestamptz
        from c
        cross join lateral (select trunkline._next_offset(c) as position, trunkline._head(c.log) as head offset 0) s
        cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, s.position, s.head) r
        where c.pattern_regex is null or coalesce(r.routing_key, '') ~ c.pattern_regex
    )
    select * from done union all select * from leased union all select * from again union all select * from fresh
$$;

-- Returns the dead letters of a queue, as pgmb's dead letter table has them.
create or replace function pgmb._dead(p_queue text)
returns table (id bigint, message_id uuid, acknoledge boolean, retries int, locked boolean, enqueued_at timestamptz, acknowledged_at timestamptz,
               error text, dead_at timestamptz)
language sql
as $$
    select d.dead_id, d.id, false, d.attempts - 1, false, d.created_at, null::timestamptz, d.error, d.dead_at
    from trunkline._queue(p_queue) q join trunkline.dead_letters d on d.queue_id = q.queue_id order by d.dead_id
$$;

-- Creates the views <queue>_queue and <queue>_dead_letter_queue. For a queue whose name ends in _queue, also
-- creates the names that pgmb's manual uses. A view is not created if its name is too long for Postgres or
-- already used; if it shows another queue, a notice says so.
create or replace function pgmb._make_views(p_queue text) returns void
language plpgsql
as $$
declare
    v_base text;
    v_view text;
begin
    foreach v_base in array array[p_queue] || case when p_queue ~ '._queue$' then array[left(p_queue, -6)] else '{}' end loop
        if octet_length(v_base) + 18 <= 63 then
            if to_regclass(format('pgmb.%I', v_base || '_queue')) is null then
                execute format('create view pgmb.%I as select * from pgmb._references(%L)', v_base || '_queue', p_queue);
            end if;
            if to_regclass(format('pgmb.%I', v_base || '_dead_letter_queue')) is null then
                execute format('create view pgmb.%I as select * from pgmb._dead(%L)', v_base || '_dead_letter_queue', p_queue);
            end if;
            foreach v_view in array array[v_base || '_queue', v_base || '_dead_letter_queue'] loop
                if position('(' || quote_literal(p_queue) || '::text)' in pg_get_viewdef(format('pgmb.%I', v_view)::regclass)) = 0 then
                    raise notice 'view pgmb.% already shows another queue; none was created for queue "%"', quote_ident(v_view), p_queue
                        using hint = format('Read pgmb._references(%1$L) and pgmb._dead(%1$L) instead.', p_queue);
                end if;
            end loop;
        end if;
    end loop;
end
$$;

-- Drops the views of a queue when the queue is deleted, by any function.
create or replace function pgmb._drop_views() returns trigger
language plpgsql
as $$
declare
    v_view regclass;
begin
    for v_view in
        select c.oid from pg_class c
        where c.relnamespace = 'pgmb'::regnamespace and c.relkind = 'v'
          -- The view definition that _make_views wrote, as Postgres prints it.
          and strpos(pg_get_viewdef(c.oid), format('(%L::text)', old.name)) > 0
    loop
        execute format('drop view %s', v_view);
    end loop;
    return null;
end
$$;
create or replace trigger drop_views after delete on pgmb.queue_ids for each row execute function pgmb._drop_views();

-- Publishes a message with this routing key, for delivery now or not before p_at. A repeat with the same id
-- and content stores nothing while the id is remembered (one to two times the setting idempotency_window).
create or replace function pgmb._send(p_id uuid, p_routing_key text, p_body jsonb, p_headers jsonb, p_at timestamptz) returns void
language plpgsql
as $$
begin
    if p_id is null or p_body is null then
        perform trunkline._fail('TL001', 'id and body must not be null',
                                'Use gen_random_uuid() for the id and ''null''::jsonb for an empty body.');
    end if;
    if p_routing_key is null then
        -- It would match only the binding key *, and the loss would not be noticed.
        perform trunkline._fail('TL001', 'routing key must not be null',
                                'Use a key that bindings match, such as order.created, or an empty key.');
    end if;
    perform trunkline.publish('pgmb', p_body, p_routing_key => p_routing_key, p_headers => p_headers, p_id => p_id,
                              p_deliver_at => p_at);
end
$$;

-- Returns the time p_seconds from now.
create or replace function pgmb._after(p_seconds int) returns timestamptz
language sql volatile
as $$ select trunkline.clock() + p_seconds * interval '1 second' $$;

create or replace function pgmb.send(id uuid, routing_key varchar, body jsonb) returns void
language sql as $$ select pgmb._send($1, $2, $3, null, null) $$;

create or replace function pgmb.send(id uuid, routing_key varchar, body jsonb, headers jsonb) returns void
language sql as $$ select pgmb._send($1, $2, $3, $4, null) $$;

create or replace function pgmb.send(id uuid, routing_key varchar, body jsonb, headers jsonb, delay timestamptz) returns void
language sql as $$ select pgmb._send($1, $2, $3, $4, $5) $$;

create or replace function pgmb.send(id uuid, routing_key varchar, body jsonb, headers jsonb, delay int) returns void
language sql as $$ select pgmb._send($1, $2, $3, $4, pgmb._after($5)) $$;

create or replace function pgmb.send(id uuid, routing_key varchar, body jsonb, delay timestamptz) returns void
language sql as $$ select pgmb._send($1, $2, $3, null, $4) $$;

create or replace function pgmb.send(id uuid, routing_key varchar, body jsonb, delay int) returns void
language sql as $$ select pgmb._send($1, $2, $3, null, pgmb._after($4)) $$;

-- As in schema trunkline: public functions run with the rights of their owner, so a caller needs no rights on
-- tables. No role has the right to call them by default.
do $do$
declare
    f record;
begin
    for f in select oid::regprocedure as name, proname from pg_proc where pronamespace = 'pgmb'::regnamespace loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', f.name);
        execute format('revoke all on function %s from public', f.name);
        if f.proname !~ '^_' then
            execute format('alter function %s security definer', f.name);
            if f.proname = 'send' and trunkline._has_role('trunkline_publisher') then
                execute format('grant execute on function %s to trunkline_publisher', f.name);
            end if;
        end if;
        if trunkline._has_role('trunkline_owner') then
            execute format('grant execute on function %s to trunkline_owner', f.name);
        end if;
    end loop;
    if trunkline._has_role('trunkline_publisher') then
        execute 'grant usage on schema pgmb to trunkline_publisher';
    end if;
    if trunkline._has_role('trunkline_owner') then
        execute 'grant usage on schema pgmb to trunkline_owner';
        execute 'grant select on all tables in schema pgmb to trunkline_owner';
    end if;
end
$do$;
