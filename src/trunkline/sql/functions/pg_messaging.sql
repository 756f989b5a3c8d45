-- Compatibility layer for pg-messaging: the usual operations of a log and a queue, one function each, with
-- plain types. For sqlc, PostgREST and other tools that generate code from signatures.
-- docs/reference/pg_messaging.sql has them with sqlc's annotations. They work with topics of one partition. The
-- functions behind them (publish_many, fetch, claim and others) can do more.

-- Returns the topic. Raises TL023 if it has more than one partition.
create or replace function trunkline._single_log(p_topic text, p_verb text) returns trunkline.topics
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
begin
    if t.partitions > 1 then
        perform trunkline._fail('TL023', format('%s needs a topic with one partition, topic "%s" has %s', p_verb, p_topic, t.partitions),
                                'Use trunkline.fetch and trunkline.commit.');
    end if;
    return t;
end
$$;

-- Publishes a batch, all or none, and returns the ids in the order of the payloads. The messages get offsets
-- after the transaction has committed.
create or replace function trunkline.publish_messages(p_topic text, p_payloads bytea[]) returns setof uuid
language plpgsql
as $$
begin
    if p_payloads = '{}' then
        perform trunkline._topic('topic', p_topic);
        return;
    end if;
    return query select p.id from trunkline.publish_many(p_topic, p_payloads, p_content_type => 'application/octet-stream') p order by p.ord;
end
$$;

-- Creates a consumer group that starts at offset p_start, unless it exists. Raises TL023 if the topic has
-- several partitions.
create or replace function trunkline.init_consumer_group(p_group text, p_topic text, p_start bigint default 1) returns void
language plpgsql
as $$
begin
    perform trunkline._single_log(p_topic, 'init_consumer_group');
    perform trunkline._check_range('start', p_start, 1, 9e17);
    -- 1 means the earliest available offset, also if retention has removed the first messages
    perform trunkline.ensure_group(p_topic, p_group, case p_start when 1 then 'earliest' else p_start::text end);
end
$$;

-- Claims the next range of offsets for a group and commits it at once: the range is not redelivered. Returns
-- its first and last offset. If there is nothing new, or a member has leased the partition, the end is one
-- below the start. Returns no row if the group does not exist.
-- Raises TL023 if the topic has several partitions, or the group has a pattern or filter.
create or replace function trunkline.claim_offsets(p_group text, p_max bigint, p_topic text, out claimed_start_offset bigint, out claimed_end_offset bigint)
returns setof record
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._single_log(p_topic, 'claim_offsets');
    c trunkline.cursors;
begin
    select k.* into c from trunkline.subscriptions g join trunkline.cursors k using (subscription_id)
    where g.kind = 'group' and g.topic_id = t.topic_id and g.name = p_group;
    if not found then
        return;
    end if;
    select r.first_offset, r.last_offset into claimed_start_offset, claimed_end_offset from trunkline.claim_range(p_topic, p_group, p_max) r;
    if claimed_start_offset is null then
        claimed_end_offset := (trunkline._position(c)).committed;
        claimed_start_offset := claimed_end_offset + 1;
    end if;
    return next;
end
$$;

-- Returns the messages of a range of offsets, at most 100,000. Offsets beyond the head are omitted; an empty
-- range returns no rows. Raises an error if retention has removed the first offset.
create or replace function trunkline.get_messages(p_start bigint, p_end bigint, p_topic text)
returns table (c_offset bigint, payload bytea, created_at timestamptz)
language plpgsql
as $$
begin
    perform trunkline._single_log(p_topic, 'get_messages');
    perform trunkline._check_range('start', p_start, 1, 9e17);
    perform trunkline._check_range('end', p_end, -1, 9e17);
    if p_end - p_start >= 100000 then
        perform trunkline._fail('TL004', format('cannot read more than 100,000 messages in one call, got offsets %s to %s', p_start, p_end),
                                'Read in several calls.');
    end if;
    if p_end >= p_start then
        return query select r.log_offset, r.payload, r.created_at from trunkline.read(p_topic, 0, p_start, (p_end - p_start + 1)::int) r;
    end if;
end
$$;

-- Enqueues a job and returns its id.
create or replace function trunkline.enqueue_job(p_queue text, p_payload bytea) returns uuid
language sql
as $$ select id from trunkline.enqueue_bytes(p_queue, p_payload) $$;

-- Claims one job for the queue's lease time. Returns no row if none is ready. The id is the receipt, so only
-- the consumer that claimed the job can complete it.
create or replace function trunkline.claim_job(p_queue text) returns table (id text, payload bytea, created_at timestamptz)
language sql
as $$ select c.receipt, c.payload, c.created_at from trunkline.claim(p_queue, 1) c $$;

-- Acknowledges a job: it leaves the queue and is listed in the view `completed`. Returns
-- done; lost (the lease ended, another consumer may have the job); or unknown (no such job). Works in the
-- transaction of claim_job or in a later one.
create or replace function trunkline.archive_job(p_id text) returns text
language sql
as $$ select result from trunkline.ack(array[p_id]) $$;
