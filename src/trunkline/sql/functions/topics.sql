-- Topics: their tables, their generated publish functions, and the functions that create, change and delete
-- them.

-- Advisory locks have two numbers. The first one names the purpose, so that they do not collide with locks of
-- the application. All of them and their order are in ../README.md. These are the most used ones:
--   778001 sequencing a log (0: the pass)
--   778003 creating a topic's segments and functions; zero or negative: creating a name (_name_lock)
--   778004 one upkeep task at a time
--   778005 drawing from a cursor, or owning it (fetch, commit, ordered claims)
--   778012 changing the definition of a topic or queue: settings, partitions, readers
--   778013 publishing to a queue. Always shared: it shows which transactions have published

-- Returns a topic, or with kind 'inbox' the own log of a queue. Fails with TL010 or TL011 if it does not
-- exist.
create or replace function trunkline._topic(p_kind text, p_name text) returns trunkline.topics
language plpgsql stable
as $$
declare
    t trunkline.topics;
begin
    select * into t from trunkline.topics where kind = p_kind and name = p_name;
    if not found then
        perform trunkline._fail_topic(p_kind, p_name);
    end if;
    return t;
end
$$;

-- Fails with TL011 for a queue and with TL010 for a topic.
create or replace function trunkline._fail_topic(p_kind text, p_name text) returns void
language plpgsql
as $$
begin
    if p_kind = 'inbox' then
        perform trunkline._fail('TL011', format('queue "%s" does not exist', p_name),
                                format('Create it with trunkline.create_queue(%L).', p_name));
    end if;
    perform trunkline._fail('TL010', format('topic "%s" does not exist', p_name),
                            format('Create it with trunkline.create_topic(%L).', p_name));
end
$$;

-- Locks the definition of a topic until the transaction ends, and returns its row as of then. Another session
-- may have changed or deleted the topic while this one waited. The lock is shared for callers that add or
-- move readers, and exclusive for all others. Publishers never wait for it.
create or replace function trunkline._lock_topic(p_kind text, p_name text, p_shared boolean default false) returns trunkline.topics
language plpgsql
as $$
declare
    t     trunkline.topics := trunkline._topic(p_kind, p_name);
    v_now trunkline.topics;
begin
    loop
        if p_shared then
            perform pg_advisory_xact_lock_shared(778012, t.topic_id);
        else
            perform pg_advisory_xact_lock(778012, t.topic_id);
        end if;
        select * into v_now from trunkline.topics where topic_id = t.topic_id;
        if found then
            return v_now;
        end if;
        -- The topic was deleted in the meantime. A new topic may have its name.
        t := trunkline._topic(p_kind, p_name);
    end loop;
end
$$;

-- Prevents the deletion of a topic until the transaction ends, for rows that refer to it.
create or replace function trunkline._pin_topic(t trunkline.topics) returns void
language plpgsql
as $$
begin
    perform from trunkline.topics where topic_id = t.topic_id for key share;
    if not found then
        perform trunkline._fail_topic(t.kind, t.name);
    end if;
end
$$;

-- Prevents the deletion of a log until the transaction ends, for callers that do not have the topic's name.
create or replace function trunkline._pin_log(p_topic_id int, p_partition int) returns void
language plpgsql
as $$
begin
    perform from trunkline.logs where log = p_topic_id * 64 + p_partition for key share;
    if not found then
        if exists (select from trunkline.deletions where topic_id = p_topic_id and queue_id is not null) then
            perform trunkline._fail('TL011', 'queue was deleted', 'Create it again with trunkline.create_queue.');
        end if;
        perform trunkline._fail('TL010', 'topic was deleted', 'Create it again with trunkline.create_topic.');
    end if;
end
$$;

-- Returns whether a transaction that holds the topic's lock 778003 has committed and not released the lock
-- yet. Its tables are visible, but other sessions may not have received the invalidation messages. Postgres
-- sends these after the commit is visible, and releases locks after that. Open transactions do not count.
create or replace function trunkline._is_committing(p_topic_id int) returns boolean
language sql volatile
as $$
    -- The lock table is read once, because a transaction that is being prepared changes its virtual id.
    with held as materialized (select * from pg_locks where pid is distinct from pg_backend_pid() and granted)
    select exists (
        select from held m join held x on x.virtualtransaction = m.virtualtransaction and x.locktype = 'transactionid'
        where m.locktype = 'advisory' and m.classid = 778003 and m.objid = p_topic_id and m.objsubid = 2
          and m.database = (select oid from pg_database where datname = current_database())
          and pg_xact_status(trunkline._full_xid(x.transactionid)) = 'committed')
$$;

-- Returns the 64-bit number of a transaction that is open or ended shortly before.
create or replace function trunkline._full_xid(p_xid xid) returns xid8
language sql volatile
as $$
    select (p_xid::text::bigint + (newest - p_xid::text::bigint + 2147483648 >> 32 << 32))::text::xid8
    from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint) x(newest)
$$;

-- Makes this session see the tables of every transaction whose commit is visible to it. Called after it has
-- seen one of these tables in the catalog or in `segments`.
create or replace function trunkline._await_makers(p_topic_id int) returns void
language plpgsql
as $$
declare
    v_free boolean;
begin
    loop
        -- The lock is free in most calls.
        begin
            v_free := pg_try_advisory_xact_lock_shared(778003, p_topic_id);
            -- rolled back, so that the lock ends here whatever interrupts the session
            raise exception using errcode = 'TLX00';
        exception when sqlstate 'TLX00' then
            null;
        end;
        exit when v_free or not trunkline._is_committing(p_topic_id);
        perform pg_sleep(0.001);
    end loop;
    perform trunkline._catch_up();
