-- The shared store: the messages of queues, in a ring of eight tables (docs/adr/0021). Ids are drawn from one
-- sequence. A scan assigns offsets in the log of each queue, so each log is dense and in the order of its
-- ids. Topics have their own tables (topics.sql).

-- Returns the number of the ring table that holds a segment.
create or replace function trunkline._ring(p_segment bigint) returns int
language sql immutable parallel safe
as $$ select (p_segment & 7)::int $$;

-- Acquires the shared lock that makes a deletion of the queue wait for this transaction. Fails with TL011 if
-- the queue was deleted.
create or replace function trunkline._pin_inbox(t trunkline.topics) returns void
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock_shared(778013, t.topic_id);
    perform from trunkline.topics where topic_id = t.topic_id;
    if not found then
        perform trunkline._fail_topic(t.kind, t.name);
    end if;
end
$$;

-- Checks and inserts one message and returns its id.
create or replace function trunkline._publish_shared(
    t trunkline.topics, p_payload bytea, p_key text, p_routing_key text, p_label text, p_headers jsonb, p_content_type text, p_id uuid,
    p_occurred_at timestamptz, p_priority int)
returns uuid
language plpgsql
as $$
declare
    v_partition int := 0;
    v_row       bigint;
    v_id        uuid;
begin
    if p_payload is null or length(p_payload) > t.max_payload or length(p_key) > 1000 or length(p_routing_key) > 1000
       or length(p_label) > 200 or length(p_content_type) > 200 or jsonb_typeof(p_headers) <> 'object' or p_priority not between 0 and coalesce(t.priorities, 1) - 1 then
        perform trunkline._refuse_priority(p_priority, coalesce(t.priorities, 1) - 1);
        perform trunkline._refuse_message(0, p_payload, p_key, p_routing_key, p_label, p_headers, p_content_type, t.max_payload);
    end if;
    if t.priorities is not null then
        v_partition := coalesce(p_priority, 0);
    elsif t.partitions > 1 then
        v_partition := trunkline._partition_of(p_key, t.partitions);
    end if;
    -- The transaction id must exist before the row id is drawn (see topic_<n>_publish in topics.sql). This is
    -- one expression, because each non-constant expression takes its own snapshot, which is expensive with
    -- many publishers.
    v_row := case when pg_current_xact_id() is not null and pg_advisory_xact_lock_shared(778013, t.topic_id) is not null
                   and (current_setting('synchronous_commit') <> 'off' or set_config('synchronous_commit', 'on', true) is not null) then nextval('trunkline.store_ids') end;
    -- Selects from the queue's row, so nothing is inserted if the queue was deleted in the meantime.
    insert into trunkline.store
    select t.topic_id * 64 + v_partition, v_row, coalesce(p_id, trunkline.new_id()), p_key, p_routing_key, p_label, p_headers,
           p_payload, coalesce(p_content_type, 'application/json'), p_occurred_at, trunkline.clock()
    from trunkline.topics x where x.topic_id = t.topic_id
    returning message_id into v_id;
    if v_id is null then
        perform trunkline._fail_topic(t.kind, t.name);
    end if;
    return v_id;
end
$$;

-- Draws row ids for a batch, and returns them with the log of each message. A caller that then writes exactly
-- these rows in the same transaction, by insert or by COPY, has published them.
create or replace function trunkline._draw_shared(t trunkline.topics, p_n int, p_keys text[], p_priorities int[], out logs int[], out ids bigint[])
language plpgsql
as $$
declare
    v_any int := floor(random() * t.partitions);
begin
    perform trunkline._commit_durably();
    perform pg_current_xact_id();
    perform trunkline._pin_inbox(t);
    if t.partitions > 1 then
        logs := array(
            select t.topic_id * 64 + case when t.priorities is not null then coalesce(u.priority, 0) when u.key is null then v_any else trunkline._partition_of(u.key, t.partitions) end
            from unnest(array_fill(0, array[p_n]), p_keys, p_priorities) with ordinality u(n, key, priority, ord) order by u.ord);
    else
        logs := array_fill(t.topic_id * 64, array[p_n]);
    end if;
    ids := array(select nextval('trunkline.store_ids') from generate_series(1, p_n));
end
$$;

