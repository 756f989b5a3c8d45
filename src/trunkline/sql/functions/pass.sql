-- The pass: a short transaction that upkeep runs, at most five times a second. It is the only writer of `returns`,
-- `later`, `cursor_states` and `passes`. It ends overdue leases, returns messages that are due, appends delayed
-- messages to their logs, finds holes (positions that were drawn and never leased), and updates the totals of
-- cursors.
-- The work of a pass depends on what happened since the previous pass and on what is due now, not on what is
-- stored or open. docs/adr/0019 has the proof of the hole algorithm.

-- Returns the snapshot with transaction p_own counted as open. So what this transaction writes later is new
-- to the next pass.
create or replace function trunkline._without(p_snapshot pg_snapshot, p_own xid8) returns pg_snapshot
language sql immutable
as $$
    select case when p_own >= pg_snapshot_xmax(p_snapshot) then p_snapshot
                else (least(pg_snapshot_xmin(p_snapshot), p_own) || ':' || pg_snapshot_xmax(p_snapshot) || ':' ||
                      (select string_agg(x::text, ',' order by x) from (select pg_snapshot_xip(p_snapshot) union select p_own) y(x)))::pg_snapshot end
$$;

-- Returns the leases that committed between two passes: those that this pass's snapshot sees and the previous
-- pass's snapshot did not.
create or replace function trunkline._new_leases(p trunkline.pass_run) returns setof trunkline.leases
language sql stable
as $$
    -- offset 0: callers join on one cursor; without it the planner could read all leases that this cursor
    -- ever had
    select x.* from unnest(p.from_xids, p.upto_xids) r(lo, hi)
    cross join lateral (select * from trunkline.leases l where l.xid >= r.lo and l.xid < r.hi and l.xid <> p.own offset 0) x offset 0
$$;

-- Returns the rows of `settled` that committed between two passes, as _new_leases does for leases.
create or replace function trunkline._new_settled(p trunkline.pass_run) returns setof trunkline.settled
language sql stable
as $$
    select x.* from unnest(p.from_xids, p.upto_xids) r(lo, hi)
    cross join lateral (select * from trunkline.settled s where s.xid >= r.lo and s.xid < r.hi and s.xid <> p.own offset 0) x offset 0
$$;

-- After a restore into another cluster, where transaction numbers start over, replaces the numbers of old
-- rows. All transactions of the old cluster have ended. Rows that the newest pass has seen get number 1, the
-- others 2, and that pass gets the snapshot 2:2:. Then nothing depends on old numbers any more.
-- A visible row is from the old cluster if its number is not in use yet. If its number is lower, or that of
-- this transaction, it is from the old cluster if it is older than the newest pass.
create or replace function trunkline._adopt_rows() returns void
language plpgsql
as $$
declare
    b      trunkline.passes := (select x from trunkline.passes x order by x.pass desc limit 1);
    v_open xid8[] := array(select pg_snapshot_xip(b.snapshot));
    v_own  xid8 := coalesce(pg_current_xact_id_if_assigned(), '0');
begin
    if pg_snapshot_xmax(pg_current_snapshot()) > greatest(
           (select xid from trunkline.leases where xid <> v_own order by xid desc limit 1),
           (select xid from trunkline.settled where xid <> v_own order by xid desc limit 1),
           (select xid from trunkline.delayed where xid <> v_own order by xid desc limit 1), '0')
       and pg_snapshot_xmax(pg_current_snapshot()) >= pg_snapshot_xmax(b.snapshot) then
        return;
    end if;
    update trunkline.leases
       set xid = case when xid >= pg_snapshot_xmax(b.snapshot) or xid = any (v_open) then '2' else '1' end::xid8
     where (xid >= pg_snapshot_xmax(pg_current_snapshot()) and xid <> v_own) or claimed_at < b.at;
    update trunkline.settled
       set xid = case when xid >= pg_snapshot_xmax(b.snapshot) or xid = any (v_open) then '2' else '1' end::xid8
     where (xid >= pg_snapshot_xmax(pg_current_snapshot()) and xid <> v_own) or at < b.at;
    update trunkline.delayed
       set xid = case when xid >= pg_snapshot_xmax(b.snapshot) or xid = any (v_open) then '2' else '1' end::xid8
     where (xid >= pg_snapshot_xmax(pg_current_snapshot()) and xid <> v_own) or published_at < b.at;
    -- numbers alone decide what these purges have dropped
    update trunkline.queues
       set purge_xids = array_fill('1'::xid8, array[cardinality(purge_xids)]), purge_snapshots = array_fill('3:3:'::pg_snapshot, array[cardinality(purge_xids)])
     where purge_xids <> '{}';
    update trunkline.passes set snapshot = '2:2:' where pass = b.pass;
end
$$;

-- Returns what is new since the newest pass, without running one. Statistics add it to the totals of that
-- pass.
create or replace function trunkline._since_pass() returns trunkline.pass_run
language plpgsql stable
as $$
declare
    p trunkline.pass_run;
begin
    p.before := (select x from trunkline.passes x order by x.pass desc limit 1);
    p.snapshot := pg_current_snapshot();
    select * into p.from_xids, p.upto_xids from trunkline._ended_between((p.before).snapshot, p.snapshot);
    p.own := '0';
    p.now := trunkline.clock();
    return p;
end
$$;

-- Returns the number of the newest purge of any queue.
create or replace function trunkline._newest_purge() returns bigint
language sql volatile
as $$ select coalesce(pg_sequence_last_value('trunkline.purge_no'), 0) $$;

-- Returns whether a purge has dropped a message that was returned when p_no was the newest purge. Counts only
-- purges that the snapshot of the pass sees: later statements of a pass see more, and all of them must count
-- the same.
create or replace function trunkline._is_purged(q trunkline.queues, p_no bigint, p trunkline.pass_run) returns boolean
language sql stable
as $$
    select q.purge_xids <> '{}' and exists (select from unnest(q.purge_xids, q.purge_nos) u(xid, no) where u.no > p_no and pg_visible_in_snapshot(u.xid, p.snapshot))
$$;

-- Returns the state of a cursor after the newest pass, or its initial state.
create or replace function trunkline._cursor_state(c trunkline.cursors) returns trunkline.cursor_states
language plpgsql stable
as $$
declare
    s trunkline.cursor_states;
begin
    select * into s from trunkline.cursor_states where cursor_id = c.cursor_id order by pass desc limit 1;
    if not found then
        s := row(0, c.cursor_id, 0, c.start_position - 1, c.start_position - 1, c.start_position - 1, '{}', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)::trunkline.cursor_states;
    end if;
    return s;
end
$$;

-- Returns the cursor for returned messages with a label that claims skipped. Creates it for the first such
-- message. A queue has at most 100 of these; for more labels it returns null, and claims skip such messages
-- repeatedly.
create or replace function trunkline._label_cursor(p_queue_id int, p_label text) returns int
language plpgsql
as $$
declare
    v_id int := (select cursor_id from trunkline.cursors where queue_id = p_queue_id and kind = 'label' and label is not distinct from p_label);
