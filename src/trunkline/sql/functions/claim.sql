-- Claiming: one row for the whole batch (DESIGN 3.3). The newest lease row of a cursor is the cursor's state.
-- Lock order: see ../README.md.

-- The state of a queue's cursor, ready to become the next row: numbered on, with no messages.
create or replace function trunkline._lease_state(c trunkline.cursors) returns trunkline.leases
language plpgsql
as $$
declare
    s trunkline.leases;
begin
    select * into s from trunkline.leases where cursor_id = c.cursor_id order by lease_no desc limit 1;
    if not found then
        s.cursor_id := c.cursor_id;
        s.lease_no := 0;
        s.position := c.start_position;
        s.delivered := 0;
        s.passed := 0;
        s.skipped := 0;
        s.expired := 0;
        s.purged := 0;
    end if;
    s.lease_no := s.lease_no + 1;
    s.source_id := c.cursor_id;
    s.offsets := '{}';
    s.n := 0;
    return s;
end
$$;

-- Writes a row that only moves the cursor.
create or replace function trunkline._move_cursor(s trunkline.leases) returns void
language plpgsql
as $$
begin
    insert into trunkline.leases
    values ((select slot from trunkline.epoch), s.cursor_id, s.lease_no, s.source_id, '{}', 0, 0, gen_random_uuid(), null,
            trunkline.clock(), trunkline.clock(), s.position, s.delivered, s.passed, s.skipped, s.expired, s.purged);
end
$$;

-- Writes a lease and answers its deliveries.
create or replace function trunkline._lease(s trunkline.leases, c trunkline.cursors) returns setof trunkline.delivery
language plpgsql
as $$
declare
    v_lease text;
begin
    s.token := gen_random_uuid();
    s.n := trunkline._size(s.offsets);
    insert into trunkline.leases
    values ((select slot from trunkline.epoch), s.cursor_id, s.lease_no, s.source_id, s.offsets, s.n, s.attempt, s.token, s.consumer,
            s.claimed_at, s.deadline, s.position, s.delivered, s.passed, s.skipped, s.expired, s.purged);
    v_lease := '.' || s.cursor_id || '.' || s.lease_no || '.' || s.token;
    if upper(s.offsets) - lower(s.offsets) = s.n then
        return query select r.log_offset || v_lease, s.attempt, s.deadline, c.topic, c.partition, r.*
                     from trunkline._read(c.topic_id, c.partition, c.segment_rows, lower(s.offsets), upper(s.offsets) - 1) r;
    else
        return query select r.log_offset || v_lease, s.attempt, s.deadline, c.topic, c.partition, r.*
                     from trunkline._read_set(c, s.offsets) r;
    end if;
end
$$;

-- Reads on from the state's position, and decides about each message: not for this subscription (skipped), too old (expired),
-- another label (passed: it waits in pending, without an attempt), too young (stop here), or taken. Fills s.
create or replace function trunkline._scan(
    inout s trunkline.leases, c trunkline.cursors, p_head bigint, p_want int, p_labels text[], p_oldest timestamptz, p_youngest timestamptz)
language plpgsql
as $$
declare
    v_chunk  bigint;
    v_from   bigint := s.position;
    v_taken  int := 0;
    v_found  record;
begin
    while s.position <= p_head and v_taken < p_want and s.position - v_from < 100000 loop
        v_chunk := least(p_head, s.position + greatest(p_want, 1000) - 1);
        with m as (
            select r.log_offset, r.label,
                   (c.pattern_regex is null or coalesce(r.routing_key, '') ~ c.pattern_regex)
                     and (c.filter is null or trunkline._filter_matches(c.filter, coalesce(r.headers, '{}'))) as hit,
                   coalesce(r.created_at < p_oldest, false) as old,
                   p_labels is null or coalesce(r.label = any (p_labels), false) as wanted,
                   coalesce(r.created_at > p_youngest, false) as young
            from trunkline._read(c.topic_id, c.partition, c.segment_rows, s.position, v_chunk) r
        ), cut as (
            select least(
                (select min(log_offset) - 1 from m where young),
                (select log_offset from m where hit and not old and wanted order by log_offset offset p_want - v_taken - 1 limit 1),
                v_chunk) as last_offset
        ), passed as (
            insert into trunkline.pending (cursor_id, log_offset, queue_id, due_at, label, attempt)
            select c.cursor_id, m.log_offset, c.queue_id, trunkline.clock(), m.label, 0
            from m, cut where m.log_offset <= cut.last_offset and hit and not old and not wanted
            returning 1
        )
        select cut.last_offset,
               coalesce(range_agg(int8range(log_offset, log_offset, '[]')) filter (where hit and not old and wanted), '{}') as taken,
               count(*) filter (where hit and not old and wanted) as n_taken,
               count(*) filter (where not hit) as n_skipped,
               count(*) filter (where hit and old) as n_expired,
               (select count(*) from passed) as n_passed
          into v_found
          from cut left join m on m.log_offset <= cut.last_offset group by cut.last_offset;
        exit when v_found.last_offset < s.position;
        s.offsets := s.offsets + v_found.taken;
        s.delivered := s.delivered + v_found.n_taken;
        s.skipped := s.skipped + v_found.n_skipped;
        s.expired := s.expired + v_found.n_expired;
        s.passed := s.passed + v_found.n_passed;
        s.position := v_found.last_offset + 1;
        v_taken := v_taken + v_found.n_taken;
        exit when v_found.last_offset < v_chunk;
    end loop;
