-- Queues: one delivery policy for direct messages, which are in the queue's own log, and for messages of
-- subscribed topics.

-- Returns a queue. Fails with TL011 if it does not exist.
create or replace function trunkline._queue(p_queue text) returns trunkline.queues
language plpgsql
as $$
declare
    q trunkline.queues;
begin
    select * into q from trunkline.queues where name = p_queue;
    if not found then
        perform trunkline._fail('TL011', format('queue "%s" does not exist', p_queue),
                                format('Create it with trunkline.create_queue(%L).', p_queue));
    end if;
    return q;
end
$$;

-- Locks the definition of a queue until the transaction ends, and returns its row as of then. A session that
-- also needs a topic's lock acquires that one first.
create or replace function trunkline._lock_queue(p_queue text) returns trunkline.queues
language plpgsql
as $$
declare
    q     trunkline.queues := trunkline._queue(p_queue);
    v_now trunkline.queues;
begin
    loop
        perform pg_advisory_xact_lock(778012, q.inbox_id);
        select * into v_now from trunkline.queues where queue_id = q.queue_id;
        if found then
            return v_now;
        end if;
        -- The queue was deleted in the meantime. A new queue may have its name.
        q := trunkline._queue(p_queue);
    end loop;
end
$$;

-- Fails with TL001 or TL005 if a setting of the queue is out of range.
create or replace function trunkline._check_queue(q trunkline.queues) returns void
language plpgsql
as $$
begin
    perform trunkline._need_duration('lease', q.lease, '1 second', '12 hours');
    perform trunkline._check_range('max_attempts', q.max_attempts, 1, 1000);
    perform trunkline._need_duration('backoff_base', q.backoff_base, '0', '1 day');
    perform trunkline._check_range('backoff_factor', q.backoff_factor::numeric, 1, 100);
    perform trunkline._need_duration('backoff_cap', q.backoff_cap, '0', '30 days');
    perform trunkline._check_range('backoff_jitter', q.backoff_jitter::numeric, 0, 1);
    perform trunkline._check_duration('ttl', q.ttl, '1 second', '10 years');
    perform trunkline._need_duration('delivery_delay', q.delivery_delay, '0', '365 days');
    perform trunkline._check_duration('history', q.history, '1 minute', '30 days');
    if q.ordered is null then
        perform trunkline._fail('TL001', 'ordered must be true or false, got null', 'Use true or false.');
    end if;
end
$$;

-- Creates a queue and returns its row. With p_segment_rows the queue gets its own tables, with segments of
-- that many messages; otherwise its messages are in the shared store. p_priorities is the number of levels (1
-- to 10). A queue with several levels can have neither order nor partitions (TL023). Fails with TL020 if the
-- name exists.
create or replace function trunkline.create_queue(
    p_name text, p_lease interval default '30 seconds', p_max_attempts int default 20,
    p_backoff_base interval default '1 second', p_backoff_factor float8 default 2, p_backoff_cap interval default '1 hour',
    p_backoff_jitter float8 default 0.1, p_ttl interval default null, p_delivery_delay interval default '0',
    p_ordered boolean default false, p_partitions int default 1, p_retention interval default '1 day',
    p_max_payload int default 1048576, p_segment_rows int default null, p_priorities int default 1, p_history interval default '3 days')
returns trunkline.queues
language plpgsql
as $$
declare
    t trunkline.topics;
    q trunkline.queues;
    s trunkline.subscriptions;
    v_returns int;
