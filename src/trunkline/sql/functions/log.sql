-- The log: sequencing (assigning offsets to ids), reading, and converting positions to offsets.

-- Returns the first id of rows that Spark's tasks stage (docs/adr/0018). The sequence of a log never reaches
-- these ids, so the sequencer never reads them. Their segment numbers still fit into an integer.
create or replace function trunkline._staged_from(p_segment_rows int) returns bigint
language sql immutable
as $$ select 1073741824::bigint * p_segment_rows $$;

-- Returns a number above every transaction number that is assigned now. The xmax of a snapshot is not enough:
-- it is one above the newest *finished* transaction, and an open one may have a higher number
-- (docs/adr/0003). So this function first finishes a transaction: a subtransaction that gets a number by
-- locking a row, and is rolled back.
create or replace function trunkline._horizon(p_log int) returns xid8
language plpgsql
as $$
begin
    begin
        perform from trunkline.logs where log = p_log for no key update;
        raise exception using errcode = 'TLX00';
    exception when sqlstate 'TLX00' then
        null;
    end;
    return pg_snapshot_xmax(pg_current_snapshot());
end
$$;

-- Returns whether an open transaction with a number below the horizon holds ids of this log. A transaction
-- that draws an id has a transaction id by then. It holds a lock on the sequence from before the draw until
-- its commit is visible. Called only if xmin is still below the horizon, because an unrelated transaction may
-- hold xmin back.
create or replace function trunkline._has_owner_below(p_topic_id int, p_partition int, p_horizon xid8) returns boolean
language plpgsql
as $$
declare
    v_seq  oid := trunkline._ids(p_topic_id, p_partition);
    v_xmax bigint := pg_snapshot_xmax(pg_current_snapshot())::text;
begin
    return exists (
        -- The lock table is read once, because a transaction that is being prepared changes its virtual id.
        with held as materialized (select * from pg_locks)
        select from held s
        join held x on x.locktype = 'transactionid' and x.virtualtransaction = s.virtualtransaction and x.granted
        -- The lock table shows the low 32 bits of the number. The number is near the newest one.
        cross join lateral (select (v_xmax & ~4294967295) | x.transactionid::text::bigint as guess) g
        where s.locktype = 'relation' and s.relation = v_seq and s.pid is distinct from pg_backend_pid()
          and s.database = (select oid from pg_database where datname = current_database())
          and case when g.guess > v_xmax + 2147483648 then g.guess - 4294967296 else g.guess end < p_horizon::text::bigint
    );
end
$$;

-- Returns a snapshot of this moment in which the current transaction is open. So the next scan finds what it
-- writes later.
create or replace function trunkline._snapshot_of_others() returns pg_snapshot
language sql stable
as $$ select trunkline._without(pg_current_snapshot(), coalesce(pg_current_xact_id_if_assigned(), '9223372036854775807')) $$;

-- Returns the numbers of transactions that ended between two snapshots, as ranges. These are the transactions
-- that the first snapshot has not seen, except those that are open in the second one. A scan by these ranges
-- reads no row of an open transaction, however many rows it has written. p_without excludes one transaction.
create or replace function trunkline._ended_between(p_before pg_snapshot, p_now pg_snapshot, p_without xid8 default null, out from_xids xid8[], out upto_xids xid8[])
language sql immutable
as $$
    select coalesce(array_agg(lower(r)::text::xid8 order by lower(r)), '{}'), coalesce(array_agg(upper(r)::text::xid8 order by lower(r)), '{}')
    from unnest(int8multirange(int8range(pg_snapshot_xmax(p_before)::text::bigint, greatest(pg_snapshot_xmax(p_before), pg_snapshot_xmax(p_now))::text::bigint))
                + (select coalesce(range_agg(int8range(x::text::bigint, x::text::bigint, '[]')), '{}') from pg_snapshot_xip(p_before) x)
                - (select coalesce(range_agg(int8range(x::text::bigint, x::text::bigint, '[]')), '{}') from pg_snapshot_xip(p_now) x)
                - int8multirange(int8range(pg_snapshot_xmax(p_now)::text::bigint, null))
                - case when p_without is null then '{}' else int8multirange(int8range(p_without::text::bigint, p_without::text::bigint, '[]')) end) r