end
$$;

-- Messages that come back: due rows of pending, oldest due first.
create or replace function trunkline._claim_retries(q trunkline.queues, p_want int, p_lease interval, p_labels text[], p_consumer text)
returns setof trunkline.delivery
language plpgsql
as $$
declare
    lane      trunkline.cursors;
    c         trunkline.cursors;
    s         trunkline.leases;
    v_now     timestamptz;
    v_sources int[];
    v_tries   int[];
    v_sets    int8multirange[];
    v_old     int8multirange;
begin
    select * into lane from trunkline.cursors where queue_id = q.queue_id and trunkline.cursors.lane = 'retry';
    -- never waited for: the caller may hold a log's cursor already, and who has the lane is taking what came back
    if not pg_try_advisory_xact_lock(778005, lane.cursor_id) then
        return;
    end if;
    v_now := trunkline.clock();
    with due as (
        select cursor_id, log_offset from trunkline.pending
        where queue_id = q.queue_id and due_at <= v_now and (p_labels is null or label = any (p_labels))
        order by due_at limit p_want for update skip locked
    ), gone as (
        delete from trunkline.pending p using due d where p.cursor_id = d.cursor_id and p.log_offset = d.log_offset
        returning p.cursor_id, p.log_offset, p.attempt
    ), grouped as (
        select cursor_id, attempt, range_agg(int8range(log_offset, log_offset, '[]')) as offsets from gone group by 1, 2
    )
    select array_agg(cursor_id), array_agg(attempt), array_agg(offsets) into v_sources, v_tries, v_sets from grouped;
    if v_sources is null then
        return;
    end if;
    s := trunkline._lease_state(lane);
    s.consumer := p_consumer;
    s.claimed_at := v_now;
    s.deadline := v_now + p_lease;
    for i in 1 .. cardinality(v_sources) loop
        select * into c from trunkline.cursors where cursor_id = v_sources[i];
        s.source_id := c.cursor_id;
        s.attempt := v_tries[i] + 1;
        s.offsets := v_sets[i];
        if q.ttl is not null then
            select coalesce(range_agg(int8range(r.log_offset, r.log_offset, '[]')), '{}') into v_old
            from trunkline._read_set(c, s.offsets) r where r.created_at < v_now - q.ttl;
            s.offsets := s.offsets - v_old;
            s.expired := s.expired + trunkline._size(v_old);
        end if;
        if isempty(s.offsets) then
            perform trunkline._move_cursor(s);
        else
            s.delivered := s.delivered + trunkline._size(s.offsets);
            return query select * from trunkline._lease(s, c);
        end if;
        s.lease_no := s.lease_no + 1;
    end loop;
end
$$;

-- An ordered queue has one open lease per partition. Answers whether the cursor may go on with new messages; if messages of
-- this partition came back, they go first, in offset order, and then s holds them.
create or replace function trunkline._ordered_turn(inout s trunkline.leases, c trunkline.cursors, p_want int, p_now timestamptz, p_ttl interval, out v_go boolean)
language plpgsql
as $$
declare
    l      trunkline.leases;
    v_open int8multirange;
    v_kept timestamptz;
    v_head trunkline.pending;
    v_old  int8multirange;