begin
    if v_id is null and (select count(*) from trunkline.cursors where queue_id = p_queue_id and kind = 'label') < 100 then
        perform nextval('trunkline.label_cursors');
        insert into trunkline.cursors (kind, queue_id, label) values ('label', p_queue_id, p_label) returning cursor_id into v_id;
        perform trunkline._make_sequences(v_id);
    end if;
    return v_id;
end
$$;

-- Creates the sequences of a cursor: `drawn`, and `head` unless the cursor reads a log.
create or replace function trunkline._make_sequences(p_cursor_id int) returns void
language plpgsql
as $$
begin
    execute format('create sequence trunkline.cursor_%s_drawn', p_cursor_id);
    update trunkline.cursors set drawn_seq = format('trunkline.cursor_%s_drawn', p_cursor_id)::regclass where cursor_id = p_cursor_id;
    if (select kind from trunkline.cursors where cursor_id = p_cursor_id) <> 'log' then
        execute format('create sequence trunkline.cursor_%s_head', p_cursor_id);
        update trunkline.cursors set head_seq = format('trunkline.cursor_%s_head', p_cursor_id)::regclass where cursor_id = p_cursor_id;
    end if;
end
$$;

-- Returns messages to a queue: appends them to `returns`, for the queue's cursor or for the cursor of their
-- label. The caller holds the lock of passes (778001, 0). p_purges: the newest purge when each message was
-- sent back.
create or replace function trunkline._return(
    p_queue_id int, p_rotation smallint, p_sources int[], p_offsets bigint[], p_attempts int[], p_whys "char"[], p_errors text[], p_ats timestamptz[], p_purges bigint[])
returns void
language plpgsql
as $$
declare
    v_returns int;
    v_head    bigint;
    v_targets int[];
    c         trunkline.cursors;
begin
    select cursor_id into v_returns from trunkline.cursors where queue_id = p_queue_id and kind = 'returns';
    if not found then
        -- the queue was deleted meanwhile
        return;
    end if;
    v_targets := array_fill(v_returns, array[cardinality(p_sources)]);
    if 'l' = any (p_whys) or exists (select from trunkline.cursors where queue_id = p_queue_id and kind = 'label') then
        select array_agg(coalesce(case when m.id is not null and (p_whys[i] = 'l' or t.cursor_id is not null) then coalesce(t.cursor_id, trunkline._label_cursor(p_queue_id, m.label)) end, v_returns) order by i)
          into v_targets
          from generate_subscripts(p_sources, 1) i
          left join trunkline.cursors k on k.cursor_id = p_sources[i]
          left join lateral (select r.id, r.label from trunkline._read_left(k, p_offsets[i]) r) m on true
          left join trunkline.cursors t on t.queue_id = p_queue_id and t.kind = 'label' and t.label is not distinct from m.label and m.id is not null;
    end if;
    for c in select * from trunkline.cursors where cursor_id = any (v_targets) order by cursor_id loop
        -- Positions continue after the newest committed one and after those that this pass has appended. A
        -- pass inside a claim's transaction can append positions and draw them, and then be rolled back. Such
        -- positions are not used again, because they count as drawn.
        v_head := greatest((trunkline._cursor_state(c)).head, trunkline._drawn(c), (select r.pos from trunkline.returns r where r.cursor_id = c.cursor_id order by r.pos desc limit 1));
        insert into trunkline.returns (rotation, cursor_id, pos, source_id, log_offset, attempt, why, error, at, purge_no)
        select p_rotation, c.cursor_id, v_head + row_number() over (order by i), p_sources[i], p_offsets[i], p_attempts[i], p_whys[i], p_errors[i], p_ats[i], p_purges[i]
        from generate_subscripts(p_sources, 1) i where v_targets[i] = c.cursor_id;
        -- A claim that finds fewer rows than this head promises draws only those rows. So the head may be
        -- visible before the rows are committed.
        perform setval(c.head_seq, v_head + (select count(*) from unnest(v_targets) x where x = c.cursor_id));
    end loop;
end
$$;

-- Returns the positions of a cursor that open claims show in the lock table (marks), from about p_from on.
create or replace function trunkline._marked(p_cursor_id int, p_from bigint) returns int8multirange
language sql volatile
as $$
    select coalesce(range_agg(int8range(p_from + x.distance - 65536, case when x.n = 1024 then null else p_from + x.distance - 65536 + x.n end)), '{}')
    from (select (((key >> 10) & 4294967295) - p_from + 65536) & 4294967295 as distance, (key & 1023) + 1 as n
          from (select (classid::bigint << 32) | objid::bigint as key from pg_locks
                where locktype = 'advisory' and objsubid = 1 and granted and database = (select oid from pg_database where datname = current_database())) l
          where ((key >> 42) & 4194303) = (p_cursor_id & 4194303)) x
$$;

-- Returns those of the positions that no visible lease covers. For each range, reads the leases that begin in
-- it and the one before, which may reach into it.
create or replace function trunkline._unleased(p_cursor_id int, p_positions int8multirange) returns int8multirange
language sql volatile
as $$
    select p_positions - coalesce(range_agg(int8range(l.first, l.first + l.n)), '{}')
    from unnest(p_positions) r
    cross join lateral (
        select x.first, x.n from trunkline.leases x where x.cursor_id = p_cursor_id and x.first >= lower(r) and x.first < upper(r)
        union all
        (select x.first, x.n from trunkline.leases x where x.cursor_id = p_cursor_id and x.first < lower(r) order by x.first desc limit 1)) l
$$;

-- Finds holes of a cursor: positions drawn before the previous pass began that have neither a lease nor a
-- mark, because their claim was rolled back or its session died. Returns them as `lost`, and the updated
-- state.
-- Reads the leases, then the marks, then the leases again in a new snapshot. A mark disappears only after its
-- lease is visible, so a claim that commits in between is found by the second read.
create or replace function trunkline._judge(c trunkline.cursors, inout s trunkline.cursor_states, out lost int8multirange)
language plpgsql
as $$
declare
    v_head   bigint := case when c.kind = 'log' then trunkline._head(c.log) else s.head end;
    v_upto   bigint := least(s.drawn_before, v_head);
    v_left   int8multirange := s.open;
    v_marked int8multirange;
begin
    lost := '{}';
    if v_upto > s.upto then
        v_left := v_left + int8multirange(int8range(s.upto + 1, v_upto + 1));
        s.upto := v_upto;
    end if;
    if not isempty(v_left) then
        v_left := trunkline._unleased(c.cursor_id, v_left);
        if not isempty(v_left) then
            v_marked := trunkline._marked(c.cursor_id, lower(v_left));
            v_left := trunkline._unleased(c.cursor_id, v_left);
            lost := v_left - v_marked;
            v_left := v_left * v_marked;
        end if;
        s.open := v_left;
    end if;
    s.drawn_before := s.drawn;
    s.drawn := trunkline._drawn(c);
    if s.drawn > v_head and c.kind = 'log' then
        perform trunkline._draw_back(c);
        -- Positions above the head count as drawn only from the pass that finds them below the head. They may
        -- have been moved back and drawn again.
        s.drawn := v_head;
    end if;
