-- Messages that are published with a delay (docs/adr/0023). A publisher appends them to `delayed`. The next
-- pass notes them in `later`, and the pass in which they are due appends them to their log. Rows are never
-- deleted: three partitions are used in turn, and the oldest one is truncated when the messages that still
-- wait in it were copied.

-- Returns the number whose remainder by 3 is the partition for new rows.
create or replace function trunkline._delayed_generation() returns bigint
language sql volatile
as $$ select pg_sequence_last_value('trunkline.delayed_generation') $$;

-- Fails with 40001 if two rotations began since a publisher has read the generation. Upkeep may copy the
-- partition of that generation without the publisher's rows. Otherwise the publisher holds a lock on its
-- partition, and upkeep waits for it.
create or replace function trunkline._check_generation(p_generation bigint) returns void
language plpgsql
as $$
begin
    if trunkline._delayed_generation() > p_generation + 1 then
        raise exception using errcode = '40001', message = 'storage of delayed messages was rotated twice during this publish', hint = 'Retry the publish.';
    end if;
end
$$;

-- Rows of `delayed`, each once: without those of which a copy is in the current partition already. Rows stay
-- after their message has entered its log.
create or replace view trunkline._delayed as
    select d.* from trunkline.delayed d
    where d.rotation is distinct from (select r.carried_from from trunkline.delayed_rotation r)
       or d.no > (select r.carried_upto from trunkline.delayed_rotation r);

-- Returns the delayed messages that were committed between two passes.
create or replace function trunkline._new_delayed(p trunkline.pass_run) returns setof trunkline._delayed
language sql stable
as $$
    select x.* from unnest(p.from_xids, p.upto_xids) r(lo, hi)
    cross join lateral (select * from trunkline._delayed d where d.xid >= r.lo and d.xid < r.hi and d.xid <> p.own offset 0) x offset 0
$$;

-- Returns whether the message of a row of `delayed` has not entered its log: the newest pass has not seen it,
-- or it is not due yet, or the pass in which it was due has put it off for a moment.
create or replace function trunkline._is_waiting(p_no bigint, p_xid xid8, p_due_at timestamptz) returns boolean
language sql stable
as $$
    select p_due_at > b.walked or not pg_visible_in_snapshot(p_xid, b.snapshot)
           or exists (select from trunkline.later x where x.due > b.walked and x.due <= b.walked + interval '1 minute' and x.kind = 'd' and x.log_offset = p_no)
    from (select walked, snapshot from trunkline.passes order by pass desc limit 1) b
$$;

-- Returns whether a purge of its queue has dropped a delayed message: the purge has seen it, or was made by
-- the same transaction after it. Counts only purges that p_snapshot sees, or all if it is null.
create or replace function trunkline._is_withdrawn(q trunkline.queues, p_xid xid8, p_purge_no bigint, p_snapshot pg_snapshot default null) returns boolean
language sql stable
as $$
    select q.purge_xids <> '{}' and exists (
        select from unnest(q.purge_xids, q.purge_nos, q.purge_snapshots) u(xid, no, snapshot)
        where u.no > p_purge_no and (u.xid = p_xid or pg_visible_in_snapshot(p_xid, u.snapshot)) and (p_snapshot is null or pg_visible_in_snapshot(u.xid, p_snapshot)))
$$;

-- Returns how many messages of a queue wait for their time and are purged, of those that passes have seen.
create or replace function trunkline._count_withdrawn(q trunkline.queues) returns bigint
language sql stable
as $$
    select count(*) from trunkline.passes b
    cross join lateral (select * from trunkline._delayed x where x.topic_id = q.inbox_id and x.due_at > b.walked and x.due_at <= q.purged_until offset 0) d
    where b.pass = (select max(pass) from trunkline.passes) and q.purged_until > b.walked
      and pg_visible_in_snapshot(d.xid, b.snapshot) and trunkline._is_withdrawn(q, d.xid, d.purge_no)
$$;

-- Notes new delayed messages in `later`. Many may be due at the same time, so their rows are spread over a
-- millisecond: a pass can stop between two microseconds, not between two rows of one.
create or replace function trunkline._note_delayed(p trunkline.pass_run) returns void
language sql
as $$
    insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, source_id, log_offset, due_at, at)
    select p.rotation, case when d.due_at > p.upto then d.due_at + d.no / 10 % 1000 * interval '1 microsecond' else p.upto + interval '1 microsecond' end, 'd', coalesce(q.queue_id, 0), c.cursor_id, d.topic_id, d.no,
           d.due_at, p.now
    from trunkline._new_delayed(p) d
    left join trunkline.queues q on q.inbox_id = d.topic_id
    left join trunkline.cursors c on c.queue_id = q.queue_id and c.kind = 'log' and c.topic_id = d.topic_id and c.partition = 0
