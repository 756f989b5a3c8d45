-- Settling: ack, nack, bury, release and extend, all fenced. A receipt is '<offset>.<cursor>.<lease>.<token>'.
-- Answers per receipt: done; lost (the lease ended, was replaced, or the message was settled otherwise); unknown (no such lease).
-- A settle may sit in the caller's transaction. It locks the lease row against expiry until that ends:
-- ack and extend share the row with each other, what sends a message back or away takes it alone.

-- Whether this is the part of a receipt behind the offset, with numbers that fit.
create or replace function trunkline._names_a_lease(p_text text) returns boolean
language sql immutable
as $$
    select split_part(p_text, '.', 1) = '' and split_part(p_text, '.', 5) = ''
       and length(split_part(p_text, '.', 2)) between 1 and 9 and ltrim(split_part(p_text, '.', 2), '0123456789') = ''
       and length(split_part(p_text, '.', 3)) between 1 and 18 and ltrim(split_part(p_text, '.', 3), '0123456789') = ''
$$;

create or replace function trunkline._settle(p_kind "char", p_receipts text[], p_delay interval default null, p_error text default null)
returns setof trunkline.settlement
language plpgsql
as $$
declare
    g        record;
    l        trunkline.leases;
    v_now    timestamptz;
    v_done   int8multirange;
    v_acked  int8multirange;
    v_other  int8multirange;
    v_kept   int8multirange;
    v_answer text;
    v_found  boolean;
    v_waits  boolean;
begin
    perform trunkline._need_read_committed('settling');
    if cardinality(p_receipts) > 10000 then
        perform trunkline._fail('TL004', format('%s receipts, the limit is 10,000', cardinality(p_receipts)), 'settle in several calls');
    end if;
    if p_receipts is null or array_ndims(p_receipts) > 1 then
        perform trunkline._fail('TL001', 'the receipts are null or not a plain array', 'pass the receipts that claim answered');
    elsif array_position(p_receipts, null) is not null then
        perform trunkline._fail('TL001', 'a receipt is null', 'pass the receipts that claim answered');
    end if;
    perform trunkline._check_duration('delay', p_delay, '0', '365 days');
    if length(p_error) > 10000 then
        p_error := left(p_error, 10000);
    end if;
    perform trunkline._commit_durably();
    for g in
        -- by lease: all of a receipt but the offset in front
        select u.lease, array_agg(u.ord) as ords, array_agg(u.receipt) as receipts, array_agg(u.off) as offs,
               coalesce(range_agg(int8range(u.off, u.off, '[]')) filter (where u.off is not null), '{}') as offsets
        from (
            select r.ord, r.receipt, substr(r.receipt, length(r.first) + 1) as lease,
                   case when length(r.first) between 1 and 18 and ltrim(r.first, '0123456789') = '' then r.first::bigint end as off
            from (select ord::int, receipt, split_part(receipt, '.', 1) as first from unnest(p_receipts) with ordinality x(receipt, ord)) r
        ) u
        group by u.lease order by u.lease
    loop
        v_done := '{}';
        v_answer := 'unknown';
        if trunkline._names_a_lease(g.lease) then
            v_waits := trunkline._wait_ten_seconds();
            if p_kind in ('a', 'e') then
                select * into l from trunkline.leases
                where cursor_id = split_part(g.lease, '.', 2)::int and lease_no = split_part(g.lease, '.', 3)::bigint for key share;
            else
                select * into l from trunkline.leases
                where cursor_id = split_part(g.lease, '.', 2)::int and lease_no = split_part(g.lease, '.', 3)::bigint for update;
            end if;
            v_found := found;
            perform trunkline._wait_as_before(v_waits);
            if v_found then
                v_answer := 'lost';
                if l.token::text = split_part(g.lease, '.', 4) then
                    -- a statement of its own: it must see what was settled while we waited for the row
                    v_now := trunkline.clock();
                    select coalesce(range_agg(e.offsets) filter (where e.kind = 'a'), '{}'),
                           coalesce(range_agg(e.offsets) filter (where e.kind not in ('a', 'e')), '{}'),
                           coalesce(range_agg(e.offsets) filter (where e.kind = 'e' and e.until > v_now), '{}')
                      into v_acked, v_other, v_kept
                      from trunkline.lease_events e where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no;
                    v_done := g.offsets * (l.offsets - v_acked - v_other);
                    if l.deadline <= v_now then
                        v_done := v_done * v_kept;
                    end if;
                    if not isempty(v_done) then
                        v_done := trunkline._settle_lease(l, p_kind, v_done, v_now, p_delay, p_error);
                    end if;
                    if p_kind = 'a' then
                        v_done := v_done + g.offsets * v_acked;
                    end if;
                end if;
            end if;
        end if;
        if v_done = g.offsets and array_position(g.offs, null) is null then
            return query select u.ord, u.receipt, 'done' from unnest(g.ords, g.receipts) u(ord, receipt);
        else
            return query
            select u.ord, u.receipt,
                   case when u.off <@ v_done then 'done'
                        when v_answer = 'lost' and u.off <@ l.offsets then 'lost'
                        else 'unknown' end
            from unnest(g.ords, g.receipts, g.offs) u(ord, receipt, off);
        end if;
    end loop;