end
$$;

-- Moves a cursor's position back to the head of its log. Only a transaction that assigns offsets itself can
-- draw offsets before they are committed, and it holds the sequencing lock of the log. If this session gets
-- that lock, the transaction has ended, and draws above the head were rolled back with their offsets. Only
-- tries both locks.
create or replace function trunkline._draw_back(c trunkline.cursors) returns void
language plpgsql
as $$
declare
    v_head bigint;
begin
    if not pg_try_advisory_xact_lock(778001, trunkline._sequenced_with(c.log)) then
        return;
    end if;
    v_head := trunkline._head(c.log);
    begin
        if pg_try_advisory_xact_lock(778005, c.cursor_id) and trunkline._drawn(c) > v_head then
            perform setval(c.drawn_seq, greatest(v_head, 1), v_head > 0);
        end if;
        raise exception using errcode = 'TLX00';
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns the messages of a hole to the queue, and counts them. Messages removed by retention count as
-- expired, those drawn before a purge as purged, and those that do not match the subscription as skipped.
create or replace function trunkline._return_hole(c trunkline.cursors, p_rotation smallint, p_lost int8multirange, p_now timestamptz, out returned bigint, out expired bigint, out purged bigint, out skipped bigint)
language plpgsql
as $$
declare
    e         record;
    v_skipped int8multirange;
    v_purged  int8multirange;
begin
    if c.kind <> 'log' then
        -- a position without a row in `returns` was left out by _return and has no message
        select coalesce(range_agg(int8range(x.pos, x.pos + 1)), '{}') into p_lost
        from unnest(p_lost) u join trunkline.returns x on x.cursor_id = c.cursor_id and x.pos >= lower(u) and x.pos < upper(u);
    end if;
    v_purged := p_lost * int8multirange(int8range(null, c.purged_upto + 1));
    purged := trunkline._size(v_purged);
    p_lost := p_lost - v_purged;
    skipped := 0;
    if c.kind = 'log' and (c.pattern_regex is not null or c.filter is not null) then
        select coalesce(range_agg(int8range(r.log_offset, r.log_offset + 1)), '{}') into v_skipped
        from trunkline._read_set(c, p_lost * int8multirange(int8range((select base_offset from trunkline.logs where log = c.log), null))) r
        where not ((c.pattern_regex is null or coalesce(r.routing_key, '') ~ c.pattern_regex)
                   and (c.filter is null or trunkline._filter_matches(c.filter, coalesce(r.headers, '{}'))));
        skipped := trunkline._size(v_skipped);
        p_lost := p_lost - v_skipped;
    end if;
    select array_agg(x.source_id order by x.pos) as sources, array_agg(x.log_offset order by x.pos) as offsets, array_agg(x.attempt order by x.pos) as attempts,
           array_agg(x.error order by x.pos) as errors, array_agg(x.purge_no order by x.pos) as purges, count(*) as n
      into e
      from (
        select p as pos, coalesce(r.source_id, c.cursor_id) as source_id, coalesce(r.log_offset, p) as log_offset, coalesce(r.attempt, 0) as attempt, r.error, r.purge_no
        from unnest(p_lost) u cross join lateral generate_series(lower(u), upper(u) - 1) p
        left join lateral (select * from trunkline.returns x where c.kind <> 'log' and x.cursor_id = c.cursor_id and x.pos = p limit 1) r on true
        where c.kind <> 'log' or p >= (select base_offset from trunkline.logs where log = c.log)
      ) x;
    returned := e.n;
    expired := trunkline._size(p_lost) - e.n;
    if e.n > 0 then
        perform trunkline._return(c.queue_id, p_rotation, e.sources, e.offsets, e.attempts, array_fill('h'::"char", array[e.n::int]), e.errors, array_fill(p_now, array[e.n::int]), e.purges);
    end if;
end
$$;

-- Checks the leases that are due and ends those that are overdue. An extended lease, or one that an open
-- settle has locked, gets a new row in `later` and is checked again.
create or replace function trunkline._end_leases(p trunkline.pass_run) returns void
language plpgsql
as $$
declare
    l     trunkline.leases;
    c     trunkline.cursors;
    v_now timestamptz;
    v_due timestamptz;
    v_set int8multirange;
    e     record;
begin
    for l in
        select x.* from trunkline.later d cross join lateral unnest(d.positions) r
        cross join lateral (select * from trunkline.leases y where y.cursor_id = d.cursor_id and y.first >= lower(r) and y.first < upper(r) offset 0) x
        where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'l'
          and trunkline._size(trunkline._leased(x)) > coalesce((
              select sum(s.n) from trunkline.settled s where s.rotation = x.rotation and s.cursor_id = x.cursor_id and s.pos >= x.first and s.pos < x.first + x.n), 0)
        order by x.cursor_id, x.first
    loop
        select * into c from trunkline.cursors where cursor_id = l.cursor_id;
        continue when not found;
        v_now := trunkline.clock();
        v_due := null;
        if l.deadline > v_now then
            -- the server's clock was set back
            v_due := l.deadline;
        elsif not trunkline._try_lock_lease(l.rotation, l.cursor_id, l.first) then
            v_due := p.upto + interval '300 milliseconds';
        else
            select trunkline._leased(l) - coalesce(range_agg(int8range(s.pos, s.pos + s.n)), '{}') into v_set from trunkline._settled_of(l) s;
            select min(x.until) into v_due from trunkline.extensions x
            where x.rotation = l.rotation and x.cursor_id = l.cursor_id and x.first = l.first and x.until > v_now and not isempty(x.positions * v_set);
            v_set := v_set - trunkline._extended(l, v_now);
            if not isempty(v_set) then
                perform trunkline._settle_lease(l, 'x', v_set, v_now, true, null, null);
                -- Messages without attempts left are dead letters now. Expired messages of an ordered queue
                -- stay in the state of their partition.
                select array_agg(x.source_id order by x.pos) as sources, array_agg(x.log_offset order by x.pos) as offsets,
                       array_agg(x.attempt + 1 order by x.pos) as attempts, count(*)::int as n
                  into e
                  from trunkline._settled_of(l) s
                  cross join lateral trunkline._entries(l, int8multirange(int8range(s.pos, s.pos + s.n)) * v_set) x
                  where s.kind = 'x' and c.drawn_seq is not null;
                if e.n > 0 then
                    perform trunkline._return(c.queue_id, p.rotation, e.sources, e.offsets, e.attempts, array_fill('x'::"char", array[e.n]),
                                              array_fill(null::text, array[e.n]), array_fill(v_now, array[e.n]), array_fill(trunkline._newest_purge(), array[e.n]));
                end if;
            end if;
        end if;
        if v_due is not null then
            insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, positions, due_at, at)
            values (p.rotation, greatest(v_due, p.upto + interval '1 microsecond'), 'l', c.queue_id, l.cursor_id, int8multirange(int8range(l.first, l.first + l.n)), v_due, v_now);
        end if;
    end loop;
