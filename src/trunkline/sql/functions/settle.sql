-- Settling: ack, nack, bury, release and extend. A receipt is
-- '<position>.<cursor>.<first>.<rotation>.<token>'. The token fences: an expired or replaced lease cannot be
-- settled.
-- Each receipt has one result. done: this call settled the message, or an ack found it acked before. lost:
-- the lease ended or was replaced, or the message was settled in another way. unknown: no such lease exists.
-- A settle can be part of the caller's transaction. It holds the lease row `for key share` until that
-- transaction ends. Other settles share this lock; expiry cannot get its lock meanwhile. The primary key of
-- `settled` decides between two settles of one message.
-- A settle uses the rotation partition that the receipt names. It reads the other two only if upkeep has
-- moved the lease or the lease no longer exists.

-- Returns whether p_text has the form of a lease in a receipt ('.<cursor>.<first>.<rotation>.<token>') and
-- its numbers fit their types.
create or replace function trunkline._names_a_lease(p_text text) returns boolean
language sql immutable
as $$
    select split_part(p_text, '.', 1) = '' and split_part(p_text, '.', 6) = '' and split_part(p_text, '.', 4) in ('0', '1', '2')
       and length(split_part(p_text, '.', 2)) between 1 and 9 and ltrim(split_part(p_text, '.', 2), '0123456789') = ''
       and length(split_part(p_text, '.', 3)) between 1 and 18 and ltrim(split_part(p_text, '.', 3), '0123456789') = ''
$$;

-- Locks a lease row and returns it: `for update` if p_alone, else `for key share`. Waits for conflicting
-- locks. Upkeep moves a lease from partition n to n - 1 (to 2 from 0), so the partitions are tried in that
-- order, and the named one again at the end: a lease that is moved meanwhile is found behind. Returns null if
-- the lease does not exist.
create or replace function trunkline._lock_lease(p_rotation smallint, p_cursor_id int, p_first bigint, p_alone boolean) returns trunkline.leases
language plpgsql
as $$
declare
    l trunkline.leases;
begin
    for i in 0 .. 3 loop
        case (p_rotation + 2 * i) % 3
            when 0 then
                if p_alone then select * into l from trunkline.leases_0 where cursor_id = p_cursor_id and first = p_first for update;
                else select * into l from trunkline.leases_0 where cursor_id = p_cursor_id and first = p_first for key share;
                end if;
            when 1 then
                if p_alone then select * into l from trunkline.leases_1 where cursor_id = p_cursor_id and first = p_first for update;
                else select * into l from trunkline.leases_1 where cursor_id = p_cursor_id and first = p_first for key share;
                end if;
            else
                if p_alone then select * into l from trunkline.leases_2 where cursor_id = p_cursor_id and first = p_first for update;
                else select * into l from trunkline.leases_2 where cursor_id = p_cursor_id and first = p_first for key share;
                end if;
        end case;
        exit when found;
    end loop;
    return l;
end
$$;

-- Tries to lock a lease row `for update`, without waiting. Returns whether the lock was acquired.
create or replace function trunkline._try_lock_lease(p_rotation smallint, p_cursor_id int, p_first bigint) returns boolean
language plpgsql
as $$
begin
    case p_rotation
        when 0 then perform from trunkline.leases_0 where cursor_id = p_cursor_id and first = p_first for update skip locked;
        when 1 then perform from trunkline.leases_1 where cursor_id = p_cursor_id and first = p_first for update skip locked;
        else perform from trunkline.leases_2 where cursor_id = p_cursor_id and first = p_first for update skip locked;
    end case;
    return found;
end
$$;