begin
    perform trunkline._check_name('queue', p_name);
    perform trunkline._check_range('priorities', p_priorities, 1, 10);
    if p_priorities > 1 and (p_ordered or p_partitions > 1) then
        perform trunkline._fail('TL023', format('queue "%s" cannot have priorities and %s', p_name, case when p_ordered then 'be ordered' else 'partitions' end),
                                'Use one queue for ordered messages and another for urgent ones.');
    end if;
    t := trunkline._make_topic('inbox', p_name, greatest(p_partitions, p_priorities), p_retention, null, null, p_max_payload, p_segment_rows,
                               nullif(p_priorities, 1));
    q.lease := p_lease;
    q.max_attempts := p_max_attempts;
    q.backoff_base := p_backoff_base;
    q.backoff_factor := p_backoff_factor;
    q.backoff_cap := p_backoff_cap;
    q.backoff_jitter := p_backoff_jitter;
    q.ttl := p_ttl;
    q.delivery_delay := p_delivery_delay;
    q.ordered := p_ordered;
    q.history := nullif(p_history, '0');
    perform trunkline._check_queue(q);
    q.created_at := clock_timestamp();
    insert into trunkline.queues (name, inbox_id, lease, max_attempts, backoff_base, backoff_factor, backoff_cap, backoff_jitter, ttl, delivery_delay, ordered, history,
                                  created_at, updated_at)
    values (p_name, t.topic_id, p_lease, p_max_attempts, p_backoff_base, p_backoff_factor, p_backoff_cap, p_backoff_jitter, p_ttl, p_delivery_delay, p_ordered, q.history,
            q.created_at, q.created_at)
    returning * into q;
    -- No other subscription can have this name.
    insert into trunkline.subscriptions (kind, name, topic_id, queue_id) values ('queue', '@inbox', t.topic_id, q.queue_id) returning * into s;
    for p in 0 .. t.partitions - 1 loop
        perform trunkline._make_cursor(s, t, p, 1);
    end loop;
    if not q.ordered then
        insert into trunkline.cursors (kind, queue_id) values ('returns', q.queue_id) returning cursor_id into v_returns;
        perform trunkline._make_sequences(v_returns);
    end if;
    return q;
end
$$;

-- Creates a queue, or updates an existing one, and returns its row. A new queue gets the defaults of
-- create_queue for settings that are not given. In an existing queue, only settings that are given and differ
-- are changed. A ttl of '0' removes it, a history of '0' disables it. Fails with TL020 if p_ordered,
-- p_partitions, p_priorities or p_segment_rows differ: these cannot be changed.
create or replace function trunkline.ensure_queue(
    p_name text, p_lease interval default null, p_max_attempts int default null, p_backoff_base interval default null,
    p_backoff_factor float8 default null, p_backoff_cap interval default null, p_backoff_jitter float8 default null,
    p_ttl interval default null, p_delivery_delay interval default null, p_ordered boolean default null, p_partitions int default null,
    p_retention interval default null, p_max_payload int default null, p_priorities int default null, p_history interval default null,
    p_segment_rows int default null)
returns trunkline.queues
language plpgsql
as $$
declare
    r trunkline.queue_row;
