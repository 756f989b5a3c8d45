-- The usual claim: the next messages of one log of a direct queue (direct.sql). Everything else (returned
-- messages, filters, labels, priorities, ordered queues) is in claim.sql and ordered.sql. Most claims do
-- nothing but this, so its statements are few and fixed, and have few operators: starting a statement, and
-- preparing the functions in it, costs more than running it (docs/adr/0026).
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
    execute format($f$
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
create or replace function trunkline.claim(
    p_queue text, p_limit int default 1, p_lease interval default null, p_labels text[] default null, p_consumer text default null,
    p_relaxed boolean default false)
returns setof trunkline.delivery
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    v_queue      int;
    -- of the queue's logs, in the same order
    v_cursors    int[];
    v_logs       int[];
    v_drawns     regclass[];
    v_befores    bigint[];
    v_marks      bigint[];
    v_topics     text[];
    v_partitions int[];
    v_i          int := 1;
    v_cursor     int;
    v_topic      text;
    v_partition  int;
    v_length     interval;
    v_epoch      bigint;
    v_general    boolean;
    v_labels     boolean;
    v_written    boolean;
    v_next       bigint;
    v_upto       bigint;
    v_prev       bigint;
    v_last       bigint;
    v_shift      bigint;
    v_now        timestamptz;
    v_until      timestamptz;
    v_tail       text;
    v_id         bigint;
    v_last_id    bigint;
begin
    if p_labels is null and p_limit is not null and current_setting('transaction_isolation') = 'read committed' then
        if p_limit <> 1 then
            perform trunkline._check_range('limit', p_limit, 1, 1000);
        end if;
        if p_lease is not null then
            perform trunkline._check_duration('lease', p_lease, '1 second', '12 hours');
        end if;
        -- The epoch is read before the positions. v_written: this transaction may have claimed before.
        select coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0) + 1, d.queue_id, d.cursors, d.logs, d.drawn_seqs, d.before_first, d.marks, d.topics, d.partitions,
               coalesce(p_lease, d.lease), coalesce(pg_sequence_last_value(d.returns_head), 0) > coalesce(pg_sequence_last_value(d.returns_drawn), 0),
               pg_sequence_last_value('trunkline.label_cursors') is not null, pg_current_xact_id_if_assigned() is not null
          into v_epoch, v_queue, v_cursors, v_logs, v_drawns, v_befores, v_marks, v_topics, v_partitions, v_length, v_general, v_labels, v_written
          from trunkline.direct_queues d where d.name = p_queue;
        if v_labels then
            v_general := v_general or exists (select from trunkline.cursors k where k.queue_id = v_queue and k.kind = 'label');
        end if;
    end if;
    if p_relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if not v_general then
        if cardinality(v_logs) > 1 then
            v_i := 1 + floor(random() * cardinality(v_logs));
        end if;
        foreach v_cursor in array v_cursors loop
            begin
                v_next := coalesce(pg_sequence_last_value(v_drawns[v_i]), v_befores[v_i]) + 1;
                -- The tick of the next position. This claim draws no further than to its end. The general path
                -- counts positions that retention has removed.
                select (select l.base_offset from trunkline.logs l where l.log = v_logs[v_i]) > v_next, t.first_offset + t.n - 1, t.shift into v_general, v_upto, v_shift
                  from trunkline.ticks t where t.log = v_logs[v_i] and t.first_offset <= v_next order by t.first_offset desc limit 1;
                if v_upto is null then
                    v_general := (select l.base_offset from trunkline.logs l where l.log = v_logs[v_i]) > v_next;
                end if;
                if v_next <= v_upto and not v_general then
                    if p_limit > 1 then
                        if v_upto - v_next < p_limit - 1 then
                            v_general := cardinality(v_logs) > 1 or exists (select from trunkline.ticks t where t.log = v_logs[v_i] and t.first_offset = v_upto + 1);
                        end if;
                    end if;
                    if not v_general then
                        if not pg_try_advisory_xact_lock(778005, v_cursors[v_i]) then
                            perform trunkline._lock_cursor(v_cursors[v_i]);
                        end if;
                        v_prev := coalesce(pg_sequence_last_value(v_drawns[v_i]), v_befores[v_i]);
                        v_last := case when v_prev < v_upto then setval(v_drawns[v_i], least(v_prev + p_limit, v_upto)) end;
                        -- another claim was faster
                        v_general := v_last is null;
                    end if;
                end if;
                -- the locks end here, the sequence stays moved (see _draw)
                raise exception using errcode = 'TLX00';
            exception when sqlstate 'TLX00' then
                null;
            end;
            exit when v_general or v_last is not null;
            v_i := v_i %% cardinality(v_logs) + 1;
        end loop;
        if v_last is not null then
            -- The same as _show_draw.
            if v_written then
                perform trunkline._count_mark();
            end if;
            if pg_try_advisory_xact_lock_shared(v_marks[v_i] | ((v_prev + 1 & 4294967295) << 10) | (v_last - v_prev - 1)) and coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0) <= v_epoch then
                v_cursor := v_cursors[v_i];
                v_topic := v_topics[v_i];
                v_partition := v_partitions[v_i];
                %s
                %s
                return;
            end if;
        elsif not v_general then
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