-- Draws row ids for p_n messages (1 to 100,000), so that a client can write them with COPY. p_kind is
-- 'topic', or 'inbox' for a queue's own log. Returns the table to write to, an id per message, and the
-- current time. place_column is 'log' or 'partition', and places has its value for each message. If places is
-- null, that value is 0 for all. The client must write exactly these rows in the same transaction. In a queue
-- with priorities all messages get level 0. Fails with TL010 or TL011 if the topic or queue does not exist.
create or replace function trunkline.draw_ids(
    p_kind text, p_name text, p_n int, p_keys text[] default null,
    out table_name text, out place_column text, out places int[], out ids bigint[], out at timestamptz)
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic(p_kind, p_name);
begin
    perform trunkline._check_range('n', p_n, 1, 100000);
    at := trunkline.clock();
    if t.shared then
        table_name := 'store';
        place_column := 'log';
        select d.logs, d.ids into places, ids from trunkline._draw_shared(t, p_n, p_keys, null) d;
    else
        table_name := format('topic_%s', t.topic_id);
        place_column := 'partition';
        execute format('select d.partitions, d.ids from trunkline.topic_%s_draw($1, $2) d', t.topic_id) into places, ids using p_n, p_keys;
    end if;
end
$$;

-- Inserts a batch of checked messages into the store and returns their ids in input order.
create or replace function trunkline._append_shared(
    t trunkline.topics, p_payloads bytea[], p_ids uuid[], p_keys text[], p_routing_keys text[], p_labels text[], p_headers jsonb[],
    p_content_types text[], p_content_type text, p_occurred_ats timestamptz[], p_priorities int[])
returns setof uuid
language plpgsql
as $$
declare
    d record := trunkline._draw_shared(t, cardinality(p_payloads), p_keys, p_priorities);
begin
    return query
    insert into trunkline.store as m
    select u.log, u.row_id, coalesce(u.id, trunkline.new_id()), u.key, u.routing_key, u.label, u.headers,
           u.payload, coalesce(u.content_type, p_content_type), u.occurred_at, trunkline.clock()
    from unnest(d.logs, d.ids, p_payloads, p_ids, p_keys, p_routing_keys, p_labels, p_headers, p_content_types, p_occurred_ats)
         u(log, row_id, payload, id, key, routing_key, label, headers, content_type, occurred_at)
    returning m.message_id;
end
$$;

-- Creates two functions with one fixed statement for each table of the ring. A statement on the partitioned
-- table would lock all eight tables until its transaction ends. A statement that is built at run time would
-- be planned again for each call.
do $do$
declare
    v_rows text;
    v_scan text;
begin
    select string_agg(format($x$when %1$s then
            return query select u.shift + m.id, m.message_id, m.key, m.routing_key, m.label, m.headers, m.payload, m.content_type, m.occurred_at,
                                coalesce((m.origin).published_at, m.created_at), m.created_at, (m.origin).topic
                         from unnest(p_los, p_his, p_shifts) u(lo, hi, shift)
                         cross join lateral (select * from trunkline.store_%1$s x where x.id >= u.lo and x.id < u.hi order by x.id offset 0) m;$x$, r), E'\n        ' order by r),
           string_agg(format($x$when %1$s then
            return query select m.log, m.id from unnest(p_from, p_upto) u(lo, hi)
                         cross join lateral (select x.log, x.id from trunkline.store_%1$s x where x.xid >= u.lo and x.xid < u.hi offset 0) m;$x$, r), E'\n        ' order by r)
      into v_rows, v_scan from generate_series(0, 7) r;
    -- _store_rows returns the messages of several runs of ids (upper bounds excluded) in one table. The
    -- offset of a message is its id plus the shift of its run.
    execute format($f$
create or replace function trunkline._store_rows(p_ring int, p_los bigint[], p_his bigint[], p_shifts bigint[]) returns setof trunkline.log_row
language plpgsql
as $$
begin
    case p_ring
        %s
    end case;
end
$$$f$, v_rows);
    -- _store_scan returns what transactions in these ranges have committed to one table.
    execute format($f$
create or replace function trunkline._store_scan(p_ring int, p_from xid8[], p_upto xid8[]) returns table (log int, id bigint)
language plpgsql
as $$
begin
    case p_ring
        %s
    end case;
end
$$$f$, v_scan);
end
$do$;