begin
    perform trunkline._check_name('queue', p_name);
    perform pg_advisory_xact_lock(778003, trunkline._name_lock('inbox', p_name));
    select * into r from trunkline._queue_rows(array[p_name]);
    if not found then
        return trunkline.create_queue(
            p_name, coalesce(p_lease, '30 seconds'), coalesce(p_max_attempts, 20), coalesce(p_backoff_base, '1 second'), coalesce(p_backoff_factor, 2),
            coalesce(p_backoff_cap, '1 hour'), coalesce(p_backoff_jitter, 0.1), nullif(p_ttl, '0'), coalesce(p_delivery_delay, '0'),
            coalesce(p_ordered, false), coalesce(p_partitions, 1), coalesce(p_retention, '1 day'), coalesce(p_max_payload, 1048576),
            p_segment_rows, coalesce(p_priorities, 1), coalesce(p_history, '3 days'));
    end if;
    perform trunkline._need_same(format('queue "%s"', p_name), 'ordered', r.ordered::text, p_ordered::text);
    perform trunkline._need_same(format('queue "%s"', p_name), 'priorities', r.priorities::text, p_priorities::text);
    perform trunkline._need_same(format('queue "%s"', p_name), 'segment_rows', coalesce(r.segment_rows::text, 'null'), p_segment_rows::text);
    -- A queue with priorities has one partition per level.
    perform trunkline._need_same(format('queue "%s"', p_name), 'partitions', case when r.priorities > 1 then 1 else r.partitions end::text,
                                 case when p_partitions = r.partitions and r.priorities > 1 then 1 else p_partitions end::text);
    if p_lease <> r.lease or p_max_attempts <> r.max_attempts or p_backoff_base <> r.backoff_base or p_backoff_factor <> r.backoff_factor
       or p_backoff_cap <> r.backoff_cap or p_backoff_jitter <> r.backoff_jitter or p_ttl <> coalesce(r.ttl, '0') or p_delivery_delay <> r.delivery_delay
       or p_retention <> r.retention or p_max_payload <> r.max_payload or p_history <> coalesce(r.history, '0') then
        begin
            return trunkline.alter_queue(p_name, p_lease, p_max_attempts, p_backoff_base, p_backoff_factor, p_backoff_cap, p_backoff_jitter,
                                         p_ttl, p_delivery_delay, p_retention, p_max_payload, p_history);
        exception when sqlstate 'TL011' then
            -- The queue was deleted in the meantime.
            return trunkline.ensure_queue(p_name, p_lease, p_max_attempts, p_backoff_base, p_backoff_factor, p_backoff_cap, p_backoff_jitter, p_ttl,
                                          p_delivery_delay, p_ordered, p_partitions, p_retention, p_max_payload, p_priorities, p_history, p_segment_rows);
        end;
    end if;
    return trunkline._queue(p_name);
end
$$;

-- Fails with TL020 if a setting that cannot be changed differs from the requested one. Null requests nothing.
create or replace function trunkline._need_same(p_what text, p_field text, p_found text, p_asked text) returns void
language plpgsql
as $$
begin
    if p_asked <> p_found then
        perform trunkline._fail('TL020', format('%s already exists with %s %s, got %s', p_what, p_field, p_found, p_asked),
                                format('Omit %s, or use another name.', p_field));
    end if;
end
$$;

-- Changes the settings that are given, keeps the others, and returns the queue's row. A ttl of '0' removes
-- it, a history of '0' disables it. Locks the definition of the queue until the transaction ends. Fails with
-- TL011 if the queue does not exist.
create or replace function trunkline.alter_queue(
    p_name text, p_lease interval default null, p_max_attempts int default null, p_backoff_base interval default null,
    p_backoff_factor float8 default null, p_backoff_cap interval default null, p_backoff_jitter float8 default null,
    p_ttl interval default null, p_delivery_delay interval default null, p_retention interval default null, p_max_payload int default null,
    p_history interval default null)
returns trunkline.queues
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._lock_queue(p_name);
begin
    update trunkline.queues set
        lease = coalesce(p_lease, lease), max_attempts = coalesce(p_max_attempts, max_attempts),
        backoff_base = coalesce(p_backoff_base, backoff_base), backoff_factor = coalesce(p_backoff_factor, backoff_factor),
        backoff_cap = coalesce(p_backoff_cap, backoff_cap), backoff_jitter = coalesce(p_backoff_jitter, backoff_jitter),
        ttl = nullif(coalesce(p_ttl, ttl), '0'), delivery_delay = coalesce(p_delivery_delay, delivery_delay),
        history = case when p_history = '0' then null else coalesce(p_history, history) end, updated_at = trunkline.clock()
    where queue_id = q.queue_id returning * into q;
    perform trunkline._check_queue(q);
    perform trunkline._check_duration('retention', p_retention, '0', '100 years');
    perform trunkline._check_range('max_payload', coalesce(p_max_payload, 1), 1, 16777216);
    if p_retention is not null or p_max_payload is not null then
        update trunkline.topics set retention = coalesce(p_retention, retention), max_payload = coalesce(p_max_payload, max_payload)
        where topic_id = q.inbox_id;
        if not trunkline._is_shared(q.inbox_id) then
            perform trunkline._write_functions(q.inbox_id);
        end if;
    end if;
    return q;