end
$$;

-- Processes the rows of `later` that are due. Only passes write these rows, so no row is added before the
-- time up to which they were processed.
create or replace function trunkline._do_due(p trunkline.pass_run) returns void
language plpgsql
as $$
declare
    r record;
begin
    perform trunkline._end_leases(p);
    -- the server's clock was set back: these rows are not due yet
    insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, source_id, log_offset, attempt, why, error, due_at, at, purge_no)
    select p.rotation, greatest(d.due_at, p.upto + interval '1 microsecond'), 'r', d.queue_id, d.cursor_id, d.source_id, d.log_offset, d.attempt, d.why, d.error, d.due_at, d.at, d.purge_no
    from trunkline.later d where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'r' and d.due_at > p.now;
    for r in
        select d.queue_id, array_agg(d.source_id order by d.due_at, d.no) as sources, array_agg(d.log_offset order by d.due_at, d.no) as offsets,
               array_agg(d.attempt order by d.due_at, d.no) as attempts, array_agg(d.why order by d.due_at, d.no) as whys,
               array_agg(d.error order by d.due_at, d.no) as errors, array_agg(d.at order by d.due_at, d.no) as ats, array_agg(d.purge_no order by d.due_at, d.no) as purges
        from trunkline.later d join trunkline.queues q using (queue_id)
        where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'r' and d.due_at <= p.now and not trunkline._is_purged(q, d.purge_no, p)
        group by 1 order by 1
    loop
        perform trunkline._return(r.queue_id, p.rotation, r.sources, r.offsets, r.attempts, r.whys, r.errors, r.ats, r.purges);
    end loop;
end
$$;

-- Processes what is new: notes when new leases must be checked, returns messages that were sent back (now or
-- when they are due), and writes the delivery history.
create or replace function trunkline._do_new(p trunkline.pass_run) returns void
language plpgsql
as $$
declare
    r record;
begin
    insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, positions, due_at, at)
    select p.rotation, greatest(date_bin('250 milliseconds', l.deadline, '2000-01-01') + interval '250 milliseconds', (p.before).walked + interval '1 microsecond'), 'l', k.queue_id, l.cursor_id,
           range_agg(int8range(l.first, l.first + l.n)), max(l.deadline), p.now
    from trunkline._new_leases(p) l join trunkline.cursors k using (cursor_id)
    where l.taken is null or not isempty(l.taken) group by 2, 4, 5;
    insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, source_id, log_offset, attempt, why, error, due_at, at, purge_no)
    select p.rotation, greatest(y.due, p.upto + interval '1 microsecond'), 'r', y.queue_id, y.returns_id, y.source_id, y.log_offset, y.attempt, y.why, y.error, y.due, y.at, y.purge_no
    from trunkline._new_returns(p) y where y.due > p.now;
    for r in
        select y.queue_id, array_agg(y.source_id order by y.due, y.pos) as sources, array_agg(y.log_offset order by y.due, y.pos) as offsets,
               array_agg(y.attempt order by y.due, y.pos) as attempts, array_agg(y.why order by y.due, y.pos) as whys,
               array_agg(y.error order by y.due, y.pos) as errors, array_agg(y.at order by y.due, y.pos) as ats, array_agg(y.purge_no order by y.due, y.pos) as purges
        from trunkline._new_returns(p) y where y.due <= p.now group by 1 order by 1
    loop
        perform trunkline._return(r.queue_id, p.rotation, r.sources, r.offsets, r.attempts, r.whys, r.errors, r.ats, r.purges);
    end loop;
    insert into trunkline.history (slot, queue_id, source_id, first_offset, last_offset, attempt, consumer, claimed_at, settled_at, kind, error)
    select (select trunkline._window('history')), y.queue_id, y.source_id, min(y.log_offset), max(y.log_offset), y.attempt + 1, y.consumer, y.claimed_at, y.at, y.kind, y.error
    from (
        -- one row for each run of offsets that were settled together
        select e.*, k.queue_id, x.source_id, x.log_offset, x.attempt, (z.l).consumer, (z.l).claimed_at,
               x.log_offset - row_number() over (partition by e.cursor_id, e.first, e.xid, e.at, e.kind, e.error, x.source_id, x.attempt order by x.log_offset) as run
        from trunkline._new_settled(p) e join trunkline.cursors k using (cursor_id) join trunkline.queues q on q.queue_id = k.queue_id and q.history is not null
        cross join lateral (select x as l from trunkline.leases x where x.rotation = e.rotation and x.cursor_id = e.cursor_id and x.first = e.first offset 0) z
        cross join lateral trunkline._entries(z.l, int8multirange(int8range(e.pos, e.pos + e.n))) x
        where e.kind <> 'p'
    ) y
    group by y.cursor_id, y.first, y.xid, y.at, y.kind, y.error, y.queue_id, y.source_id, y.attempt, y.consumer, y.claimed_at, y.run;
end
$$;

-- Returns the messages that were sent back since the previous pass: by consumers, or by claims that skipped
-- them for their label. Purged messages and those of ordered queues are not included. due: when the message
-- may be delivered again.
create or replace function trunkline._new_returns(p trunkline.pass_run)
returns table (queue_id int, returns_id int, source_id int, log_offset bigint, attempt int, why "char", error text, due timestamptz, at timestamptz, pos bigint, purge_no bigint)
language sql stable
as $$
    select k.queue_id, b.cursor_id, x.source_id, x.log_offset, case e.kind when 'r' then x.attempt else x.attempt + 1 end, e.kind, e.error, e.due, e.at, x.pos, e.purge_no
    from trunkline._new_settled(p) e join trunkline.cursors k on k.cursor_id = e.cursor_id and k.drawn_seq is not null
    join trunkline.queues q on q.queue_id = k.queue_id join trunkline.cursors b on b.queue_id = k.queue_id and b.kind = 'returns'
    cross join lateral (select x as l from trunkline.leases x where x.rotation = e.rotation and x.cursor_id = e.cursor_id and x.first = e.first offset 0) z
    cross join lateral trunkline._entries(z.l, int8multirange(int8range(e.pos, e.pos + e.n))) x
    where e.kind in ('n', 'r') and not trunkline._is_purged(q, e.purge_no, p)
    union all
    select k.queue_id, b.cursor_id, x.source_id, x.log_offset, x.attempt, 'l'::"char", null, l.claimed_at, l.claimed_at, x.pos, l.purge_no
    from trunkline._new_leases(p) l join trunkline.cursors k using (cursor_id) join trunkline.queues q using (queue_id)
    join trunkline.cursors b on b.queue_id = k.queue_id and b.kind = 'returns'
    cross join lateral trunkline._entries(l, l.passed) x where l.passed is not null and not trunkline._is_purged(q, l.purge_no, p)