-- Returns the rows of `settled` that belong to a lease. Reads only the lease's rotation partition.
create or replace function trunkline._settled_of(l trunkline.leases) returns setof trunkline.settled
language plpgsql
as $$
begin
    case l.rotation
        when 0 then return query select * from trunkline.settled_0 where cursor_id = l.cursor_id and pos >= l.first and pos < l.first + l.n;
        when 1 then return query select * from trunkline.settled_1 where cursor_id = l.cursor_id and pos >= l.first and pos < l.first + l.n;
        else return query select * from trunkline.settled_2 where cursor_id = l.cursor_id and pos >= l.first and pos < l.first + l.n;
    end case;
end
$$;

-- Returns the positions of a lease that have an extension beyond p_now.
create or replace function trunkline._extended(l trunkline.leases, p_now timestamptz) returns int8multirange
language plpgsql
as $$
declare
    v_kept int8multirange;
begin
    case l.rotation
        when 0 then select range_agg(positions) into v_kept from trunkline.extensions_0 where cursor_id = l.cursor_id and first = l.first and until > p_now;
        when 1 then select range_agg(positions) into v_kept from trunkline.extensions_1 where cursor_id = l.cursor_id and first = l.first and until > p_now;
        else select range_agg(positions) into v_kept from trunkline.extensions_2 where cursor_id = l.cursor_id and first = l.first and until > p_now;
    end case;
    return coalesce(v_kept, '{}');
end
$$;

-- Returns the positions that a lease delivered. `taken` is null if it delivered all of them.
create or replace function trunkline._leased(l trunkline.leases) returns int8multirange
language sql immutable
as $$ select coalesce(l.taken, int8multirange(int8range(l.first, l.first + l.n))) $$;

-- Returns the messages at positions of a lease: the cursor whose log has the message, its offset, and the
-- number of earlier attempts.
create or replace function trunkline._entries(l trunkline.leases, p_positions int8multirange) returns table (pos bigint, source_id int, log_offset bigint, attempt int)
language sql immutable
as $$
    select p, coalesce(l.source_ids[p - l.first + 1], l.cursor_id), coalesce(l.offsets[p - l.first + 1], p), coalesce(l.attempts[p - l.first + 1], 0)
    from unnest(p_positions) r cross join lateral generate_series(lower(r), upper(r) - 1) p
$$;

-- Returns the delay before the next attempt: exponential in the attempt number, capped, with random jitter.
create or replace function trunkline._backoff(q trunkline.queues, p_attempt int) returns interval
language sql volatile
as $$
    select least(extract(epoch from q.backoff_cap)::float8,
                 extract(epoch from q.backoff_base)::float8 * power(q.backoff_factor, least(p_attempt - 1, 100)))
           * (1 + q.backoff_jitter * (2 * random() - 1)) * interval '1 second'
$$;

-- Records how open positions of a lease were settled, and returns the positions that this call settled. The
-- caller holds the lock on the lease and has checked that the positions are open.
-- p_alone: the caller holds the lease `for update`, so one row covers each run of positions. Otherwise writes
-- one row per position, because another settle can compete for it; the primary key decides.
create or replace function trunkline._write_settled(
    l trunkline.leases, p_kind "char", p_positions int8multirange, p_now timestamptz, p_alone boolean, p_due timestamptz default null, p_error text default null)
returns int8multirange
language plpgsql
as $$
declare
    v_done  int8multirange;
    v_purge bigint := case when p_kind in ('n', 'r') then trunkline._newest_purge() end;
begin
    if p_alone then
        insert into trunkline.settled (rotation, xid, cursor_id, pos, n, first, kind, due, error, at, purge_no)
        select l.rotation, pg_current_xact_id(), l.cursor_id, lower(r), upper(r) - lower(r), l.first, p_kind, p_due, p_error, p_now, v_purge from unnest(p_positions) r;
        return p_positions;
    end if;
    with written as (
        insert into trunkline.settled (rotation, xid, cursor_id, pos, n, first, kind, due, error, at, purge_no)
        select l.rotation, pg_current_xact_id(), l.cursor_id, p, 1, l.first, p_kind, p_due, p_error, p_now, v_purge
        from unnest(p_positions) r cross join lateral generate_series(lower(r), upper(r) - 1) p order by p
        on conflict do nothing returning pos
    )
    select coalesce(range_agg(int8range(pos, pos + 1)), '{}') into v_done from written;
    return v_done;