begin
    v_go := false;
    select * into l from trunkline.leases where cursor_id = c.cursor_id and n > 0 order by lease_no desc limit 1;
    if found then
        select l.offsets - coalesce(range_agg(e.offsets) filter (where e.kind <> 'e'), '{}'), max(e.until)
          into v_open, v_kept
          from trunkline.lease_events e where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no;
        if not isempty(v_open) and (greatest(l.deadline, v_kept) > p_now or trunkline._expire_lease(l) = 0) then
            return;
        end if;
    end if;
    select * into v_head from trunkline.pending where cursor_id = c.cursor_id order by log_offset limit 1;
    if not found then
        v_go := true;
        return;
    end if;
    if v_head.due_at > p_now then
        return;
    end if;
    -- the run of due rows with the same number of attempts: a lease has one attempt number
    with run as (
        select log_offset,
               bool_and(due_at <= p_now and attempt = v_head.attempt) over (order by log_offset) as together
        from (select * from trunkline.pending where cursor_id = c.cursor_id order by log_offset limit p_want) p
    ), gone as (
        delete from trunkline.pending p using run
        where p.cursor_id = c.cursor_id and p.log_offset = run.log_offset and run.together returning p.log_offset
    )
    select range_agg(int8range(log_offset, log_offset, '[]')) into s.offsets from gone;
    s.attempt := v_head.attempt + 1;
    if p_ttl is not null then
        select coalesce(range_agg(int8range(r.log_offset, r.log_offset, '[]')), '{}') into v_old
        from trunkline._read_set(c, s.offsets) r where r.created_at < p_now - p_ttl;
        s.offsets := s.offsets - v_old;
        s.expired := s.expired + trunkline._size(v_old);
        if isempty(s.offsets) then
            perform trunkline._move_cursor(s);
        end if;
    end if;
end
$$;

-- How often a lane is asked before the others: the highest of a queue 64 times as often as the lowest, the rest in equal steps between.
create or replace function trunkline._weight(p_priority int, p_priorities int) returns float8
language sql immutable
as $$ select power(64, p_priority / (p_priorities - 1)::float8) $$;

-- The long way of a claim: several logs, filters, labels, messages that came back, ordered queues, and an idle queue's chores.
create or replace function trunkline._claim(p_queue_id int, p_max int, p_lease interval, p_labels text[], p_consumer text)
returns setof trunkline.delivery
language plpgsql
as $$
declare
    q         trunkline.queues;
    c         trunkline.cursors;
    s         trunkline.leases;
    v_cursors int[];
    v_cursor  int;
    v_tick    boolean;
    v_now     timestamptz := trunkline.clock();
    v_due     boolean;
    v_want    int := p_max;
    v_count   int;
    v_head    bigint;
    v_turn    record;
    v_from    bigint;
    v_levels  int;
