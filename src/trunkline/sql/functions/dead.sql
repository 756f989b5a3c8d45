-- Dead letters: messages that failed for good, and how to redrive or purge them.

-- Returns the dead letters of a queue, oldest first, at most p_limit (1 to 10,000). For the next page, pass
-- the last dead_id as p_after.
create or replace function trunkline.list_dead_letters(p_queue text, p_after bigint default 0, p_limit int default 100) returns setof trunkline.dead_letters
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._queue(p_queue);
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    return query select * from trunkline.dead_letters where queue_id = q.queue_id and dead_id > p_after order by dead_id limit p_limit;
end
$$;

-- Returns one dead letter by its message id, the newest if there are several. Raises TL014 if the queue has
-- none with this id.
create or replace function trunkline.get_dead_letter(p_queue text, p_id uuid) returns trunkline.dead_letters
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._queue(p_queue);
    d trunkline.dead_letters;
begin
    select * into d from trunkline.dead_letters where queue_id = q.queue_id and id = p_id order by dead_id desc limit 1;
    if not found then
        perform trunkline._fail('TL014', format('queue "%s" has no dead letter %s', p_queue, p_id),
                                'List the dead letters with trunkline.list_dead_letters.');
    end if;
    return d;
end
$$;

-- Deletes dead letters, oldest first, and returns them: at most p_limit (1 to 1,000) and about 32 MB of
-- payloads. Skips rows that another session has locked. A notice says how many are left. For redrive and
-- purge_dead_letters.
create or replace function trunkline._remove_dead_letters(p_queue text, p_ids uuid[], p_limit int) returns setof trunkline.dead_letters
language plpgsql
as $$
declare
    q      trunkline.queues := trunkline._queue(p_queue);
    v_left int;
begin
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    perform trunkline._commit_durably();
    return query
    with step as (
        select dead_id, length(payload) as bytes from trunkline.dead_letters
        where queue_id = q.queue_id and (p_ids is null or id = any (p_ids)) order by dead_id limit p_limit for update skip locked
    )
    delete from trunkline.dead_letters d using (
        -- an array can have at most 1 GB, so the bytes per call are limited
        select dead_id, sum(bytes) over (order by dead_id) - bytes as before from step) x
    where d.dead_id = x.dead_id and x.before < 33554432 returning d.*;
    if p_ids is null then
        select count(*) into v_left from (select from trunkline.dead_letters where queue_id = q.queue_id limit 10001) x;
        if v_left > 0 then
            raise notice 'queue % has % more dead letters', quote_ident(p_queue), case when v_left > 10000 then 'over 10,000' else v_left::text end
                using hint = 'repeat the call until it returns 0';
        end if;
    end if;
end
$$;

-- Moves dead letters back to their queue, or to queue p_to, and returns the number moved. They keep id, key,
-- headers, payload and publish time; attempts start again from 1.
-- Moves the oldest first: per call at most p_limit (1 to 1,000) and about 32 MB of payloads, all or none.
-- Skips dead letters that another session is moving or purging. Repeat the call until it returns 0.
create or replace function trunkline.redrive(p_queue text, p_ids uuid[] default null, p_to text default null, p_limit int default 1000) returns int
language plpgsql
as $$
declare
    t       trunkline.topics := trunkline._topic('inbox', coalesce(p_to, p_queue));
    v_taken trunkline.dead_letters[];
begin
    perform trunkline._pin_topic(t);
    v_taken := array(select x from trunkline._remove_dead_letters(p_queue, p_ids, p_limit) x order by x.dead_id);
    perform trunkline._redrive_taken(t, v_taken);
    return cardinality(v_taken);
end
$$;

-- Moves the newest dead letter with this id back to its queue with another payload, and with other headers and
-- another content type unless they are null. Returns the id, which it keeps like all other fields. Attempts
-- start again from 1. The log and the delivery history keep the message as it was. Raises TL014 if the queue
-- has no such dead letter or another session is moving it, and TL003 if the payload is too large.
create or replace function trunkline.redrive_edited(p_queue text, p_id uuid, p_payload bytea, p_headers jsonb default null, p_content_type text default null) returns uuid
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('inbox', p_queue);
    q trunkline.queues := trunkline._queue(p_queue);
    d trunkline.dead_letters;
begin
    perform trunkline._commit_durably();
    perform trunkline._pin_topic(t);
    delete from trunkline.dead_letters x
    where x.dead_id = (select y.dead_id from trunkline.dead_letters y where y.queue_id = q.queue_id and y.id = p_id order by y.dead_id desc limit 1 for update skip locked)
    returning * into d;
    if d.dead_id is null then
        perform trunkline._fail('TL014', format('queue "%s" has no dead letter %s', p_queue, p_id), 'List the dead letters with trunkline.list_dead_letters.');
    end if;
    d.payload := p_payload;
    d.headers := coalesce(p_headers, d.headers);
    d.content_type := coalesce(p_content_type, d.content_type);
    perform trunkline._refuse_message(0, d.payload, d.key, d.routing_key, d.label, d.headers, d.content_type, t.max_payload);
    perform trunkline._redrive_taken(t, array[d]);
    return d.id;