end
$$;

-- Settles open positions of a lease and returns those that were settled. The caller holds the lock on the
-- lease.
-- The result can have fewer positions than p_positions. Messages removed by retention or by the end of a
-- subscription cannot be redelivered and are recorded as gone. Another settle may have been first.
create or replace function trunkline._settle_lease(
    l trunkline.leases, p_kind "char", p_positions int8multirange, p_now timestamptz, p_alone boolean, p_delay interval, p_error text)
returns int8multirange
language plpgsql
as $$
declare
    q        trunkline.queues;
    c        trunkline.cursors;
    v_left   int8multirange := p_positions;
    v_set    int8multirange;
    v_done   int8multirange := '{}';
    v_back   int8multirange := '{}';
    e        record;
begin
    if p_kind = 'a' then
        return trunkline._write_settled(l, 'a', p_positions, p_now, p_alone);
    end if;
    select * into c from trunkline.cursors where cursor_id = l.cursor_id;
    select * into q from trunkline.queues where queue_id = c.queue_id;
    if p_kind = 'e' then
        -- in an ordered queue, a lease is extended as a whole
        insert into trunkline.extensions (rotation, cursor_id, first, positions, until)
        values (l.rotation, l.cursor_id, l.first, case when q.ordered then trunkline._leased(l) else p_positions end, p_now + p_delay);
        return p_positions;
    end if;
    select coalesce(range_agg(int8range(x.pos, x.pos + 1)), '{}') into v_set
    from trunkline._entries(l, v_left) x left join trunkline.cursors k on k.cursor_id = x.source_id left join trunkline.logs g on g.log = k.log
    where k.cursor_id is null or x.log_offset < g.base_offset;
    if not isempty(v_set) then
        perform trunkline._write_settled(l, 'g', v_set, p_now, p_alone);
        v_left := v_left - v_set;
    end if;
    -- group by attempt: the last attempt makes a dead letter, and the backoff depends on the attempt
    for e in
        select case when p_kind = 'b' or p_kind in ('n', 'x') and x.attempt + 1 >= q.max_attempts then case p_kind when 'b' then 'b' else 'd' end::"char" else p_kind end as kind,
               x.attempt + 1 as attempt, range_agg(int8range(x.pos, x.pos + 1)) as positions
        from trunkline._entries(l, v_left) x group by 1, 2 order by 2
    loop
        if e.kind in ('b', 'd') then
            v_set := trunkline._write_settled(l, e.kind, e.positions, p_now, p_alone, null, p_error);
            insert into trunkline.dead_letters (queue_id, id, topic, partition, log_offset, cursor_id, key, routing_key, label, headers, payload,
                                                content_type, occurred_at, created_at, attempts, error, reason, dead_at, consumer)
            select q.queue_id, m.id, coalesce(k.topic, ''), k.partition, m.log_offset, k.cursor_id, m.key, m.routing_key, m.label, m.headers, m.payload,
                   m.content_type, m.occurred_at, m.created_at, e.attempt,
                   coalesce(p_error, case p_kind when 'x' then 'the lease expired before the message was settled' end),
                   case e.kind when 'b' then 'buried' else 'attempts' end, p_now, l.consumer
            from trunkline._entries(l, v_set) x join trunkline.cursors k on k.cursor_id = x.source_id
            cross join lateral trunkline._read(k.topic_id, k.partition, k.segment_rows, x.log_offset, x.log_offset) m;
        elsif p_kind = 'n' and p_delay is null and q.backoff_jitter > 0 then
            -- a separate random backoff for each message, so that they are not all redelivered at the same
            -- time
            select coalesce(range_agg(trunkline._write_settled(l, 'n', int8multirange(int8range(x.pos, x.pos + 1)), p_now, p_alone, p_now + trunkline._backoff(q, e.attempt), p_error)), '{}')
              into v_set from trunkline._entries(l, e.positions) x;
        else
            v_set := trunkline._write_settled(l, e.kind, e.positions, p_now, p_alone,
                p_now + case p_kind when 'n' then coalesce(p_delay, trunkline._backoff(q, e.attempt)) when 'r' then coalesce(p_delay, '0') else '0' end, p_error);
        end if;
        v_done := v_done + v_set;
        if e.kind in ('n', 'r', 'x') then
            v_back := v_back + v_set;
        end if;
    end loop;
    -- In an ordered queue, no later message may be completed before one that is redelivered. So the rest of
    -- the lease is released too.
    if q.ordered and not isempty(v_back) then
        select trunkline._leased(l) * int8multirange(int8range(lower(v_back), null)) - coalesce(range_agg(int8range(s.pos, s.pos + s.n)), '{}')
          into v_set from trunkline._settled_of(l) s;
        if not isempty(v_set) then
            perform trunkline._settle_lease(l, 'r', v_set, p_now, p_alone, null, null);
        end if;
    end if;
    return v_done;
