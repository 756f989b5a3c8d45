-- Publishing is a plain insert (functions/topics.sql writes it for each topic, functions/store.sql has it for
-- queues). It uses no counter and no lock that blocks other publishers, so it may be part of a long
-- transaction of the caller. It works at every isolation level and in savepoints.

-- Fails with the error for message number p_index (counted from 0). Called only if a check has failed.
create or replace function trunkline._refuse_message(
    p_index int, p_payload bytea, p_key text, p_routing_key text, p_label text, p_headers jsonb, p_content_type text,
    p_max_payload int)
returns void
language plpgsql
as $$
declare
    v_where text := format('message %s: ', p_index);
begin
    if p_payload is null then
        perform trunkline._fail('TL001', v_where || 'payload must not be null',
                                'Use an empty payload or the JSON value null.');
    elsif length(p_payload) > p_max_payload then
        perform trunkline._fail('TL003', format('%spayload must have at most %s bytes, got %s', v_where, p_max_payload, length(p_payload)),
                                'Store large data elsewhere and publish a reference, or raise max_payload with trunkline.alter_topic or trunkline.alter_queue.');
    elsif length(p_key) > 1000 then
        perform trunkline._fail('TL001', format('%skey must have at most 1,000 characters, got %s', v_where, length(p_key)),
                                'Use a shorter key, such as a hash.');
    elsif length(p_routing_key) > 1000 then
        perform trunkline._fail('TL001', format('%srouting_key must have at most 1,000 characters, got %s', v_where, length(p_routing_key)),
                                'Use fewer or shorter words.');
    elsif length(p_label) > 200 then
        perform trunkline._fail('TL001', format('%slabel must have at most 200 characters, got %s', v_where, length(p_label)),
                                'Use a shorter label.');
    elsif length(p_content_type) > 200 then
        perform trunkline._fail('TL001', format('%scontent_type must have at most 200 characters, got %s', v_where, length(p_content_type)),
                                'Use a media type such as application/json.');
    elsif jsonb_typeof(p_headers) <> 'object' then
        perform trunkline._fail('TL001', format('%sheaders must be a JSON object, got %s', v_where, jsonb_typeof(p_headers)),
                                'Write headers as {"name": "value"}.');
    end if;
end
$$;

-- Fails with TL001 if the priority is above the highest one of the queue. Null is accepted.
create or replace function trunkline._refuse_priority(p_priority int, p_highest int) returns void
language plpgsql
as $$
begin
    if p_priority not between 0 and p_highest then
        perform trunkline._fail('TL001', format('priority %s is out of range: the queue has priorities 0 to %s', p_priority, p_highest),
                                format('Priorities are fixed at creation. Use %s, or create a queue with more.',
                                       case p_highest when 0 then 'priority 0' else 'a priority from 0 to ' || p_highest end));
    end if;
end
$$;

-- Fails unless the batch is within the limits of settings max_batch and max_batch_bytes, all arrays have the
-- same shape, and every message is valid.
create or replace function trunkline._check_batch(
    p_max_payload int, p_payloads bytea[], p_keys text[], p_routing_keys text[], p_labels text[], p_headers jsonb[],
    p_content_types text[], p_others int[], p_dims text[])
returns void
language plpgsql
as $$
declare
    v_n         int := cardinality(p_payloads);
    v_max_n     int := trunkline._setting('max_batch');
    v_max_bytes bigint := trunkline._setting('max_batch_bytes');
    v_bytes     bigint;
    v_any       boolean;
    v_bad       record;