end
$$;

-- Writes what becomes of offsets that were found to be open, under the lock on their lease. Answers those that the verb reached.
create or replace function trunkline._settle_lease(l trunkline.leases, p_kind "char", p_offsets int8multirange, p_now timestamptz, p_delay interval, p_error text)
returns int8multirange
language plpgsql
as $$
declare
    q         trunkline.queues;
    c         trunkline.cursors;
    v_kind    "char" := p_kind;
    v_offsets int8multirange := p_offsets;
    v_gone    int8multirange;
    v_behind  int8multirange;
    v_slot    smallint := (select slot from trunkline.epoch);
begin
    if p_kind = 'a' then
        insert into trunkline.lease_events (slot, cursor_id, lease_no, kind, offsets, at) values (v_slot, l.cursor_id, l.lease_no, 'a', p_offsets, p_now);
        return p_offsets;
    end if;
    select * into c from trunkline.cursors where cursor_id = l.source_id;
    select * into q from trunkline.queues where queue_id = c.queue_id;
    if p_kind = 'e' then
        -- an ordered queue keeps or loses a lease as a whole
        insert into trunkline.lease_events (slot, cursor_id, lease_no, kind, offsets, until, at)
        values (v_slot, l.cursor_id, l.lease_no, 'e', case when q.ordered then l.offsets else p_offsets end, p_now + p_delay, p_now);
        return p_offsets;
    end if;
    -- what retention or the end of the subscription took cannot come back
    v_gone := v_offsets * case when c.cursor_id is null then '{(,)}'
        else int8multirange(int8range(null, (select base_offset from trunkline.logs where log = c.log))) end;
    if not isempty(v_gone) then
        insert into trunkline.lease_events (slot, cursor_id, lease_no, kind, offsets, at) values (v_slot, l.cursor_id, l.lease_no, 'g', v_gone, p_now);
        v_offsets := v_offsets - v_gone;
        if isempty(v_offsets) then
            return v_offsets;
        end if;
    end if;
    if p_kind in ('n', 'x') and l.attempt >= q.max_attempts then
        v_kind := 'd';
    end if;
    insert into trunkline.lease_events (slot, cursor_id, lease_no, kind, offsets, at, error)
    values (v_slot, l.cursor_id, l.lease_no, v_kind, v_offsets, p_now, p_error);
    if v_kind in ('b', 'd') then
        insert into trunkline.dead_letters (queue_id, id, topic, partition, log_offset, cursor_id, key, routing_key, label, headers, payload,
                                            content_type, occurred_at, created_at, attempts, error, reason, dead_at)
        select q.queue_id, m.id, coalesce(c.topic, ''), c.partition, m.log_offset, c.cursor_id, m.key, m.routing_key, m.label, m.headers, m.payload,
               m.content_type, m.occurred_at, m.created_at, l.attempt,
               coalesce(p_error, case p_kind when 'x' then 'the lease ended without an answer' end),
               case v_kind when 'b' then 'buried' else 'attempts' end, p_now
        from trunkline._read_set(c, v_offsets) m;
    else
        insert into trunkline.pending (cursor_id, log_offset, queue_id, due_at, label, attempt, error)
        select c.cursor_id, m.log_offset, c.queue_id,
               p_now + case p_kind when 'n' then coalesce(p_delay, trunkline._backoff(q, l.attempt)) when 'r' then coalesce(p_delay, '0') else '0' end,
               m.label, case p_kind when 'r' then l.attempt - 1 else l.attempt end, p_error
        from trunkline._read_set(c, v_offsets) m;
    end if;
    -- In an ordered queue nothing behind a message that came back may be finished before it: the rest of the lease goes back too.
    if q.ordered and v_kind in ('n', 'r', 'x') then
        select l.offsets * int8multirange(int8range(lower(v_offsets), null)) - coalesce(range_agg(e.offsets) filter (where e.kind <> 'e'), '{}')
          into v_behind
          from trunkline.lease_events e where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no;
        if not isempty(v_behind) then
            perform trunkline._settle_lease(l, 'r', v_behind, p_now, null, null);
        end if;
    end if;
    return v_offsets;