end
$$;

-- Settles positions of one lease. p_lease is the receipt without its position, with the leading dot.
-- done: the positions that are settled now, for an ack also those acked before. held: the positions of the
-- lease. It is all positions if the lease has ended and its row was removed, and null if the lease never
-- existed.
create or replace function trunkline._settle_one(
    p_kind "char", p_lease text, p_positions int8multirange, p_delay interval, p_error text, out done int8multirange, out held int8multirange)
language plpgsql
as $$
declare
    v_cursor int := split_part(p_lease, '.', 2);
    v_first  bigint := split_part(p_lease, '.', 3);
    v_alone  boolean := false;
    v_waits  boolean;
    v_now    timestamptz;
    v_acked  int8multirange;
    v_other  int8multirange;
    c        trunkline.cursors;
    l        trunkline.leases;
begin
    done := '{}';
    v_waits := trunkline._wait_ten_seconds();
    l := trunkline._lock_lease(split_part(p_lease, '.', 4)::smallint, v_cursor, v_first, false);
    if l.cursor_id is null then
        perform trunkline._wait_as_before(v_waits);
        -- a lease that existed and has no row any more has ended
        select * into c from trunkline.cursors where cursor_id = v_cursor;
        if c.drawn_seq is not null and v_first <= trunkline._drawn(c) or c.drawn_seq is null and exists (select from trunkline.leases x where x.cursor_id = v_cursor and x.first >= v_first) then
            held := '{(,)}';
        end if;
        return;
    end if;
    held := trunkline._leased(l);
    if l.token::text <> split_part(p_lease, '.', 5) then
        perform trunkline._wait_as_before(v_waits);
        return;
    end if;
    -- The statements below run after the lock was acquired, so they see what other settles committed while
    -- this call waited. For more than a few positions, tries to lock the lease alone, to write one row per
    -- run.
    if trunkline._size(p_positions) > 1 and (p_positions = held or trunkline._size(p_positions) > 20) then
        v_alone := trunkline._try_lock_lease(l.rotation, v_cursor, v_first);
    end if;
    v_now := trunkline.clock();
    select coalesce(range_agg(int8range(s.pos, s.pos + s.n)) filter (where s.kind = 'a'), '{}'),
           coalesce(range_agg(int8range(s.pos, s.pos + s.n)) filter (where s.kind <> 'a'), '{}')
      into v_acked, v_other from trunkline._settled_of(l) s;
    done := p_positions * (held - v_acked - v_other);
    if l.deadline <= v_now then
        done := done * trunkline._extended(l, v_now);
    end if;
    if not isempty(done) then
        -- can also wait here, for an open settle of the same message
        done := trunkline._settle_lease(l, p_kind, done, v_now, v_alone, p_delay, p_error);
    end if;
    perform trunkline._wait_as_before(v_waits);
    if p_kind = 'a' then
        done := done + p_positions * v_acked;
    end if;