end
$$;

-- Returns the table to which a segment is attached, and creates it if it is missing. The first segment of a
-- partition is attached to the topic's table, so an idle topic needs no other tables. Blocks of up to 32
-- segments are between the topic's table and later segments. Dropping a segment locks its block, and
-- publishers lock a block only while they write to it. The topic's table is locked by some publisher almost
-- always. No block is created where an earlier release has attached segments to the topic's table. The caller
-- holds the lock 778003.
create or replace function trunkline._block(p_topic_id int, p_partition int, p_segment bigint, p_rows int) returns text
language plpgsql
as $$
declare
    v_first  bigint := greatest(p_segment / 32 * 32, 1);
    v_last   bigint := p_segment / 32 * 32 + 31;
    v_parent text := format('topic_%s', p_topic_id);
    v_name   text := format('topic_%s_%s_block_%s', p_topic_id, p_partition, p_segment / 32);
begin
    if p_segment = 0 then
        -- the first block of an earlier release begins with segment 0
        return coalesce((select v_name from pg_class c where c.oid = to_regclass('trunkline.' || v_name)
                            and pg_get_expr(c.relpartbound, c.oid) like format('FOR VALUES FROM (%s, ''0'')%%', p_partition)), v_parent);
    elsif to_regclass('trunkline.' || v_name) is not null then
        return v_name;
    elsif exists (select from trunkline._all_segments() s where s.log = p_topic_id * 64 + p_partition and s.segment between v_first and v_last) then
        return v_parent;
    end if;
    execute format('create table trunkline.%I (like trunkline.%I including defaults including constraints) partition by range (partition, id)', v_name, v_parent);
    execute format('alter table trunkline.%I attach partition trunkline.%I for values from (%s, %s) to (%s, %s)',
                   v_parent, v_name, p_partition, v_first * p_rows, p_partition, (v_last + 1) * p_rows);
    return v_name;
end
$$;

-- Creates segment number p_segment if it is missing, and returns whether it did. Upkeep and ticks call it
-- before the segment is needed. A publisher creates a segment only if neither of them has. Then other
-- publishers that need the same segment wait until that publisher's transaction ends.
create or replace function trunkline._make_segment(p_topic_id int, p_partition int, p_segment bigint, p_rows int) returns boolean
language plpgsql
as $$
declare
    v_parent text := format('topic_%s', p_topic_id);
    v_name   text := format('topic_%s_%s_%s', p_topic_id, p_partition, p_segment);
begin
    perform trunkline._catch_up();
    if to_regclass('trunkline.' || v_name) is not null then
        perform trunkline._await_makers(p_topic_id);
        return false;
    end if;
    perform pg_advisory_xact_lock(778003, p_topic_id);
    perform trunkline._catch_up();
    if to_regclass('trunkline.' || v_name) is not null then
        return false;
    end if;
    perform trunkline._pin_log(p_topic_id, p_partition);
    -- The table is created separately and then attached: "create ... partition of" would block publishers,
    -- attach does not.
    execute format('create table trunkline.%I (like trunkline.%I including defaults including constraints)', v_name, v_parent);
    -- not a primary key, which is a row of pg_constraint
    execute format('create unique index on trunkline.%I (id)', v_name);
    if p_segment * p_rows < trunkline._staged_from(p_rows) then
        -- The sequencer uses this index to find what was committed since its last scan.
        execute format('create index on trunkline.%I (xid, id)', v_name);
    end if;
    execute format('alter table trunkline.%I attach partition trunkline.%I for values from (%s, %s) to (%s, %s)',
                   trunkline._block(p_topic_id, p_partition, p_segment, p_rows), v_name, p_partition, p_segment * p_rows, p_partition, (p_segment + 1) * p_rows);
    insert into trunkline.segments (log, segment) values (p_topic_id * 64 + p_partition, p_segment);
    return true;
end
$$;

-- Returns whether the messages of a topic or queue are in the shared store (store.sql).
create or replace function trunkline._is_shared(p_topic_id int) returns boolean
language plpgsql stable
as $$
begin
    return coalesce((select shared from trunkline.topics where topic_id = p_topic_id), false);
end
$$;

-- Returns the sequence of a log's ids, or null if the topic was deleted.
create or replace function trunkline._ids(p_topic_id int, p_partition int) returns regclass
language plpgsql stable
as $$
begin
    if p_topic_id = 0 then
        return 'trunkline.store_ids';
    end if;
    return to_regclass(format('trunkline.topic_%s_%s_ids', p_topic_id, p_partition));
end
$$;

-- Returns the name of the table that holds a segment. Topic 0 is the shared store.
create or replace function trunkline._segment_table(p_topic_id int, p_partition int, p_segment bigint) returns text
language sql immutable
as $$ select case when p_topic_id = 0 then format('trunkline.store_%s', trunkline._ring(p_segment)) else format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, p_segment) end $$;

-- Returns the newest id that was drawn. A sequence is not versioned, so the value is current at every
-- isolation level.
create or replace function trunkline._last_id(p_topic_id int, p_partition int) returns bigint
language plpgsql
as $$
begin
    return coalesce(pg_sequence_last_value(trunkline._ids(p_topic_id, p_partition)), 0);
end
$$;