-- Returns the ring tables of segments that may have messages without an offset.
create or replace function trunkline._unsealed_rings() returns setof int
language sql stable
as $$
    select distinct trunkline._ring(s)
    from generate_series((select min(segment) from trunkline.segments where log = 1 and sealed_at is null), greatest(trunkline._last_id(0, 1) >> 30, (select max(segment) from trunkline.segments where log = 1))) s
$$;

-- Returns what transactions in these ranges have committed to the store.
create or replace function trunkline._store_new(p_from xid8[], p_upto xid8[]) returns table (log int, id bigint)
language sql
as $$ select m.log, m.id from trunkline._unsealed_rings() r cross join lateral trunkline._store_scan(r, p_from, p_upto) m where p_from <> '{}' $$;

-- Returns the ids without an offset as of a snapshot, like _unsequenced, with the log of each id. t is the
-- newest tick of the store.
create or replace function trunkline._store_unsequenced(t trunkline.ticks, p_now pg_snapshot) returns table (log int, id bigint)
language plpgsql
as $$
declare
    v_own   xid8 := pg_current_xact_id_if_assigned();
    v_ended record := trunkline._ended_between(coalesce(t.snapshot, '1:1:'), p_now, t.own_xid);
begin
    return query select * from trunkline._store_new(v_ended.from_xids, v_ended.upto_xids);
    if t.own_xid is distinct from v_own and t.own_xid is not null then
        -- The transaction that wrote the tick may have published more messages after it.
        return query select n.log, n.id from trunkline._store_new(array[t.own_xid], array[trunkline._next_xid(t.own_xid)]) n where not t.own_ids @> n.id;
    end if;
    if v_own is not null then
        return query select n.log, n.id from trunkline._store_new(array[v_own], array[trunkline._next_xid(v_own)]) n where t.own_xid is distinct from v_own or not t.own_ids @> n.id;
    end if;
end
$$;

-- Returns the logs that have committed messages without an offset.
create or replace function trunkline._store_new_logs() returns setof int
language plpgsql
as $$
declare
    t trunkline.ticks;
begin
    if trunkline._has_unsequenced(1, 0, 1) then
        t := trunkline._tick_of(1, null);
        return query select distinct n.log from trunkline._store_unsequenced(t, trunkline._snapshot_of_others()) n;
    end if;
end
$$;

-- Assigns the next offsets of their logs to messages that were committed to the store since its last scan, as
-- _tick does. Returns whether there were any. Holds the lock of log 1 until the transaction ends.
create or replace function trunkline._tick_store(p_wait boolean default false) returns boolean
language plpgsql
as $$
declare
    v_last_id  bigint;
    v_whole    boolean;
    v_snapshot pg_snapshot;
    v_own_ids  int8multirange;
    v_logs     int[];
    v_ids      int8multirange[];
    t          trunkline.ticks;
begin
    if pg_is_in_recovery() or not trunkline._has_unsequenced(1, 0, 1) or not trunkline._lock_log(1, p_wait) then
        return false;
    end if;
    perform trunkline._adopt_logs();
    t := trunkline._tick_of(1, null);
    -- The order of these statements matters: see _tick.
    v_last_id := trunkline._last_id(0, 1);
    v_whole := not trunkline._has_owner(0, 1);
    v_snapshot := trunkline._snapshot_of_others();
    select array_agg(x.log), array_agg(x.ids) into v_logs, v_ids
    from (select n.log, range_agg(int8range(n.id, n.id + 1)) as ids from trunkline._store_unsequenced(t, v_snapshot) n group by n.log) x;
    if v_logs is null then
        if v_whole and t.log is not null and t.own_xid is distinct from pg_current_xact_id_if_assigned() then
            update trunkline.ticks set snapshot = v_snapshot, last_id = v_last_id, whole = true, own_xid = null, own_ids = null
            where slot = t.slot and log = 1 and first_offset = t.first_offset;
        end if;
        return false;
    end if;
    if pg_current_xact_id_if_assigned() is not null then
        select range_agg(int8range(n.id, n.id + 1)) into v_own_ids
        from trunkline._store_new(array[pg_current_xact_id()], array[trunkline._next_xid(pg_current_xact_id())]) n;
    end if;
    perform trunkline._commit_durably();
    perform trunkline._write_store_ticks(v_logs, v_ids);
    -- The next scan starts from the tick of the store itself. The ids of that tick are only bounds.
    insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, snapshot, last_id, whole, own_xid, own_ids, shared)
    select (select slot from trunkline.epoch), 1, coalesce(t.first_offset + t.n, 1), 1, int8multirange(range_merge(range_agg(u))), trunkline.clock(),
           v_snapshot, v_last_id, v_whole and v_own_ids is null, case when v_own_ids is not null then pg_current_xact_id() end, v_own_ids, true
    from unnest(v_ids) i cross join lateral unnest(i) u;
    return true;
