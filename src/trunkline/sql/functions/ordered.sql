-- Ordered queues: a partition has at most one open lease, so no message is delivered before an earlier one is
-- finished. The newest lease of a partition is its state. The lock of a partition is only tried: while a
-- claim stays open, other claims skip the partition.

-- Returns the state of a partition: its newest lease, whether that is open, the returned messages with their
-- due times, and the next new offset.
create or replace function trunkline._ordered_state(
    c trunkline.cursors, out l trunkline.leases, out is_open boolean, out offsets bigint[], out attempts int[], out dues timestamptz[], out errors text[], out next_offset bigint)
language plpgsql
as $$
begin
    begin
        perform trunkline._begin_read();
        l := (select x from trunkline.leases x where x.cursor_id = c.cursor_id order by x.first desc limit 1);
        if l.cursor_id is null then
            is_open := false;
            next_offset := c.start_position;
            perform trunkline._end_read();
            return;
        end if;
        next_offset := l.next_offset;
        with positions as (
            select l.offsets[i] as log_offset, l.attempts[i] as attempt, s.kind, s.due, s.error
            from generate_series(1, coalesce(cardinality(l.offsets), 0)) i
            left join trunkline.settled s on s.rotation = l.rotation and s.cursor_id = l.cursor_id and s.first = l.first
                                         -- The index is on positions. Without a lower bound it would read all
                                         -- earlier rows of the partition.
                                         and s.pos >= l.first and s.pos <= l.first + i - 1 and s.pos + s.n > l.first + i - 1
            where l.taken is null or l.taken @> l.first + i - 1
        ), back as (
            select p.log_offset, case p.kind when 'r' then p.attempt else p.attempt + 1 end as attempt, p.due, p.error from positions p where p.kind in ('n', 'r', 'x')
            union all
            select h.log_offset, h.attempt, h.due, h.error from unnest(l.held_offsets, l.held_attempts, l.held_dues, l.held_errors) h(log_offset, attempt, due, error)
        )
        select (select coalesce(bool_or(p.kind is null), false) from positions p), array_agg(b.log_offset order by b.log_offset), array_agg(b.attempt order by b.log_offset),
               array_agg(b.due order by b.log_offset), array_agg(b.error order by b.log_offset)
          into is_open, offsets, attempts, dues, errors
          from back b;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns when the lease of a partition ends: at its deadline, or at its latest extension.
create or replace function trunkline._ends_at(l trunkline.leases) returns timestamptz
language plpgsql
as $$
declare
    v_until timestamptz;
begin
    begin
        v_until := (select max(e.until) from trunkline.extensions e where e.rotation = l.rotation and e.cursor_id = l.cursor_id and e.first = l.first);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return greatest(l.deadline, v_until);
end
$$;

-- Returns the draw s with the first returned messages of an ordered partition (state p_state) that are due and
-- have the same number of attempts.
create or replace function trunkline._next_returned(c trunkline.cursors, q trunkline.queues, s trunkline.leases, p_state record, p_want int) returns trunkline.leases
language plpgsql
as $$
declare
    v_now  timestamptz := trunkline.clock();
    v_take int := 0;
    v_gone boolean[];
begin
    while v_take < least(p_want, cardinality(p_state.offsets)) and p_state.dues[v_take + 1] <= v_now and p_state.attempts[v_take + 1] = p_state.attempts[1] loop
        v_take := v_take + 1;
    end loop;
    if v_take = 0 then
        return s;
    end if;
    s.n := v_take;
    s.offsets := p_state.offsets[:v_take];
    s.attempts := p_state.attempts[:v_take];
    s.source_ids := array_fill(c.cursor_id, array[v_take]);
    s.held_offsets := p_state.offsets[v_take + 1:];
    s.held_attempts := p_state.attempts[v_take + 1:];
    s.held_dues := p_state.dues[v_take + 1:];
    s.held_errors := p_state.errors[v_take + 1:];
    select array_agg(x.log_offset < g.base_offset or x.log_offset <= c.purged_upto or coalesce(m.entered_at < v_now - q.ttl, false) order by x.log_offset) into v_gone
    from unnest(s.offsets) x(log_offset) cross join (select base_offset from trunkline.logs where log = c.log) g
    left join lateral (select r.entered_at from trunkline._read_left(c, x.log_offset) r where q.ttl is not null) m on true;
    if true = any (v_gone) then
        s.taken := (select coalesce(range_agg(int8range(s.first + i - 1, s.first + i)), '{}') from generate_series(1, v_take) i where not v_gone[i]);
        s.expired := (select count(*) from unnest(v_gone) x where x);
    end if;
    return s;