end
$$;

-- Appends the messages of dead letters that this transaction has deleted to a queue's own log, in the order of
-- the array, and notes their earlier positions. p_run_id: the run that does it; its messages are numbered from
-- p_run_no + 1.
create or replace function trunkline._redrive_taken(t trunkline.topics, p_taken trunkline.dead_letters[], p_run_id bigint default null, p_run_no bigint default null) returns void
language plpgsql
as $$
begin
    perform trunkline._pin_topic(t);
    with many as (
        select array_agg(payload order by dead_id) as payloads, array_agg(id order by dead_id) as ids, array_agg(key order by dead_id) as keys,
               array_agg(routing_key order by dead_id) as routing_keys, array_agg(label order by dead_id) as labels,
               array_agg(headers order by dead_id) as headers, array_agg(content_type order by dead_id) as content_types,
               array_agg(occurred_at order by dead_id) as occurred_ats,
               -- in a queue with priorities the partition is the priority
               case when t.priorities is not null then array_agg(least(case when topic = '' then partition else 0 end, t.priorities - 1) order by dead_id) end as priorities,
               array_agg(row(created_at, coalesce(nullif(topic, ''), (select r.topic from trunkline.redriven r where r.id = taken.id and r.topic is not null order by r.at desc limit 1))
                         )::trunkline.origin order by dead_id) as origins
        from unnest(p_taken) taken),
    places as (
        insert into trunkline.redriven (id, topic_id, at, cursor_id, topic, partition, log_offset, dead_at, reason, error, run_id, run_no)
        select id, t.topic_id, trunkline.clock(), cursor_id, nullif(topic, ''), partition, log_offset, dead_at, reason, error, p_run_id, p_run_no + row_number() over (order by dead_id)
        from unnest(p_taken))
    select count(p.*) from many cross join lateral trunkline._append(t, payloads, ids, keys, routing_keys, labels, headers, content_types, occurred_ats, priorities, origins) p
    where payloads is not null into p_run_no;
end
$$;

-- Appends messages that were validated when they were first accepted, and returns their ids. p_origins:
-- original publish time and topic of each message, or null for a message without an earlier position.
create or replace function trunkline._append(
    t trunkline.topics, p_payloads bytea[], p_ids uuid[], p_keys text[], p_routing_keys text[], p_labels text[], p_headers jsonb[],
    p_content_types text[], p_occurred_ats timestamptz[], p_priorities int[] default null, p_origins trunkline.origin[] default null)
returns setof uuid
language plpgsql
as $$
declare
    v_places int[];
    v_rows   bigint[];
begin
    perform trunkline._commit_durably();
    if p_origins is not null then
        if t.shared then
            select d.logs, d.ids into v_places, v_rows from trunkline._draw_shared(t, cardinality(p_payloads), p_keys, p_priorities) d;
        else
            execute format('select d.partitions, d.ids from trunkline.topic_%s_draw($1, $2, $3) d', t.topic_id)
                into v_places, v_rows using cardinality(p_payloads), p_keys, p_priorities;
        end if;
        return query execute format('
            insert into trunkline.%s as m (%s, id, message_id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at, origin)
            select coalesce(u.place, 0), u.row_id, coalesce(u.id, trunkline.new_id()), u.key, u.routing_key, u.label, u.headers, u.payload,
                   coalesce(u.content_type, ''application/json''), u.occurred_at, trunkline.clock(), $11[u.ord]
            from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
                 with ordinality u(place, row_id, id, key, routing_key, label, headers, payload, content_type, occurred_at, ord)
            returning m.message_id::uuid', case when t.shared then 'store' else 'topic_' || t.topic_id end, case when t.shared then 'log' else 'partition' end)
            using v_places, v_rows, p_ids, p_keys, p_routing_keys, p_labels, p_headers, p_payloads, p_content_types, p_occurred_ats, p_origins;
        return;
    end if;
    if t.shared then
        return query select * from trunkline._append_shared(t, p_payloads, p_ids, p_keys, p_routing_keys, p_labels, p_headers, p_content_types, 'application/json', p_occurred_ats, p_priorities);
        return;
    end if;
    return query execute format('select * from trunkline.topic_%s_append($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)', t.topic_id)
        using p_payloads, p_ids, p_keys, p_routing_keys, p_labels, p_headers, p_content_types, 'application/json'::text, p_occurred_ats, p_priorities;
end
$$;

-- Deletes dead letters permanently, oldest first, and returns the number deleted. Per call at most p_limit (1
-- to 1,000) and about 32 MB of payloads. Skips dead letters that another session is moving or purging. Repeat
-- the call until it returns 0.
create or replace function trunkline.purge_dead_letters(p_queue text, p_ids uuid[] default null, p_limit int default 1000) returns int
language sql
as $$ select count(*)::int from trunkline._remove_dead_letters(p_queue, p_ids, p_limit) $$;