end
$$;

-- Settles receipts grouped by lease, and returns one result per receipt. Requires a READ COMMITTED
-- transaction. At most 10,000 receipts per call; an error text is cut after 10,000 characters.
create or replace function trunkline._settle(p_kind "char", p_receipts text[], p_delay interval default null, p_error text default null)
returns setof trunkline.settlement
language plpgsql
as $$
declare
    g record;
    v record;
begin
    perform trunkline._need_read_committed('settling');
    if cardinality(p_receipts) > 10000 then
        perform trunkline._fail('TL004', format('cannot settle more than 10,000 receipts in one call, got %s', cardinality(p_receipts)),
                                'Settle in several calls.');
    end if;
    if p_receipts is null or array_ndims(p_receipts) > 1 then
        perform trunkline._fail('TL001', 'receipts must be a one-dimensional array, got ' || case when p_receipts is null then 'null' else array_ndims(p_receipts) || ' dimensions' end,
                                'Pass the receipts that claim returned.');
    elsif array_position(p_receipts, null) is not null then
        perform trunkline._fail('TL001', 'receipts must not contain null', 'Pass the receipts that claim returned.');
    end if;
    perform trunkline._check_duration('delay', p_delay, '0', '365 days');
    if length(p_error) > 10000 then
        p_error := left(p_error, 10000);
    end if;
    perform trunkline._commit_durably();
    for g in
        -- grouped by lease: the receipt without its leading position
        select u.lease, array_agg(u.ord) as ords, array_agg(u.receipt) as receipts, array_agg(u.pos) as places,
               coalesce(range_agg(int8range(u.pos, u.pos + 1)) filter (where u.pos is not null), '{}') as positions
        from (
            select r.ord, r.receipt, substr(r.receipt, length(r.first) + 1) as lease,
                   case when length(r.first) between 1 and 18 and ltrim(r.first, '0123456789') = '' then r.first::bigint end as pos
            from (select ord::int, receipt, split_part(receipt, '.', 1) as first from unnest(p_receipts) with ordinality x(receipt, ord)) r
        ) u
        group by u.lease order by u.lease
    loop
        if trunkline._names_a_lease(g.lease) then
            v := trunkline._settle_one(p_kind, g.lease, g.positions, p_delay, p_error);
        else
            select '{}'::int8multirange as done, null::int8multirange as held into v;
        end if;
        return query
        select u.ord, u.receipt, case when u.pos <@ v.done then 'done' when u.pos <@ v.held then 'lost' else 'unknown' end
        from unnest(g.ords, g.receipts, g.places) u(ord, receipt, pos);
    end loop;
end
$$;