$$;

-- Returns the ids that transactions in these ranges have committed to a log.
create or replace function trunkline._ids_of(p_topic_id int, p_partition int, p_from xid8[], p_upto xid8[]) returns int8multirange
language plpgsql
as $$
declare
    v_ids  int8multirange := '{}';
    v_part int8multirange;
    s      record;
begin
    if p_from = '{}' then
        return v_ids;
    end if;
    for s in select segment from trunkline.segments where log = p_topic_id * 64 + p_partition and sealed_at is null order by segment loop
        if to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, s.segment)) is null then
            perform trunkline._await_makers(p_topic_id);
        end if;
        execute format('select * from trunkline.topic_%s_scan($1, $2, $3, $4)', p_topic_id) into v_part using p_partition, s.segment, p_from, p_upto;
        v_ids := v_ids + coalesce(v_part, '{}');
    end loop;
    return v_ids;
end
$$;

-- Returns the ids without an offset as of a snapshot. These are the ids of transactions that ended since the
-- newest tick's scan, and those of the current transaction (own_ids). The transaction that wrote that tick
-- may have published more after it.
create or replace function trunkline._unsequenced(t trunkline.ticks, p_topic_id int, p_partition int, p_now pg_snapshot, out ids int8multirange, out own_ids int8multirange)
language plpgsql
as $$
declare
    v_own   xid8 := pg_current_xact_id_if_assigned();
    v_ended record;
begin
    if t.log is not null and t.snapshot is null then
        perform trunkline._fail('XX001', format('newest tick of log %s has no snapshot', t.log),
                                'The schema is damaged. Keep the data directory and report a bug.');
    end if;
    v_ended := trunkline._ended_between(coalesce(t.snapshot, '1:1:'), p_now, t.own_xid);
    ids := trunkline._ids_of(p_topic_id, p_partition, v_ended.from_xids, v_ended.upto_xids);
    if t.own_xid is distinct from v_own and t.own_xid is not null then
        ids := ids + trunkline._ids_of(p_topic_id, p_partition, array[t.own_xid], array[trunkline._next_xid(t.own_xid)]) - t.own_ids;
    end if;
    if v_own is not null then
        own_ids := trunkline._ids_of(p_topic_id, p_partition, array[v_own], array[trunkline._next_xid(v_own)]);
        ids := ids + case when t.own_xid = v_own then own_ids - t.own_ids else own_ids end;
    end if;
end
$$;

-- Returns the next transaction number.
create or replace function trunkline._next_xid(p_xid xid8) returns xid8
language sql immutable
as $$ select (p_xid::text::bigint + 1)::text::xid8 $$;

-- Returns whether another transaction holds a lock on the sequence of these ids. A transaction that draws an
-- id holds it from before the draw until its commit is visible. Transactions that only read the sequence
-- count too.
create or replace function trunkline._has_owner(p_topic_id int, p_partition int) returns boolean
language sql volatile
as $$
    select exists (select from pg_locks s
                   where s.locktype = 'relation' and s.relation = trunkline._ids(p_topic_id, p_partition) and s.pid is distinct from pg_backend_pid()
                     and s.database = (select oid from pg_database where datname = current_database()))
$$;

-- Locks the sequencing of a log (1: the shared store) until the transaction ends, and returns whether it has
-- the lock. Another holder may have scanned before a publish that the caller must see. Such a caller passes
-- p_wait and waits up to ten seconds. Other callers use the offsets that exist.
create or replace function trunkline._lock_log(p_log int, p_wait boolean) returns boolean
language plpgsql
as $$
declare
    v_waits boolean;
begin
    if not pg_try_advisory_xact_lock(778001, p_log) then
        if not p_wait then
            return false;
        end if;
        v_waits := trunkline._wait_ten_seconds();
        perform pg_advisory_xact_lock(778001, p_log);
        perform trunkline._wait_as_before(v_waits);
    end if;
    return true;
