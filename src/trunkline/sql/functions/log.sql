-- The log: sequencing (ids become offsets), reading, and finding places in it.

-- Highest offset given so far; 0 for none. Not everything committed has an offset yet: see tick().
create or replace function trunkline._head(p_log int) returns bigint
language plpgsql
as $$
begin
    return coalesce((select first_offset + n - 1 from trunkline.ticks where log = p_log order by first_offset desc limit 1), 0);
end
$$;

-- Ids from here on are those of rows that Spark's tasks stage (docs/adr/0018). The sequence of a log does not get there, so the sequencer
-- never looks at them; the numbers of their segments still are integers.
create or replace function trunkline._staged_from(p_segment_rows int) returns bigint
language sql immutable
as $$ select 1073741824::bigint * p_segment_rows $$;

-- A number above that of every transaction that has one now.
-- The xmax of a snapshot is not: it is one above the newest *finished* transaction, and an open one may be higher
-- (docs/adr/0003). So we finish one first: a subtransaction that gets a number by locking a row and is rolled back.
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

-- Does an open transaction older than the horizon still hold ids of this log? Whoever draws an id holds a lock on the
-- sequence from before the draw until its commit is visible, and has a transaction id by then.
-- Only for generations that xmin does not retire, because an unrelated transaction holds it back.
create or replace function trunkline._has_owner_below(p_topic_id int, p_partition int, p_horizon xid8) returns boolean
language plpgsql
as $$
declare
    v_seq  oid := to_regclass(format('trunkline.topic_%s_%s_ids', p_topic_id, p_partition));
    v_xmax bigint := pg_snapshot_xmax(pg_current_snapshot())::text;
begin
    return exists (
        -- read once: a transaction that is being prepared changes its name in between
        with held as materialized (select * from pg_locks)
        select from held s
        join held x on x.locktype = 'transactionid' and x.virtualtransaction = s.virtualtransaction and x.granted
        -- the lock table shows the low 32 bits of a number that is near the newest one
        cross join lateral (select (v_xmax & ~4294967295) | x.transactionid::text::bigint as guess) g
        where s.locktype = 'relation' and s.relation = v_seq and s.pid is distinct from pg_backend_pid()
          and s.database = (select oid from pg_database where datname = current_database())
          and case when g.guess > v_xmax + 2147483648 then g.guess - 4294967296 else g.guess end < p_horizon::text::bigint
    );
end
$$;

-- Gives the next offsets to ids that became visible, and answers the head. At most p_ticks rows of 1,000 offsets each.
--
-- What makes it right (DESIGN 3.2; tests/chaos plants a bug for each):
--   * xmin is read before anything is looked at, the horizon after, each in a statement of its own;
--   * new ids are looked at first, gaps last;
--   * a gap is given up only when every transaction that could own it has ended before the look;
--   * the transaction that writes a tick commits synchronously, so that an offset once seen stays.
create or replace function trunkline._tick(p_topic_id int, p_partition int, p_segment_rows int, p_ticks int default 50, p_wait boolean default false) returns bigint
language plpgsql
as $$
declare
    v_log       int := p_topic_id * 64 + p_partition;
    v_last_id   bigint;
    v_xmin      xid8;
    v_xmax      xid8;
    v_now       timestamptz;
    t           trunkline.ticks;
    v_gaps      int8multirange;
    v_late      int8multirange;
    v_ids       int8multirange;
    v_new_gaps  int8multirange;
    v_next      bigint;
    v_found     record;
    v_full      boolean;
    v_segment   bigint;
    v_dead      boolean;
    v_made      int := 0;
    v_waits     boolean;
