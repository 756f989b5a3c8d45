-- The usual claim: the next messages of one log, all of which are for the queue. Everything else (returned
-- messages, filters, labels, priorities, ordered queues) is in claim.sql and ordered.sql. Most claims do
-- nothing but this, so its statements are few and fixed: each costs more than all comparisons together.
do $do$
declare
    -- Inserts the lease of the positions after v_prev up to v_last. v_shift: offset minus id; null if the ids
    -- are not one run in one table of the store.
    v_lease text := $x$v_now := trunkline.clock();
        insert into trunkline.leases (rotation, xid, cursor_id, first, n, skipped, expired, token, consumer, claimed_at, deadline)
        values ((select g.current from trunkline.rotation g), pg_current_xact_id(), v_cursor, v_prev + 1, v_last - v_prev, 0, 0, gen_random_uuid(), p_consumer, v_now, v_now + v_length)
        returning deadline, format('.%s.%s.%s.%s', cursor_id, first, rotation, token), first - v_shift, v_last - v_shift into v_until, v_tail, v_id, v_last_id;$x$;
    -- Returns the messages of the lease. Fixed statements, one for each table of the store (as in store.sql).
    v_read text := format($x$case coalesce(v_id >> 30 & 7, -1)
            %s
            else
                null;
        end case;
        if v_id is null or not found then
            -- In several tables, or copied out of the store meanwhile. No row if the queue or its subscription
            -- was deleted since the draw.
            return query select r.log_offset || v_tail, 1, v_until, v_topic, v_partition, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at
                         from trunkline.cursors k cross join lateral trunkline._read(k.topic_id, k.partition, k.segment_rows, v_prev + 1, v_last) r where k.cursor_id = v_cursor;
        end if;$x$,
        (select string_agg(format($x$when %1$s then
                return query
                select r.id + v_shift || v_tail, 1, v_until, v_topic, v_partition, r.id + v_shift, r.message_id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type,
                       r.occurred_at, coalesce((r.origin).published_at, r.created_at)
                from trunkline.store_%1$s r where r.id between v_id and v_last_id order by r.id;$x$, r), E'\n            ' order by r) from generate_series(0, 7) r));
begin
    -- _claim_run draws up to p_want positions below p_head, inserts one lease and returns the deliveries; no
    -- row if another claim was faster. It does the work of _draw and _lease in fewer statements. p_run_offset
    -- and p_run_id: the first offset of the newest tick and the id of its message, if the ids of that tick are
    -- one run.
    execute format($f$
create or replace function trunkline._claim_run(
    p_cursor_id int, p_drawn_seq regclass, p_start bigint, p_log int, p_topic text, p_partition int, p_head bigint, p_run_offset bigint, p_run_id bigint,
    p_want int, p_lease interval, p_consumer text, p_epoch bigint)
returns setof trunkline.delivery
language plpgsql
as $$
declare
    -- the names of these in the text that is shared with claim
    v_cursor    alias for p_cursor_id;
    v_topic     alias for p_topic;
    v_partition alias for p_partition;
    v_length    alias for p_lease;
    v_prev      bigint;
    v_last      bigint;
    v_epoch     bigint := p_epoch;
    v_now       timestamptz;
    v_until     timestamptz;
    v_tail      text;
    v_shift     bigint;
    v_id        bigint;
    v_last_id   bigint;
begin
    for i in 1 .. 3 loop
        begin
            if not pg_try_advisory_xact_lock(778005, v_cursor) then
                perform trunkline._lock_cursor(v_cursor);
            end if;
            v_prev := coalesce(pg_sequence_last_value(p_drawn_seq), p_start - 1);
            v_last := case when v_prev < p_head then setval(p_drawn_seq, least(v_prev + p_want, p_head)) end;
            -- the lock ends here, the sequence stays moved (see _draw)
            raise exception using errcode = 'TLX00';
        exception when sqlstate 'TLX00' then
            null;
        end;
        exit when v_last is null or trunkline._show_draw(v_cursor, v_prev + 1, v_last - v_prev, v_epoch);
        v_last := null;
        v_epoch := coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0);
    end loop;
    if v_last is null then
        return;
    end if;
    if v_prev + 1 >= p_run_offset then
        v_shift := case when p_run_id + v_prev + 1 - p_run_offset >> 30 = p_run_id + v_last - p_run_offset >> 30 then p_run_offset - p_run_id end;
    else
        -- the same as _tick_of, which returns a row
        begin
            select case when v_last < t.first_offset + t.n then t.shift end into v_shift
            from trunkline.ticks t where t.log = p_log and t.first_offset <= v_prev + 1 order by t.first_offset desc limit 1;
            raise exception using errcode = 'TLX00';
        exception when sqlstate 'TLX00' then
            null;
        end;
    end if;
    %s
    %s