end
$$;

-- Returns the next lease of one partition. n is 0 if no message can be delivered now. The caller holds the
-- cursor's lock. An overdue lease is expired here.
create or replace function trunkline._next_ordered(c trunkline.cursors, q trunkline.queues, p_want int) returns trunkline.leases
language plpgsql
as $$
declare
    v_now  timestamptz := trunkline.clock();
    o      record;
    s      trunkline.leases := trunkline._new_draw(c);
    v_head bigint;
    v_scan trunkline.leases;
begin
    o := trunkline._ordered_state(c);
    if o.is_open then
        if trunkline._ends_at(o.l) > v_now or trunkline._expire_lease(o.l) = 0 then
            return s;
        end if;
        o := trunkline._ordered_state(c);
    end if;
    s.first := coalesce((o.l).first + (o.l).n, 1);
    s.next_offset := o.next_offset;
    if o.offsets is not null then
        -- returned messages come first, in the order of the log
        return trunkline._next_returned(c, q, s, o, p_want);
    end if;
    v_head := trunkline._head(c.log);
    v_scan.first := greatest(o.next_offset, (select base_offset from trunkline.logs where log = c.log));
    s.expired := v_scan.first - o.next_offset;
    if v_head < v_scan.first and s.expired = 0 then
        return s;
    end if;
    if v_head >= v_scan.first then
        v_scan := trunkline._scan_log(v_scan, c, q, v_head, p_want, null);
    else
        v_scan.n := 0;
        v_scan.taken := '{}';
        v_scan.skipped := 0;
        v_scan.expired := 0;
    end if;
    if v_scan.n = 0 and s.expired = 0 then
        return s;
    end if;
    s.next_offset := v_scan.first + v_scan.n;
    s.claimed_at := v_scan.claimed_at;
    s.skipped := v_scan.skipped;
    s.expired := s.expired + v_scan.expired;
    s.offsets := array(select o2 from unnest(v_scan.taken) r cross join lateral generate_series(lower(r), upper(r) - 1) o2 order by o2);
    s.n := cardinality(s.offsets);
    s.attempts := array_fill(0, array[s.n]);
    s.source_ids := array_fill(c.cursor_id, array[s.n]);
    if s.n = 0 then
        -- An empty lease, which only moves the partition's position.
        s.n := 1;
        s.taken := '{}';
        s.offsets := '{}';
    end if;
    return s;
end
$$;

-- Claims up to p_want messages from the partitions of an ordered queue, in random order. Partitions that
-- another transaction has locked are skipped.
create or replace function trunkline._claim_ordered(q trunkline.queues, p_want int, p_lease interval, p_consumer text) returns setof trunkline.delivery
language plpgsql
as $$
declare
    c       trunkline.cursors;
    s       trunkline.leases;
    v_want  int := p_want;
    v_count int;
begin
    for c in select * from trunkline.cursors where queue_id = q.queue_id and kind = 'log' order by random() loop
        exit when v_want <= 0;
        continue when not pg_try_advisory_xact_lock(778005, c.cursor_id);
        -- A lease without deliveries only moves the position. Then try again, at most 20 times.
        for i in 1 .. 20 loop
            s := trunkline._next_ordered(c, q, v_want);
            exit when s.n = 0;
            return query select * from trunkline._lease(s, c, p_lease, p_consumer);
            get diagnostics v_count = row_count;
            v_want := v_want - v_count;
            exit when v_count > 0;
        end loop;
    end loop;
end
$$;