-- Fast path of ack: consecutive positions of one lease whose original deadline has not passed. Returns true
-- if all of them were acked. If it returns false, it has written nothing, and the caller uses _settle, which
-- finds the correct result. Does not wait for the lease row. Several positions need the lease alone, because
-- they are one row of `settled`, whose primary key does not find overlapping runs.
create or replace function trunkline._ack_range(p_from bigint, p_to bigint, p_cursor_id int, p_first bigint, p_rotation text, p_token text) returns boolean
language plpgsql
as $$
declare
    l       record;
    v_now   timestamptz;
    v_waits boolean;
    v_done  boolean;
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if p_rotation = '0' then
        select token, deadline, taken, n into l from trunkline.leases_0 where cursor_id = p_cursor_id and first = p_first for key share skip locked;
    elsif p_rotation = '1' then
        select token, deadline, taken, n into l from trunkline.leases_1 where cursor_id = p_cursor_id and first = p_first for key share skip locked;
    else
        select token, deadline, taken, n into l from trunkline.leases_2 where cursor_id = p_cursor_id and first = p_first for key share skip locked;
    end if;
    -- Not for a few positions of a larger lease: another consumer may settle the rest in an open transaction.
    if p_to > p_from and (p_to - p_from < l.n - 1 and p_to - p_from < 20 or not trunkline._try_lock_lease(p_rotation::smallint, p_cursor_id, p_first)) then
        return false;
    end if;
    -- The statements from here on see what was settled before this session had the lock on the row.
    v_now := trunkline.clock();
    if l.token::text <> p_token or l.deadline <= v_now or l.token is null
       or p_to >= p_first + l.n or not coalesce(l.taken @> int8range(p_from, p_to + 1), p_from >= p_first) then
        return false;
    end if;
    -- may wait for an open settle of the same message
    v_waits := trunkline._wait_ten_seconds();
    -- Names each partition: a plan for the whole table would lock all partitions until the caller commits,
    -- and upkeep could not empty them.
    if l.n = 1 then
        v_done := true;
    elsif p_rotation = '0' then
        v_done := not exists (select from trunkline.settled_0 s where s.cursor_id = p_cursor_id and s.pos >= p_first and s.pos <= p_to and s.pos + s.n > p_from);
    elsif p_rotation = '1' then
        v_done := not exists (select from trunkline.settled_1 s where s.cursor_id = p_cursor_id and s.pos >= p_first and s.pos <= p_to and s.pos + s.n > p_from);
    else
        v_done := not exists (select from trunkline.settled_2 s where s.cursor_id = p_cursor_id and s.pos >= p_first and s.pos <= p_to and s.pos + s.n > p_from);
    end if;
    if v_done then
        insert into trunkline.settled (rotation, xid, cursor_id, pos, n, first, kind, at)
        values (p_rotation::smallint, pg_current_xact_id(), p_cursor_id, p_from, p_to - p_from + 1, p_first, 'a', v_now) on conflict do nothing;
        v_done := found;
    end if;
    perform trunkline._wait_as_before(v_waits);
    return v_done;
end
$$;

-- Acknowledges messages: they are completed and are not delivered again. Returns one result per receipt:
-- done, lost or unknown. Acking an acked message again returns done.
-- Takes at most 10,000 receipts. Requires a READ COMMITTED transaction. Waits at most ten seconds for an open
-- settle of the same message, unless the session has its own lock_timeout.
create or replace function trunkline.ack(p_receipts text[]) returns setof trunkline.settlement
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    r           text[];
    v_all       text;
    v_tail      text;
    v_positions bigint[];