end
$$;

-- Returns the log whose lock covers the sequencing of this log: log 1 for queues in the shared store.
create or replace function trunkline._sequenced_with(p_log int) returns int
language sql stable
as $$ select case when trunkline._is_shared(p_log / 64) then 1 else p_log end $$;

-- Assigns the next offsets to messages that were committed since the last scan of the log, and returns the
-- head.
--
-- A scan finds what its snapshot has seen and the snapshot of the scan before has not (docs/adr/0020). Each
-- transaction ends between exactly two scans, so each message gets exactly one offset. A scan does not wait
-- for open transactions, and does not cost more because of them. Within a scan, offsets follow the ids, so
-- the messages of one publisher keep their order. The transaction that writes a tick commits synchronously,
-- so an offset that was read once never changes.
create or replace function trunkline._tick(p_topic_id int, p_partition int, p_segment_rows int, p_wait boolean default false) returns bigint
language plpgsql
as $$
declare
    v_log      int := p_topic_id * 64 + p_partition;
    v_last_id  bigint;
    v_whole    boolean;
    v_snapshot pg_snapshot;
    v_found    record;
    t          trunkline.ticks;
begin
    if trunkline._is_shared(p_topic_id) then
        perform trunkline._tick_store(p_wait);
        return trunkline._head(v_log);
    end if;
    t := trunkline._tick_of(v_log, null);
    -- A standby returns the head that its primary has sequenced.
    if pg_is_in_recovery() or not trunkline._has_unsequenced(v_log, p_topic_id, p_partition) then
        return coalesce(t.first_offset + t.n - 1, 0);
    end if;
    if not trunkline._lock_log(v_log, p_wait) then
        return coalesce(t.first_offset + t.n - 1, 0);
    end if;
    perform trunkline._catch_up();
    perform trunkline._adopt_logs();
    t := trunkline._tick_of(v_log, null);
    -- These three statements must run separately and in this order. If no transaction owns an id up to
    -- v_last_id in the second one, each of these ids was committed before the snapshot, or never will be.
    v_last_id := trunkline._last_id(p_topic_id, p_partition);
    v_whole := not trunkline._has_owner(p_topic_id, p_partition);
    v_snapshot := trunkline._snapshot_of_others();
    v_found := trunkline._unsequenced(t, p_topic_id, p_partition, v_snapshot);
    if isempty(v_found.ids) then
        if v_whole and t.log is not null and t.own_xid is distinct from pg_current_xact_id_if_assigned() then
            -- The missing ids were rolled back. No scan is needed until another id is drawn.
            update trunkline.ticks set snapshot = v_snapshot, last_id = v_last_id, whole = true, own_xid = null, own_ids = null
            where slot = t.slot and log = v_log and first_offset = t.first_offset;
        end if;
        return coalesce(t.first_offset + t.n - 1, 0);
    end if;
    perform trunkline._commit_durably();
    perform trunkline._write_ticks(v_log, coalesce(t.first_offset + t.n, 1), v_found.ids, v_snapshot, v_last_id, v_whole, nullif(v_found.own_ids, '{}'));

    -- Keep ahead of the publishers, also if no service runs upkeep. This lock comes before the sequencing lock
    -- in the lock order, so it is only tried. Its holder creates segments, or the next tick does.
    if to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, trunkline._newest_segment(v_last_id, p_segment_rows))) is null
       and pg_try_advisory_xact_lock(778003, p_topic_id) then
        perform trunkline._make_segments(p_topic_id);
    end if;
    return coalesce(t.first_offset + t.n, 1) + trunkline._size(v_found.ids) - 1;
end
$$;