begin
    if coalesce(v_n, 0) = 0 then
        perform trunkline._fail('TL001', 'batch must have at least one message', 'Publish at least one message.');
    elsif array_ndims(p_payloads) <> 1 or array_lower(p_payloads, 1) <> 1 then
        perform trunkline._fail('TL001', 'payloads must be a one-dimensional array that starts at index 1',
                                'Pass one payload per message.');
    elsif v_n > v_max_n then
        perform trunkline._fail('TL004', format('batch must have at most %s messages, got %s', v_max_n, v_n),
                                'Publish the messages in several batches.');
    elsif exists (select from unnest(p_others || array[cardinality(p_keys), cardinality(p_routing_keys), cardinality(p_labels),
                                     cardinality(p_headers), cardinality(p_content_types)]) o where o <> v_n) then
        perform trunkline._fail('TL001', format('each array must have one element per message (%s)', v_n),
                                'Use null for an array without values.');
    elsif exists (select from unnest(p_dims || array[array_dims(p_keys), array_dims(p_routing_keys), array_dims(p_labels), array_dims(p_headers),
                                     array_dims(p_content_types)]) d where d <> array_dims(p_payloads)) then
        perform trunkline._fail('TL001', 'each array must be one-dimensional and start at index 1',
                                'Pass one element per message.');
    end if;
    select sum(length(p)), max(length(p)) > p_max_payload or count(p) < v_n into v_bytes, v_any from unnest(p_payloads) p;
    if v_bytes > v_max_bytes then
        perform trunkline._fail('TL004', format('batch must have at most %s bytes of payloads, got %s', v_max_bytes, v_bytes),
                                'Publish the messages in several batches.');
    end if;
    -- Most batches have payloads only. Then no other field needs a check.
    if not v_any and num_nonnulls(p_keys, p_routing_keys, p_labels, p_headers, p_content_types) = 0 then
        return;
    end if;
    select u.* into v_bad
    from unnest(p_payloads, p_keys, p_routing_keys, p_labels, p_headers, p_content_types)
         with ordinality u(payload, key, routing_key, label, headers, content_type, ord)
    where payload is null or length(payload) > p_max_payload or length(key) > 1000 or length(routing_key) > 1000
       or length(label) > 200 or length(content_type) > 200 or jsonb_typeof(headers) <> 'object'
    order by ord limit 1;
    if found then
        perform trunkline._refuse_message(v_bad.ord::int - 1, v_bad.payload, v_bad.key, v_bad.routing_key, v_bad.label,
                                          v_bad.headers, v_bad.content_type, p_max_payload);
    end if;
end
$$;

-- Reserves idempotency keys for this transaction. Returns for each message null (a new message, or no key),
-- or the id of the message that has already used the key. Each key is written to the current time window and
-- to the next one. So a key is remembered for one to two windows. Publishers on both sides of a window border
-- conflict on the same unique index, and the second one waits. Fails with TL022 if the key was used for a
-- different message, and with 40001 if only the key's row in the next window exists.
create or replace function trunkline._reserve_keys(p_topic_id int, p_ids uuid[], p_keys text[], p_digests bytea[]) returns uuid[]
language plpgsql
as $$
declare
    v_now    timestamptz := trunkline.clock();
    v_win    bigint := floor(extract(epoch from v_now) / extract(epoch from trunkline._setting('idempotency_window')::interval));
    v_new    text[];
    v_second int;
    v_clash  text;
    v_first  uuid[];
begin
    if exists (select from unnest(p_keys) k where k = '' or length(k) > 255) then
        perform trunkline._fail('TL001', 'idempotency_key must have 1 to 255 characters',
                                'Use a shorter key, such as a hash, or null for none.');
    end if;
    -- Keys are inserted in order, so that two batches with the same keys cannot deadlock. Each key has its
    -- own index lookup: a plan that was made while the window was empty would later scan the whole window.
    with mine as (
        select distinct on (u.key) u.key, u.id, u.digest
        from unnest(p_keys, p_ids, p_digests) with ordinality u(key, id, digest, ord)
        where u.key is not null order by u.key, u.ord
    ), inserted as (
        insert into trunkline.idempotency (slot, win, topic_id, key, id, digest, at)
        select v_win % 4, v_win, p_topic_id, m.key, m.id, m.digest, v_now from mine m order by m.key
        on conflict do nothing
        returning key
    )
    select coalesce(array_agg(key), '{}') into v_new from inserted;
    insert into trunkline.idempotency (slot, win, topic_id, key, id, digest, at)
    select (v_win + 1) % 4, v_win + 1, topic_id, key, id, digest, at
    from unnest(v_new) n
    cross join lateral (select i.topic_id, i.key, i.id, i.digest, i.at from trunkline.idempotency i
                        where i.slot = v_win % 4 and i.win = v_win and i.topic_id = p_topic_id and i.key = n offset 0) x
    order by key
    on conflict do nothing;
    get diagnostics v_second = row_count;
    if v_second < cardinality(v_new) then
        raise exception using errcode = '40001', message = 'another publish used the same idempotency key at the same time',
                              hint = 'Retry the publish.';
    end if;
    select string_agg(distinct u.key, '", "') into v_clash
    from unnest(p_keys, p_digests) u(key, digest)
    cross join lateral (select * from trunkline.idempotency i
                        where i.slot = v_win % 4 and i.win = v_win and i.topic_id = p_topic_id and i.key = u.key offset 0) i
    where i.digest <> u.digest;
    if v_clash is not null then
        perform trunkline._fail('TL022', format('idempotency key "%s" was already used for a different message', left(v_clash, 300)),
                                'Use a new key for a new message.');
    end if;
    select array_agg(case when i.id is null or (i.id = u.id and u.key = any (v_new) and u.nth = 1) then null else i.id end order by u.ord)
      into v_first
      from (select key, id, ord, row_number() over (partition by key order by ord) as nth
            from unnest(p_keys, p_ids) with ordinality x(key, id, ord)) u
      left join lateral (select * from trunkline.idempotency i
                         where i.slot = v_win % 4 and i.win = v_win and i.topic_id = p_topic_id and i.key = u.key offset 0) i on true;
    return v_first;