end
$$;

-- Deletes a queue with its messages, dead letters and subscriptions. Fails with TL021 if it has dead letters,
-- if jobs wait to be enqueued there, or if schedules publish to it, unless p_force is true. Then such jobs
-- end as failed and such schedules are deleted. Waits up to two seconds for open transactions that have
-- published to the queue, and as long for locks; then fails with lock_not_available (55P03). Upkeep drops its
-- tables later.
create or replace function trunkline.delete_queue(p_name text, p_force boolean default false) returns void
language plpgsql
as $$
begin
    perform trunkline._await_publishers(trunkline._topic('inbox', p_name));
    perform trunkline._delete(format('_delete_queue(%L, %L)', p_name, coalesce(p_force, false)));
end
$$;

-- Deletes a queue under its lock, for delete_queue.
create or replace function trunkline._delete_queue(p_name text, p_force boolean) returns void
language plpgsql
as $$
declare
    q         trunkline.queues := trunkline._lock_queue(p_name);
    t         trunkline.topics := trunkline._topic('inbox', p_name);
    v_waiting int := (select count(*) from trunkline.job_waiting where queue = p_name);
begin
    if not p_force and v_waiting > 0 then
        perform trunkline._fail('TL021', format('cannot delete queue "%s": blocked jobs (%s) will be enqueued there', p_name, v_waiting),
                                'Cancel the jobs with trunkline.cancel_job, or pass p_force => true to end them as failed.');
    end if;
    if not p_force and exists (select from trunkline.dead_letters where queue_id = q.queue_id) then
        perform trunkline._fail('TL021', format('cannot delete queue "%s": it has dead letters', p_name),
                                'Redrive or purge the dead letters first, or pass p_force => true.');
    end if;
    perform trunkline._drop_schedules(format('queue "%s"', p_name), array(select s.schedule_id from trunkline.schedules s where s.queue = p_name), p_force);
    perform trunkline._fail_waiting(w, format('queue "%s" was deleted', p_name))
    from (select * from trunkline.job_waiting where queue = p_name order by waiting_id for update) w;
    delete from trunkline.cursors where queue_id = q.queue_id;
    delete from trunkline.subscriptions where queue_id = q.queue_id;
    delete from trunkline.queues where queue_id = q.queue_id;
    perform trunkline._drop_topic(t, q.queue_id);
end
$$;

-- Returns queues with the settings of each queue's log. Columns are listed by name, so that a new column of
-- either table changes nothing here.
create or replace function trunkline._queue_rows(p_names text[]) returns setof trunkline.queue_row
language sql stable
as $$
    select q.queue_id, q.name, q.inbox_id, q.lease, q.max_attempts, q.backoff_base, q.backoff_factor, q.backoff_cap, q.backoff_jitter, q.ttl,
           q.delivery_delay, q.ordered, q.paused, q.created_at, q.updated_at, q.history, t.partitions, t.retention, t.max_payload, coalesce(t.priorities, 1),
           case when not t.shared then t.segment_rows end
    from unnest(p_names) n(name) join trunkline.queues q using (name) join trunkline.topics t on t.topic_id = q.inbox_id order by q.name
$$;

-- Returns one queue. Fails with TL011 if it does not exist.
create or replace function trunkline.get_queue(p_name text) returns trunkline.queue_row
language sql stable
as $$ select r.* from trunkline._queue(p_name) q cross join lateral trunkline._queue_rows(array[q.name]) r $$;

-- Returns all queues ordered by name. For pages, pass p_limit and the last name of the page before as
-- p_after. p_names: only queues with one of these names; * stands for any characters.
create or replace function trunkline.list_queues(p_after text default null, p_limit int default null, p_names text[] default null) returns setof trunkline.queue_row
language sql stable
as $$
    select * from trunkline._queue_rows(array(
        select name from trunkline.queues where (p_after is null or name > p_after) and (p_names is null or name like any (trunkline._name_patterns(p_names))) order by name limit trunkline._limit(p_limit)))