$$;

-- Returns cursors that may have been drawn from: those with new leases, those with draws that the previous
-- pass could not account for, those of p_queues, and 300 others in turn. The 300 are needed because a draw
-- that was rolled back leaves no trace except its sequence.
create or replace function trunkline._drawn_from(p trunkline.pass_run, p_queues int[]) returns setof trunkline.cursors
language plpgsql
as $$
declare
    v_from int := coalesce(pg_sequence_last_value('trunkline.pass_visited'), 0);
    v_turn int[];
begin
    v_turn := array(select cursor_id from trunkline.cursors where cursor_id > v_from and drawn_seq is not null order by cursor_id limit 300);
    perform setval('trunkline.pass_visited', coalesce(v_turn[300], 0));
    return query
    select k.* from trunkline.cursors k
    cross join lateral (select pg_sequence_last_value(k.drawn_seq) as last, coalesce(pg_sequence_last_value(k.drawn_seq), k.start_position - 1) as drawn offset 0) d
    -- The same as _cursor_state and _drawn, which would cost five times as much as the rest. Most queues never
    -- return a message: then nothing was drawn from that cursor. A state in the current
    -- rotation partition is newer than all others.
    left join lateral (
        (select x.upto, x.drawn, x.drawn_before, x.open from trunkline.cursor_states x
         where (d.last is not null or k.kind = 'log') and x.rotation = p.rotation and x.cursor_id = k.cursor_id order by x.pass desc limit 1)
        union all
        (select x.upto, x.drawn, x.drawn_before, x.open from trunkline.cursor_states x
         where (d.last is not null or k.kind = 'log') and x.cursor_id = k.cursor_id order by x.pass desc limit 1)
        limit 1) s on true
    where k.cursor_id = any (array(
            select cursor_id from trunkline._new_leases(p)
            union select x.cursor_id from trunkline.cursor_states x
                  where x.pass = (p.before).pass and (x.drawn <> x.upto or x.drawn_before <> x.upto or not isempty(x.open))
            union select unnest(v_turn)
            union select x.cursor_id from trunkline.cursors x where x.queue_id = any (p_queues)))
      and k.drawn_seq is not null and (d.drawn <> coalesce(s.upto, k.start_position - 1) or s.drawn <> s.upto or s.drawn_before <> s.upto or not isempty(s.open))
    order by k.cursor_id;
end
$$;

-- Appends the states of cursors after this pass, for each cursor that changed or has draws that are not
-- accounted for. p_visited: the new states of cursors that were checked for holes. p_failed: topics whose
-- delayed messages could not be appended. Returns the number of rows.
create or replace function trunkline._write_states(p trunkline.pass_run, p_visited trunkline.cursor_states[], p_failed int[]) returns int
language plpgsql
as $$
declare
    v_count int;
begin
    insert into trunkline.cursor_states
    with visited as (
        select v.* from unnest(p_visited) v
    ), changes (cursor_id, delivered, passed, skipped, expired, settled, acked, returned, dead, gone, purged, delayed, waiting, withdrawn) as (
        select l.cursor_id, trunkline._size(trunkline._leased(l)), trunkline._size(l.passed), l.skipped::bigint, l.expired::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint,
               case when l.passed is not null and trunkline._is_purged(q, l.purge_no, p) then trunkline._size(l.passed) else 0 end, 0::bigint, 0::bigint, 0::bigint
        from trunkline._new_leases(p) l join trunkline.cursors k using (cursor_id) join trunkline.queues q using (queue_id)
        union all
        select e.cursor_id, 0, 0, 0, 0, e.n, case e.kind when 'a' then e.n else 0 end, case when e.kind in ('n', 'r', 'x') then e.n else 0 end,
               case when e.kind in ('b', 'd') then e.n else 0 end, case e.kind when 'g' then e.n else 0 end,
               case when e.kind = 'p' or e.kind in ('n', 'r') and k.drawn_seq is not null and trunkline._is_purged(q, e.purge_no, p) then e.n else 0 end, 0, 0, 0
        from trunkline._new_settled(p) e join trunkline.cursors k using (cursor_id) join trunkline.queues q on q.queue_id = k.queue_id
        union all
        select y.returns_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0 from trunkline._new_returns(p) y where y.due > p.now
        union all
        -- no longer delayed: returned by this pass, or purged before
        select d.cursor_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, case when trunkline._is_purged(q, d.purge_no, p) then 1 else 0 end, -1, 0, 0
        from trunkline.later d join trunkline.queues q using (queue_id)
        where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'r' and d.due_at <= p.now
        union all
        -- published with a delay
        select k.cursor_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0
        from trunkline._new_delayed(p) d join trunkline.queues q on q.inbox_id = d.topic_id
        join trunkline.cursors k on k.queue_id = q.queue_id and k.kind = 'log' and k.topic_id = d.topic_id and k.partition = 0
        union all
        -- no longer delayed: appended to the log by this pass, or purged before
        select k.cursor_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, case when trunkline._is_withdrawn(q, d.xid, d.purge_no, p.snapshot) then 1 else 0 end
        from trunkline._due_delayed(p) d join trunkline.queues q on q.inbox_id = d.topic_id
        join trunkline.cursors k on k.queue_id = q.queue_id and k.kind = 'log' and k.topic_id = d.topic_id and k.partition = 0
        where not d.topic_id = any (p_failed)
        union all
        select v.cursor_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 from visited v
        union all
        -- cursors to which this pass may have returned messages
        select k.cursor_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 from trunkline.cursors k
        where k.kind in ('returns', 'label') and k.queue_id = any (array(
            select x.queue_id from trunkline.cursors x where x.cursor_id = any (array(select v.cursor_id from visited v))
            union select d.queue_id from trunkline.later d where d.due > (p.before).walked and d.due <= p.upto
            union select y.queue_id from trunkline._new_returns(p) y))
    ), sums as (
        select cursor_id, sum(delivered) as delivered, sum(passed) as passed, sum(skipped) as skipped, sum(expired) as expired, sum(settled) as settled, sum(acked) as acked,
               sum(returned) as returned, sum(dead) as dead, sum(gone) as gone, sum(purged) as purged, sum(delayed) as delayed, sum(waiting) as waiting,
               sum(withdrawn) as withdrawn
        from changes group by cursor_id
    ), heads as (
        -- the newest position in `returns`, and the number of positions before it that were left out
        select k.cursor_id, x.pos as head, x.pos - o.head - x.n as omitted
        from sums c join trunkline.cursors k using (cursor_id) cross join lateral trunkline._cursor_state(k) o
        cross join lateral (select max(r.pos) as pos, count(*) as n from trunkline.returns r where r.cursor_id = k.cursor_id and r.pos > o.head) x where x.n > 0
    ), after as (
        select o as old, row(p.rotation, k.cursor_id, (p.before).pass + 1, coalesce(v.drawn, o.drawn), coalesce(v.drawn_before, o.drawn_before), coalesce(v.upto, o.upto), coalesce(v.open, o.open),
                   coalesce(h.head, o.head),
                   o.delivered + c.delivered, o.passed + c.passed, coalesce(v.skipped, o.skipped) + c.skipped, coalesce(v.expired, o.expired) + c.expired, coalesce(v.holes, o.holes) + coalesce(h.omitted, 0),
                   o.settled + c.settled, o.acked + c.acked, o.returned + c.returned, o.dead + c.dead, o.gone + c.gone, coalesce(v.purged, o.purged) + c.purged, o.delayed + c.delayed,
                   o.waiting + c.waiting, o.withdrawn + c.withdrawn)::trunkline.cursor_states as new
        from sums c join trunkline.cursors k using (cursor_id)
        cross join lateral trunkline._cursor_state(k) o
        left join visited v on v.cursor_id = k.cursor_id
        left join heads h on h.cursor_id = k.cursor_id
    )
    select (a.new).* from after a
    where (a.new).drawn_before <> (a.new).upto or (a.new).drawn <> (a.new).upto or not isempty((a.new).open)
       or row_to_json(a.new)::jsonb - '{rotation,pass}'::text[] <> row_to_json(a.old)::jsonb - '{rotation,pass}'::text[];
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- Runs one pass over everything that is new or due. Returns its number, or null if there was nothing to do.
-- The caller holds the lock (778001, 0). p_queues: also check all cursors of these queues for holes.
create or replace function trunkline._pass(p_queues int[] default null) returns bigint
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    p         trunkline.pass_run;
    c         trunkline.cursors;
    s         trunkline.cursor_states;
    v_lost    int8multirange;
    v_found   record;
    v_cursors trunkline.cursors[];
    v_visited trunkline.cursor_states[] := '{}';
    v_failed  int[];