-- Splits the ids of each log into pieces of 1,000. Piece k begins k * 1,000 offsets after the first one.
create or replace function trunkline._pieces(p_logs int[], p_ids int8multirange[]) returns table (log int, k bigint, ids int8multirange, n int)
language sql immutable
as $$
    with runs as (
        select u.log, lower(r) as lo, upper(r) as hi,
               (sum(upper(r) - lower(r)) over (partition by u.log order by lower(r)) - (upper(r) - lower(r)))::bigint as before
        from unnest(p_logs, p_ids) u(log, ids) cross join lateral unnest(u.ids) r
    ), pieces as (
        select log, k, lo + greatest(0, k * 1000 - before) as lo, least(hi, lo + (k + 1) * 1000 - before) as hi
        from runs cross join lateral generate_series(before / 1000, (before + hi - lo - 1) / 1000) k
    )
    select log, k, range_agg(int8range(lo, hi)), sum(hi - lo)::int from pieces group by log, k
$$;

-- Appends ticks of up to 1,000 offsets each. The last one stores the state from which the next scan
-- continues. The caller holds the log's sequencing lock.
create or replace function trunkline._write_ticks(p_log int, p_first bigint, p_ids int8multirange, p_snapshot pg_snapshot, p_last_id bigint, p_whole boolean,
    p_own_ids int8multirange default null) returns void
language sql
as $$
    insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, snapshot, last_id, whole, own_xid, own_ids)
    select (select slot from trunkline.epoch), p_log, p_first + k * 1000, n, ids, trunkline.clock(),
           case when last then p_snapshot end, case when last then p_last_id end, case when last then p_whole and p_own_ids is null end,
           case when last and p_own_ids is not null then pg_current_xact_id() end, case when last then p_own_ids end
    from (select *, k = max(k) over () as last from trunkline._pieces(array[p_log], array[p_ids])) tick order by k
$$;

-- Adapts logs that were restored into another cluster. There transaction numbers start again, so the numbers
-- of old messages mean nothing. Called before each scan. The first call in a cluster compares ids with ticks,
-- assigns offsets to committed messages that have none, and replaces the old numbers.
create or replace function trunkline._adopt_logs() returns void
language plpgsql
as $$
declare
    -- A session checks each schema once. A schema that is restored later has another settings table.
    v_schema  text := 'trunkline.settings'::regclass::oid;
    v_cluster text;
    v_own     xid8;
    v_tables  text[];
    v_ids     int8multirange;
    v_own_ids int8multirange;
    v_new     int8multirange;
    v_now     pg_snapshot;
    v_waits   boolean;
    t         trunkline.ticks;
    l         record;
begin
    if current_setting('trunkline.adopted', true) = v_schema then
        return;
    end if;
    v_cluster := (select system_identifier from pg_control_system());
    if trunkline._setting('cluster') is distinct from v_cluster then
        v_waits := trunkline._wait_ten_seconds();
        perform pg_advisory_xact_lock(778001, -1);
        perform trunkline._wait_as_before(v_waits);
    end if;
    if trunkline._setting('cluster') = v_cluster then
        perform set_config('trunkline.adopted', v_schema, false);
        return;
    end if;
    v_own := pg_current_xact_id();
    for l in select * from trunkline.logs where not trunkline._is_shared(topic_id) order by log loop
        perform pg_advisory_xact_lock(778001, l.log);
        t := trunkline._tick_of(l.log, null);
        v_tables := array(select trunkline._segment_table(l.topic_id, l.partition, segment) from trunkline.segments where log = l.log and sealed_at is null);
        -- One statement, so that the snapshot has seen exactly these rows.
        execute 'select coalesce(range_agg(int8range(id, id + 1)), ''{}''), range_agg(int8range(id, id + 1)) filter (where xid = $1), trunkline._without(pg_current_snapshot(), $1) from ('
                || coalesce((select string_agg('select id, xid from ' || x, ' union all ') from unnest(v_tables) x), 'select 0::bigint, ''0''::xid8 where false') || ') m(id, xid)'
            into v_ids, v_own_ids, v_now using v_own;
        for i in 1 .. cardinality(v_tables) loop
            execute format('update %s set xid = ''1'' where xid <> $1 and xid >= $2 and id <@ $3', v_tables[i]) using v_own, pg_snapshot_xmin(v_now), v_ids;
        end loop;
        if l.log = 1 then
            perform trunkline._adopt_store(v_ids, v_now, v_own_ids);
            continue;
        end if;
        select v_ids - coalesce(range_agg(k.ids), '{}') into v_new from trunkline.ticks k where k.log = l.log and k.ids && v_ids;
        if not isempty(v_new) then
            perform trunkline._write_ticks(l.log, coalesce(t.first_offset + t.n, 1), v_new, v_now, 0, false, v_own_ids);
        elsif t.log is not null then
            update trunkline.ticks set snapshot = v_now, last_id = 0, whole = false, own_xid = case when v_own_ids is not null then v_own end, own_ids = v_own_ids
            where slot = t.slot and log = l.log and first_offset = t.first_offset;
        end if;
    end loop;
    insert into trunkline.settings values ('cluster', v_cluster) on conflict (name) do update set value = excluded.value;