$$;

-- Returns up to p_limit messages (at most 10,000) that are not leased, without claiming them or counting an
-- attempt. Returned messages come first, ordered by due_at; if that is in the future, the message cannot be
-- claimed yet. New messages follow, from the next 1,000 offsets of each log (or p_limit, if larger). Messages
-- without an offset are not included. The ttl and the delivery delay of the queue are not applied.
create or replace function trunkline.peek_queue(p_queue text, p_limit int default 10)
returns table (topic text, partition int, log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb, payload bytea,
               content_type text, occurred_at timestamptz, created_at timestamptz, attempt int, due_at timestamptz, error text)
language plpgsql
as $$
#variable_conflict use_column
declare
    q trunkline.queues := trunkline._queue(p_queue);
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    begin
        perform trunkline._begin_read();
        return query
        with again as (
            select 0 as round, p.due_at, p.attempt, p.error, c.topic, c.partition, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at, r.entered_at
            from (select * from trunkline._returned(q.queue_id) order by due_at limit p_limit) p
            join trunkline.cursors c on c.cursor_id = p.source_id
            cross join lateral trunkline._read_left(c, p.log_offset) r
        ), fresh as (
            select 1 as round, null::timestamptz as due_at, 0 as attempt, null::text as error, c.topic, c.partition, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at, r.entered_at
            from trunkline.cursors c
            cross join lateral (select trunkline._next_offset(c) as next, trunkline._head(c.log) as head offset 0) s
            cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, s.next, least(s.head, s.next + greatest(p_limit, 1000) - 1)) r
            where c.queue_id = q.queue_id and c.kind = 'log'
              and (c.pattern_regex is null or coalesce(r.routing_key, '') ~ c.pattern_regex)
              and (c.filter is null or trunkline._filter_matches(c.filter, coalesce(r.headers, '{}')))
        )
        select x.topic, x.partition, x.log_offset, x.id, x.key || '', x.routing_key || '', x.label || '', x.headers || '{}', x.payload || '', x.content_type || '', x.occurred_at, x.created_at,
               x.attempt, x.due_at, x.error || ''
        from (select * from again union all select * from fresh) x
        order by x.round, x.due_at, x.entered_at, x.log_offset limit p_limit;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns the next offset of a log that the queue will deliver for the first time.
create or replace function trunkline._next_offset(c trunkline.cursors) returns bigint
language plpgsql stable
as $$
declare
    v_next bigint;
begin
    if c.drawn_seq is not null then
        v_next := trunkline._drawn(c) + 1;
    else
        v_next := coalesce((select l.next_offset from trunkline.leases l where l.cursor_id = c.cursor_id order by l.first desc limit 1), c.start_position);
    end if;
    return greatest(v_next, (select base_offset from trunkline.logs where log = c.log));
end
$$;

-- Pauses a queue: it accepts messages and deliveries can be settled, but claims return no row. Fails with
-- TL011 if the queue does not exist.
create or replace function trunkline.pause_queue(p_name text) returns void
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._lock_queue(p_name);
begin
    update trunkline.queues set paused = true, updated_at = trunkline.clock() where queue_id = q.queue_id;
end
$$;

-- Resumes a paused queue: claims return messages again. Fails with TL011 if the queue does not exist.
create or replace function trunkline.resume_queue(p_name text) returns void
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._lock_queue(p_name);
begin
    update trunkline.queues set paused = false, updated_at = trunkline.clock() where queue_id = q.queue_id;
end
$$;