begin
    if cardinality(p_receipts) = 1 then
        r := string_to_array(p_receipts[1], '.');
    end if;
    -- Counted repetitions ({1,18}) would make the match eight times as expensive.
    if r is not null and p_receipts[1] ~ '^[0-9]+\.[0-9]+\.[0-9]+\.[012]\.[0-9a-f-]+$' and length(r[1]) < 19 and length(r[2]) < 10 and length(r[3]) < 19
       and current_setting('transaction_isolation') = 'read committed' then
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'on', true);
        end if;
        -- Usually a lease of one message. Locking it alone and checking it needs no second statement: nothing but
        -- this lock and the primary key of `settled` decides, and neither waits. No row if another session
        -- settles it, if it has ended or was extended, or if it is a lease of several messages.
        if r[4] = '0' then
            insert into trunkline.settled_0 (rotation, xid, cursor_id, pos, n, first, kind, at)
            select 0, pg_current_xact_id(), l.cursor_id, l.first, 1, l.first, 'a', trunkline.clock() from trunkline.leases_0 l
            where l.cursor_id = r[2]::int and l.first = r[1]::bigint and l.n = 1 and l.token::text = r[5] and l.deadline > trunkline.clock()
            for update skip locked on conflict do nothing;
        elsif r[4] = '1' then
            insert into trunkline.settled_1 (rotation, xid, cursor_id, pos, n, first, kind, at)
            select 1, pg_current_xact_id(), l.cursor_id, l.first, 1, l.first, 'a', trunkline.clock() from trunkline.leases_1 l
            where l.cursor_id = r[2]::int and l.first = r[1]::bigint and l.n = 1 and l.token::text = r[5] and l.deadline > trunkline.clock()
            for update skip locked on conflict do nothing;
        elsif r[4] = '2' then
            insert into trunkline.settled_2 (rotation, xid, cursor_id, pos, n, first, kind, at)
            select 2, pg_current_xact_id(), l.cursor_id, l.first, 1, l.first, 'a', trunkline.clock() from trunkline.leases_2 l
            where l.cursor_id = r[2]::int and l.first = r[1]::bigint and l.n = 1 and l.token::text = r[5] and l.deadline > trunkline.clock()
            for update skip locked on conflict do nothing;
        end if;
        if found then
            return next (1, p_receipts[1], 'done')::trunkline.settlement;
            return;
        elsif trunkline._ack_range(r[1]::bigint, r[1]::bigint, r[2]::int, r[3]::bigint, r[4], r[5]) then
            return next (1, p_receipts[1], 'done')::trunkline.settlement;
            return;
        end if;
    elsif cardinality(p_receipts) between 2 and 10000 and array_ndims(p_receipts) = 1 and array_position(p_receipts, null) is null then
        -- Usually all receipts belong to one lease. Parsing them one by one would cost more than the rest of
        -- the call.
        v_all := array_to_string(p_receipts, ',');
        v_tail := substr(p_receipts[1], strpos(p_receipts[1], '.'));
        if replace(v_all, v_tail, '') ~ '^[1-9][0-9]{0,17}(,[1-9][0-9]{0,17})*$' then
            v_positions := string_to_array(replace(v_all, v_tail, ''), ',');
            if cardinality(v_positions) = cardinality(p_receipts) and array_to_string(v_positions, v_tail || ',') || v_tail = v_all then
                r := trunkline.ack_lease(substr(v_tail, 2), v_positions);
                return query select x.ord::int, x.receipt, coalesce(r[x.ord], 'done') from unnest(p_receipts) with ordinality x(receipt, ord);
                return;
            end if;
        end if;
    end if;
    return query select * from trunkline._settle('a', p_receipts) order by ord;
end
$$;

-- Acknowledges positions of one lease. Returns null if all are done, else an array with one result per
-- position: done, lost or unknown. p_lease is the receipt without its position and the dot after it. For
-- client libraries: cheaper than `ack` for many messages of one lease.
create or replace function trunkline.ack_lease(p_lease text, p_positions bigint[]) returns text[]
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_lease text[];
    v_last  bigint;
    v_set   int8multirange;
    r       record;
begin
    if trunkline._names_a_lease('.' || p_lease) and array_ndims(p_positions) = 1 and cardinality(p_positions) <= 10000
       and current_setting('transaction_isolation') = 'read committed' then
        v_last := case when p_positions[1] between 1 and 999999999999990000 then p_positions[1] + cardinality(p_positions) - 1 end;
        if p_positions = array(select generate_series(p_positions[1], v_last)) then
            v_lease := string_to_array(p_lease, '.');
            if trunkline._ack_range(p_positions[1], v_last, v_lease[1]::int, v_lease[2]::bigint, v_lease[3], v_lease[4]) then
                return null;
            end if;
            v_set := int8multirange(int8range(p_positions[1], v_last + 1));
        else
            -- Null if a position is null or out of range. Then _settle processes all of them.
            v_set := (select case when bool_and(coalesce(p > 0 and p < 1000000000000000000, false)) then range_agg(int8range(p, p + 1)) filter (where p < 1000000000000000000) end from unnest(p_positions) p);
        end if;
        if v_set is not null then
            perform trunkline._commit_durably();
            r := trunkline._settle_one('a', '.' || p_lease, v_set, null, null);
            if r.done = v_set then
                return null;
            end if;
            return (select array_agg(case when p <@ r.done then 'done' when p <@ r.held then 'lost' else 'unknown' end order by ord)
                    from unnest(p_positions) with ordinality x(p, ord));
        end if;
    end if;
    return (select array_agg(r2.result order by r2.ord)
            from trunkline._settle('a', array(select x.p || '.' || p_lease from unnest(p_positions) with ordinality x(p, ord) order by x.ord)) r2);