begin
    select * into q from trunkline.queues where queue_id = p_queue_id;
    if q.paused then
        return;
    end if;
    if p_labels = '{}' then
        perform trunkline._fail('TL001', 'labels is an empty array', 'give at least one label, or null for all messages');
    end if;
    if q.ordered and p_labels is not null then
        perform trunkline._fail('TL023', format('queue %L is ordered and cannot be claimed by label', q.name), 'use one queue per label');
    end if;
    select array(select cursor_id from trunkline.cursors where queue_id = q.queue_id and lane = 'log'),
           -- in this form it reads one entry of the index, whatever the statistics say
           (select due_at from trunkline.pending where queue_id = q.queue_id order by due_at limit 1) <= v_now
      into v_cursors, v_due;

    if v_due and not q.ordered then
        return query select * from trunkline._claim_retries(q, v_want, p_lease, p_labels, p_consumer);
        get diagnostics v_count = row_count;
        v_want := v_want - v_count;
    end if;

    v_levels := (select priorities from trunkline.topics where topic_id = q.inbox_id);
    if v_levels is not null then
        -- give everything its offset first: a new message may be more urgent than those that have one
        perform trunkline._tick(q.inbox_id, l.partition, t.segment_rows)
        from trunkline.topics t cross join generate_series(0, v_levels - 1) l(partition) where t.topic_id = q.inbox_id;
    end if;

    -- First whatever has offsets already, from a random place on; then, in the order of the logs, what must be sequenced.
    -- With several logs nobody waits for a cursor: who holds it is claiming from it.
    for v_cursor, v_tick in
        select x.cursor_id, y.pass = 2
        from unnest(v_cursors) x(cursor_id) cross join (values (1), (2)) y(pass)
        order by y.pass, case when y.pass = 1 then
                              -- with priorities, a random order in which the heavier lane is more often the first
                              -ln(1 - random()) / case when v_levels is null then 1 else coalesce((
                                  select trunkline._weight(k.partition, v_levels) from trunkline.cursors k
                                  where k.cursor_id = x.cursor_id and k.topic_id = q.inbox_id), 1) end
                          else x.cursor_id end
    loop
        exit when v_want <= 0;
        if cardinality(v_cursors) > 1 then
            -- a lock is kept to the end, so look first whether there is anything to take
            continue when not v_tick and not q.ordered and not exists (
                select from trunkline.cursors k
                where k.cursor_id = v_cursor and trunkline._head(k.log) >= coalesce(
                    (select l.position from trunkline.leases l where l.cursor_id = k.cursor_id order by l.lease_no desc limit 1), k.start_position));
            continue when not pg_try_advisory_xact_lock(778005, v_cursor);
        else
            perform trunkline._lock_cursor(v_cursor);
        end if;
        select * into c from trunkline.cursors where cursor_id = v_cursor;
        continue when not found;
        v_now := trunkline.clock();
        s := trunkline._lease_state(c);
        v_from := s.position;
        s.attempt := 1;
        s.consumer := p_consumer;
        s.claimed_at := v_now;
        s.deadline := v_now + p_lease;
        if q.ordered then
            select o.s, o.v_go into v_turn from trunkline._ordered_turn(s, c, v_want, v_now, q.ttl) o;
            s := v_turn.s;
            if not isempty(s.offsets) then
                return query select * from trunkline._lease(s, c);
                get diagnostics v_count = row_count;
                v_want := v_want - v_count;
                continue;
            end if;
            continue when not v_turn.v_go;
        end if;
        v_head := trunkline._head(c.log);
        if v_head < s.position then
            continue when not v_tick;
            v_head := trunkline._tick(c.topic_id, c.partition, c.segment_rows);
            continue when v_head < s.position;
        end if;
        if c.pattern_regex is null and c.filter is null and p_labels is null and q.ttl is null and q.delivery_delay = '0' then
            v_count := least(v_head - s.position + 1, v_want);
            s.offsets := trunkline._set_of(s.position, s.position + v_count - 1);
            s.position := s.position + v_count;
            s.delivered := s.delivered + v_count;
        else
            s := trunkline._scan(s, c, v_head, v_want, p_labels, v_now - q.ttl,
                                 case when q.delivery_delay > '0' then v_now - q.delivery_delay end);
        end if;
        if not isempty(s.offsets) then
            return query select * from trunkline._lease(s, c);
            get diagnostics v_count = row_count;
            v_want := v_want - v_count;
        elsif s.position > v_from then
            perform trunkline._move_cursor(s);
        end if;
    end loop;

    -- Nothing to give: see whether a lease has ended or a delayed message is due, so that nobody depends on upkeep for it.
    if v_want = p_max then
        if trunkline._check_queue_leases(q.queue_id) + trunkline._release_due(q.inbox_id, 1000) > 0 then
            return query select * from trunkline._claim(p_queue_id, p_max, p_lease, p_labels, p_consumer);
        end if;
    end if;
end
$$;

-- Each queue has claim functions of its own: queue_<n>_claim, and queue_<n>_take with the same rows in the short form. Where the queue is
-- fed by its inbox alone and nothing needs a look at each message, they go a short way of fixed statements: when nothing came back, and the
-- batch lies in one tick with adjoining ids, which is cut there and then if need be. All else goes the long way.
create or replace function trunkline._write_claim(p_queue_id int) returns void
language plpgsql
as $f$
declare
    v_fields constant text := 'id + v_shift, message_id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at';