end
$$$f$, v_lease, v_read);

    -- Claims up to p_limit messages (at most 1,000) and returns them as deliveries. Returns no row if there are
    -- none or the queue is paused. p_lease defaults to the lease of the queue and is 1 second to 12 hours. A
    -- claim does not wait for other open claims. If it finds nothing while returned or new messages wait for the
    -- next pass, it waits for that pass, about a second at most. If no pass has run for a second (setting
    -- sequence_alone_after), it runs one in the caller's transaction.
    --
    -- p_labels: only messages with one of these labels. Other messages stay for consumers that can handle them,
    -- and no attempt is counted. Ordered queues do not support labels (TL023).
    --
    -- p_relaxed: the claim need not be on disk when it returns, and it does not wait for a pass. Our client uses
    -- it for its own statements. If a crash loses the claim, the messages are delivered again with another token.
    --
    -- Fails with TL011 if the queue does not exist, with TL008 above read committed, and with TL004 after 500
    -- draws in one transaction.
    execute format($f$
create or replace function trunkline.claim(
    p_queue text, p_limit int default 1, p_lease interval default null, p_labels text[] default null, p_consumer text default null,
    p_relaxed boolean default false)
returns setof trunkline.delivery
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_queue     int;
    v_cursor    int;
    v_log       int;
    v_topic     text;
    v_partition int := 0;
    v_drawn     regclass;
    v_start     bigint;
    v_mark      bigint;
    v_length    interval;
    v_epoch     bigint;
    v_general   boolean;
    v_labels    boolean;
    v_later     boolean := false;
    v_written   boolean;
    v_next      bigint;
    v_upto      bigint;
    v_prev      bigint;
    v_last      bigint;
    v_shift     bigint;
    v_now       timestamptz;
    v_until     timestamptz;
    v_tail      text;
    v_id        bigint;
    v_last_id   bigint;
begin
    if p_labels is null and p_limit is not null and current_setting('transaction_isolation') = 'read committed' then
        if p_limit <> 1 then
            perform trunkline._check_range('limit', p_limit, 1, 1000);
        end if;
        if p_lease is not null then
            perform trunkline._check_duration('lease', p_lease, '1 second', '12 hours');
        end if;
        -- The epoch is read before the positions. v_written: this transaction may have claimed before.
        select coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0) + 1, d.queue_id, d.cursor_id, d.log, d.drawn_seq, d.before_first, d.mark, coalesce(p_lease, d.lease),
               coalesce(pg_sequence_last_value(d.returns_head), 0) > coalesce(pg_sequence_last_value(d.returns_drawn), 0),
               pg_sequence_last_value('trunkline.label_cursors') is not null, pg_current_xact_id_if_assigned() is not null,
               coalesce(pg_sequence_last_value(d.drawn_seq), d.before_first) + 1
          into v_epoch, v_queue, v_cursor, v_log, v_drawn, v_start, v_mark, v_length, v_general, v_labels, v_written, v_next
          from trunkline.direct_queues d where d.name = p_queue;
        if v_labels then
            v_general := v_general or exists (select from trunkline.cursors k where k.queue_id = v_queue and k.kind = 'label');
        end if;
    end if;
    if not v_general then
        if p_relaxed then
            perform set_config('synchronous_commit', 'off', true);
        end if;
        begin
            -- The tick of the next position. This claim draws no further than to its end.
            select t.first_offset + t.n - 1, t.shift into v_upto, v_shift
              from trunkline.ticks t
             where t.log = v_log and t.first_offset <= v_next and (select l.base_offset from trunkline.logs l where l.log = v_log) <= v_next
             order by t.first_offset desc limit 1;
            if v_next > v_upto then
                v_upto := -1;
            else
                if p_limit > 1 then
                    if v_upto - v_next < p_limit - 1 then
                        v_later := exists (select from trunkline.ticks t where t.log = v_log and t.first_offset = v_upto + 1);
                    end if;
                end if;
                if not v_later then
                    if not pg_try_advisory_xact_lock(778005, v_cursor) then
                        perform trunkline._lock_cursor(v_cursor);
                    end if;
                    v_prev := coalesce(pg_sequence_last_value(v_drawn), v_start);
                    v_last := case when v_prev < v_upto then setval(v_drawn, least(v_prev + p_limit, v_upto)) end;
                end if;
            end if;
            -- the locks end here, the sequence stays moved (see _draw)
            raise exception using errcode = 'TLX00';
        exception when sqlstate 'TLX00' then
            null;
        end;
        if v_last is not null then
            -- The same as _show_draw.
            if v_written then
                perform trunkline._count_mark();
            end if;
            if pg_try_advisory_xact_lock_shared(v_mark | ((v_prev + 1 & 4294967295) << 10) | (v_last - v_prev - 1)) and coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0) <= v_epoch then
                %s
                %s
                return;
            end if;
        elsif v_upto = -1 then
            if not trunkline._sequence_alone(array[v_queue], null, case when p_relaxed then 0 else 1 end) then
                -- Nothing to draw, and no pass is due.
                return;
            end if;
        end if;
    end if;
    return query select * from trunkline._claim_any(p_queue, p_limit, p_lease, p_labels, p_consumer, p_relaxed);
end
$$$f$, v_lease, v_read);
end
$do$;