end
$$;

-- Appends ticks of up to 1,000 offsets for each of these logs that still exists. The caller holds the lock of
-- log 1.
create or replace function trunkline._write_store_ticks(p_logs int[], p_ids int8multirange[]) returns void
language sql
as $$
    insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, shared)
    select (select slot from trunkline.epoch), t.log, h.next + t.k * 1000, t.n, t.ids, trunkline.clock(), true
    from trunkline._pieces(p_logs, p_ids) t join trunkline.logs l on l.log = t.log
    cross join lateral (select coalesce((select x.first_offset + x.n from trunkline.ticks x where x.log = t.log order by x.first_offset desc limit 1), 1) as next offset 0) h
    order by t.log, t.k
$$;

-- Starts the next segment if the next table of the ring is empty and the current segment is old enough. That
-- is so if its oldest message is older than a sixth of the store's retention. Returns 1 if it started a
-- segment, else 0. Needs no lock on the sequence, because the new value is far above any id that is drawn in
-- the meantime.
create or replace function trunkline._roll_store() returns int
language plpgsql
as $$
declare
    v_last    bigint := trunkline._last_id(0, 1);
    v_current bigint := v_last >> 30;
    v_oldest  timestamptz;
begin
    -- If a segment has received a billion ids, publishers already use the next one.
    insert into trunkline.segments (log, segment) select 1, s from generate_series((select max(segment) + 1 from trunkline.segments where log = 1), v_current) s;
    if exists (select from trunkline.segments where log = 1 and trunkline._ring(segment) = trunkline._ring(v_current + 1)) then
        return 0;
    end if;
    execute format('select created_at from trunkline.store_%s where id >= $1 order by id limit 1', trunkline._ring(v_current)) into v_oldest using v_current << 30;
    if v_oldest is null or v_oldest >= trunkline.clock() - (select retention / 6 from trunkline.topics where topic_id = 0) then
        return 0;
    end if;
    insert into trunkline.segments (log, segment) values (1, v_current + 1);
    perform setval('trunkline.store_ids', (v_current + 1 << 30) - 1);
    return 1;
end
$$;

-- Copies up to 5,000 messages of a queue, from offset p_from to p_last, out of the store to the queue's own
-- tables. Returns their number. Offsets stay the same, and a new tick names the new ids. Messages below
-- p_from are finished. The caller holds the lock of the store (778001, 1) and that of the rotation task
-- (778004).
create or replace function trunkline._copy_out(p_log int, p_from bigint, p_last bigint) returns bigint
language plpgsql
as $$
declare
    v_upto  bigint := least(p_last, p_from + 4999);
    v_place record;
    v_at    timestamptz;
    t       trunkline.topics;