begin
    perform trunkline._adopt_rows();
    p := trunkline._since_pass();
    p.rotation := (select current from trunkline.rotation);
    -- Advances even if the server's clock was set back. Limits the work of one pass to about 5,000 due rows.
    p.upto := greatest((p.before).walked + interval '2 microseconds',
                       least(p.now, (select d.due from trunkline.later d where d.due > (p.before).walked and d.due <= p.now order by d.due offset 5000 limit 1)));
    p.upto := least(p.upto, trunkline._delayed_upto(p));
    v_cursors := array(select k from trunkline._drawn_from(p, p_queues) k);
    if v_cursors = '{}' and not exists (select from trunkline._new_leases(p)) and not exists (select from trunkline._new_settled(p)) and not exists (select from trunkline._new_delayed(p))
       and not exists (select from trunkline.later d where d.due > (p.before).walked and d.due <= p.upto) then
        return null;
    end if;

    perform nextval('trunkline.pass_epoch');
    p.own := pg_current_xact_id();
    perform trunkline._commit_durably();
    -- from here on, "new" means visible in this snapshot
    p.snapshot := pg_current_snapshot();
    select * into p.from_xids, p.upto_xids from trunkline._ended_between((p.before).snapshot, p.snapshot);
    perform trunkline._do_new(p);
    perform trunkline._note_delayed(p);
    perform trunkline._do_due(p);
    v_failed := trunkline._release_delayed(p);
    foreach c in array v_cursors loop
        s := trunkline._cursor_state(c);
        v_found := trunkline._judge(c, s);
        s := v_found.s;
        v_lost := v_found.lost;
        if not isempty(v_lost) then
            v_found := trunkline._return_hole(c, p.rotation, v_lost, p.now);
            s.holes := s.holes + v_found.returned + v_found.purged;
            s.purged := s.purged + v_found.purged;
            s.skipped := s.skipped + v_found.skipped;
            s.expired := s.expired + v_found.expired;
        end if;
        v_visited := v_visited || s;
    end loop;
    perform trunkline._write_states(p, v_visited, v_failed);
    -- The time is read after the snapshot. So what this pass has seen is older than `at`; what is older and
    -- was not seen was open then (_adopt_rows).
    insert into trunkline.passes values (p.rotation, (p.before).pass + 1, p.own, trunkline._without(p.snapshot, p.own), p.upto, trunkline.clock());
    return (p.before).pass + 1;
end
$$;

-- Acquires a sequencing lock (log 0: the lock of passes) and returns whether it succeeded. Waits only if
-- p_wait, at most 300 ms. Passes take milliseconds, so a holder that takes longer is an open transaction, and
-- the caller skips its log.
create or replace function trunkline._lock_sequencing(p_log int, p_wait boolean) returns boolean
language plpgsql
as $$
declare
    v_before text := current_setting('lock_timeout');
begin
    if pg_try_advisory_xact_lock(778001, p_log) then
        return true;
    elsif not p_wait then
        return false;
    end if;
    begin
        perform set_config('lock_timeout', '300ms', true);
        perform pg_advisory_xact_lock(778001, p_log);
        perform set_config('lock_timeout', v_before, true);
        return true;
    exception when lock_not_available then
        return false;
    end;
end
$$;

-- Assigns offsets to committed messages of these logs. moved: there were some. skipped: another transaction
-- holds the lock of some of the logs.
create or replace function trunkline._sequence_logs(p_logs int[], p_wait boolean default false, out moved boolean, out skipped boolean)
language plpgsql
as $$
declare
    r      record;
    v_head bigint;
begin
    moved := false;
    skipped := false;
    for r in
        select l.log, l.topic_id, l.partition, t.segment_rows from trunkline.logs l join trunkline.topics t using (topic_id) where l.log = any (p_logs) and not t.shared and l.log <> 1
        union
        select 1, 0, 1, 0 from trunkline.logs l join trunkline.topics t using (topic_id) where l.log = any (p_logs) and (t.shared or l.log = 1)
        order by log
    loop
        begin
            continue when not trunkline._has_unsequenced(r.log, r.topic_id, r.partition);
            if not trunkline._lock_sequencing(r.log, p_wait and not skipped) then
                skipped := true;
                continue;
            end if;
            if r.log = 1 then
                moved := trunkline._tick_store() or moved;
                continue;
            end if;
            v_head := trunkline._head(r.log);
            moved := trunkline._tick(r.topic_id, r.partition, r.segment_rows) > v_head or moved;
        exception when others then
            perform trunkline._pass_if_gone(r.topic_id, sqlstate, sqlerrm);
        end;
    end loop;
end
$$;

-- Returns whether a log may have messages without an offset: ids were drawn since the last scan, or an open
-- transaction held ids then.
create or replace function trunkline._has_unsequenced(p_log int, p_topic_id int, p_partition int) returns boolean
language plpgsql
as $$
declare
    t trunkline.ticks := trunkline._tick_of(p_log, null);
begin
    return not coalesce(t.whole, true) or trunkline._last_id(p_topic_id, p_partition) > coalesce(t.last_id, 0);
end
$$;