-- Returns whether the generated publish functions do not yet contain the limits of all segments. That is so
-- for segments that were attached by the transaction that wrote the functions, or later.
create or replace function trunkline._limits_lag(p_topic_id int) returns boolean
language sql
as $$
    select strpos(p.prosrc, '''{' || x.limits || '}''') = 0
    from pg_proc p cross join (
        select string_agg(((select max(s.segment) + 1 from trunkline.segments s where s.log = l.log) * t.segment_rows)::text, ',' order by l.partition) as limits
        from trunkline.logs l join trunkline.topics t using (topic_id) where l.topic_id = p_topic_id) x
    where p.oid = to_regproc(format('trunkline.topic_%s_publish', p_topic_id))
$$;

-- Returns the newest segment that should exist when p_last is the newest id: from the middle of a segment, the
-- next one. Most topics never get that far, and have one segment in use per partition.
create or replace function trunkline._newest_segment(p_last bigint, p_rows int) returns bigint
language sql immutable
as $$ select (p_last + 1) / p_rows + case when p_last % p_rows >= p_rows / 2 then 1 else 0 end $$;

-- Creates the segment in use and the newest one (_newest_segment), for each partition that lacks them, and
-- returns the number of new segments. With p_ahead, creates the next one for all partitions that have messages.
-- Writes the publish functions again if a segment was added or their limits are out of date.
create or replace function trunkline._make_segments(p_topic_id int, p_ahead boolean default false) returns int
language plpgsql
as $$
declare
    t       trunkline.topics;
    v_made  int := 0;
    v_last  bigint;
    v_at    bigint;
begin
    -- The lock is only tried, because it comes before the locks that a sequencer holds. A session that
    -- changes or deletes the topic writes its functions itself.
    if not pg_try_advisory_xact_lock_shared(778012, p_topic_id) then
        return 0;
    end if;
    select * into t from trunkline.topics where topic_id = p_topic_id;
    if not found then
        return 0;
    end if;
    for p in 0 .. t.partitions - 1 loop
        v_last := trunkline._last_id(p_topic_id, p);
        v_at := (v_last + 1) / t.segment_rows;
        for s in v_at .. greatest(trunkline._newest_segment(v_last, t.segment_rows), v_at + (p_ahead and v_last > 0)::int) loop
            if trunkline._make_segment(p_topic_id, p, s, t.segment_rows) then
                v_made := v_made + 1;
            end if;
        end loop;
    end loop;
    if v_made > 0 or trunkline._limits_lag(p_topic_id) then
        perform trunkline._write_functions(p_topic_id);
    end if;
    return v_made;
end
$$;

-- Writes the functions of one topic. Their statements on fixed tables have cached plans. Planning an insert
-- or a read for each call would cost several times the work itself (docs/adr/0002). They are written again
-- for each new segment and for changed settings.
create or replace function trunkline._write_functions(p_topic_id int) returns void
language plpgsql
as $$
declare
    t        trunkline.topics;
    v_limits text;
begin
    perform pg_advisory_xact_lock(778003, p_topic_id);
    select * into t from trunkline.topics where topic_id = p_topic_id;
    if not found then
        return;
    end if;
    v_limits := trunkline._limits(t);
    perform trunkline._write_publish(t, v_limits);
    perform trunkline._write_draw(t, v_limits);
    perform trunkline._write_append(t);
    perform trunkline._write_read(t);
    perform trunkline._write_scan(t);
    perform trunkline._guard_functions(format('^topic_%s_', p_topic_id));
end
$$;

-- Returns for each partition of a topic the id below which a publisher need not check that the segment exists,
-- as the text of an array without braces.
-- Segments that this transaction has attached do not count: other sessions may not know them yet (see
-- _make_segment). Subtransactions have numbers slightly above that of the transaction, so the comparison
-- includes them. Numbers far above belong to rows older than half of the number range. If this transaction has
-- created all segments, the topic is new and no session can have outdated information.
create or replace function trunkline._limits(t trunkline.topics) returns text
language sql
as $$
    with s as materialized (
        select l.partition, s.segment, age(s.xmin) between -16777216 and age(pg_current_xact_id()::xid) as mine
        from trunkline.logs l left join trunkline.segments s using (log) where l.topic_id = t.topic_id
    )
    select string_agg(x.upto::text, ',' order by x.partition)
    from (select s.partition, coalesce(max(s.segment + 1) filter (where not s.mine or new.all), 0) * t.segment_rows as upto
          from s cross join (select coalesce(bool_and(mine), true) as all from s where segment is not null) new group by s.partition) x
$$;

-- Returns the expression that draws a row id of the partition v_partition.
create or replace function trunkline._draw_expression(t trunkline.topics) returns text
language sql
as $$
    select case when t.partitions = 1 then format('nextval(%L)', format('trunkline.topic_%s_0_ids', t.topic_id)) else format('case v_partition when %s end', (
        select string_agg(format('%s then nextval(%L)', p, format('trunkline.topic_%s_%s_ids', t.topic_id, p)), ' when ' order by p)
        from generate_series(0, t.partitions - 1) p)) end
$$;

-- Writes topic_<n>_publish, which publishes one message and returns its id. p_limits: see _limits.
create or replace function trunkline._write_publish(t trunkline.topics, p_limits text) returns void
language plpgsql
as $f$
declare
    -- a key always maps to the same partition
    v_partition text := case when t.priorities is not null then 'coalesce(p_priority, 0)' when t.partitions = 1 then '0'
                             else format('trunkline._partition_of(p_key, %s)', t.partitions) end;