end
$$;

-- Adapts the shared store, like _adopt_logs. p_ids are all ids in the store.
create or replace function trunkline._adopt_store(p_ids int8multirange, p_now pg_snapshot, p_own_ids int8multirange) returns void
language plpgsql
as $$
declare
    v_new  int8multirange;
    v_logs int[];
    v_ids  int8multirange[];
    v_own  xid8 := pg_current_xact_id();
    t      trunkline.ticks;
begin
    select p_ids - coalesce(range_agg(k.ids), '{}') into v_new from trunkline.ticks k where k.shared and k.log <> 1;
    select array_agg(x.log), array_agg(x.ids) into v_logs, v_ids
    from (select m.log, range_agg(int8range(m.id, m.id + 1)) as ids
          from unnest(v_new) r cross join lateral (select s.log, s.id from trunkline.store s where s.id >= lower(r) and s.id < upper(r) offset 0) m group by m.log) x;
    if v_logs is not null then
        perform trunkline._write_store_ticks(v_logs, v_ids);
    end if;
    t := trunkline._tick_of(1, null);
    insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, snapshot, last_id, whole, own_xid, own_ids, shared)
    values ((select slot from trunkline.epoch), 1, coalesce(t.first_offset + t.n, 1), 1, '{}', trunkline.clock(), p_now, 0, false,
            case when p_own_ids is not null then v_own end, p_own_ids, true);
end
$$;

-- Returns the messages of offsets p_first to p_last. Either every offset is returned or the call fails: with
-- TL006 if retention has removed an offset, or as in _below_base.
create or replace function trunkline._read(p_topic_id int, p_partition int, p_segment_rows int, p_first bigint, p_last bigint)
returns setof trunkline.log_row
language plpgsql
as $$
declare
    v_log    int := p_topic_id * 64 + p_partition;
    t        trunkline.ticks;
    v_next   bigint := p_first;
    v_take   bigint;
    v_lo     bigint;
    v_hi     bigint;
    v_ids    int8multirange;
    v_part   int8multirange;
    v_rows   bigint;
    v_got    bigint := 0;
    v_again  boolean := false;