-- Returns the leases of a queue that have unsettled positions, and these positions. The caller has called
-- _begin_read.
create or replace function trunkline._open_leases(p_queue_id int) returns table (l trunkline.leases, positions int8multirange)
language plpgsql stable
as $$
declare
    p trunkline.pass_run := trunkline._since_pass();
begin
    return query
    select x.l, trunkline._leased(x.l) - coalesce(e.positions, '{}')
    from (
        -- every lease that passes have seen is in `later` until it is due
        select y.lease as l from trunkline.later d cross join lateral unnest(d.positions) r
        cross join lateral (select z as lease from trunkline.leases z where z.cursor_id = d.cursor_id and z.first >= lower(r) and z.first < upper(r) offset 0) y
        where d.queue_id = p_queue_id and d.kind = 'l' and d.due > (p.before).walked
        union all
        select y from trunkline._new_leases(p) y join trunkline.cursors c using (cursor_id) where c.queue_id = p_queue_id
    ) x
    left join lateral (select range_agg(int8range(s.pos, s.pos + s.n)) as positions from trunkline.settled s
                       where s.rotation = (x.l).rotation and s.cursor_id = (x.l).cursor_id and s.pos >= (x.l).first and s.pos < (x.l).first + (x.l).n) e on true
    where not isempty(trunkline._leased(x.l) - coalesce(e.positions, '{}'));
end
$$;

-- Returns the messages that were returned to a queue and are not leased again: when each may be delivered,
-- and why it was returned.
create or replace function trunkline._returned(p_queue_id int)
returns table (source_id int, log_offset bigint, attempt int, why "char", error text, due_at timestamptz, at timestamptz)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    p trunkline.pass_run := trunkline._since_pass();
begin
    if (select ordered from trunkline.queues where queue_id = p_queue_id) then
        return query
        select c.cursor_id, u.log_offset, u.attempt, 'n'::"char", u.error, u.due, u.due
        from trunkline.cursors c cross join lateral trunkline._ordered_state(c) o
        cross join lateral unnest(o.offsets, o.attempts, o.errors, o.dues) u(log_offset, attempt, error, due)
        where c.queue_id = p_queue_id and c.kind = 'log';
        return;
    end if;
    return query
    select distinct on (r.cursor_id, r.pos) r.source_id, r.log_offset, r.attempt, r.why, r.error, r.at, r.at
    from trunkline.cursors c cross join lateral (select trunkline._drawn(c) as drawn offset 0) n
    cross join lateral (select * from trunkline.returns x where x.cursor_id = c.cursor_id and x.pos > n.drawn offset 0) r
    where c.queue_id = p_queue_id and c.kind in ('returns', 'label');
    return query
    select d.source_id, d.log_offset, d.attempt, d.why, d.error, d.due_at, d.at
    from trunkline.later d join trunkline.queues q using (queue_id)
    where d.queue_id = p_queue_id and d.kind = 'r' and d.due > (p.before).walked and not trunkline._is_purged(q, d.purge_no, p);
    return query select y.source_id, y.log_offset, y.attempt, y.why, y.error, y.due, y.at from trunkline._new_returns(p) y where y.queue_id = p_queue_id;
end
$$;

-- Returns the same for one message of a log, without listing all returned messages of the queue.
create or replace function trunkline._returned_at(c trunkline.cursors, p_offset bigint)
returns table (source_id int, log_offset bigint, attempt int, why "char", error text, due_at timestamptz, at timestamptz)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    p trunkline.pass_run := trunkline._since_pass();
begin
    if (select ordered from trunkline.queues where queue_id = c.queue_id) then
        return query select r.* from trunkline._returned(c.queue_id) r where r.source_id = c.cursor_id and r.log_offset = p_offset;
        return;
    end if;
    return query
    select r.source_id, r.log_offset, r.attempt, r.why, r.error, r.at, r.at
    from (select x.* from trunkline.returns x where x.source_id = c.cursor_id and x.log_offset = p_offset offset 0) r
    join trunkline.cursors k on k.cursor_id = r.cursor_id and k.queue_id = c.queue_id
    where r.pos > trunkline._drawn(k) limit 1;
    if not found then
        return query
        select d.source_id, d.log_offset, d.attempt, d.why, d.error, d.due_at, d.at
        from trunkline.later d join trunkline.queues q using (queue_id)
        where d.queue_id = c.queue_id and d.kind = 'r' and d.due > (p.before).walked and d.source_id = c.cursor_id and d.log_offset = p_offset
          and not trunkline._is_purged(q, d.purge_no, p)
        limit 1;
    end if;
    if not found then
        return query
        select y.source_id, y.log_offset, y.attempt, y.why, y.error, y.due, y.at from trunkline._new_returns(p) y
        where y.queue_id = c.queue_id and y.source_id = c.cursor_id and y.log_offset = p_offset limit 1;
    end if;
end
$$;

-- Returns whether a log has committed messages without an offset.
create or replace function trunkline._has_committed(p_log int, p_topic_id int, p_partition int) returns boolean
language plpgsql
as $$
declare
    t trunkline.ticks;
begin
    if not trunkline._has_unsequenced(p_log, p_topic_id, p_partition) then
        return false;
    end if;
    t := trunkline._tick_of(p_log, null);
    return not isempty((trunkline._unsequenced(t, p_topic_id, p_partition, trunkline._snapshot_of_others())).ids);
end
$$;

-- Returns whether one of these logs has committed messages without an offset, or the next pass will return
-- messages to one of these queues.
create or replace function trunkline._has_work(p_queues int[], p_logs int[]) returns boolean
language plpgsql
as $$
declare
    p      trunkline.pass_run;
    v_work boolean;
begin
    if exists (select from trunkline.logs l join trunkline.topics t using (topic_id)
               where l.log = any (p_logs) and case when t.shared then false else trunkline._has_committed(l.log, l.topic_id, l.partition) end)
       or exists (select from trunkline.logs l join trunkline.topics t using (topic_id) where l.log = any (p_logs) and t.shared) and p_logs && array(select trunkline._store_new_logs())
       or trunkline._has_due(array(select distinct topic_id from trunkline.logs where log = any (p_logs))) then
        return true;
    elsif p_queues is null then
        return false;
    end if;
    begin
        perform trunkline._begin_read();
        p := trunkline._since_pass();
        v_work := exists (select from trunkline.later d where d.queue_id = any (p_queues) and d.due > (p.before).walked and d.due <= p.now)
               or exists (select from trunkline._new_returns(p) y where y.queue_id = any (p_queues) and y.due <= p.now);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return v_work;
end
$$;