begin
    -- Drops the versions of these functions without priorities.
    if to_regprocedure(format('trunkline.topic_%s_publish(bytea, text, text, text, jsonb, text, uuid, timestamptz)', t.topic_id)) is not null then
        execute format('drop function trunkline.topic_%s_publish(bytea, text, text, text, jsonb, text, uuid, timestamptz)', t.topic_id);
        execute format('drop function trunkline.topic_%s_append(bytea[], uuid[], text[], text[], text[], jsonb[], text[], text, timestamptz[])', t.topic_id);
    end if;
    execute format($x$
create or replace function trunkline.topic_%1$s_publish(
    p_payload bytea, p_key text default null, p_routing_key text default null, p_label text default null,
    p_headers jsonb default null, p_content_type text default 'application/json', p_id uuid default null,
    p_occurred_at timestamptz default null, p_priority int default null)
returns uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_limits    constant bigint[] := '{%2$s}';
    v_partition int := %3$s;
    v_row       bigint;
    v_id        uuid;
begin
    if p_payload is null or length(p_payload) > %4$s or length(p_key) > 1000 or length(p_routing_key) > 1000
       or length(p_label) > 200 or length(p_content_type) > 200 or jsonb_typeof(p_headers) <> 'object' or p_priority not between 0 and %7$s then
        perform trunkline._refuse_priority(p_priority, %7$s);
        perform trunkline._refuse_message(0, p_payload, p_key, p_routing_key, p_label, p_headers, p_content_type, %4$s);
    end if;
    -- The transaction id must exist before the row id is drawn. Otherwise upkeep could seal the segment while
    -- this transaction is open: the horizon of a drained segment covers only transactions that had their id
    -- before. This is one expression, because each non-constant expression takes its own snapshot, which is
    -- expensive with many publishers.
    v_row := case when pg_current_xact_id() is not null
                   and (current_setting('synchronous_commit') <> 'off' or set_config('synchronous_commit', 'on', true) is not null) then %5$s end;
    if v_row >= v_limits[v_partition + 1] then
        perform trunkline._make_segment(%1$s, v_partition, v_row / %6$s, %6$s);
    end if;
    insert into trunkline.topic_%1$s values (v_partition, v_row, coalesce(p_id, trunkline.new_id()), p_key, p_routing_key, p_label, p_headers,
        p_payload, coalesce(p_content_type, 'application/json'), p_occurred_at, trunkline.clock())
    returning message_id into v_id;
    return v_id;
end
$$
    $x$, t.topic_id, p_limits, v_partition, t.max_payload, trunkline._draw_expression(t), t.segment_rows, coalesce(t.priorities, 1) - 1);
end
$f$;

-- Writes topic_<n>_draw, which draws the row ids of a batch, after the transaction id as in publish, and
-- creates missing segments. A caller that then writes exactly these rows in the same transaction, by insert or
-- by COPY, has published them. All messages of a batch without a key go to one random partition.
create or replace function trunkline._write_draw(t trunkline.topics, p_limits text) returns void
language plpgsql
as $f$
declare
    v_partition text := case when t.priorities is not null then 'coalesce(u.priority, 0)'
                             else format('case when u.key is null then v_any else trunkline._partition_of(u.key, %s) end', t.partitions) end;