begin
    while v_next <= p_last loop
        t := trunkline._tick_of(v_log, v_next);
        if t.log is null or v_next >= t.first_offset + t.n then
            perform trunkline._below_base(p_topic_id, p_partition, v_next);
        end if;
        v_take := least(p_last, t.first_offset + t.n - 1) - v_next + 1;
        if upper(t.ids) - lower(t.ids) = t.n then
            v_lo := lower(t.ids) + v_next - t.first_offset;
            v_hi := v_lo + v_take - 1;
            v_ids := null;
        else
            v_ids := trunkline._slice(t.ids, v_next - t.first_offset, v_take);
            v_lo := lower(v_ids);
            v_hi := upper(v_ids) - 1;
        end if;
        if t.shared then
            -- One segment at a time: either all of its messages exist, or none because it was emptied after
            -- the tick was read.
            if v_lo >> 30 <> v_hi >> 30 then
                v_ids := coalesce(v_ids, int8multirange(int8range(v_lo, v_hi + 1))) * int8multirange(int8range(null, (v_lo >> 30) + 1 << 30));
                v_take := trunkline._size(v_ids);
            end if;
            if v_ids is null then
                return query select * from trunkline._store_rows(trunkline._ring(v_lo >> 30), array[v_lo], array[v_hi + 1], array[v_next - v_lo]);
            else
                return query
                select m.* from (
                    select array_agg(x.lo order by x.lo) as los, array_agg(x.hi order by x.lo) as his, array_agg(v_next + x.before - x.lo order by x.lo) as shifts
                    from trunkline._runs(v_ids) x offset 0) g
                cross join lateral trunkline._store_rows(trunkline._ring(v_lo >> 30), g.los, g.his, g.shifts) m;
            end if;
            get diagnostics v_rows = row_count;
            if v_rows = 0 and not v_again then
                -- A new tick names the tables to which the messages were copied.
                v_again := true;
                continue;
            end if;
            v_again := false;
            v_got := v_got + v_rows;
            v_next := v_next + v_take;
            continue;
        end if;
        for s in v_lo / p_segment_rows .. v_hi / p_segment_rows loop
            -- A segment may not exist if all of its ids belong to transactions that were rolled back.
            v_part := v_ids * int8multirange(int8range(s::bigint * p_segment_rows, (s + 1)::bigint * p_segment_rows));
            continue when isempty(v_part);
            if to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, s)) is null then
                perform trunkline._catch_up();
                if to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, s)) is null then
                    perform trunkline._below_base(p_topic_id, p_partition, v_next);
                end if;
            end if;
            begin
                if v_ids is null then
                    return query execute format('select * from trunkline.topic_%s_read($1, $2, $3, $4, $5)', p_topic_id)
                        using p_partition, s::bigint, v_lo, v_hi, v_next - v_lo;
                    get diagnostics v_rows = row_count;
                else
                    return query execute format(
                        'select $3 + row_number() over (order by id) - 1, message_id::uuid, key, routing_key, label, headers, payload::bytea,
                                content_type::text, occurred_at, coalesce((origin).published_at, created_at), created_at::timestamptz, (origin).topic
                         from trunkline.topic_%s_%s_%s where id >= lower($1) and id < upper($1) and id <@ $1 order by id', p_topic_id, p_partition, s)
                        using v_part, null, v_next + trunkline._size(v_ids * int8multirange(int8range(null, s::bigint * p_segment_rows)));
                    get diagnostics v_rows = row_count;
                end if;
            exception when undefined_table or internal_error then
                -- Retention may have dropped the segment after it was found.
                if v_next >= (select base_offset from trunkline.logs where log = v_log) then
                    raise;
                end if;
                perform trunkline._below_base(p_topic_id, p_partition, v_next);
            end;
            v_got := v_got + v_rows;
        end loop;
        v_next := v_next + v_take;
    end loop;
    if v_got <> p_last - p_first + 1 then
        perform trunkline._below_base(p_topic_id, p_partition, p_first);
    end if;
end
$$;

-- Returns the messages of a set of offsets. Each range of the set is one read.
create or replace function trunkline._read_set(c trunkline.cursors, p_offsets int8multirange) returns setof trunkline.log_row
language sql
as $$
    select m.* from unnest(p_offsets) r
    cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, lower(r), upper(r) - 1) m
$$;

-- Returns one message, or no row if retention has removed it.
create or replace function trunkline._read_left(c trunkline.cursors, p_offset bigint) returns setof trunkline.log_row
language plpgsql
as $$
begin
    if p_offset >= (select base_offset from trunkline.logs where log = c.log) then
        return query select * from trunkline._read(c.topic_id, c.partition, c.segment_rows, p_offset, p_offset);
    end if;
end
$$;

-- Fails because an offset cannot be read: with TL006 if retention has removed it, with TL010 or TL011 if the
-- topic or queue was deleted, or with 40001 if the transaction's snapshot is older than a rotation. Any other
-- case would be a hole in the log and fails with XX001.
create or replace function trunkline._below_base(p_topic_id int, p_partition int, p_offset bigint) returns void
language plpgsql
as $$
declare
    v_base bigint := (select base_offset from trunkline.logs where topic_id = p_topic_id and partition = p_partition);
    v_log  text := (select case kind when 'inbox' then 'queue' else 'topic' end || ' "' || name || '"' from trunkline.topics where topic_id = p_topic_id)
                   || ', partition ' || p_partition;