-- Subscribes a queue to a topic and returns the subscription. The queue then also delivers messages whose
-- routing key matches p_pattern and whose headers match p_filter. It starts at p_start: 'latest' (only new
-- messages), 'earliest', an offset or a time. In a pattern, words are separated by dots, * is one word and #
-- any number of words. p_name defaults to the topic's name. Locks the definitions of both until the
-- transaction ends. Fails with TL020 if the queue has a subscription of that name.
create or replace function trunkline.subscribe(
    p_queue text, p_topic text, p_pattern text default '#', p_filter jsonb default null, p_start text default 'latest', p_name text default null)
returns trunkline.subscriptions
language plpgsql
as $$
declare
    q       trunkline.queues;
    t       trunkline.topics;
    s       trunkline.subscriptions;
    v_name  text := coalesce(p_name, p_topic);
    v_regex text := trunkline._pattern_regex(p_pattern);
begin
    perform trunkline._queue(p_queue);
    perform trunkline._topic('topic', p_topic);
    perform trunkline._check_name('subscription', v_name);
    perform trunkline._check_filter(p_filter);
    perform trunkline._need_read_committed('subscribe');
    -- Reads both current rows, with all partitions. Retention removes nothing from the topic until this
    -- transaction ends.
    t := trunkline._lock_topic('topic', p_topic, true);
    q := trunkline._lock_queue(p_queue);
    perform trunkline._sequence_topic(t.topic_id);
    insert into trunkline.subscriptions (kind, name, topic_id, queue_id, pattern, pattern_regex, filter)
    values ('queue', v_name, t.topic_id, q.queue_id, p_pattern, case when p_pattern = '#' then null else v_regex end,
            nullif(p_filter, '{}'))
    on conflict do nothing returning * into s;
    if not found then
        perform trunkline._fail('TL020', format('queue "%s" already has a subscription "%s"', p_queue, v_name),
                                'Pass another p_name, or unsubscribe first.');
    end if;
    for p in 0 .. t.partitions - 1 loop
        perform trunkline._make_cursor(s, t, p, trunkline._resolve_position(t, p, p_start));
    end loop;
    return s;
end
$$;

-- Translates again the patterns that an earlier release has translated. A pattern above today's limits keeps
-- its translation.
do $do$
declare
    s       record;
    v_regex text;
begin
    for s in select subscription_id, pattern, pattern_regex from trunkline.subscriptions where pattern_regex is not null loop
        begin
            v_regex := trunkline._pattern_regex(s.pattern);
        exception when sqlstate 'TL001' then
            raise warning 'pattern "%" of subscription % is not translated again: %', s.pattern, s.subscription_id, sqlerrm;
            continue;
        end;
        if v_regex <> s.pattern_regex then
            update trunkline.subscriptions set pattern_regex = v_regex where subscription_id = s.subscription_id;
            update trunkline.cursors set pattern_regex = v_regex where subscription_id = s.subscription_id;
        end if;
    end loop;
end
$do$;

-- Deletes a subscription of a queue. Its messages that are not settled are no longer delivered. Retries for
-- up to two seconds while another session holds a lock, then fails with lock_not_available (55P03). Fails
-- with TL013 if the subscription does not exist.
create or replace function trunkline.unsubscribe(p_queue text, p_name text) returns void
language sql
as $$ select trunkline._delete(format('_unsubscribe(%L, %L)', p_queue, p_name)) $$;

-- Deletes a subscription under the queue's lock, for unsubscribe.
create or replace function trunkline._unsubscribe(p_queue text, p_name text) returns void
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._lock_queue(p_queue);
begin
    delete from trunkline.subscriptions where queue_id = q.queue_id and name = p_name and topic_id <> q.inbox_id;
    if not found then
        perform trunkline._fail('TL013', format('queue "%s" has no subscription "%s"', p_queue, p_name),
                                'List the subscriptions with trunkline.list_subscriptions.');
    end if;
end
$$;