end
$$;

-- Fails with TL001 if occurred_at is infinite or outside of the years 1 to 9999: clients cannot represent it.
create or replace function trunkline._check_occurred_at(p_at timestamptz) returns void
language plpgsql
as $$
begin
    if p_at < '0001-01-01 00:00:00+00' or p_at >= '10000-01-01 00:00:00+00' then
        perform trunkline._fail('TL001', format('occurred_at must be in the years 1 to 9999 (UTC), got %s', p_at),
                                'Omit occurred_at if the time is not known.');
    end if;
end
$$;

-- Publishes messages to a topic or queue and returns them in input order. Messages that are delayed go to
-- `delayed`, the others to the log. Reserves idempotency keys before it inserts anything.
create or replace function trunkline._publish_many(
    t trunkline.topics, p_payloads bytea[], p_ids uuid[], p_keys text[], p_routing_keys text[], p_labels text[],
    p_headers jsonb[], p_content_types text[], p_content_type text, p_occurred_ats timestamptz[],
    p_idempotency_keys text[], p_delays interval[], p_deliver_ats timestamptz[], p_priorities int[] default null)
returns setof trunkline.published
language plpgsql
as $$
declare
    v_now   timestamptz;
    v_ids   uuid[] := p_ids;
    v_first uuid[];
    v_due   timestamptz[];
    v_take  int[];
    v_generation bigint;