begin
    if v_base is null then
        perform trunkline._pin_log(p_topic_id, p_partition);
    end if;
    if p_offset < v_base and trunkline._is_archived(p_topic_id, p_partition, p_offset) then
        perform trunkline._fail('TL006', format('offset %s of %s, is only in the archive; the earliest available offset is %s', p_offset, v_log, v_base),
                                format('Read the archive with "trunkline topic read" or Spark, or continue from offset %s.', v_base));
    elsif p_offset < v_base then
        perform trunkline._fail('TL006', format('offset %s of %s, was removed by retention; the earliest available offset is %s', p_offset, v_log, v_base),
                                format('Continue from offset %s, or seek the group to "earliest".', v_base));
    end if;
    perform trunkline._fail('XX001', format('offset %s of %s is missing', p_offset, v_log),
                            'The log is damaged. Keep the data directory and report a bug.');
end
$$;

-- Fails with TL001 if the topic does not have this partition.
create or replace function trunkline._check_partition(t trunkline.topics, p_partition int) returns void
language plpgsql
as $$
begin
    if p_partition is null or p_partition < 0 or p_partition >= t.partitions then
        perform trunkline._fail('TL001', format('partition %s is out of range: topic "%s" has partitions 0 to %s', coalesce(p_partition::text, 'null'), t.name, t.partitions - 1),
                                format('Use a partition from 0 to %s.', t.partitions - 1));
    end if;
end
$$;

-- Returns the highest offset of a partition, or 0 if it has none. A message gets its offset shortly after it
-- commits. Fails with TL010 if the topic does not exist.
create or replace function trunkline.head(p_topic text, p_partition int default 0) returns bigint
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
begin
    perform trunkline._check_partition(t, p_partition);
    return trunkline._head(t.topic_id * 64 + p_partition);
end
$$;

-- Returns up to p_limit messages (at most 100,000) from offset p_from on, whether or not they were consumed.
-- Returns no row if p_from is above the head. Fails with TL006 if retention has removed p_from; the error
-- names the earliest available offset.
create or replace function trunkline.read(p_topic text, p_partition int, p_from bigint, p_limit int default 100)
returns setof trunkline.message
language plpgsql
as $$
declare
    t      trunkline.topics := trunkline._topic('topic', p_topic);
    v_head bigint;
begin
    perform trunkline._check_partition(t, p_partition);
    perform trunkline._check_range('from', p_from, 1, 9223372036854775807);
    perform trunkline._check_range('limit', p_limit, 1, 100000);
    v_head := trunkline._head(t.topic_id * 64 + p_partition);
    if p_from <= v_head then
        return query
        select t.name, p_partition, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at
        from trunkline._read(t.topic_id, p_partition, t.segment_rows, p_from, least(v_head, p_from - 1 + least(p_limit, v_head - p_from + 1))) r;
    end if;
end
$$;

-- Returns the first offset whose message entered the log at p_at or later, or head + 1 if there is none.
create or replace function trunkline._offset_at(t trunkline.topics, p_partition int, p_at timestamptz) returns bigint
language plpgsql
as $$
declare
    v_log   int := t.topic_id * 64 + p_partition;
    v_head  bigint := trunkline._head(t.topic_id * 64 + p_partition);
    v_base  bigint := (select base_offset from trunkline.logs where log = v_log);
    v_lo    bigint := v_base;
    v_hi    bigint := v_head + 1;
    v_mid   bigint;
    v_tick  trunkline.ticks;
    v_found bigint;