end
$$;

create or replace function trunkline._backoff(q trunkline.queues, p_attempt int) returns interval
language sql volatile
as $$
    select least(extract(epoch from q.backoff_cap)::float8,
                 extract(epoch from q.backoff_base)::float8 * power(q.backoff_factor, least(p_attempt - 1, 100)))
           * (1 + q.backoff_jitter * (2 * random() - 1)) * interval '1 second'
$$;

-- The short way of an ack, for offsets of one lease of which nothing was settled or extended yet. Answers whether that was so; if not, the
-- long way finds out what each of them is. p_lease is the part of a receipt behind the first dot.
create or replace function trunkline._ack_open(p_lease text, p_offsets int8multirange) returns boolean
language plpgsql
as $$
declare
    v_now timestamptz;
    l     record;
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    -- if the lease is being ended at this moment, the long way waits for it
    select cursor_id, lease_no, token, deadline, offsets into l from trunkline.leases
    where cursor_id = split_part(p_lease, '.', 1)::int and lease_no = split_part(p_lease, '.', 2)::bigint for key share skip locked;
    v_now := trunkline.clock();
    if l.token::text = split_part(p_lease, '.', 3) and l.deadline > v_now and p_offsets <@ l.offsets then
        -- a statement of its own: it sees what was settled before the row was ours
        insert into trunkline.lease_events (slot, cursor_id, lease_no, kind, offsets, at)
        select e.slot, l.cursor_id, l.lease_no, 'a', p_offsets, v_now from trunkline.epoch e
        where not exists (select from trunkline.lease_events x where x.cursor_id = l.cursor_id and x.lease_no = l.lease_no and x.offsets && p_offsets);
        return found;
    end if;
    return false;
end
$$;

-- The messages are done. Never delivered again.
create or replace function trunkline.ack(p_receipts text[]) returns setof trunkline.settlement
language plpgsql
as $$
declare
    v_lease   text := substr(p_receipts[1], strpos(p_receipts[1], '.'));
    v_offsets int8multirange;
    v_same    boolean;