$$;

-- Returns the time up to which a pass appends delayed messages: it stops after about 32 MB of payloads.
create or replace function trunkline._delayed_upto(p trunkline.pass_run) returns timestamptz
language sql stable
as $$
    select x.due from (
        select d.due, sum(length(m.payload)) over (order by d.due, d.no) as bytes
        from trunkline.later d join trunkline._delayed m on m.no = d.log_offset
        where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'd') x
    where x.bytes > 33554432 order by x.due limit 1
$$;

-- Appends delayed messages that are due to their logs, in the order of their due times. Messages of deleted
-- topics and purged ones are dropped. A message that cannot be appended now, because the server's clock was
-- set back or its topic is locked, gets a new row in `later`. Returns the topics that failed.
create or replace function trunkline._release_delayed(p trunkline.pass_run) returns int[]
language plpgsql
as $$
declare
    g        record;
    v_wait   text := current_setting('lock_timeout');
    v_failed int[] := '{}';
begin
    insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, source_id, log_offset, due_at, at)
    select p.rotation, greatest(d.due_at, p.upto + interval '1 microsecond'), 'd', d.queue_id, d.cursor_id, d.source_id, d.log_offset, d.due_at, d.at
    from trunkline.later d where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'd' and d.due_at > p.now;
    for g in
        select t as topic, array_agg(m.payload order by m.due_at, m.no) as payloads, array_agg(m.id order by m.due_at, m.no) as ids,
               array_agg(m.key order by m.due_at, m.no) as keys, array_agg(m.routing_key order by m.due_at, m.no) as routing_keys,
               array_agg(m.label order by m.due_at, m.no) as labels, array_agg(m.headers order by m.due_at, m.no) as headers,
               array_agg(m.content_type order by m.due_at, m.no) as content_types, array_agg(m.occurred_at order by m.due_at, m.no) as occurred_ats,
               array_agg(m.priority order by m.due_at, m.no) as priorities,
               array_agg(case when m.published_at is not null then row(m.published_at, null)::trunkline.origin end order by m.due_at, m.no) as origins
        from trunkline._due_delayed(p) m join trunkline.topics t using (topic_id) left join trunkline.queues q on q.inbox_id = t.topic_id
        where q.queue_id is null or not trunkline._is_withdrawn(q, m.xid, m.purge_no, p.snapshot)
        group by t.topic_id, t order by t.topic_id
    loop
        begin
            -- An open publisher may hold the lock for a new segment. Other topics and queues must not wait
            -- for it.
            perform set_config('lock_timeout', '50ms', true);
            perform trunkline._append(g.topic, g.payloads, g.ids, g.keys, g.routing_keys, g.labels, g.headers, g.content_types, g.occurred_ats, g.priorities, g.origins);
        exception when others then
            if exists (select from trunkline.topics where topic_id = (g.topic).topic_id) then
                v_failed := v_failed || (g.topic).topic_id;
                raise warning 'cannot append delayed messages to "%", will retry in 1 s: % (%)', (g.topic).name, sqlerrm, sqlstate;
            end if;
        end;
        perform set_config('lock_timeout', v_wait, true);
    end loop;
    insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, source_id, log_offset, due_at, at)
    select p.rotation, p.upto + interval '1 second', 'd', d.queue_id, d.cursor_id, d.source_id, d.log_offset, d.due_at, d.at
    from trunkline.later d where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'd' and d.due_at <= p.now and d.source_id = any (v_failed);
    return v_failed;
end
$$;

-- Returns the rows of delayed messages that are due in a pass.
create or replace function trunkline._due_delayed(p trunkline.pass_run) returns setof trunkline._delayed
language sql stable
as $$
    select m.* from trunkline.later d
    cross join lateral (select * from trunkline._delayed x where x.no = d.log_offset offset 0) m
    where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'd' and d.due_at <= p.now
$$;

-- Returns whether a pass would append delayed messages of these topics, or note messages that are due
-- already.
create or replace function trunkline._has_due(p_topics int[]) returns boolean
language plpgsql
as $$
declare
    p     trunkline.pass_run;
    v_due boolean;
begin
    begin
        perform trunkline._begin_read();
        p := trunkline._since_pass();
        v_due := exists (select from trunkline.later d where d.due > (p.before).walked and d.due <= p.now and d.kind = 'd' and d.source_id = any (p_topics))
              or exists (select from trunkline._new_delayed(p) d where d.due_at <= p.now and d.topic_id = any (p_topics));
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return v_due;
end
$$;