begin
    -- Anything to do? The sequence tells without a lock: an id of a finished publish is never above its last value.
    select * into t from trunkline.ticks where log = v_log order by first_offset desc limit 1;
    v_last_id := trunkline._last_id(p_topic_id, p_partition);
    if v_last_id < coalesce(t.next_id, 1) and coalesce(isempty(t.old_gaps) and isempty(t.new_gaps), true) then
        return coalesce(t.first_offset + t.n - 1, 0);
    end if;
    -- a standby answers from what its primary has sequenced: a contiguous prefix
    if pg_is_in_recovery() then
        return coalesce(t.first_offset + t.n - 1, 0);
    end if;

    -- A holder may have looked before the publish that our caller knows of: one that must have that waits, the others use what is sequenced.
    if not pg_try_advisory_xact_lock(778001, v_log) then
        if not p_wait then
            return coalesce(t.first_offset + t.n - 1, 0);
        end if;
        v_waits := trunkline._wait_ten_seconds();
        perform pg_advisory_xact_lock(778001, v_log);
        perform trunkline._wait_as_before(v_waits);
    end if;
    -- segments made from here on look like missing ones; they are the last ones, so they make no gap
    perform trunkline._catch_up();
    v_xmin := pg_snapshot_xmin(pg_current_snapshot());
    select * into t from trunkline.ticks where log = v_log order by first_offset desc limit 1;
    if t.log is null then
        t := row(null, v_log, 1, 0, '{}', 1, '{}', null, null, '{}', null, null)::trunkline.ticks;
    end if;
    -- Transaction numbers start over in a restored cluster: then nobody from before can be open.
    v_xmax := pg_snapshot_xmax(pg_current_snapshot());
    if t.old_horizon > v_xmax then t.old_horizon := '0'; end if;
    if t.new_horizon > v_xmax then t.new_horizon := '0'; end if;

    v_dead := not isempty(t.old_gaps) and v_xmin >= t.old_horizon;
    if not v_dead and not isempty(t.old_gaps) and t.old_since < trunkline.clock() - interval '1 second' then
        v_dead := not trunkline._has_owner_below(p_topic_id, p_partition, t.old_horizon);
    end if;

    while v_made < p_ticks loop
        v_last_id := trunkline._last_id(p_topic_id, p_partition);
        v_ids := '{}';
        v_late := '{}';
        v_next := t.next_id;
        v_new_gaps := t.new_gaps;
        v_full := false;
        -- A tick stays inside one segment of new ids, except for the gaps it fills.
        v_segment := v_next / p_segment_rows;
        while isempty(v_ids) and v_segment * p_segment_rows <= v_last_id loop
            if to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, v_segment)) is not null then
                execute format('select * from trunkline.topic_%s_scan($1, $2, $3)', p_topic_id) into v_found using p_partition, v_segment, v_next;
                -- as many as topic_<n>_scan looks for (_write_functions)
                v_full := v_found.n >= 1000;
                if v_found.n > 0 then
                    v_ids := trunkline._set_of(v_found.lo, v_found.hi);
                    if v_found.n < v_found.hi - v_next + 1 then
                        -- a new look at all ids up to the same one; it may see more of them than the first
                        v_ids := trunkline._visible_among(p_topic_id, p_partition, p_segment_rows, trunkline._set_of(v_next, v_found.hi));
                    end if;
                    v_new_gaps := v_new_gaps + (trunkline._set_of(v_next, v_found.hi) - v_ids);
                    v_next := v_found.hi + 1;
                end if;
            end if;
            v_segment := v_segment + 1;
        end loop;
        -- The gaps after the new ids: a look that comes later may only see more of the lower ids, or a publisher's messages
        -- would get their offsets in another order than it committed them.
        v_gaps := t.old_gaps + t.new_gaps;
        if not isempty(v_gaps) then
            v_late := trunkline._visible_among(p_topic_id, p_partition, p_segment_rows, v_gaps);
        end if;
        exit when isempty(v_ids) and isempty(v_late);

        v_now := trunkline.clock();
        t.first_offset := t.first_offset + t.n;
        t.ids := v_late + v_ids;
        t.n := trunkline._size(t.ids);
        if not isempty(v_new_gaps - t.new_gaps) then
            -- after the look: whoever owns an id that was not visible has a number below this one
            t.new_horizon := trunkline._horizon(v_log);
        end if;
        t.old_gaps := case when v_dead then '{}' else t.old_gaps - v_late end;
        t.new_gaps := v_new_gaps - v_late;
        t.next_id := v_next;
        if isempty(t.old_gaps) then
            t.old_gaps := t.new_gaps;
            t.old_horizon := t.new_horizon;
            t.old_since := v_now;
            t.new_gaps := '{}';
            t.new_horizon := null;
        end if;
        v_dead := false;
        if v_made = 0 then
            perform trunkline._commit_durably();
        end if;
        insert into trunkline.ticks
        values ((select slot from trunkline.epoch), v_log, t.first_offset, t.n, t.ids, t.next_id,
                t.old_gaps, t.old_horizon, t.old_since, t.new_gaps, t.new_horizon, v_now);
        v_made := v_made + 1;
        -- a look at the last segment that found less than it may has seen all that there was
        exit when not v_full and v_segment * p_segment_rows > v_last_id;
    end loop;

    -- Keep a segment ahead of the publishers, also where nobody runs upkeep. The lock comes before ours in the lock order, so it is only tried:
    -- who holds it is making segments, or lets the next tick make them.
    if v_made > 0 and to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, v_last_id / p_segment_rows + 1)) is null
       and pg_try_advisory_xact_lock(778003, p_topic_id) then
        perform trunkline._make_segments(p_topic_id);
    end if;
    return t.first_offset + t.n - 1;