begin
    perform trunkline._check_batch(t.max_payload, p_payloads, p_keys, p_routing_keys, p_labels, p_headers, p_content_types,
        array[cardinality(p_ids), cardinality(p_occurred_ats), cardinality(p_idempotency_keys), cardinality(p_delays), cardinality(p_deliver_ats), cardinality(p_priorities)],
        array[array_dims(p_ids), array_dims(p_occurred_ats), array_dims(p_idempotency_keys), array_dims(p_delays), array_dims(p_deliver_ats), array_dims(p_priorities)]);
    if length(p_content_type) > 200 then
        perform trunkline._refuse_message(0, '', null, null, null, null, p_content_type, t.max_payload);
    end if;
    perform trunkline._refuse_priority(p, coalesce(t.priorities, 1) - 1) from unnest(p_priorities) p;
    if p_occurred_ats is not null then
        perform trunkline._check_occurred_at(o) from unnest(p_occurred_ats) o;
    end if;
    perform trunkline._commit_durably();
    if p_idempotency_keys is null and p_delays is null and p_deliver_ats is null then
        if t.shared then
            return query select a.ord::int, a.id, false
                         from trunkline._append_shared(t, p_payloads, p_ids, p_keys, p_routing_keys, p_labels, p_headers, p_content_types, coalesce(p_content_type, 'application/json'),
                                                       p_occurred_ats, p_priorities) with ordinality a(id, ord);
            return;
        end if;
        return query execute format(
            'select a.ord::int, a.id, false from trunkline.topic_%s_append($1,$2,$3,$4,$5,$6,$7,$8,$9,$10) with ordinality a(id, ord)', t.topic_id)
            using p_payloads, p_ids, p_keys, p_routing_keys, p_labels, p_headers, p_content_types, coalesce(p_content_type, 'application/json'), p_occurred_ats, p_priorities;
        return;
    end if;

    v_now := trunkline.clock();
    select array_agg(coalesce(u.given, trunkline.new_id()) order by u.ord) into v_ids
    from unnest(p_payloads, p_ids) with ordinality u(payload, given, ord);
    if p_idempotency_keys is not null then
        v_first := trunkline._reserve_keys(t.topic_id, v_ids, p_idempotency_keys, (
            select array_agg(sha256(u.payload || convert_to(jsonb_build_array(u.key, u.routing_key, u.label, u.headers, u.content_type)::text, 'UTF8')) order by u.ord)
            from unnest(p_payloads, p_keys, p_routing_keys, p_labels, p_headers, p_content_types)
                 with ordinality u(payload, key, routing_key, label, headers, content_type, ord)));
    end if;
    if p_delays is not null and exists (
        select from unnest(p_delays, p_deliver_ats) u(delay, deliver_at) where u.delay is not null and u.deliver_at is not null) then
        perform trunkline._fail('TL001', 'a message cannot have both delay and deliver_at', 'Use only one of the two.');
    end if;
    perform trunkline._check_duration('delay', d, '0', '365 days') from unnest(p_delays) d;
    if exists (select from unnest(p_deliver_ats) d where d > v_now + interval '365 days') then
        perform trunkline._fail('TL005', format('deliver_at must be at most 365 days ahead, got %s', (select max(d) from unnest(p_deliver_ats) d)),
                                'Use an earlier time.');
    end if;
    select array_agg(coalesce(u.deliver_at, v_now + u.delay) order by u.ord) into v_due
    from unnest(p_payloads, p_delays, p_deliver_ats) with ordinality u(payload, delay, deliver_at, ord);

    if exists (select from unnest(v_due) d where d > v_now) then
        perform trunkline._pin_topic(t);
        v_generation := trunkline._delayed_generation();
        insert into trunkline.delayed (rotation, topic_id, due_at, id, key, routing_key, label, headers, payload, content_type, occurred_at, priority, published_at, purge_no)
        select v_generation % 3, t.topic_id, v_due[i], v_ids[i], p_keys[i], p_routing_keys[i], p_labels[i], p_headers[i], p_payloads[i],
               coalesce(p_content_types[i], p_content_type, 'application/json'), p_occurred_ats[i], p_priorities[i], v_now, trunkline._newest_purge()
        from generate_subscripts(p_payloads, 1) i
        where v_first[i] is null and v_due[i] > v_now order by i;
        perform trunkline._check_generation(v_generation);
    end if;

    select array_agg(i order by i) into v_take from generate_subscripts(p_payloads, 1) i
    where v_first[i] is null and (v_due[i] is null or v_due[i] <= v_now);
    if v_take is not null then
        perform trunkline._append(t,
              (select array_agg(p_payloads[i] order by i) from unnest(v_take) i),
              (select array_agg(v_ids[i] order by i) from unnest(v_take) i),
              (select array_agg(p_keys[i] order by i) from unnest(v_take) i),
              (select array_agg(p_routing_keys[i] order by i) from unnest(v_take) i),
              (select array_agg(p_labels[i] order by i) from unnest(v_take) i),
              (select array_agg(p_headers[i] order by i) from unnest(v_take) i),
              (select array_agg(coalesce(p_content_types[i], p_content_type) order by i) from unnest(v_take) i),
              (select array_agg(p_occurred_ats[i] order by i) from unnest(v_take) i),
              (select array_agg(p_priorities[i] order by i) from unnest(v_take) i));
    end if;
    return query select i, coalesce(v_first[i], v_ids[i]), v_first[i] is not null from generate_subscripts(p_payloads, 1) i order by i;
end
$$;