begin
    perform trunkline._write_claim(p_queue_id, 'claim', 'delivery', '(id + v_shift) || v_lease, 1, v_until, null::text, v_partition, ' || v_fields,
        'r.log_offset || v_lease, 1, v_until, null::text, v_partition, r.*', 'd.*');
    perform trunkline._write_claim(p_queue_id, 'take', 'taken', 'case when id = v_id then substr(v_lease, 2) end, 1, v_until, null::text, v_partition, ' || v_fields,
        'case when r.log_offset = v_id + v_shift then substr(v_lease, 2) end, 1, v_until, null::text, v_partition, r.*',
        'substr(d.receipt, strpos(d.receipt, ''.'') + 1), d.attempt, d.deadline, d.topic, d.partition, d.log_offset, d.id, d.key, d.routing_key, d.label, d.headers,
            d.payload, d.content_type, d.occurred_at, d.created_at');
    perform trunkline._guard_functions(format('^queue_%s_', p_queue_id));
end
$f$;

-- p_row, p_old_row, p_long_row: what a row of the answer is made of, when it is read from a segment in use, from another one, or comes the long way.
create or replace function trunkline._write_claim(p_queue_id int, p_verb text, p_type text, p_row text, p_old_row text, p_long_row text) returns void
language plpgsql
as $f$
declare
    q        trunkline.queues;
    t        trunkline.topics;
    v_short  text := '';
    v_state  text;
    v_insert text;
begin
    select * into q from trunkline.queues where queue_id = p_queue_id;
    select * into t from trunkline.topics where topic_id = q.inbox_id;
    -- with priorities, what is not sequenced yet may be more urgent than what is: that needs the long way
    if not q.paused and not q.ordered and q.ttl is null and q.delivery_delay = '0' and t.priorities is null
       and not exists (select from trunkline.cursors where queue_id = p_queue_id and lane = 'log' and topic_id <> q.inbox_id) then
        -- The newest row is in the current slot if there is one at all: claims of a cursor follow each other, and so do their slots.
        v_state := $b$
            select l.lease_no, l.position, l.delivered, l.passed, l.skipped, l.expired, l.purged, t.first_offset, t.n, lower(t.ids) as lo, upper(t.ids) as hi,
                   (select due_at from trunkline.pending where queue_id = %1$s order by due_at limit 1) <= v_now as due
              into s
              from (select * from trunkline.leases_%2$s where cursor_id = v_cursors[v_at] order by lease_no desc limit 1) l
              left join lateral (select * from trunkline.ticks where log = v_logs[v_at] and first_offset <= l.position order by first_offset desc limit 1) t on true;$b$;
        v_insert := $b$
                insert into trunkline.leases_%s
                values (v_slot, v_cursors[v_at], s.lease_no + 1, v_cursors[v_at], int8multirange(int8range(s.position, v_last + 1)), v_last - s.position + 1,
                        1, v_token, p_consumer, v_now, v_until, v_last + 1, s.delivered + v_last - s.position + 1, s.passed, s.skipped, s.expired, s.purged);$b$;
        select format($b$
    v_at := floor(random() * %1$s);
    <<logs>>
    for i in 1 .. %1$s loop
        v_at := v_at %% %1$s + 1;
        for v_look in %10$s .. 2 loop
        if v_look = 2 then
            %2$s
        end if;
        v_now := trunkline.clock();
        v_slot := (select slot from trunkline.epoch);
        if v_slot = 0 then %3$s
        else %4$s
        end if;
        exit logs when s.due;
        v_last := s.first_offset + s.n - 1;
        %14$s
        v_id := s.lo + s.position - s.first_offset;
        if s.hi - s.lo = s.n and (v_last >= s.position + p_max - 1 %8$s) then
            continue when v_look = 1;
            v_last := least(v_last, s.position + p_max - 1);
            if v_id / %5$s = (v_id + v_last - s.position) / %5$s then
                v_until := v_now + coalesce(p_lease, %6$L::interval);
                if v_slot = 0 then %12$s
                else %13$s
                end if;
                v_lease := '.' || v_cursors[v_at] || '.' || s.lease_no + 1 || '.' || v_token;
                v_partition := v_logs[v_at] & 63;
                v_segment := v_id / %5$s;
                v_shift := s.position - v_id;
                %9$s
                return query select %11$s
                             from trunkline.topic_%7$s_read(v_partition, v_segment, v_id, v_id + v_last - s.position, v_shift) r;
                return;
            end if;
        end if;
        continue logs;
        end loop;
    end loop;$b$, count(*),
            case when count(*) > 1 then 'continue logs when not pg_try_advisory_xact_lock(778005, v_cursors[v_at]);'
                 else 'if not pg_try_advisory_xact_lock(778005, v_cursors[1]) then perform trunkline._lock_cursor(v_cursors[1]); end if;' end,
            format(v_state, p_queue_id, 0), format(v_state, p_queue_id, 1), min(c.segment_rows), q.lease, q.inbox_id,
            -- a batch that is not full is taken at the end of a large tick, where it is rare, and at the head of the only log
            'or v_last >= s.position and (s.n >= 4 * p_max ' || case when count(*) = 1 then 'or v_last = trunkline._head(v_logs[1])' else '' end || ')',
            -- the read itself, not a call of topic_<n>_read: the rows would be copied once more, which costs as much as reading them
            trunkline._branches(q.inbox_id, 'return query select ' || p_row || ' from trunkline.%I where id between v_id and v_id + v_last - s.position order by id; return;'),
            -- a lock is kept to the end: with several logs, look first whether there is anything to take
            case when count(*) > 1 then 1 else 2 end, p_old_row,
            format(v_insert, 0), format(v_insert, 1),
            -- who waits for the next message of the only log gives it its offset here; that commits durably, whatever was asked for
            case when count(*) = 1 then format($b$
        if v_last < s.position and trunkline._tick(%s, v_logs[1] & 63, %s) >= s.position then
            select t.first_offset, t.n, lower(t.ids), upper(t.ids) into s.first_offset, s.n, s.lo, s.hi
              from trunkline.ticks t where t.log = v_logs[1] and t.first_offset <= s.position order by t.first_offset desc limit 1;
            v_last := s.first_offset + s.n - 1;
        end if;$b$, q.inbox_id, min(c.segment_rows)) else '' end)
          into v_short
          from trunkline.cursors c where c.queue_id = p_queue_id and c.lane = 'log';
        v_short := format('if p_labels is null then %s end if;', v_short);
    end if;
    execute format($x$
create or replace function trunkline.queue_%1$s_%6$s(
    p_max int default 1, p_lease interval default null, p_labels text[] default null, p_consumer text default null, p_relaxed boolean default false)
returns setof trunkline.%7$s
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_cursors constant int[] := '{%4$s}';
    v_logs    constant int[] := '{%5$s}';
    s         record;
    v_at      int;
    v_now     timestamptz;
    v_slot    smallint;
    v_last    bigint;
    v_id      bigint;
    v_token   uuid := gen_random_uuid();
    v_until   timestamptz;
    v_lease   text;
    v_partition int;
    v_segment   bigint;
    v_shift     bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform trunkline._need_read_committed('claim');
    end if;
    if p_max is null or p_max < 1 or p_max > 1000 then
        perform trunkline._check_range('max', p_max, 1, 1000);
    end if;
    if p_lease is not null then
        perform trunkline._check_duration('lease', p_lease, '1 second', '12 hours');
    end if;
    if p_relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    %3$s
    return query select %8$s from trunkline._claim(%1$s, p_max, coalesce(p_lease, %2$L::interval), p_labels, p_consumer) d;
end
$$
    $x$, p_queue_id, q.lease, v_short,
        (select string_agg(cursor_id::text, ',' order by partition, cursor_id) from trunkline.cursors where queue_id = p_queue_id and lane = 'log'),
        (select string_agg(log::text, ',' order by partition, cursor_id) from trunkline.cursors where queue_id = p_queue_id and lane = 'log'),
        p_verb, p_type, p_long_row);
end
$f$;

-- Waits for a cursor. First by trying again: those who wait in line for a lock get it while they sleep, and nobody else can use it
-- until they are awake, which costs more than half of the throughput when many claim one by one (docs/adr/0008).
create or replace function trunkline._lock_cursor(p_cursor_id int) returns void
language plpgsql
as $$
declare
    v_waits boolean;
begin
    for i in 1 .. 20 loop
        if pg_try_advisory_xact_lock(778005, p_cursor_id) then
            return;
        end if;
        perform pg_sleep(0.0005);
    end loop;
    v_waits := trunkline._wait_ten_seconds();
    perform pg_advisory_xact_lock(778005, p_cursor_id);
    perform trunkline._wait_as_before(v_waits);
end
$$;

-- Claims up to p_max messages for p_lease; empty when there are none. Messages that came back go first, then new ones.
-- p_labels: only messages with one of these labels; the others stay for those who can handle them, without an attempt.
-- p_relaxed: our own client asks for it around its own statement: the claim need not be on disk when it returns, because a
-- crash that forgets it only means that the messages are delivered again under another token.
create or replace function trunkline.claim(
    p_queue text, p_max int default 1, p_lease interval default null, p_labels text[] default null, p_consumer text default null,
    p_relaxed boolean default false)
returns setof trunkline.delivery
language plpgsql
as $$
begin
    return query execute format('select * from trunkline.queue_%s_claim($1, $2, $3, $4, $5)', (trunkline._queue(p_queue)).queue_id)
        using p_max, p_lease, p_labels, p_consumer, p_relaxed;
end
$$;