-- For a claim or fetch that found nothing. Returns whether the caller should try again.
-- If a service runs passes: waits until the passes have no more work for these queues and logs, or until
-- p_passes of them have begun and ended. With p_passes 0 returns at once.
-- If no pass has run for `sequence_alone_after` (1 s): assigns offsets and runs passes in the caller's
-- transaction. Until that transaction ends, other sessions skip what it has locked.
create or replace function trunkline._sequence_alone(p_queues int[], p_logs int[], p_passes int default 1) returns boolean
language plpgsql
as $$
declare
    v_logs  int[];
    v_ended bigint := coalesce(pg_sequence_last_value('trunkline.pass_ended'), 0);
    v_left  float8 := v_ended / 1000.0 + extract(epoch from trunkline._setting('sequence_alone_after')::interval) - extract(epoch from clock_timestamp());
    v_alone boolean := v_left not between 0 and extract(epoch from trunkline._setting('sequence_alone_after')::interval);
    v_new   boolean;
begin
    if not v_alone and p_passes = 0 or pg_is_in_recovery() then
        return false;
    end if;
    v_logs := array(select c.log from trunkline.cursors c where c.queue_id = any (p_queues) and c.kind = 'log' union select unnest(p_logs));
    if not v_alone then
        if not trunkline._has_work(p_queues, v_logs) then
            -- or a pass did the work after this statement began
            return v_ended >= extract(epoch from statement_timestamp()) * 1000 - 100;
        end if;
        -- A pass updates pass_ended before it commits. So only the pass after the next update has certainly
        -- begun after this call.
        for i in 1 .. ceil(least(v_left, 1.05) * 100) loop
            perform pg_sleep(0.01);
            if pg_sequence_last_value('trunkline.pass_ended') <> v_ended then
                v_ended := pg_sequence_last_value('trunkline.pass_ended');
                p_passes := p_passes - 1;
            end if;
            if p_passes < 0 or not trunkline._has_work(p_queues, v_logs) then
                return true;
            end if;
        end loop;
        if v_left > 1.05 then
            return true;
        end if;
    end if;
    perform trunkline._release_due(array(select distinct topic_id from trunkline.logs where log = any (v_logs)));
    v_new := (trunkline._sequence_logs(v_logs)).moved;
    if p_queues is not null and pg_try_advisory_xact_lock(778001, 0) then
        -- a position is checked for a hole two passes after its draw
        for i in 1 .. 3 loop
            exit when trunkline._pass(p_queues) is null;
            v_new := true;
        end loop;
    end if;
    return v_new;
end
$$;

-- Assigns offsets to what was committed in a topic, before a reader is created or moved. Waits for two
-- passes: the second one begins after this call.
create or replace function trunkline._sequence_topic(p_topic_id int) returns boolean
language sql
as $$ select trunkline._sequence_alone(null, array(select log from trunkline.logs where topic_id = p_topic_id), 2) $$;

-- Records that a service runs passes. For the next second, claims and fetches do not run passes themselves.
create or replace function trunkline._note_service() returns void
language sql
as $$ select setval('trunkline.pass_ended', (extract(epoch from clock_timestamp()) * 1000)::bigint) $$;

-- Assigns offsets to committed messages in the logs that these queues and topics read. If both arguments are
-- null: all queues, and up to 500 logs of topics chosen at random.
-- Returns false if it skipped a log because another transaction holds its lock; call it again soon. Waits at
-- most 300 ms for such a lock, and not at all if both arguments are null. Requires a READ COMMITTED
-- transaction.
create or replace function trunkline.sequence_logs(p_queues text[], p_topics text[]) returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_all boolean := p_queues is null and p_topics is null;
begin
    perform trunkline._need_read_committed('sequence');
    return not (trunkline._sequence_logs(trunkline._logs_of(p_queues, p_topics) || array(
        select 1 where v_all
        union (select l.log from trunkline.topics t join trunkline.logs l using (topic_id) where v_all and not t.shared order by random() limit 500)), not v_all)).skipped;
end
$$;

-- Returns the logs that these queues and topics read.
create or replace function trunkline._logs_of(p_queues text[], p_topics text[]) returns int[]
language sql stable
as $$
    select array(
        select c.log from trunkline.queues q join trunkline.cursors c using (queue_id) where q.name = any (p_queues) and c.kind = 'log'
        union select l.log from trunkline.topics t join trunkline.logs l using (topic_id) where t.kind = 'topic' and t.name = any (p_topics))
$$;

-- Does the same as `sequence_logs`, and then runs one pass if p_queues is not empty, if delayed messages of
-- the topics are due, or if both arguments are null. Returns false if it skipped a log, or if another
-- transaction holds the lock of passes.
-- Runs in the caller's transaction and keeps its locks until that ends. Use `call trunkline.sequence()`,
-- which has its own transaction.
create or replace function trunkline.run_pass(p_queues text[] default null, p_topics text[] default null) returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_all   boolean := p_queues is null and p_topics is null;
    v_whole boolean := trunkline.sequence_logs(p_queues, p_topics);
    v_due   boolean := not v_all and trunkline._has_due(array(select distinct l.topic_id from trunkline.logs l where l.log = any (trunkline._logs_of(p_queues, p_topics))));
begin
    if v_all or p_queues <> '{}' or v_due then
        if not trunkline._lock_sequencing(0, true) then
            return false;
        end if;
        perform trunkline._run_passes(array(select queue_id from trunkline.queues where name = any (p_queues)));
        perform trunkline._note_service();
        if v_due then
            -- offsets for the messages that the pass has appended
            return trunkline.sequence_logs(p_queues, p_topics);
        end if;
    end if;
    return v_whole;
end
$$;

-- Returns the number of seconds after which a process with waiting consumers should run a pass, or null if
-- there is nothing to return to a queue. Processes share passes: one at most every 200 ms, and one per second
-- if no message is known to be due.
create or replace function trunkline.next_pass() returns float8
language plpgsql
as $$
declare
    v_age float8 := extract(epoch from clock_timestamp()) - coalesce(pg_sequence_last_value('trunkline.pass_ended'), 0) / 1000.0;
    p     trunkline.pass_run;
    v_due boolean;
begin
    if v_age not between 0 and 1 then
        return 0;
    end if;
    begin
        perform trunkline._begin_read();
        p := trunkline._since_pass();
        v_due := exists (select from trunkline.later d where d.due > (p.before).walked and d.due <= p.now)
              or exists (select from trunkline._new_settled(p) e where e.kind in ('n', 'r'))
              or exists (select from trunkline._new_leases(p) l where l.passed is not null)
              or exists (select from trunkline._new_delayed(p));
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return case when v_due then greatest(0.2 - v_age, 0) end;
end
$$;

-- Assigns offsets to committed messages and returns messages that are due to their queues, now. For consumers
-- that wait. Arguments as for `run_pass`. Begins with a commit, so it cannot be called inside a transaction.
-- Does nothing on a standby.
create or replace procedure trunkline.sequence(p_queues text[] default null, p_topics text[] default null)
language plpgsql
as $$
begin
    commit;
    set transaction isolation level read committed;
    -- a procedure that commits cannot have settings (pin.sql)
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    -- a standby shows what its primary has sequenced
    if not pg_is_in_recovery() then
        perform trunkline.run_pass(p_queues, p_topics);
    end if;
end
$$;