begin
    if trunkline._names_a_lease(v_lease) and array_ndims(p_receipts) = 1 and cardinality(p_receipts) <= 10000
       and current_setting('transaction_isolation') = 'read committed' then
        -- no regular expression here, and none that counts the characters of a whole receipt: they cost more than all the rest
        select range_agg(int8range(r.off, r.off + 1)), bool_and(r.off is not null) into v_offsets, v_same
        from (select case when y.first || v_lease = y.receipt and length(y.first) between 1 and 18 and ltrim(y.first, '0123456789') = '' then y.first::bigint end as off
              from (select x as receipt, split_part(x, '.', 1) as first from unnest(p_receipts) x offset 0) y) r;
        if v_same and trunkline._ack_open(substr(v_lease, 2), v_offsets) then
            return query select x.ord::int, x.receipt, 'done' from unnest(p_receipts) with ordinality x(receipt, ord);
            return;
        end if;
    end if;
    return query select * from trunkline._settle('a', p_receipts) order by ord;
end
$$;

-- The same for offsets of one lease: what our own client calls, because to take receipts apart costs more than the rest.
-- Answers null when all are done, else one answer per offset.
create or replace function trunkline.ack_lease(p_lease text, p_offsets bigint[]) returns text[]
language plpgsql
as $$
declare
    v_offsets int8multirange;
begin
    if trunkline._names_a_lease('.' || p_lease) and array_ndims(p_offsets) = 1 and cardinality(p_offsets) <= 10000
       and current_setting('transaction_isolation') = 'read committed' then
        -- null when an offset is null or not one that can be: then all goes the long way
        v_offsets := (select case when bool_and(coalesce(o > 0 and o < 1000000000000000000, false)) then range_agg(int8range(o, o + 1)) end from unnest(p_offsets) o);
        if v_offsets is not null and trunkline._ack_open(p_lease, v_offsets) then
            return null;
        end if;
    end if;
    return (select case when bool_or(r.result <> 'done') then array_agg(r.result order by r.ord) end
            from trunkline._settle('a', array(select x.o || '.' || p_lease from unnest(p_offsets) with ordinality x(o, ord) order by x.ord)) r);
end
$$;