end
$$;

-- Which of these ids are visible now.
create or replace function trunkline._visible_among(p_topic_id int, p_partition int, p_segment_rows int, p_ids int8multirange) returns int8multirange
language plpgsql
as $$
declare
    v_all  int8multirange := '{}';
    v_part int8multirange;
begin
    -- higher segments first: see the order of looks in _tick
    for s in reverse (upper(p_ids) - 1) / p_segment_rows .. lower(p_ids) / p_segment_rows loop
        if to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, s)) is not null then
            execute format('
                select range_agg(int8range(m.id, m.id, ''[]''))
                from unnest($1) r
                cross join lateral (select id from trunkline.topic_%s_%s_%s where id >= lower(r) and id < upper(r) offset 0) m',
                p_topic_id, p_partition, s) into v_part using p_ids;
            v_all := v_all + coalesce(v_part, '{}');
        end if;
    end loop;
    return v_all;
end
$$;

-- The messages of offsets p_first to p_last, which must exist. Every offset is there, or the call fails: never fewer rows.
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
begin
    while v_next <= p_last loop
        select * into t from trunkline.ticks where log = v_log and first_offset <= v_next order by first_offset desc limit 1;
        if not found or v_next >= t.first_offset + t.n then
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
        for s in v_lo / p_segment_rows .. v_hi / p_segment_rows loop
            -- a segment whose ids all went to transactions that were rolled back may not be there
            v_part := v_ids * int8multirange(int8range(s::bigint * p_segment_rows, (s + 1)::bigint * p_segment_rows));
            continue when isempty(v_part);
            if to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, s)) is null then
                perform trunkline._catch_up();
                if to_regclass(format('trunkline.topic_%s_%s_%s', p_topic_id, p_partition, s)) is null then
                    perform trunkline._below_base(p_topic_id, p_partition, v_next);
                end if;
            end if;
            if v_ids is null then
                return query execute format('select * from trunkline.topic_%s_read($1, $2, $3, $4, $5)', p_topic_id)
                    using p_partition, s::bigint, v_lo, v_hi, v_next - v_lo;
                get diagnostics v_rows = row_count;
            else
                return query execute format(
                    'select $3 + row_number() over (order by id) - 1, message_id, key, routing_key, label, headers, payload,
                            content_type, occurred_at, created_at
                     from trunkline.topic_%s_%s_%s where id >= lower($1) and id < upper($1) and id <@ $1 order by id', p_topic_id, p_partition, s)
                    using v_part, null, v_next + trunkline._size(v_ids * int8multirange(int8range(null, s::bigint * p_segment_rows)));
                get diagnostics v_rows = row_count;
            end if;
            v_got := v_got + v_rows;
        end loop;
        v_next := v_next + v_take;
    end loop;
    if v_got <> p_last - p_first + 1 then
        perform trunkline._below_base(p_topic_id, p_partition, p_first);
    end if;
end
$$;

-- The messages of a set of offsets, for the few that are handled one by one.
create or replace function trunkline._read_set(c trunkline.cursors, p_offsets int8multirange) returns setof trunkline.log_row
language sql
as $$
    select m.* from unnest(p_offsets) r
    cross join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, lower(r), upper(r) - 1) m
$$;

-- One message, or none when retention took it.
create or replace function trunkline._read_left(c trunkline.cursors, p_offset bigint) returns setof trunkline.log_row
language plpgsql
as $$
begin
    if p_offset >= (select base_offset from trunkline.logs where log = c.log) then
        return query select * from trunkline._read(c.topic_id, c.partition, c.segment_rows, p_offset, p_offset);
    end if;
end
$$;

-- Retention took the offset. Anything else that gets here would be a hole in the log, and says so.
create or replace function trunkline._below_base(p_topic_id int, p_partition int, p_offset bigint) returns void
language plpgsql
as $$
declare
    v_base bigint := (select base_offset from trunkline.logs where topic_id = p_topic_id and partition = p_partition);
begin
    if p_offset < v_base and trunkline._is_archived(p_topic_id, p_partition, p_offset) then
        perform trunkline._fail('TL006', format('offset %s of partition %s is below the lowest one left, %s; it is in the archive', p_offset, p_partition, v_base),
                                format('read it with trunkline topic read or through Spark, or go on from offset %s', v_base));
    elsif p_offset < v_base then
        perform trunkline._fail('TL006', format('offset %s of partition %s is below the lowest one left, %s', p_offset, p_partition, v_base),
                                format('retention removed it; go on from offset %s', v_base));
    end if;
    perform trunkline._fail('XX001', format('offset %s of partition %s of topic number %s cannot be read', p_offset, p_partition, p_topic_id),
                            'the log is damaged: keep the data directory and report this');