begin
    select x.* into t from trunkline.topics x join trunkline.logs l using (topic_id) where l.log = p_log;
    perform trunkline._make_tables(t);
    perform trunkline._make_segments(t.topic_id);
    execute format('
        with copied as (
            insert into trunkline.topic_%1$s as m (partition, id, message_id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at, origin)
            select $1, nextval(%2$L), x.id, x.key, x.routing_key, x.label, x.headers, x.payload, x.content_type, x.occurred_at, x.entered_at,
                   case when x.created_at < x.entered_at or x.topic is not null then row(x.created_at, x.topic)::trunkline.origin end
            from (select * from trunkline._read($2, $1, $3, $4, $5) order by log_offset) x
            returning m.id)
        select min(id) as first_id, count(*) as n from copied', t.topic_id, format('trunkline.topic_%s_%s_ids', t.topic_id, p_log % 64))
        into v_place using p_log % 64, t.topic_id, t.segment_rows, p_from, v_upto;
    with gone as (
        delete from trunkline.ticks k where k.log = p_log and k.first_offset <= v_upto and k.first_offset + k.n > p_from returning k.*
    ), rest as (
        -- The rest of the longest tick: while ticks are rotated, one copy may replace several ticks.
        insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, shared)
        select (select slot from trunkline.epoch), p_log, v_upto + 1, g.first_offset + g.n - 1 - v_upto,
               trunkline._slice(g.ids, v_upto + 1 - g.first_offset, g.first_offset + g.n - 1 - v_upto), g.cut_at, g.shared
        from gone g where g.first_offset + g.n - 1 > v_upto order by g.first_offset + g.n desc limit 1
    )
    select max(cut_at) into v_at from gone;
    insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at)
    values ((select slot from trunkline.epoch), p_log, p_from, v_place.n, int8multirange(int8range(v_place.first_id, v_place.first_id + v_place.n)), v_at);
    return v_place.n;
end
$$;

-- Empties the oldest table of the ring if its retention is over. Before that, it copies out the messages that
-- a queue still needs, and all messages of queues with a longer retention than the store. Each run copies
-- fewer than 10,000 messages. Returns 1 if the table was emptied, else 0. The caller sets the lock timeout.
create or replace function trunkline._retire_segment() returns int
language plpgsql
as $$
declare
    v_keep   interval := (select retention from trunkline.topics where topic_id = 0);
    v_end    bigint;
    v_needed bigint;
    v_copied bigint := 0;
    v_logs   int[] := '{}';
    v_lasts  bigint[] := '{}';
    s        trunkline.segments;
    r        record;
begin
    select * into s from trunkline.segments where log = 1 order by segment limit 1;
    -- Not while ticks are rotated: the rotation copies ticks that it has read before, and such a copy would
    -- still name messages in this table.
    if s.sealed_at is null or s.sealed_at >= trunkline.clock() - v_keep
       or not pg_try_advisory_xact_lock(778004, hashtext('rotate')) or not pg_try_advisory_xact_lock(778001, 1) then
        return 0;
    end if;
    v_end := s.segment + 1 << 30;
    for r in
        select l.log, l.base_offset, t.retention, x.first_offset, x.last_offset
        from trunkline.topics t join trunkline.logs l using (topic_id)
        cross join lateral (
            select min(k.first_offset) as first_offset, max(k.first_offset + trunkline._size(k.ids * int8multirange(int8range(null, v_end))) - 1) as last_offset
            from trunkline.ticks k where k.log = l.log and k.shared and k.first_offset + k.n > l.base_offset and lower(k.ids) < v_end) x
        where t.shared and x.last_offset >= l.base_offset order by l.log
    loop
        -- most logs need nothing of it, which is found out without reading all that is leased
        v_needed := case when r.retention > v_keep then r.base_offset else coalesce(trunkline._needed_from(r.log, r.last_offset), 9223372036854775807) end;
        if v_needed <= r.last_offset then
            v_needed := case when r.retention > v_keep then r.base_offset else least(greatest(trunkline._needed_from(r.log), r.base_offset), r.last_offset) end;
            update trunkline.logs set base_offset = v_needed where log = r.log and base_offset < v_needed;
            v_copied := v_copied + trunkline._copy_out(r.log, greatest(v_needed, r.first_offset), r.last_offset);
            if v_copied >= 5000 then
                return 0;
            end if;
        else
            v_logs := v_logs || r.log;
            v_lasts := v_lasts || r.last_offset;
        end if;
    end loop;
    if v_copied > 0 then
        return 0;
    end if;
    execute format('truncate trunkline.store_%s', trunkline._ring(s.segment));
    update trunkline.logs l set base_offset = u.last_offset + 1 from unnest(v_logs, v_lasts) u(log, last_offset) where l.log = u.log and l.base_offset <= u.last_offset;
    delete from trunkline.segments where log = 1 and segment = s.segment;
    perform trunkline._yield_to_dumps();
    return 1;
end
$$;
