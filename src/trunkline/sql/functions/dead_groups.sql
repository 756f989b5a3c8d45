-- Groups of dead letters with the same error.

-- Returns an error with placeholders for values that differ between its occurrences: ids, addresses, times,
-- numbers. Reads the first 1,000 characters and returns at most 300. Dead letters store the fingerprint that
-- is made of it, so a change applies to new dead letters only.
create or replace function trunkline._masked(p_text text) returns text
language sql immutable parallel safe
as $$
    select left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(p_text, 1000) collate "C",
        '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}', '<id>', 'g'),
        '[\w.+-]+@[\w-]+(\.[\w-]+)+', '<address>', 'g'),
        '\y(\d{1,3}\.){3}\d{1,3}\y', '<ip>', 'g'),
        '\y\d{4}-\d\d-\d\d([T ][\d:.]+)?(Z|[+-]\d\d:?\d\d)?', '<time>', 'g'),
        '\y0x[0-9a-fA-F]+\y', '<hex>', 'g'),
        '\y[0-9a-fA-F]*\d[0-9a-fA-F]{7,}\y', '<hex>', 'g'),
        '\d+(\.\d+)?', '<n>', 'g'), 300)
$$;

-- Returns the fingerprint of a dead letter: equal for messages with the same label and the same masked error.
create or replace function trunkline._fingerprint(p_label text, p_masked text) returns text
language sql immutable parallel safe
as $$ select substr(encode(sha256(convert_to(coalesce(p_label, '') || chr(31) || coalesce(p_masked, ''), 'UTF8')), 'hex'), 1, 16) $$;

-- Returns the dead letters of a queue (null: of all queues) in groups with the same queue, label and masked
-- error, the largest first, at most p_limit groups (1 to 1,000). p_since: only messages that became dead
-- letters within this time. error: the masked error; last_id, last_error: of the newest message of the group.
--
-- Groups the newest 100,000 dead letters. Further rows count what no group contains: rest is 'groups' for the
-- messages of groups beyond p_limit, and 'older' for older dead letters, counted up to 1,000,000. So the rows
-- add up to all dead letters.
create or replace function trunkline.dead_groups(p_queue text default null, p_since interval default null, p_limit int default 100)
returns table (queue text, fingerprint text, label text, error text, messages bigint, first_at timestamptz, last_at timestamptz,
               attempts int, last_id uuid, last_error text, rest text)
language plpgsql
as $$
declare
    v_queue text := case when p_queue is not null then 'd.queue_id = ' || (trunkline._queue(p_queue)).queue_id else 'true' end;
    v_since timestamptz := trunkline.clock() - p_since;
begin
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    return query execute format('
        with newest as materialized (
            select d.dead_id, d.queue_id, d.fingerprint, d.dead_at from trunkline.dead_letters d where %1$s order by d.dead_id desc limit 100000
        ), grouped as (
            select n.queue_id, n.fingerprint, count(*) as messages, min(n.dead_at) as first_at, max(n.dead_at) as last_at, max(n.dead_id) as dead_id,
                   row_number() over (order by count(*) desc, max(n.dead_id) desc) as place
            from newest n where $1 is null or n.dead_at > $1 group by n.queue_id, n.fingerprint
        )
        select x.queue, x.fingerprint, x.label, x.masked, x.messages, x.first_at, x.last_at, x.attempts, x.id, x.error, x.rest
        from (
            select q.name as queue, g.fingerprint, d.label, trunkline._masked(coalesce(d.error, d.reason)) as masked, g.messages, g.first_at, g.last_at, d.attempts, d.id,
                   coalesce(d.error, d.reason) as error, null as rest, g.place
            from grouped g join trunkline.dead_letters d using (dead_id) join trunkline.queues q on q.queue_id = g.queue_id where g.place <= $2
            union all
            select null, null, null, null, sum(g.messages)::bigint, min(g.first_at), max(g.last_at), null, null, null, ''groups'', 1000001
            from grouped g where g.place > $2 having count(*) > 0
            union all
            select null, null, null, null, count(*), min(o.dead_at), max(o.dead_at), null, null, null, ''older'', 1000002
            from (select d.dead_at from trunkline.dead_letters d where %1$s and d.dead_id < (select min(n.dead_id) from newest n having count(*) = 100000)
                  order by d.dead_id desc limit 1000000) o where $1 is null or o.dead_at > $1 having count(*) > 0
        ) x order by x.place', v_queue) using v_since, p_limit;
end
$$;

-- Returns how the dead letters of one group are spread: for each of consumer, key, topic, hour, attempts and
-- error the p_limit most frequent values (1 to 100), the most frequent first. A row with others = true has the
-- number of messages with other values. Counts the newest 10,000 messages of the group; dimension 'older' has
-- the number of older ones, counted up to 100,000.
create or replace function trunkline.dead_spread(p_queue text, p_fingerprint text, p_limit int default 10)
returns table (dimension text, value text, messages bigint, others boolean)
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._queue(p_queue);
begin
    perform trunkline._check_range('limit', p_limit, 1, 100);
    return query
    with newest as materialized (
        select d.dead_id, d.consumer, d.key, d.topic, d.dead_at, d.attempts, coalesce(d.error, d.reason) as error from trunkline.dead_letters d
        where d.queue_id = q.queue_id and d.fingerprint = p_fingerprint order by d.dead_id desc limit 10000
    ), counted as (
        select x.ord, x.dimension, x.value, count(*) as messages, row_number() over (partition by x.ord order by count(*) desc, x.value) as place
        from newest n cross join lateral (values
            (1, 'consumer', n.consumer), (2, 'key', n.key), (3, 'topic', nullif(n.topic, '')),
            (4, 'hour', to_char(date_trunc('hour', n.dead_at at time zone 'UTC'), 'YYYY-MM-DD"T"HH24:MI"Z"')), (5, 'attempts', n.attempts::text), (6, 'error', left(n.error, 300))
        ) x(ord, dimension, value)
        group by x.ord, x.dimension, x.value
    )
    select y.dimension, y.value, y.messages, y.others from (
        select c.ord, c.place, c.dimension, c.value, c.messages, false as others from counted c where c.place <= p_limit
        union all
        select c.ord, 1000000, c.dimension, null, sum(c.messages)::bigint, true from counted c where c.place > p_limit group by c.ord, c.dimension
        union all
        select 7, 1, 'older', null, count(*), true
        from (select from trunkline.dead_letters d
              where d.queue_id = q.queue_id and d.fingerprint = p_fingerprint and d.dead_id < (select min(n.dead_id) from newest n having count(*) = 10000)
              order by d.dead_id desc limit 100000) o having count(*) > 0
    ) y order by y.ord, y.place;
end
$$;

-- Returns up to p_limit dead letters of one group with a number below p_before (null: all), the newest first.
create or replace function trunkline._list_dead_group(p_queue text, p_fingerprint text, p_before bigint, p_limit int) returns setof trunkline.dead_letters
language plpgsql
as $$
declare
    q trunkline.queues := trunkline._queue(p_queue);
begin
    return query
    select * from trunkline.dead_letters
    where queue_id = q.queue_id and fingerprint = p_fingerprint and (p_before is null or dead_id < p_before) order by dead_id desc limit p_limit;
end
$$;