begin
    execute format($x$
create or replace function trunkline.topic_%1$s_draw(p_n int, p_keys text[] default null, p_priorities int[] default null, out partitions int[], out ids bigint[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_limits constant bigint[] := '{%2$s}';
    v_any    int := floor(random() * %4$s);
    v_bad    record;
begin
    if pg_current_xact_id() is not null and current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    %5$s
    for v_bad in
        select r.part, r.row_id / %3$s as segment
        from unnest(partitions, ids) r(part, row_id)
        where r.row_id >= v_limits[r.part + 1]
        group by 1, 2
    loop
        perform trunkline._make_segment(%1$s, v_bad.part, v_bad.segment, %3$s);
    end loop;
end
$$
    $x$, t.topic_id, p_limits, t.segment_rows, t.partitions,
        case when t.partitions = 1 then
            -- Ids increase as they are drawn, so the last one shows whether a segment is missing.
            format('ids := array(select %s from generate_series(1, p_n));
    if ids[p_n] < v_limits[1] then
        return;
    end if;
    partitions := array_fill(0, array[p_n]);', trunkline._draw_expression(t))
        else
            format('select array_agg(d.partition order by d.ord), array_agg(d.row_id order by d.ord)
      into partitions, ids
      from (
        select u.ord, q.v_partition as partition, %s as row_id
        from unnest(array_fill(0, array[p_n]), p_keys, p_priorities) with ordinality u(n, key, priority, ord)
        cross join lateral (select %s as v_partition) q
      ) d;', trunkline._draw_expression(t), v_partition)
        end);
end
$f$;

-- Writes topic_<n>_append, which draws ids for a batch and inserts it.
create or replace function trunkline._write_append(t trunkline.topics) returns void
language plpgsql
as $f$
begin
    execute format($x$
create or replace function trunkline.topic_%1$s_append(
    p_payloads bytea[], p_ids uuid[], p_keys text[], p_routing_keys text[], p_labels text[], p_headers jsonb[],
    p_content_types text[], p_content_type text, p_occurred_ats timestamptz[], p_priorities int[] default null)
returns setof uuid
language plpgsql
as $$
declare
    v_drawn record;
begin
    v_drawn := trunkline.topic_%1$s_draw(cardinality(p_payloads), p_keys, p_priorities);
    return query
    insert into trunkline.topic_%1$s as m
    select coalesce(u.part, 0), u.row_id, coalesce(u.id, trunkline.new_id()), u.key, u.routing_key, u.label, u.headers,
           u.payload, coalesce(u.content_type, p_content_type), u.occurred_at, trunkline.clock()
    from unnest(v_drawn.partitions, v_drawn.ids, p_payloads, p_ids, p_keys, p_routing_keys, p_labels, p_headers, p_content_types, p_occurred_ats)
         u(part, row_id, payload, id, key, routing_key, label, headers, content_type, occurred_at)
    returning m.message_id::uuid;
end
$$
    $x$, t.topic_id);
end
$f$;

-- Writes topic_<n>_read, which has fixed statements for the newest segments, and plans a statement for each
-- other one.
create or replace function trunkline._write_read(t trunkline.topics) returns void
language plpgsql
as $f$
begin
    execute format($x$
create or replace function trunkline.topic_%1$s_read(v_partition int, v_segment bigint, p_first_id bigint, p_last_id bigint, p_shift bigint)
returns setof trunkline.log_row
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    %2$s
    perform trunkline._catch_up();
    return query execute format('select id + $3, message_id::uuid, key, routing_key, label, headers, payload::bytea, content_type::text, occurred_at,
                                        coalesce((origin).published_at, created_at), created_at::timestamptz, (origin).topic
                                 from trunkline.topic_%1$s_%%s_%%s where id between $1 and $2 order by id', v_partition, v_segment)
        using p_first_id, p_last_id, p_shift;
end
$$
    $x$, t.topic_id, trunkline._branches(t.topic_id, $b$return query select id + p_shift, message_id::uuid, key, routing_key, label, headers, payload::bytea, content_type::text,
            occurred_at, coalesce((origin).published_at, created_at), created_at::timestamptz, (origin).topic from trunkline.%I where id between p_first_id and p_last_id order by id; return;$b$));
end
$f$;

-- Writes topic_<n>_scan, which returns the ids of a segment that ranges of transactions have written.
create or replace function trunkline._write_scan(t trunkline.topics) returns void
language plpgsql
as $f$
begin
    execute format($x$
create or replace function trunkline.topic_%1$s_scan(v_partition int, v_segment bigint, p_from xid8[], p_upto xid8[], out ids int8multirange)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_found record;
begin
    %2$s
    perform trunkline._catch_up();
    execute format('select range_agg(int8range(m.id, m.id + 1)) from unnest($1, $2) r(lo, hi)
                    cross join lateral (select id from trunkline.topic_%1$s_%%s_%%s where xid >= r.lo and xid < r.hi offset 0) m',
                   v_partition, v_segment) into ids using p_from, p_upto;
end
$$
    $x$, t.topic_id, trunkline._branches(t.topic_id, $b$
        -- Most scans find ids without gaps. Then the ids need not be collected.
        select min(m.id) as lo, max(m.id) as hi, count(*) as n into v_found
        from unnest(p_from, p_upto) r(lo, hi) cross join lateral (select id from trunkline.%1$I where xid >= r.lo and xid < r.hi offset 0) m;
        if v_found.n = v_found.hi - v_found.lo + 1 then
            ids := int8multirange(int8range(v_found.lo, v_found.hi + 1));
        elsif v_found.n > 0 then
            select range_agg(int8range(m.id, m.id + 1)) into ids
            from unnest(p_from, p_upto) r(lo, hi) cross join lateral (select id from trunkline.%1$I where xid >= r.lo and xid < r.hi offset 0) m;
        end if;
        return;
    $b$));
end
$f$;

-- Returns one branch for each of the newest three segments of each partition.
create or replace function trunkline._branches(p_topic_id int, p_statement text) returns text
language sql
as $$
    select coalesce(string_agg(format('if v_partition = %s and v_segment = %s then %s end if;', x.partition, x.segment,
                                      format(p_statement, format('topic_%s_%s_%s', p_topic_id, x.partition, x.segment))), E'\n    '
                               order by x.segment desc, x.partition), '')
    from (select l.partition, s.segment, row_number() over (partition by l.log order by s.segment desc) as nth
          from trunkline.logs l join trunkline.segments s using (log) where l.topic_id = p_topic_id) x
    where nth <= 3
$$;

-- Returns the partition of a key, or a random one if the key is null.
create or replace function trunkline._partition_of(p_key text, p_partitions int) returns int
language sql parallel safe
as $$
    select case when p_key is null then floor(random() * p_partitions)::int
                else ((hashtextextended(p_key, 0) & 9223372036854775807) % p_partitions)::int end
$$;

-- Creates the log of one more partition.
create or replace function trunkline._make_log(p_topic_id int, p_partition int) returns void
language plpgsql
as $$
begin
    if not trunkline._is_shared(p_topic_id) then
        execute format('create sequence trunkline.topic_%s_%s_ids', p_topic_id, p_partition);
    end if;
    insert into trunkline.logs (log, topic_id, partition)
    values (p_topic_id * 64 + p_partition, p_topic_id, p_partition);
end
$$;

-- Creates the table of a topic if it is missing. A queue in the shared store gets its own table only for two
-- kinds of messages. Spark stages some. Others outlive their segment and are copied out.
create or replace function trunkline._make_tables(t trunkline.topics) returns void
language plpgsql
as $$
begin
    perform trunkline._catch_up();
    if to_regclass(format('trunkline.topic_%s', t.topic_id)) is not null then
        return;
    end if;
    perform pg_advisory_xact_lock(778003, t.topic_id);
    perform trunkline._catch_up();
    if to_regclass(format('trunkline.topic_%s', t.topic_id)) is not null then
        return;
    end if;
    -- Types that refuse null, instead of constraints: attaching a segment reads all of pg_constraint.
    execute format('create table trunkline.%I (
        partition int, id bigint, message_id trunkline.required_uuid, key text, routing_key text, label text, headers jsonb,
        payload trunkline.required_bytea, content_type trunkline.required_text, occurred_at timestamptz, created_at trunkline.required_timestamptz,
        xid trunkline.required_xid8 default pg_current_xact_id(), origin trunkline.origin) partition by range (partition, id)',
        format('topic_%s', t.topic_id));
    if t.shared then
        for p in 0 .. t.partitions - 1 loop
            execute format('create sequence trunkline.topic_%s_%s_ids', t.topic_id, p);
        end loop;
        perform trunkline._make_segments(t.topic_id);
    end if;
end
$$;

-- Returns the second number of the lock 778003 for creating a name. It is zero or negative, unlike the number
-- of a topic.
create or replace function trunkline._name_lock(p_kind text, p_name text) returns int
language sql immutable
as $$ select -abs(hashtext(case p_kind when 'inbox' then 'queue ' else '' end || p_name) / 2) $$;

-- Creates the row, logs and tables of a topic or of a queue's own log. p_segment_rows null: messages go to
-- the shared store.
create or replace function trunkline._make_topic(
    p_kind text, p_name text, p_partitions int, p_retention interval, p_retention_bytes bigint,
    p_hard_retention interval, p_max_payload int, p_segment_rows int, p_priorities int default null)
returns trunkline.topics
language plpgsql
as $$
declare
    t trunkline.topics;
begin
    perform trunkline._check_range('partitions', p_partitions, 1, 64);
    perform trunkline._check_range('max_payload', p_max_payload, 1, 16777216);
    perform trunkline._check_range('segment_rows', coalesce(p_segment_rows, 16), 16, 16777216);
    perform trunkline._check_range('retention_bytes', coalesce(p_retention_bytes, 1), 1, 9e18);
    perform trunkline._check_duration('retention', p_retention, '0', '100 years');
    perform trunkline._check_duration('hard_retention', p_hard_retention, '0', '100 years');
    if p_retention is null then
        perform trunkline._fail('TL005', 'retention must not be null', 'Use a duration such as interval ''7 days''.');
    end if;
    -- Sessions that create the same name wait for each other here. So ensure_topic and ensure_queue find what
    -- another session has created.
    perform pg_advisory_xact_lock(778003, trunkline._name_lock(p_kind, p_name));
    insert into trunkline.topics (kind, name, partitions, retention, retention_bytes, hard_retention, max_payload, segment_rows, priorities, shared)
    values (p_kind, p_name, p_partitions, p_retention, p_retention_bytes, p_hard_retention, p_max_payload, coalesce(p_segment_rows, 1048576), p_priorities,
            p_segment_rows is null)
    on conflict (kind, name) do nothing
    returning * into t;
    if not found then
        perform trunkline._fail('TL020', format('%s "%s" already exists', case p_kind when 'inbox' then 'queue' else 'topic' end, p_name),
                                case p_kind when 'inbox' then 'Use another name, or trunkline.ensure_queue to update the existing queue.'
                                            else 'Use another name, or trunkline.ensure_topic to update the existing topic.' end);
    end if;
    for p in 0 .. p_partitions - 1 loop
        perform trunkline._make_log(t.topic_id, p);
    end loop;
    if not t.shared then
        perform trunkline._make_tables(t);
        perform trunkline._make_segments(t.topic_id);
    end if;
    return t;
end
$$;

-- Creates the cursor of a subscription on one partition. Cursors of unordered queues get their sequence.
create or replace function trunkline._make_cursor(s trunkline.subscriptions, t trunkline.topics, p_partition int, p_position bigint) returns void
language plpgsql
as $$
declare
    v_id int;
begin
    insert into trunkline.cursors (kind, subscription_id, queue_id, topic_id, partition, log, topic, segment_rows, pattern_regex, filter, start_position)
    values ('log', s.subscription_id, s.queue_id, t.topic_id, p_partition, t.topic_id * 64 + p_partition,
            case t.kind when 'topic' then t.name end, t.segment_rows, s.pattern_regex, s.filter, p_position) returning cursor_id into v_id;
    if exists (select from trunkline.queues where queue_id = s.queue_id and not ordered) then
        perform trunkline._make_sequences(v_id);
    end if;
end
$$;

-- Creates a topic and returns its row. p_segment_rows is the number of ids in one segment, the unit that
-- retention removes. Fails with TL020 if the name exists.
create or replace function trunkline.create_topic(
    p_name text, p_partitions int default 1, p_retention interval default '7 days',
    p_retention_bytes bigint default null, p_hard_retention interval default null,
    p_max_payload int default 1048576, p_segment_rows int default 1048576)
returns trunkline.topics
language plpgsql
as $$
begin
    perform trunkline._check_name('topic', p_name);
    if p_segment_rows is null then
        perform trunkline._fail('TL001', 'segment_rows must not be null', 'Omit segment_rows, or use a number.');
    end if;
    return trunkline._make_topic('topic', p_name, p_partitions, p_retention, p_retention_bytes, p_hard_retention,
                                 p_max_payload, p_segment_rows);
end
$$;

-- Creates a topic, or updates an existing one, and returns its row. Only settings that are given and differ
-- are changed. A retention_bytes of 0 removes that limit. Fails with TL020 if the topic exists with another
-- number of partitions than p_partitions, since adding partitions maps keys to other partitions.
create or replace function trunkline.ensure_topic(
    p_name text, p_partitions int default null, p_retention interval default null, p_retention_bytes bigint default null,
    p_hard_retention interval default null, p_max_payload int default null)
returns trunkline.topics
language plpgsql
as $$
declare
    t trunkline.topics;
begin
    perform trunkline._check_name('topic', p_name);
    perform pg_advisory_xact_lock(778003, trunkline._name_lock('topic', p_name));
    select * into t from trunkline.topics where kind = 'topic' and name = p_name;
    if not found then
        return trunkline.create_topic(p_name, coalesce(p_partitions, 1), coalesce(p_retention, '7 days'), nullif(p_retention_bytes, 0), p_hard_retention,
                                      coalesce(p_max_payload, 1048576));
    end if;
    if p_partitions is not null and p_partitions <> t.partitions then
        perform trunkline._fail('TL020', format('topic "%s" already exists with %s partitions, got %s', p_name, t.partitions, p_partitions),
                                'Omit partitions, or change the topic with trunkline.alter_topic.');
    end if;
    if p_retention <> t.retention or p_retention_bytes <> coalesce(t.retention_bytes, 0) or p_max_payload <> t.max_payload
       or p_hard_retention is not null and t.hard_retention is distinct from p_hard_retention then
        begin
            return trunkline.alter_topic(p_name, null, p_retention, p_retention_bytes, p_hard_retention, p_max_payload);
        exception when sqlstate 'TL010' then
            -- The topic was deleted in the meantime.
            return trunkline.ensure_topic(p_name, p_partitions, p_retention, p_retention_bytes, p_hard_retention, p_max_payload);
        end;
    end if;
    return t;
end
$$;

-- Changes the settings that are given, keeps the others, and returns the topic's row. A retention_bytes of 0
-- removes that limit. Partitions can be added but not removed (TL023). Keys then map to other partitions.
-- Existing readers read new partitions from their first offset. Locks the definitions of the topic and of the
-- queues that read it until the transaction ends. Fails with TL010 if the topic does not exist.
create or replace function trunkline.alter_topic(
    p_name text, p_partitions int default null, p_retention interval default null,
    p_retention_bytes bigint default null, p_hard_retention interval default null, p_max_payload int default null)
returns trunkline.topics
language plpgsql
as $$
declare
    t        trunkline.topics := trunkline._lock_topic('topic', p_name);
    v_queues int[] := trunkline._lock_feeds(t.topic_id);
begin
    -- Above read committed, the row that was read may be outdated. Then this statement fails, as any update
    -- would.
    select * into t from trunkline.topics where topic_id = t.topic_id for no key update;
    perform trunkline._check_range('partitions', coalesce(p_partitions, t.partitions), 1, 64);
    perform trunkline._check_range('max_payload', coalesce(p_max_payload, t.max_payload), 1, 16777216);
    perform trunkline._check_range('retention_bytes', coalesce(p_retention_bytes, 0), 0, 9e18);
    perform trunkline._check_duration('retention', p_retention, '0', '100 years');
    perform trunkline._check_duration('hard_retention', p_hard_retention, '0', '100 years');
    if p_partitions < t.partitions then
        perform trunkline._fail('TL023', format('cannot remove partitions of topic "%s": it has %s partitions, got %s', p_name, t.partitions, p_partitions),
                                'Create another topic and move the readers to it.');
    end if;
    for p in t.partitions .. coalesce(p_partitions, 0) - 1 loop
        perform trunkline._make_log(t.topic_id, p);
        perform trunkline._make_cursor(s, t, p, 1) from trunkline.subscriptions s where s.topic_id = t.topic_id;
    end loop;
    update trunkline.topics set
        partitions = coalesce(p_partitions, partitions), retention = coalesce(p_retention, retention),
        retention_bytes = nullif(coalesce(p_retention_bytes, retention_bytes), 0),
        hard_retention = coalesce(p_hard_retention, hard_retention), max_payload = coalesce(p_max_payload, max_payload)
    where topic_id = t.topic_id returning * into t;
    perform trunkline._make_segments(t.topic_id);
    perform trunkline._write_functions(t.topic_id);
    return t;
end
$$;

-- Locks the definitions of the queues that read a topic, because the caller adds or deletes their cursors,
-- and returns the queues. The caller holds the topic's lock.
create or replace function trunkline._lock_feeds(p_topic_id int) returns int[]
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock(778012, x.inbox_id)
    from (select distinct q.inbox_id from trunkline.subscriptions s join trunkline.queues q using (queue_id)
          where s.topic_id = p_topic_id order by q.inbox_id offset 0) x;
    -- Some of these queues may have been deleted while this session waited.
    return array(select distinct q.queue_id from trunkline.subscriptions s join trunkline.queues q using (queue_id)
                 where s.topic_id = p_topic_id order by q.queue_id);
end
$$;

-- Deletes the row of a topic and the rows that cascade from it. Upkeep drops its tables later: an open
-- transaction that has not seen the deletion may still use them, and would fail with a Postgres error. From
-- now on the topic's publish functions fail with TL010 or TL011.
create or replace function trunkline._drop_topic(t trunkline.topics, p_queue_id int default null) returns void
language plpgsql
as $$
declare
    f record;
begin
    perform pg_advisory_xact_lock(778003, t.topic_id);
    for f in
        select oid, prosrc from pg_proc where pronamespace = 'trunkline'::regnamespace
           and proname in (format('topic_%s_publish', t.topic_id), format('topic_%s_append', t.topic_id), format('topic_%s_draw', t.topic_id))
    loop
        execute replace(pg_get_functiondef(f.oid), f.prosrc, format(' begin perform trunkline._fail_topic(%L, %L); end ', t.kind, t.name));
    end loop;
    insert into trunkline.deletions (topic_id, queue_id, at) values (t.topic_id, p_queue_id, trunkline.clock());
    delete from trunkline.topics where topic_id = t.topic_id;
end
$$;

-- Returns the other transactions that hold a lock on one of these relations.
create or replace function trunkline._holders(p_relations oid[]) returns text[]
language sql
as $$
    select array(select distinct virtualtransaction from pg_locks
                 where locktype = 'relation' and relation = any (p_relations) and pid is distinct from pg_backend_pid()
                   and database = (select oid from pg_database where datname = current_database()))
$$;

-- Returns the other open transactions that have published to a topic or queue. For a topic these are the
-- transactions that hold a lock on a sequence of its ids.
create or replace function trunkline._publishers(t trunkline.topics) returns text[]
language sql
as $$
    select case when t.shared then array(
        select distinct virtualtransaction from pg_locks
        where locktype = 'advisory' and classid = 778013 and objid = t.topic_id and objsubid = 2 and pid is distinct from pg_backend_pid()
          and database = (select oid from pg_database where datname = current_database()))
    else trunkline._holders(array(select trunkline._ids(t.topic_id, p)::oid from generate_series(0, t.partitions - 1) p)) end
$$;

-- Waits up to two seconds for open transactions that have published to a topic, because the deletion would
-- remove their messages. Does not wait for transactions that start later. Fails with lock_not_available
-- (55P03).
create or replace function trunkline._await_publishers(t trunkline.topics) returns void
language plpgsql
as $$
declare
    v_open text[] := trunkline._publishers(t);
    v_end  timestamptz := clock_timestamp() + interval '2 seconds';
begin
    while v_open && trunkline._publishers(t) loop
        if clock_timestamp() > v_end then
            raise exception using errcode = 'lock_not_available',
                message = format('cannot delete %s "%s": an open transaction has published to it', case t.kind when 'inbox' then 'queue' else 'topic' end, t.name),
                hint = 'Retry. Run "trunkline doctor" to find the blocking session.';
        end if;
        perform pg_sleep(0.01);
    end loop;
end
$$;

-- Runs a deletion and retries it for two seconds. Each attempt waits at most 300 ms for a lock and then
-- releases all of its locks. Traffic may hold a lock that the deletion needs and wait for one that the
-- deletion holds. The deletion then yields before Postgres detects a deadlock and cancels one of the two.
-- Fails with lock_not_available (55P03).
create or replace function trunkline._delete(p_call text) returns void
language plpgsql
as $$
declare
    v_wait text := current_setting('lock_timeout');
    v_end  timestamptz := clock_timestamp() + interval '2 seconds';
begin
    loop
        begin
            perform set_config('lock_timeout', '300ms', true);
            execute 'select trunkline.' || p_call;
            perform set_config('lock_timeout', v_wait, true);
            return;
        exception when lock_not_available then
            if clock_timestamp() > v_end then
                raise;
            end if;
            perform pg_sleep(random() * 0.05);
        end;
    end loop;
end
$$;

-- Deletes a topic and all its messages. Fails with TL021 if groups or queues read it or a schedule publishes
-- to it, unless p_force is true. Then its groups, subscriptions and schedules are deleted too. Waits up to
-- two seconds for open transactions that have published to the topic, and as long for locks; then fails with
-- lock_not_available (55P03). Upkeep drops the tables later.
create or replace function trunkline.delete_topic(p_name text, p_force boolean default false) returns void
language plpgsql
as $$
begin
    perform trunkline._await_publishers(trunkline._topic('topic', p_name));
    perform trunkline._delete(format('_delete_topic(%L, %L)', p_name, coalesce(p_force, false)));
end
$$;

-- Deletes a topic under its lock, for delete_topic.
create or replace function trunkline._delete_topic(p_name text, p_force boolean) returns void
language plpgsql
as $$
declare
    t         trunkline.topics := trunkline._lock_topic('topic', p_name);
    v_queues  int[] := trunkline._lock_feeds(t.topic_id);
    v_readers text;
begin
    select string_agg(x.reader, ', ' order by x.reader) into v_readers
    from (select distinct format('%s "%s"', s.kind, coalesce(q.name, s.name)) as reader
          from trunkline.subscriptions s left join trunkline.queues q using (queue_id) where s.topic_id = t.topic_id) x;
    if v_readers is not null and not p_force then
        perform trunkline._fail('TL021', format('cannot delete topic "%s": it is read by %s', p_name, v_readers),
                                'Remove these readers first, or pass p_force => true to delete the topic anyway.');
    end if;
    perform trunkline._drop_schedules(format('topic "%s"', p_name), array(select s.schedule_id from trunkline.schedules s where s.topic = p_name), p_force);
    delete from trunkline.cursors where topic_id = t.topic_id;
    delete from trunkline.subscriptions where topic_id = t.topic_id;
    perform trunkline._drop_topic(t);
end
$$;

-- Returns one topic. Fails with TL010 if it does not exist.
create or replace function trunkline.get_topic(p_name text) returns trunkline.topics
language sql stable
as $$ select * from trunkline._topic('topic', p_name) $$;

-- Returns all topics ordered by name. For pages, pass p_limit and the last name of the page before as
-- p_after. p_names: only topics with one of these names; * stands for any characters.
create or replace function trunkline.list_topics(p_after text default null, p_limit int default null, p_names text[] default null) returns setof trunkline.topics
language sql stable
as $$
    select * from trunkline.topics
    where kind = 'topic' and (p_after is null or name > p_after) and (p_names is null or name like any (trunkline._name_patterns(p_names))) order by name limit trunkline._limit(p_limit)
$$;