-- Runs a pass, and a second one if the first has noted messages that are due already. Returns whether there
-- was something to do. The caller holds the lock of passes. p_queues as for _pass.
create or replace function trunkline._run_passes(p_queues int[] default null) returns boolean
language plpgsql
as $$
begin
    if trunkline._pass(p_queues) is null then
        return false;
    end if;
    if exists (select from trunkline.later d
               where d.due = (select b.walked from trunkline.passes b order by b.pass desc limit 1) + interval '1 microsecond' and d.kind = 'd' and d.due_at <= trunkline.clock()) then
        perform trunkline._pass(p_queues);
    end if;
    return true;
end
$$;

-- Appends delayed messages of these topics that are due to their logs, in the caller's transaction. Does
-- nothing if another transaction has the lock of passes.
create or replace function trunkline._release_due(p_topics int[]) returns void
language plpgsql
as $$
begin
    if trunkline._has_due(p_topics) and pg_try_advisory_xact_lock(778001, 0) then
        perform trunkline._run_passes();
    end if;
end
$$;

-- Empties the oldest partition of `delayed` step by step, and moves on to it when the current one has grown.
-- A step copies up to 10,000 messages that still wait. Returns the number of rows copied, plus 1 for a
-- partition that was emptied or begun.
-- The partition that is emptied is that of the generation before the last. Its publishers have ended: they
-- hold a lock on it, and one that comes later fails in _check_generation.
create or replace function trunkline._upkeep_delayed() returns int
language plpgsql
as $$
declare
    v_generation bigint := trunkline._delayed_generation();
    v_current    smallint := v_generation % 3;
    v_oldest     smallint := (v_generation + 1) % 3;
    v_bytes      bigint := trunkline._setting('rotate_bytes');
    v_copied     int;
    r            trunkline.delayed_rotation;
begin
    select * into r from trunkline.delayed_rotation;
    if pg_relation_size(format('trunkline.delayed_%s', v_oldest)::regclass) > 0 then
        perform set_config('lock_timeout', '20ms', true);
        execute format('lock table trunkline.delayed_%s in share row exclusive mode', v_oldest);
        v_copied := trunkline._copy_delayed(v_oldest, v_current, case when r.carried_from = v_oldest then r.carried_upto else 0 end);
        if v_copied > 0 then
            return v_copied;
        end if;
        execute format('truncate trunkline.delayed_%s', v_oldest);
        update trunkline.delayed_rotation set carried_from = null, carried_upto = 0, carried_bytes = pg_table_size(format('trunkline.delayed_%s', v_current)::regclass);
        perform trunkline._yield_to_dumps();
        return 1;
    end if;
    -- Only when the partition has grown by as much as was copied to it: so copying costs no more than
    -- publishing, however many messages wait.
    if pg_table_size(format('trunkline.delayed_%s', v_current)::regclass) >= r.carried_bytes + greatest(v_bytes, r.carried_bytes) then
        perform setval('trunkline.delayed_generation', v_generation + 1);
        return 1;
    end if;
    return 0;
exception when lock_not_available then
    -- an open publisher or a dump holds the partition: the next run tries again
    return 0;
end
$$;

-- Copies the next rows of a partition of `delayed`, above number p_from, to the current one: at most 10,000
-- rows and about 32 MB. Returns their number; 0 if none is left.
create or replace function trunkline._copy_delayed(p_oldest smallint, p_current smallint, p_from bigint) returns int
language plpgsql
as $$
declare
    v_nos bigint[];
begin
    v_nos := array(
        select x.no from (
            select d.no, sum(length(d.payload)) over (order by d.no) - length(d.payload) as before
            from (select * from trunkline.delayed y where y.rotation = p_oldest and y.no > p_from and trunkline._is_waiting(y.no, y.xid, y.due_at)
                     and exists (select from trunkline.topics t where t.topic_id = y.topic_id) order by y.no limit 10000) d) x
        where x.before < 33554432 order by x.no);
    insert into trunkline.delayed
    select p_current, d.no, d.xid, d.topic_id, d.due_at, d.id, d.key, d.routing_key, d.label, d.headers, d.payload, d.content_type, d.occurred_at, d.priority, d.published_at, d.purge_no
    from trunkline.delayed d where d.rotation = p_oldest and d.no = any (v_nos) order by d.no;
    if v_nos <> '{}' then
        update trunkline.delayed_rotation set carried_from = p_oldest, carried_upto = v_nos[cardinality(v_nos)];
    end if;
    return cardinality(v_nos);
end
$$;