-- Returns the subscriptions of one queue, or of all queues, ordered by queue and name.
create or replace function trunkline.list_subscriptions(p_queue text default null)
returns table (queue text, name text, topic text, pattern text, filter jsonb, created_at timestamptz)
language sql stable
as $$
    select q.name, s.name, t.name, s.pattern, s.filter, s.created_at
    from trunkline.subscriptions s join trunkline.queues q using (queue_id) join trunkline.topics t on t.topic_id = s.topic_id
    where t.kind = 'topic' and (p_queue is null or q.name = p_queue) order by q.name, s.name
$$;

-- Returns the groups and subscriptions that read a topic, and whether a message with this routing key and
-- these headers would match each of them.
create or replace function trunkline.test_subscriptions(p_topic text, p_routing_key text default null, p_headers jsonb default null)
returns table (kind text, name text, subscription text, pattern text, filter jsonb, matches boolean)
language sql stable
as $$
    select s.kind, coalesce(q.name, s.name), s.name, s.pattern, s.filter,
           (s.pattern_regex is null or coalesce(p_routing_key, '') ~ s.pattern_regex)
             and (s.filter is null or trunkline._filter_matches(s.filter, coalesce(p_headers, '{}')))
    from trunkline._topic('topic', p_topic) t join trunkline.subscriptions s on s.topic_id = t.topic_id
    left join trunkline.queues q on q.queue_id = s.queue_id
    order by s.kind, coalesce(q.name, s.name), s.name
$$;

-- Purges a queue: drops all messages that have an offset or are delayed and are not leased at this moment.
-- Returns their number. Messages that were committed last may have no offset yet; call trunkline.sequence()
-- before to include them. Locks the queue's row until the transaction ends, and in an ordered queue also its
-- partitions.
create or replace function trunkline.purge_queue(p_name text) returns bigint
language plpgsql
as $$
declare
    q       trunkline.queues := trunkline._queue(p_name);
    c       trunkline.cursors;
    v_total bigint := 0;
    r       record;
begin
    perform trunkline._need_read_committed('purge_queue');
    perform trunkline._commit_durably();
    -- As in alter_queue, the queue's row is locked before the logs.
    perform from trunkline.queues where queue_id = q.queue_id for no key update;
    perform trunkline._sequence_alone(array[q.queue_id], null);
    for c in select * from trunkline.cursors where queue_id = q.queue_id order by cursor_id loop
        if c.drawn_seq is not null then
            v_total := v_total + trunkline._purge_cursor(c);
        else
            v_total := v_total + trunkline._purge_ordered(c);
        end if;
    end loop;
    begin
        perform trunkline._begin_read();
        select * into q from trunkline.queues x where x.queue_id = q.queue_id;
        -- A message that waits for its retry, behind an open delivery of an ordered queue, or for its first
        -- delivery is dropped when it is due.
        select count(*) as n, max(x.due_at) as until, trunkline._newest_seen(q.purge_xids) as seen, pg_current_snapshot() as snapshot into r from (
            (select y.due_at from trunkline._returned(q.queue_id) y limit 1000000)
            union all
            (select y.due_at from trunkline._delayed y
             where y.topic_id = q.inbox_id and trunkline._is_waiting(y.no, y.xid, y.due_at) and not trunkline._is_withdrawn(q, y.xid, y.purge_no) limit 1000000)) x;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    update trunkline.queues
       set purge_xids = purge_xids[r.seen:] || pg_current_xact_id(), purge_nos = purge_nos[r.seen:] || nextval('trunkline.purge_no'),
           purge_snapshots = purge_snapshots[r.seen:] || r.snapshot, purged_until = greatest(purged_until, r.until)
     where queue_id = q.queue_id;
    return v_total + r.n;
end
$$;

-- Returns the index of the newest of these transactions that the newest pass, and so every later one, has
-- seen; 1 if there is none.
create or replace function trunkline._newest_seen(p_xids xid8[]) returns int
language sql stable
as $$
    select coalesce(max(i), 1) from generate_subscripts(p_xids, 1) i
    where pg_visible_in_snapshot(p_xids[i], (select snapshot from trunkline.passes order by pass desc limit 1))