-- Deliver again after p_delay (default: the queue's backoff), or move to the dead letters if this was the last attempt.
create or replace function trunkline.nack(p_receipts text[], p_delay interval default null, p_error text default null) returns setof trunkline.settlement
language sql
as $$ select * from trunkline._settle('n', p_receipts, p_delay, p_error) order by ord $$;

-- To the dead letters at once.
create or replace function trunkline.bury(p_receipts text[], p_error text default null) returns setof trunkline.settlement
language sql
as $$ select * from trunkline._settle('b', p_receipts, null, p_error) order by ord $$;

-- Back to the queue at once, as if it had not been delivered: the attempt does not count.
create or replace function trunkline.release(p_receipts text[]) returns setof trunkline.settlement
language sql
as $$ select * from trunkline._settle('r', p_receipts) order by ord $$;

-- Keep the messages until p_for from now; never shortens a lease.
create or replace function trunkline.extend(p_receipts text[], p_for interval default '30 seconds') returns setof trunkline.settlement
language plpgsql
as $$
begin
    perform trunkline._need_duration('for', p_for, '1 second', '12 hours');
    return query select * from trunkline._settle('e', p_receipts, p_for) order by ord;
end
$$;

-- Ends a lease whose deadline has passed, but for what was extended. Answers how many messages came back; none when somebody
-- is settling the lease at this moment: then they win.
create or replace function trunkline._expire_lease(p_lease trunkline.leases) returns int
language plpgsql
as $$
declare
    l      trunkline.leases;
    v_now  timestamptz;
    v_open int8multirange;
begin
    select * into l from trunkline.leases where cursor_id = p_lease.cursor_id and lease_no = p_lease.lease_no for update skip locked;
    if not found then
        return 0;
    end if;
    v_now := trunkline.clock();
    if l.deadline > v_now then
        return 0;
    end if;
    select l.offsets - coalesce(range_agg(e.offsets) filter (where e.kind <> 'e' or e.until > v_now), '{}') into v_open
    from trunkline.lease_events e where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no;
    if isempty(v_open) then
        return 0;
    end if;
    perform trunkline._settle_lease(l, 'x', v_open, v_now, null, null);
    return trunkline._size(v_open);
end
$$;

-- Looks at the leases of a cursor that were open at the last look: counts the finished ones, ends the overdue ones.
-- Answers how many messages came back.
create or replace function trunkline._check_leases(p_cursor_id int) returns int
language plpgsql
as $$
declare
    k       trunkline.lease_checks;
    v_now   timestamptz := trunkline.clock();
    v_high  bigint;
    v_open  bigint[];
    v_done  bigint[] := '{}';
    v_ended int := 0;
    r       record;
    l       trunkline.leases;
begin
    select * into k from trunkline.lease_checks where cursor_id = p_cursor_id order by check_no desc limit 1;
    if not found then
        k := row(null, p_cursor_id, 0, null, 0, '{}', 0, 0, 0, 0)::trunkline.lease_checks;
    end if;
    select max(lease_no) into v_high from trunkline.leases where cursor_id = p_cursor_id;
    if coalesce(v_high, 0) <= k.closed_upto and k.stragglers = '{}' then
        return 0;
    end if;
    if not pg_try_advisory_xact_lock(778002, p_cursor_id) then
        return 0;
    end if;
    select * into k from trunkline.lease_checks where cursor_id = p_cursor_id order by check_no desc limit 1;
    if not found then
        k := row(null, p_cursor_id, 0, null, 0, '{}', 0, 0, 0, 0)::trunkline.lease_checks;
    end if;
    v_open := '{}';
    for r in
        select x.lease_no, x.deadline, x.n, x.acked, x.dead, x.returned, x.gone, x.acked + x.dead + x.returned + x.gone >= x.n as closed
        from (
            select c.lease_no, c.deadline, c.n,
                   trunkline._size(range_agg(e.offsets) filter (where e.kind = 'a')) as acked,
                   trunkline._size(range_agg(e.offsets) filter (where e.kind in ('b', 'd'))) as dead,
                   trunkline._size(range_agg(e.offsets) filter (where e.kind in ('n', 'r', 'x'))) as returned,
                   trunkline._size(range_agg(e.offsets) filter (where e.kind = 'g')) as gone
            from (select o.lease_no, o.deadline, o.n from trunkline.leases o
                  where o.cursor_id = p_cursor_id and o.lease_no > k.closed_upto and o.lease_no <= v_high
                  union all
                  select o.lease_no, o.deadline, o.n from unnest(k.stragglers) z(lease_no)
                  cross join lateral (select * from trunkline.leases where cursor_id = p_cursor_id and lease_no = z.lease_no offset 0) o) c
            left join lateral (select * from trunkline.lease_events where cursor_id = p_cursor_id and lease_no = c.lease_no offset 0) e on true
            group by c.lease_no, c.deadline, c.n
        ) x
    loop
        if r.closed then
            k.acked := k.acked + r.acked;
            k.dead := k.dead + r.dead;
            k.returned := k.returned + r.returned;
            k.gone := k.gone + r.gone;
            v_done := v_done || r.lease_no;
        else
            v_open := v_open || r.lease_no;
            if r.deadline <= v_now then
                select * into l from trunkline.leases where cursor_id = p_cursor_id and lease_no = r.lease_no;
                v_ended := v_ended + trunkline._expire_lease(l);
            end if;
        end if;
    end loop;
    perform trunkline._record_history(p_cursor_id, v_done);
    insert into trunkline.lease_checks
    values ((select slot from trunkline.epoch), p_cursor_id, k.check_no + 1, v_now, greatest(k.closed_upto, v_high), v_open, k.acked, k.dead, k.returned, k.gone);
    return v_ended;
end
$$;

create or replace function trunkline._check_queue_leases(p_queue_id int) returns int
language sql
as $$ select coalesce(sum(trunkline._check_leases(cursor_id)), 0)::int from trunkline.cursors where queue_id = p_queue_id $$;