end
$$;

-- Returns messages to the queue for another attempt after p_delay (0 to 365 days; default: the queue's
-- backoff). If this was the last attempt, the message becomes a dead letter. Returns one result per receipt:
-- done, lost or unknown.
-- p_error is stored in the delivery history and with the dead letter, cut after 10,000 characters. In an
-- ordered queue, the later messages of the lease are released too.
create or replace function trunkline.nack(p_receipts text[], p_delay interval default null, p_error text default null) returns setof trunkline.settlement
language sql
as $$ select * from trunkline._settle('n', p_receipts, p_delay, p_error) order by ord $$;

-- Moves messages to the dead letters now, whatever attempts remain. Returns one result per receipt: done,
-- lost or unknown. p_error is stored with the dead letter.
create or replace function trunkline.bury(p_receipts text[], p_error text default null) returns setof trunkline.settlement
language sql
as $$ select * from trunkline._settle('b', p_receipts, null, p_error) order by ord $$;

-- Returns messages to the queue without counting an attempt. Returns one result per receipt: done, lost or
-- unknown. In an ordered queue, the later messages of the lease are released too.
create or replace function trunkline.release(p_receipts text[]) returns setof trunkline.settlement
language sql
as $$ select * from trunkline._settle('r', p_receipts) order by ord $$;

-- Extends the lease of messages until p_for from now (1 second to 12 hours). Never shortens a lease. Returns
-- one result per receipt: done, lost or unknown. In an ordered queue, extends the whole lease.
create or replace function trunkline.extend(p_receipts text[], p_for interval default '30 seconds') returns setof trunkline.settlement
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
begin
    perform trunkline._need_duration('for', p_for, '1 second', '12 hours');
    return query select * from trunkline._settle('e', p_receipts, p_for) order by ord;
end
$$;

-- Ends a lease of an ordered queue whose deadline has passed, except for extended positions. Returns the
-- number of expired messages. Returns 0 without waiting if an open settle holds the lease: that settle wins,
-- and a later call checks the lease again.
create or replace function trunkline._expire_lease(p_lease trunkline.leases) returns int
language plpgsql
as $$
declare
    v_now  timestamptz;
    v_open int8multirange;
begin
    if not trunkline._try_lock_lease(p_lease.rotation, p_lease.cursor_id, p_lease.first) then
        return 0;
    end if;
    v_now := trunkline.clock();
    if p_lease.deadline > v_now then
        return 0;
    end if;
    select trunkline._leased(p_lease) - trunkline._extended(p_lease, v_now) - coalesce(range_agg(int8range(s.pos, s.pos + s.n)), '{}') into v_open
    from trunkline._settled_of(p_lease) s;
    if isempty(v_open) then
        return 0;
    end if;
    perform trunkline._settle_lease(p_lease, 'x', v_open, v_now, true, null, null);
    return trunkline._size(v_open);
end
$$;

-- Returns the queues of receipts, by the cursor in their second part. No row for a cursor that was deleted.
create or replace function trunkline._queues_of_cursors(p_cursors int[]) returns table (cursor_id int, queue text)
language sql stable
as $$ select c.cursor_id, q.name from trunkline.cursors c join trunkline.queues q using (queue_id) where c.cursor_id = any (p_cursors) $$;