begin
    -- Tick times grow with offsets, and no message entered the log after its tick. So a binary search finds
    -- the first tick that was written at p_at or later.
    while v_lo < v_hi loop
        v_mid := (v_lo + v_hi) / 2;
        v_tick := trunkline._tick_of(v_log, v_mid);
        if v_tick.log is null then
            -- retention has removed it since the search began, or the log is damaged
            if v_base = (select base_offset from trunkline.logs where log = v_log) then
                perform trunkline._below_base(t.topic_id, p_partition, v_mid);
            end if;
            return trunkline._offset_at(t, p_partition, p_at);
        end if;
        if v_tick.cut_at >= p_at then
            v_hi := greatest(v_tick.first_offset, v_lo);
        else
            v_lo := v_tick.first_offset + v_tick.n;
        end if;
    end loop;
    while v_lo <= v_head loop
        v_tick := trunkline._tick_of(v_log, v_lo);
        if v_tick.log is null then
            -- retention has removed it since the search began, or the log is damaged
            if v_base = (select base_offset from trunkline.logs where log = v_log) then
                perform trunkline._below_base(t.topic_id, p_partition, v_lo);
            end if;
            return trunkline._offset_at(t, p_partition, p_at);
        end if;
        v_hi := v_tick.first_offset + v_tick.n - 1;
        select min(log_offset) into v_found from trunkline._read(t.topic_id, p_partition, t.segment_rows, v_lo, v_hi) where entered_at >= p_at;
        if v_found is not null then
            return v_found;
        end if;
        v_lo := v_hi + 1;
    end loop;
    return v_head + 1;
end
$$;

-- Returns the first offset whose message entered the log at p_at or later, or head + 1 if there is none. A
-- message that was delayed or redriven enters the log after its created_at.
create or replace function trunkline.offset_at(p_topic text, p_partition int, p_at timestamptz) returns bigint
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
begin
    perform trunkline._check_partition(t, p_partition);
    if p_at is null then
        perform trunkline._fail('TL001', 'time must not be null', 'Use a time such as now() - interval ''1 hour''.');
    end if;
    return trunkline._offset_at(t, p_partition, p_at);
end
$$;

-- Returns the next offset to deliver from a position: 'earliest', 'latest', an offset, or a time. Fails with
-- TL006 below the earliest available offset, and with TL007 above head + 1.
create or replace function trunkline._resolve_position(t trunkline.topics, p_partition int, p_position text) returns bigint
language plpgsql
as $$
declare
    v_base  bigint := (select base_offset from trunkline.logs where log = t.topic_id * 64 + p_partition);
    v_head  bigint;
    v_offset bigint;
    v_at    timestamptz;
begin
    if p_position = 'earliest' then
        return v_base;
    end if;
    v_head := trunkline._head(t.topic_id * 64 + p_partition);
    if p_position = 'latest' then
        return v_head + 1;
    end if;
    if p_position ~ '^[0-9]{1,18}$' then
        v_offset := p_position;
        if v_offset < v_base then
            perform trunkline._below_base(t.topic_id, p_partition, v_offset);
        elsif v_offset > v_head + 1 then
            perform trunkline._fail('TL007', format('offset %s is out of range: the head of topic "%s", partition %s, is %s', v_offset, t.name, p_partition, v_head),
                                    'Use "latest" to start with new messages.');
        end if;
        return v_offset;
    end if;
    begin
        v_at := p_position::timestamptz;
    exception when others then
        v_at := null;
    end;
    if v_at is null or not isfinite(v_at) then
        perform trunkline._fail('TL001', format('position must be "earliest", "latest", an offset or a time, got %s', trunkline._quoted(p_position)),
                                'Write an offset as "42", and a time as "2026-11-15 12:00+00".');
    end if;
    return trunkline._offset_at(t, p_partition, v_at);
end
$$;

-- Returns the next offset to read from a position: 'earliest', 'latest', an offset, or a time. 'latest' is
-- head + 1. Fails with TL006 if retention has removed the offset, with TL007 if it is above head + 1, and
-- with TL001 for any other text.
create or replace function trunkline.offset_of(p_topic text, p_partition int, p_position text) returns bigint
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
begin
    perform trunkline._check_partition(t, p_partition);
    return trunkline._resolve_position(t, p_partition, p_position);
end
$$;