end
$$;

create or replace function trunkline._check_partition(t trunkline.topics, p_partition int) returns void
language plpgsql
as $$
begin
    if p_partition is null or p_partition < 0 or p_partition >= t.partitions then
        perform trunkline._fail('TL001', format('partition is %s', coalesce(p_partition::text, 'null')),
                                format('topic %L has partitions 0 to %s', t.name, t.partitions - 1));
    end if;
end
$$;

-- The highest offset of a partition that was given so far; 0 for none. A message gets its offset shortly after it commits.
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

-- Up to p_limit messages from offset p_from on, whoever consumed them. Empty at the head; an error below retention.
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
        select t.name, p_partition, r.*
        from trunkline._read(t.topic_id, p_partition, t.segment_rows, p_from, least(v_head, p_from - 1 + least(p_limit, v_head - p_from + 1))) r;
    end if;
end
$$;

-- The first offset whose message was created at p_at or later; head + 1 when there is none.
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
    -- cut times grow with offsets, and no message is younger than its tick: find the first tick cut at p_at or later
    while v_lo < v_hi loop
        v_mid := (v_lo + v_hi) / 2;
        select * into v_tick from trunkline.ticks where log = v_log and first_offset <= v_mid order by first_offset desc limit 1;
        if v_tick.cut_at >= p_at then
            v_hi := greatest(v_tick.first_offset, v_lo);
        else
            v_lo := v_tick.first_offset + v_tick.n;
        end if;
    end loop;
    while v_lo <= v_head loop
        select * into v_tick from trunkline.ticks where log = v_log and first_offset <= v_lo order by first_offset desc limit 1;
        v_hi := v_tick.first_offset + v_tick.n - 1;
        select min(log_offset) into v_found from trunkline._read(t.topic_id, p_partition, t.segment_rows, v_lo, v_hi) where created_at >= p_at;
        if v_found is not null then
            return v_found;
        end if;
        v_lo := v_hi + 1;
    end loop;
    return v_head + 1;
end
$$;

create or replace function trunkline.offset_at(p_topic text, p_partition int, p_at timestamptz) returns bigint
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
begin
    perform trunkline._check_partition(t, p_partition);
    if p_at is null then
        perform trunkline._fail('TL001', 'the time is null', 'give a time such as now() - interval ''1 hour''');
    end if;
    return trunkline._offset_at(t, p_partition, p_at);
end
$$;

-- A place in a partition: 'earliest', 'latest', an offset, or a time. Answers the next offset to deliver.
create or replace function trunkline._place(t trunkline.topics, p_partition int, p_place text) returns bigint
language plpgsql
as $$
declare
    v_base  bigint := (select base_offset from trunkline.logs where log = t.topic_id * 64 + p_partition);
    v_head  bigint;
    v_place bigint;
    v_at    timestamptz;
begin
    if p_place = 'earliest' then
        return v_base;
    end if;
    v_head := trunkline._head(t.topic_id * 64 + p_partition);
    if p_place = 'latest' then
        return v_head + 1;
    end if;
    if p_place ~ '^[0-9]{1,18}$' then
        v_place := p_place;
        if v_place < v_base then
            perform trunkline._below_base(t.topic_id, p_partition, v_place);
        elsif v_place > v_head + 1 then
            perform trunkline._fail('TL007', format('offset %s is beyond the head %s of partition %s', v_place, v_head, p_partition),
                                    'use "latest" to wait for new messages');
        end if;
        return v_place;
    end if;
    begin
        v_at := p_place::timestamptz;
    exception when others then
        v_at := null;
    end;
    if v_at is null or not isfinite(v_at) then
        perform trunkline._fail('TL001', format('%s is not a place in a log', coalesce(quote_literal(p_place), 'null')),
                                'use "earliest", "latest", an offset such as "42", or a time such as "2026-11-15 12:00+00"');
    end if;
    return trunkline._offset_at(t, p_partition, v_at);
end
$$;

-- The next offset from a place on: 'earliest', 'latest', an offset, or a time.
create or replace function trunkline.offset_of(p_topic text, p_partition int, p_place text) returns bigint
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
begin
    perform trunkline._check_partition(t, p_partition);
    return trunkline._place(t, p_partition, p_place);
end
$$;