-- Returns the idempotency key of each message: the given one, else the given id.
create or replace function trunkline._keys_or_ids(p_keys text[], p_ids uuid[]) returns text[]
language sql immutable
as $$
    select case when p_ids is null then p_keys when p_keys is null then p_ids::text[]
                else (select array_agg(coalesce(u.key, u.id::text) order by u.ord) from unnest(p_keys, p_ids) with ordinality u(key, id, ord)) end
$$;

-- Publishes messages to a topic and returns one row per message in input order: ord (counted from 1), id and
-- duplicate. If an idempotency key was used before, nothing is stored for that message: duplicate is true and
-- id is that of the first message. Every array except p_payloads may be null; otherwise it has one element
-- per message. A batch has at most 1,000 messages and 8 MiB of payloads (settings max_batch and
-- max_batch_bytes). A delay or deliver_at is at most 365 days ahead. Fails with TL010 if the topic does not
-- exist, and with TL003 or TL004 above a size limit. Fails with TL022 if an idempotency key was used for a
-- different message. A message with an id and without an idempotency key has its id as the key: a repeated
-- id is a duplicate.
create or replace function trunkline.publish_many(
    p_topic text, p_payloads bytea[], p_ids uuid[] default null, p_keys text[] default null, p_routing_keys text[] default null,
    p_labels text[] default null, p_headers jsonb[] default null, p_content_types text[] default null,
    p_content_type text default 'application/json', p_occurred_ats timestamptz[] default null,
    p_idempotency_keys text[] default null, p_delays interval[] default null, p_deliver_ats timestamptz[] default null)
returns setof trunkline.published
language sql
as $$
    select * from trunkline._publish_many(trunkline._topic('topic', p_topic), p_payloads, p_ids, p_keys, p_routing_keys, p_labels,
        p_headers, p_content_types, p_content_type, p_occurred_ats, trunkline._keys_or_ids(p_idempotency_keys, p_ids), p_delays, p_deliver_ats)
$$;

-- Publishes messages to a queue's own log, like publish_many. p_priorities has one level per message for
-- queues with priorities: 0 is the lowest, null means 0. Fails with TL011 if the queue does not exist.
create or replace function trunkline.enqueue_many(
    p_queue text, p_payloads bytea[], p_ids uuid[] default null, p_keys text[] default null, p_routing_keys text[] default null,
    p_labels text[] default null, p_headers jsonb[] default null, p_content_types text[] default null,
    p_content_type text default 'application/json', p_occurred_ats timestamptz[] default null,
    p_idempotency_keys text[] default null, p_delays interval[] default null, p_deliver_ats timestamptz[] default null, p_priorities int[] default null)
returns setof trunkline.published
language sql
as $$
    select * from trunkline._publish_many(trunkline._topic('inbox', p_queue), p_payloads, p_ids, p_keys, p_routing_keys, p_labels,
        p_headers, p_content_types, p_content_type, p_occurred_ats, trunkline._keys_or_ids(p_idempotency_keys, p_ids), p_delays, p_deliver_ats, p_priorities)
$$;

-- Publishes one message. Without an idempotency key or a delay it calls the insert function directly.
create or replace function trunkline._publish_one(
    t trunkline.topics, p_payload bytea, p_key text, p_routing_key text, p_label text, p_headers jsonb, p_content_type text,
    p_id uuid, p_occurred_at timestamptz, p_idempotency_key text, p_delay interval, p_deliver_at timestamptz, p_priority int default null)
returns trunkline.published
language plpgsql
as $$
declare
    v_row trunkline.published;
begin
    if p_idempotency_key is null and p_delay is null and p_deliver_at is null then
        if p_occurred_at is not null then
            perform trunkline._check_occurred_at(p_occurred_at);
        end if;
        if t.shared then
            v_row := row(1, trunkline._publish_shared(t, p_payload, p_key, p_routing_key, p_label, p_headers, p_content_type, p_id, p_occurred_at, p_priority), false);
            return v_row;
        end if;
        execute format('select 1, trunkline.topic_%s_publish($1,$2,$3,$4,$5,$6,$7,$8,$9), false', t.topic_id) into v_row
        using p_payload, p_key, p_routing_key, p_label, p_headers, p_content_type, p_id, p_occurred_at, p_priority;
    else
        select * into v_row from trunkline._publish_many(t, array[p_payload], array[p_id], array[p_key], array[p_routing_key],
            array[p_label], array[p_headers], array[p_content_type], 'application/json', array[p_occurred_at],
            array[p_idempotency_key], array[p_delay], array[p_deliver_at], array[p_priority]);
    end if;
    return v_row;