$$;

-- Draws all positions of a cursor, settles them as purged and returns their number. Returns 0 if two passes
-- began in the meantime. Then a pass finds the draw as a hole. It drops these messages, because their
-- positions are not above purged_upto.
create or replace function trunkline._purge_cursor(c trunkline.cursors) returns bigint
language plpgsql
as $$
declare
    s       trunkline.leases := trunkline._new_draw(c);
    v_head  bigint;
    v_epoch bigint := coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0);
begin
    begin
        -- From returns, draw only committed rows. If a pass that is about to append more rows fails, the
        -- positions of these are never used.
        v_head := case when c.kind = 'log' then trunkline._head(c.log)
                       else coalesce((select r.pos from trunkline.returns r where r.cursor_id = c.cursor_id order by r.pos desc limit 1), 0) end;
        perform trunkline._lock_cursor(c.cursor_id);
        s.first := trunkline._drawn(c) + 1;
        if v_head >= s.first then
            s.n := v_head - s.first + 1;
            perform setval(c.drawn_seq, v_head);
        end if;
        raise exception using errcode = 'TLX00';
    exception when sqlstate 'TLX00' then
        null;
    end;
    -- Positions above the head do not count. If the transaction that assigned and drew these offsets is
    -- rolled back, other messages will get them.
    update trunkline.cursors set purged_upto = v_head where cursor_id = c.cursor_id;
    if s.n = 0 or not pg_try_advisory_xact_lock_shared(trunkline._mark(c.cursor_id, s.first, s.n)) or coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0) > v_epoch + 1 then
        return 0;
    end if;
    s.rotation := (select current from trunkline.rotation);
    insert into trunkline.leases (rotation, xid, cursor_id, first, n, skipped, expired, token, claimed_at, deadline)
    values (s.rotation, pg_current_xact_id(), s.cursor_id, s.first, s.n, 0, 0, gen_random_uuid(), trunkline.clock(), trunkline.clock());
    insert into trunkline.settled (rotation, xid, cursor_id, pos, n, first, kind, at)
    values (s.rotation, pg_current_xact_id(), s.cursor_id, s.first, s.n, s.first, 'p', trunkline.clock());
    return s.n;
end
$$;

-- Purges a partition of an ordered queue and returns the number of messages: returned and new ones. If a
-- delivery is open, returns 0; messages up to purged_upto are then dropped when they are due. Holds the
-- cursor's lock until the transaction ends.
create or replace function trunkline._purge_ordered(c trunkline.cursors) returns bigint
language plpgsql
as $$
declare
    o      record;
    v_head bigint := trunkline._head(c.log);
    v_n    bigint;
    v_rotation smallint := (select current from trunkline.rotation);
begin
    perform trunkline._lock_cursor(c.cursor_id);
    o := trunkline._ordered_state(c);
    if o.is_open then
        update trunkline.cursors set purged_upto = v_head where cursor_id = c.cursor_id;
        return 0;
    end if;
    v_n := greatest(0, v_head - o.next_offset + 1) + coalesce(cardinality(o.offsets), 0);
    if v_n > 0 then
        insert into trunkline.leases (rotation, xid, cursor_id, first, n, skipped, expired, token, claimed_at, deadline, next_offset, offsets)
        values (v_rotation, pg_current_xact_id(), c.cursor_id, coalesce((o.l).first + (o.l).n, 1), v_n, 0, 0, gen_random_uuid(), trunkline.clock(), trunkline.clock(), greatest(v_head + 1, o.next_offset), '{}');
        insert into trunkline.settled (rotation, xid, cursor_id, pos, n, first, kind, at)
        values (v_rotation, pg_current_xact_id(), c.cursor_id, coalesce((o.l).first + (o.l).n, 1), v_n, coalesce((o.l).first + (o.l).n, 1), 'p', trunkline.clock());
    end if;
    return v_n;
end
$$;