end
$$;

-- Publishes one JSON message to a topic and returns its id. The payload is stored as the text form of the
-- JSON value. Use publish_bytes to store exact bytes. If p_idempotency_key was used before, nothing is
-- stored: duplicate is true and id is that of the first message. Without a key, a given p_id is the key. A key
-- is remembered for 24 to 48 hours (one to two windows of setting idempotency_window). Give p_delay or p_deliver_at, not both, for a delivery up to
-- 365 days ahead. Fails with TL010 if the topic does not exist and with TL003 if the payload is larger than
-- the topic's max_payload.
create or replace function trunkline.publish(
    p_topic text, p_payload jsonb, p_key text default null, p_routing_key text default null, p_label text default null,
    p_headers jsonb default null, p_id uuid default null, p_occurred_at timestamptz default null,
    p_idempotency_key text default null, p_delay interval default null, p_deliver_at timestamptz default null)
returns trunkline.published
language sql
as $$
    select * from trunkline._publish_one(trunkline._topic('topic', p_topic), convert_to(p_payload::text, 'UTF8'), p_key, p_routing_key,
        p_label, p_headers, 'application/json', p_id, p_occurred_at, coalesce(p_idempotency_key, p_id::text), p_delay, p_deliver_at)
$$;

-- Publishes one message with a payload of bytes, which are stored exactly as sent, and returns its id. All
-- other arguments are those of publish.
create or replace function trunkline.publish_bytes(
    p_topic text, p_payload bytea, p_content_type text default 'application/octet-stream', p_key text default null,
    p_routing_key text default null, p_label text default null, p_headers jsonb default null, p_id uuid default null,
    p_occurred_at timestamptz default null, p_idempotency_key text default null, p_delay interval default null,
    p_deliver_at timestamptz default null)
returns trunkline.published
language sql
as $$
    select * from trunkline._publish_one(trunkline._topic('topic', p_topic), p_payload, p_key, p_routing_key, p_label, p_headers,
        p_content_type, p_id, p_occurred_at, coalesce(p_idempotency_key, p_id::text), p_delay, p_deliver_at)
$$;

-- Publishes one JSON message to a queue's own log and returns its id. p_priority is for queues with
-- priorities: 0 is the lowest level, null means 0. All other arguments are those of publish. Fails with TL011
-- if the queue does not exist.
create or replace function trunkline.enqueue(
    p_queue text, p_payload jsonb, p_key text default null, p_routing_key text default null, p_label text default null,
    p_headers jsonb default null, p_id uuid default null, p_occurred_at timestamptz default null,
    p_idempotency_key text default null, p_delay interval default null, p_deliver_at timestamptz default null, p_priority int default null)
returns trunkline.published
language sql
as $$
    select * from trunkline._publish_one(trunkline._topic('inbox', p_queue), convert_to(p_payload::text, 'UTF8'), p_key, p_routing_key,
        p_label, p_headers, 'application/json', p_id, p_occurred_at, coalesce(p_idempotency_key, p_id::text), p_delay, p_deliver_at, p_priority)
$$;

-- Publishes one message with a payload of bytes to a queue's own log and returns its id. The bytes are stored
-- exactly as sent. All other arguments are those of enqueue.
create or replace function trunkline.enqueue_bytes(
    p_queue text, p_payload bytea, p_content_type text default 'application/octet-stream', p_key text default null,
    p_routing_key text default null, p_label text default null, p_headers jsonb default null, p_id uuid default null,
    p_occurred_at timestamptz default null, p_idempotency_key text default null, p_delay interval default null,
    p_deliver_at timestamptz default null, p_priority int default null)
returns trunkline.published
language sql
as $$
    select * from trunkline._publish_one(trunkline._topic('inbox', p_queue), p_payload, p_key, p_routing_key, p_label, p_headers,
        p_content_type, p_id, p_occurred_at, coalesce(p_idempotency_key, p_id::text), p_delay, p_deliver_at, p_priority)
$$;
