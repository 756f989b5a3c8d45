-- Functions for Spark. For readers: the heads of logs, and where offsets are stored. For writers: staged rows
-- that are published exactly once. For both: the position of a group that Spark moves, and the status of
-- pipelines.

-- Reading

-- Returns for each partition of these topics the earliest available offset (base_offset) and the next offset
-- to be given (next_offset). Messages without an offset do not count: call trunkline.sequence() first to
-- include all that are committed. On a standby, it returns what the primary has sequenced and sent, a
-- contiguous prefix.
create or replace function trunkline.log_heads(p_topics text[])
returns table (topic text, topic_id int, partition int, base_offset bigint, next_offset bigint)
language plpgsql
as $$
declare
    t trunkline.topics;
begin
    for t in select (x.t).* from (select trunkline._topic('topic', n) as t from unnest(p_topics) n) x order by (x.t).topic_id loop
        topic := t.name;
        topic_id := t.topic_id;
        for p in 0 .. t.partitions - 1 loop
            partition := p;
            next_offset := trunkline._head(t.topic_id * 64 + p) + 1;
            -- Read after the head. It may have moved above that head meanwhile, so least() limits it.
            select least(l.base_offset, next_offset) into base_offset from trunkline.logs l where l.log = t.topic_id * 64 + p;
            return next;
        end loop;
    end loop;
end
$$;

-- Returns the next ticks of a log, up to 1,000, in the order of offsets: those that start at or after p_offset
-- and below p_until. One ordered scan replaces a search for each tick (_tick_of).
create or replace function trunkline._next_ticks(p_log int, p_offset bigint, p_until bigint) returns trunkline.ticks[]
language plpgsql
as $$
declare
    v_ticks trunkline.ticks[];
begin
    begin
        v_ticks := array(select x from trunkline.ticks x where x.log = p_log and x.first_offset >= p_offset and x.first_offset < p_until
                         order by x.first_offset limit 1000);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return v_ticks;
end
$$;

-- Returns where offsets p_from to p_until - 1 of a partition are stored: runs of row ids, in the order of
-- offsets. A reader that finds all these rows has read exactly these offsets. If it finds fewer, retention
-- has removed some; earliest_offset then returns an offset above p_from.
--
-- Raises TL006 if retention has removed p_from, or if the topic was deleted and created again. Raises TL007
-- if an offset is above the head; a standby may be behind.
create or replace function trunkline.log_runs(p_topic text, p_topic_id int, p_partition int, p_from bigint, p_until bigint)
returns table (first_offset bigint, first_id bigint, n bigint)
language plpgsql
as $$
declare
    x       trunkline.topics := trunkline._topic('topic', p_topic);
    v_log   int := x.topic_id * 64 + p_partition;
    t       trunkline.ticks;
    v_ticks trunkline.ticks[];
    v_at    int := 0;
    v_next  bigint := p_from;
    v_take  bigint;
    v_lo    bigint;
begin
    perform trunkline._check_topic_id(p_topic, x.topic_id, p_topic_id);
    perform trunkline._check_partition(x, p_partition);
    if p_from < p_until and p_from < (select base_offset from trunkline.logs where log = v_log) then
        perform trunkline._below_base(x.topic_id, p_partition, p_from);
    end if;
    n := 0;
    while v_next < p_until loop
        if v_next > p_from and v_at >= coalesce(cardinality(v_ticks), 0) then
            v_ticks := trunkline._next_ticks(v_log, v_next, p_until);
            v_at := 0;
        end if;
        v_at := v_at + 1;
        t := v_ticks[v_at];
        -- The first tick may start below p_from. Later, a rotation may have replaced ticks between two scans.
        if t.first_offset is distinct from v_next then
            v_ticks := null;
            v_at := 0;
            t := trunkline._tick_of(v_log, v_next);
        end if;
        if t.log is null or v_next >= t.first_offset + t.n then
            if v_next > trunkline._head(v_log) then
                perform trunkline._fail('TL007', format('offset %s is out of range: the head of topic "%s", partition %s, is %s', v_next, p_topic, p_partition, trunkline._head(v_log)),
                                        'Wait if this is a standby, which may be behind, or read from the primary.');
            end if;
            perform trunkline._below_base(x.topic_id, p_partition, v_next);
        end if;
        v_take := least(p_until, t.first_offset + t.n) - v_next;
        if upper(t.ids) - lower(t.ids) = t.n then
            -- The tick is one run, which may continue the run before it.
            v_lo := lower(t.ids) + v_next - t.first_offset;
            if n > 0 and first_id + n = v_lo then
                n := n + v_take;
            else
                if n > 0 then
                    return next;
                end if;
                first_offset := v_next;
                first_id := v_lo;
                n := v_take;
            end if;
        else
            if n > 0 then
                return next;
                n := 0;
            end if;
            return query
            select v_next + (sum(upper(r) - lower(r)) over (order by lower(r)) - (upper(r) - lower(r)))::bigint, lower(r), upper(r) - lower(r)
            from unnest(trunkline._slice(t.ids, v_next - t.first_offset, v_take)) r order by lower(r);
        end if;
        v_next := v_next + v_take;
    end loop;
    if n > 0 then
        return next;
    end if;
end
$$;

-- Returns the messages with ids in these ranges, for callers without the right to read the topic's table.
-- p_los: the first ids. p_his: the ends, which are not included. Raises TL010 if the topic does not exist.
create or replace function trunkline.log_rows(p_topic_id int, p_partition int, p_los bigint[], p_his bigint[])
returns table (id bigint, message_id uuid, key text, routing_key text, label text, headers jsonb, payload bytea, content_type text,
               occurred_at timestamptz, created_at timestamptz)
language plpgsql
as $$
begin
    if not exists (select from trunkline.topics t where t.topic_id = p_topic_id and t.kind = 'topic') then
        perform trunkline._fail('TL010', format('topic number %s does not exist', p_topic_id),
                                'Start again: the topic was deleted during the read.');
    end if;
    return query execute format('
        select m.id, m.message_id::uuid, m.key, m.routing_key, m.label, m.headers, m.payload::bytea, m.content_type::text, m.occurred_at, m.created_at::timestamptz
        from unnest($2, $3) r(lo, hi) cross join lateral (
            select * from trunkline.topic_%s where partition = $1 and id >= r.lo and id < r.hi order by id) m', p_topic_id)
        using p_partition, p_los, p_his;
end
$$;

-- Returns the earliest available offset of a partition. Call it after a read: all offsets from this one on
-- were available during that read.
create or replace function trunkline.earliest_offset(p_topic_id int, p_partition int) returns bigint
language sql
as $$ select base_offset from trunkline.logs where log = p_topic_id * 64 + p_partition $$;

-- Returns the regular expression that subscriptions use for a routing-key pattern.
create or replace function trunkline.pattern_regex(p_pattern text) returns text
language sql
as $$ select trunkline._pattern_regex(p_pattern) $$;

-- Moves a group's position forward to these next offsets, and creates the group if needed. Spark stores its
-- position in its checkpoint; the group only shows it to others. A position is never moved backward.
--
-- Raises TL021 if a member of the group holds a partition. Locks the group's cursors, in the order of their
-- numbers, until the transaction ends. Needs read committed.
create or replace function trunkline.advance_group(p_topic text, p_group text, p_partitions int[], p_next_offsets bigint[]) returns void
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    g trunkline.subscriptions;
    c trunkline.cursors;
    s trunkline.positions;
    r record;
begin
    perform trunkline._need_read_committed('advance_group');
    g := trunkline.ensure_group(p_topic, p_group);
    for r in
        select k.cursor_id, u.next_offset from unnest(p_partitions, p_next_offsets) u(partition, next_offset)
        join trunkline.cursors k on k.subscription_id = g.subscription_id and k.partition = u.partition order by k.cursor_id
    loop
        perform pg_advisory_xact_lock(778005, r.cursor_id);
        select * into c from trunkline.cursors where cursor_id = r.cursor_id;
        s := trunkline._position(c);
        if s.deadline > trunkline.clock() then
            perform trunkline._fail('TL021', format('cannot move group "%s": member "%s" holds partition %s', p_group, s.member, c.partition),
                                    'Use a separate group for the Spark query.');
        end if;
        if r.next_offset - 1 > s.committed then
            s.committed := r.next_offset - 1;
            s.fetched := s.committed;
            s.last_match := null;
            s.member := null;
            s.generation := null;
            s.deadline := null;
            perform trunkline._move(s);
        end if;
    end loop;
end
$$;

-- Writing: tasks copy rows to staged segments of the log. One transaction then gives them offsets and records
-- that it did (docs/adr/0018).

-- Returns the role of the caller: the one chosen by set role, else session_user. Public functions run with
-- the rights of their owner, so current_user is not the caller.
create or replace function trunkline._caller() returns text
language sql stable
as $$ select coalesce(nullif(current_setting('role'), 'none'), session_user) $$;

-- Returns true if the caller is this role or a member of it. A role that was dropped, or was never recorded,
-- excludes no caller.
create or replace function trunkline._acts_for(p_role text) returns boolean
language sql stable
as $$ select coalesce((select pg_has_role(trunkline._caller(), r.oid, 'member') from pg_roles r where r.rolname = p_role), true) $$;

-- Returns a topic by its name, or a queue's own log by 'queue:<name>'.
create or replace function trunkline._target(p_name text) returns trunkline.topics
language sql
as $$
    select trunkline._topic(case when p_name like 'queue:%' then 'inbox' else 'topic' end, case when p_name like 'queue:%' then substr(p_name, 7) else p_name end)
$$;

-- Returns what a Spark task needs to assign rows to partitions: the number of partitions that keys are spread
-- over (1 if the queue has priorities), the number of all partitions, and the largest payload in bytes.
-- probe: the hash of a known text. A task that computes another value cannot compute the partition of a key.
create or replace function trunkline.stage_target(p_topic text, out partitions int, out all_partitions int, out max_payload int, out probe bigint)
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._target(p_topic);
begin
    partitions := case when t.priorities is null then t.partitions else 1 end;
    all_partitions := t.partitions;
    max_payload := t.max_payload;
    probe := hashtextextended('trunkline', 0);
end
$$;

-- Reserves ids for the rows of a task attempt, p_rows for each of p_partitions, and returns the tables to
-- copy them to. Only the calling role can use the attempt and write to these tables. created_at of the rows
-- must not be before the returned time (at), or close_stage refuses them. p_rows is 1 to 16,777,216 per
-- partition.
--
-- Commit at once: the call locks the staged ids of these partitions (778011), and no other attempt gets ids
-- before the commit. Raises TL004 if there are too many open staged segments. Needs read committed.
create or replace function trunkline.open_stage(p_topic text, p_attempt uuid, p_partitions int[], p_rows int[])
returns table (partition int, segment text, first_id bigint, n int, at timestamptz)
language plpgsql
as $$
declare
    t      trunkline.topics := trunkline._target(p_topic);
    r      record;
    v_left int;
    v_role text := trunkline._caller();
begin
    perform trunkline._need_read_committed('open_stage');
    if p_attempt is null then
        perform trunkline._fail('TL001', 'attempt must not be null', 'Use a new uuid for each attempt.');
    end if;
    for r in select u.partition, u.rows from unnest(p_partitions, p_rows) u(partition, rows) order by u.partition loop
        perform trunkline._check_partition(t, r.partition);
        perform trunkline._check_range('rows', r.rows, 1, 16777216);
        partition := r.partition;
        v_left := r.rows;
        while v_left > 0 loop
            select x.first_id, x.n into first_id, n from trunkline._reserve(t.topic_id, r.partition, t.segment_rows, v_left, v_role) x;
            segment := format('topic_%s_%s_%s', t.topic_id, r.partition, first_id / t.segment_rows);
            at := trunkline.clock();
            insert into trunkline.staged values (t.topic_id * 64 + r.partition, first_id, n, p_attempt, false, at, v_role);
            return next;
            v_left := v_left - n;
        end loop;
    end loop;
end
$$;

-- Reserves the next staged ids of a log: p_wanted, or as many as are left in the role's open segment. Roles
-- do not share segments, so no role can use ids of another role's attempts. Keeps the lock 778011 of the log
-- until the transaction ends.
create or replace function trunkline._reserve(p_topic_id int, p_partition int, p_segment_rows int, p_wanted int, p_role text, out first_id bigint, out n int)
language plpgsql
as $$
declare
    v_log     int := p_topic_id * 64 + p_partition;
    v_segment bigint;
begin
    perform pg_advisory_xact_lock(778011, v_log);
    perform trunkline._catch_up();
    select g.segment, i.next_id into v_segment, first_id
    from trunkline.staged_segments g join trunkline.staged_ids i using (log, segment)
    where g.log = v_log and g.role = p_role and g.sealed_at is null and i.next_id < (g.segment + 1) * p_segment_rows
    order by g.segment limit 1;
    if not found then
        v_segment := trunkline._make_staged_segment(p_topic_id, p_partition, p_segment_rows, p_role);
        first_id := v_segment * p_segment_rows;
    end if;
    n := least(p_wanted, (v_segment + 1) * p_segment_rows - first_id);
    update trunkline.staged_ids i set next_id = first_id + n where i.log = v_log and i.segment = v_segment;
end
$$;

-- Raises TL004 if another staged segment would exceed the limits in trunkline.settings. Each one is a table
-- with an index until upkeep seals it.
create or replace function trunkline._check_staged(p_role text) returns void
language plpgsql
as $$
declare
    v_mine bigint;
    v_all  bigint;
begin
    select count(*) filter (where role = p_role), count(*) into v_mine, v_all from trunkline.staged_segments where sealed_at is null;
    if v_mine >= trunkline._setting('staged_segments_per_role')::int then
        perform trunkline._fail('TL004', format('role "%s" cannot have more than %s open segments of staged rows', p_role, trunkline._setting('staged_segments_per_role')),
                                'Commit or drop attempts, write smaller batches, or ask an owner to raise the setting staged_segments_per_role.');
    elsif v_all >= trunkline._setting('staged_segments')::int then
        perform trunkline._fail('TL004', format('the database cannot have more than %s open segments of staged rows', trunkline._setting('staged_segments')),
                                'Commit or drop attempts, write smaller batches, or ask an owner to raise the setting staged_segments.');
    end if;
end
$$;

-- Creates a staged segment for a role and returns its number. The caller holds the lock of _reserve (778011),
-- so it sees all segments that other sessions have created. The limits of a message are constraints of the
-- table, because the role copies rows straight to it.
create or replace function trunkline._make_staged_segment(p_topic_id int, p_partition int, p_rows int, p_role text) returns bigint
language plpgsql
as $$
declare
    v_log     int := p_topic_id * 64 + p_partition;
    v_parent  text := format('topic_%s', p_topic_id);
    v_ids     text := format('trunkline.topic_%s_%s_staged', p_topic_id, p_partition);
    v_segment bigint;
    v_name    text;
    v_role    text;
begin
    perform trunkline._check_staged(p_role);
    perform trunkline._make_tables(t) from trunkline.topics t where t.topic_id = p_topic_id;
    perform pg_advisory_xact_lock(778003, p_topic_id);
    perform trunkline._catch_up();
    perform trunkline._pin_log(p_topic_id, p_partition);
    if to_regclass(v_ids) is null then
        execute format('create sequence %s minvalue %s', v_ids, trunkline._staged_from(p_rows));
    end if;
    -- An earlier release may have left the value of this sequence inside a segment.
    loop
        v_segment := nextval(v_ids::regclass) / p_rows;
        perform setval(v_ids::regclass, (v_segment + 1) * p_rows - 1);
        exit when not exists (select from trunkline.staged_segments g where g.log = v_log and g.segment = v_segment);
    end loop;
    v_name := format('topic_%s_%s_%s', p_topic_id, p_partition, v_segment);
    execute format('create table trunkline.%I (like trunkline.%I including defaults including constraints,
        check (length(key) <= 1000), check (length(routing_key) <= 1000), check (length(label) <= 200), check (length(content_type) <= 200), check (origin is null))', v_name, v_parent);
    execute format('alter table trunkline.%I alter partition set default %s, alter content_type set default %L, add primary key (id)',
                   v_name, p_partition, 'application/json');
    execute format('alter table trunkline.%I attach partition trunkline.%I for values from (%s, %s) to (%s, %s)',
                   trunkline._block(p_topic_id, p_partition, v_segment, p_rows), v_name, p_partition, v_segment * p_rows, p_partition, (v_segment + 1) * p_rows);
    for v_role in select rolname from pg_roles where rolname in (p_role, 'trunkline_owner') loop
        execute format('grant insert on trunkline.%I to %I', v_name, v_role);
    end loop;
    insert into trunkline.staged_segments (log, segment, created_at, role) values (v_log, v_segment, trunkline.clock(), p_role);
    insert into trunkline.staged_ids values (v_log, v_segment, v_segment * p_rows);
    return v_segment;
end
$$;

-- Marks an attempt as complete after its rows were copied, and returns the number of rows. A commit publishes
-- complete attempts only; the role that copied the rows cannot change them. Marked rows are not counted
-- again.
--
-- Raises TL024 if rows are missing, and TL003 if a payload is too large. Raises TL001 if headers are not an
-- object, or if created_at is before open_stage or in the future.
create or replace function trunkline.close_stage(p_attempt uuid) returns bigint
language plpgsql
as $$
declare
    s       record;
    f       record;
    v_count bigint := 0;
begin
    for s in
        select x.*, l.topic_id, l.partition, x.first_id / t.segment_rows as segment, t.name, t.max_payload
        from trunkline.staged x join trunkline.logs l using (log) join trunkline.topics t using (topic_id)
        where x.attempt = p_attempt and not x.complete and trunkline._acts_for(x.role) order by x.log, x.first_id
    loop
        execute format('select count(*) as n, max(octet_length(payload)) as longest, min(created_at) as oldest, max(created_at) as newest,
                               count(*) filter (where jsonb_typeof(headers) <> ''object'') as odd
                        from trunkline.topic_%s_%s_%s where id >= $1 and id < $2', s.topic_id, s.partition, s.segment)
            into f using s.first_id, s.first_id + s.n;
        if f.n <> s.n then
            perform trunkline._fail('TL024', format('expected %s staged rows, got %s', s.n, f.n),
                                    'Copy all rows before you call close_stage.');
        elsif f.longest > s.max_payload then
            perform trunkline._fail('TL003', format('payload must have at most %s bytes in "%s", got %s', s.max_payload, s.name, f.longest),
                                    'Store large data elsewhere and publish a reference, or raise max_payload with trunkline.alter_topic or trunkline.alter_queue.');
        elsif f.odd > 0 then
            perform trunkline._fail('TL001', format('headers must be a JSON object, got another type in %s messages', f.odd),
                                    'Write headers as {"name": "value"}.');
        elsif f.oldest < s.at then
            perform trunkline._fail('TL001', format('created_at must not be before the time of open_stage, %s, got %s', s.at, f.oldest),
                                    'Use the time that open_stage returned.');
        elsif f.newest > trunkline.clock() then
            perform trunkline._fail('TL001', format('created_at must not be in the future, got %s', f.newest),
                                    'Use the time that open_stage returned.');
        end if;
        -- Only the row that was checked: another session may have reserved more ids for the same attempt.
        update trunkline.staged x set complete = true where x.log = s.log and x.first_id = s.first_id and x.attempt = p_attempt;
        v_count := v_count + s.n;
    end loop;
    return v_count;
end
$$;

-- Abandons the staged rows of these attempts. They never get offsets, and are removed with their segments.
-- Attempts of other roles are not changed.
create or replace function trunkline.drop_stage(p_attempts uuid[]) returns void
language sql
as $$ delete from trunkline.staged where attempt = any (p_attempts) and trunkline._acts_for(role) $$;

-- Abandons the other staged rows of the jobs that these attempts belong to: of tasks that ran twice, and of a
-- killed run of the same job. Attempts of one job are uuids of version 8 with the same first 8 bytes. Skips
-- rows that another transaction has locked.
create or replace function trunkline._drop_jobs(p_attempts uuid[]) returns void
language plpgsql
as $$
begin
    delete from trunkline.staged s using (
        select x.log, x.first_id from (select distinct left(a::text, 18) as job from unnest(p_attempts) a where substr(a::text, 15, 1) = '8') j
        join trunkline.staged x on x.attempt between (j.job || '-0000-000000000000')::uuid and (j.job || '-ffff-ffffffffffff')::uuid
        where trunkline._acts_for(x.role) for update of x skip locked) y
    where s.log = y.log and s.first_id = y.first_id;
end
$$;

-- Returns the newest version that a writer has published, or null if there is none.
create or replace function trunkline.newest_commit(p_writer text) returns bigint
language sql
as $$ select version from trunkline.sink_commits where writer = p_writer order by version desc limit 1 $$;

-- Assigns a writer to a role: from now on only this role and its members can commit its versions. Without an
-- assignment, a writer belongs to the role of its first commit. Raises TL001 if the role does not exist.
create or replace function trunkline.assign_writer(p_writer text, p_role text) returns void
language plpgsql
as $$
begin
    perform trunkline._check_writer(p_writer);
    if p_role is null or not trunkline._has_role(p_role) then
        perform trunkline._fail('TL001', format('role %s does not exist', trunkline._quoted(p_role)),
                                'Use a role of this database cluster.');
    end if;
    insert into trunkline.sink_writers values (p_writer, p_role, trunkline.clock())
    on conflict (writer) do update set role = excluded.role, at = excluded.at;
end
$$;

-- Raises TL001 unless the name of a writer has 1 to 300 characters.
create or replace function trunkline._check_writer(p_writer text) returns void
language plpgsql
as $$
begin
    if p_writer is null or length(p_writer) not between 1 and 300 then
        perform trunkline._fail('TL001', format('writer name must have 1 to 300 characters, got %s', coalesce(length(p_writer)::text, 'null')),
                                'Use a short name that does not change between runs.');
    end if;
end
$$;

-- Raises 42501 if the writer belongs to another role: the caller could publish or skip that role's versions.
-- A new writer, or one whose role was dropped, is assigned to the caller. The caller of this function holds
-- the lock of the writer (778008).
create or replace function trunkline._claim_writer(p_writer text) returns void
language plpgsql
as $$
declare
    v_role text := (select role from trunkline.sink_writers where writer = p_writer);
begin
    if not trunkline._acts_for(v_role) then
        perform trunkline._fail('42501', format('writer "%s" belongs to role "%s"', p_writer, v_role),
                                'Use another writer name, or ask an owner to call trunkline.assign_writer.');
    elsif v_role is null or not trunkline._has_role(v_role) then
        insert into trunkline.sink_writers values (p_writer, trunkline._caller(), trunkline.clock())
        on conflict (writer) do update set role = excluded.role, at = excluded.at;
    end if;
end
$$;

-- Publishes the staged rows of these attempts, in their order, once for each version of a writer. Returns the
-- number of rows, or null if this version was published before. Abandons other attempts of the same job
-- (_drop_jobs).
--
-- Versions of a writer must increase. Raises TL001 if a later version was published and there is no record of
-- this one: records of all but the newest version are deleted after a day. Raises TL024 if the attempts do not
-- have p_rows complete rows in total, because rows were lost in a crash or abandoned. Then nothing is
-- published, and the tasks must run again. Raises 42501 if the writer belongs to another role.
--
-- Locks the writer (778008) and the sequencing of each partition (778001) until the transaction ends.
-- Publishers do not wait for these locks. Needs read committed.
create or replace function trunkline.commit_stage(p_writer text, p_version bigint, p_attempts uuid[], p_rows bigint[]) returns bigint
language plpgsql
as $$
declare
    v_found    bigint;
    v_expected bigint := (select coalesce(sum(r), 0) from unnest(p_rows) r);
    v_ords     bigint[];
    v_logs     int[];
    v_ids      bigint[];
    v_ns       int[];
    v_newest   bigint;
    l          record;
begin
    perform trunkline._need_read_committed('commit_stage');
    perform trunkline._check_writer(p_writer);
    perform trunkline._commit_durably();
    perform pg_advisory_xact_lock(778008, hashtext(p_writer));
    perform trunkline._claim_writer(p_writer);
    if exists (select from trunkline.sink_commits c where c.writer = p_writer and c.version = p_version) then
        perform trunkline._drop_jobs(p_attempts);
        return null;
    end if;
    v_newest := trunkline.newest_commit(p_writer);
    if v_newest > p_version then
        perform trunkline._fail('TL001', format('version of writer "%s" must be above %s, got %s', p_writer, v_newest, p_version),
                                'Use a later version, or another writer name. In Spark, the options are txnVersion and txnAppId.');
    end if;
    -- A row leaves this table in the transaction that gives its offsets, so it cannot get offsets twice.
    with taken as (
        delete from trunkline.staged s using unnest(p_attempts) with ordinality a(attempt, ord)
        where s.attempt = a.attempt and s.complete and trunkline._acts_for(s.role) returning a.ord, s.log, s.first_id, s.n)
    select coalesce(sum(k.n), 0), array_agg(k.ord), array_agg(k.log), array_agg(k.first_id), array_agg(k.n)
      into v_found, v_ords, v_logs, v_ids, v_ns from taken k;
    if v_found <> v_expected then
        perform trunkline._fail('TL024', format('expected %s staged rows, got %s', v_expected, v_found),
                                'Run the write again. Rows were lost in a crash, abandoned after three days, or deleted with their topic.');
    end if;
    perform trunkline._keep_staged(v_logs, v_ids);
    perform trunkline._drop_jobs(p_attempts);
    for l in
        select x.log, x.topic_id, x.partition, t.segment_rows,
               array_agg(u.first_id order by u.ord, u.first_id) as ids, array_agg(u.n order by u.ord, u.first_id) as ns
        from unnest(v_ords, v_logs, v_ids, v_ns) u(ord, log, first_id, n)
        join trunkline.logs x using (log) join trunkline.topics t using (topic_id)
        group by x.log, x.topic_id, x.partition, t.segment_rows order by x.log
    loop
        perform trunkline._give_offsets(l.topic_id, l.partition, l.segment_rows, l.ids, l.ns);
    end loop;
    insert into trunkline.sink_commits (writer, version, rows, at) values (p_writer, p_version, v_found, trunkline.clock());
    return v_found;
end
$$;

-- Locks the segments that get offsets now (for share), so that they are not sealed before this transaction
-- ends. Raises TL024 if one is sealed already.
create or replace function trunkline._keep_staged(p_logs int[], p_ids bigint[]) returns void
language plpgsql
as $$
declare
    v_open bigint;
begin
    select count(*) into v_open from (
        select from trunkline.staged_segments g
        where g.sealed_at is null and (g.log, g.segment) in (
            select u.log, u.first_id / t.segment_rows from unnest(p_logs, p_ids) u(log, first_id)
            join trunkline.logs l using (log) join trunkline.topics t using (topic_id))
        for share) x;
    if v_open <> (select count(distinct (u.log, u.first_id / t.segment_rows)) from unnest(p_logs, p_ids) u(log, first_id)
                  join trunkline.logs l using (log) join trunkline.topics t using (topic_id)) then
        perform trunkline._fail('TL024', 'staged rows were abandoned after three days', 'Run the write again.');
    end if;
end
$$;

-- Gives the next offsets of a log to runs of staged ids, in this order, in ticks of up to 1,000 like those of
-- _tick. The rows are committed and no other session knows their ids, so no scan is needed. _tick runs first,
-- so that messages which were published before get lower offsets. Keeps the sequencing lock (778001) until
-- the transaction ends.
create or replace function trunkline._give_offsets(p_topic_id int, p_partition int, p_segment_rows int, p_ids bigint[], p_ns int[]) returns void
language plpgsql
as $$
declare
    v_log   int := p_topic_id * 64 + p_partition;
    v_waits boolean;
    t       trunkline.ticks;
begin
    v_waits := trunkline._wait_ten_seconds();
    perform pg_advisory_xact_lock(778001, trunkline._sequenced_with(v_log));
    perform trunkline._wait_as_before(v_waits);
    perform trunkline._tick(p_topic_id, p_partition, p_segment_rows, true);
    perform set_config('trunkline.sequencing', v_log::text, true);
    t := trunkline._tick_of(v_log, null);
    -- Only the newest tick of a log holds the state of the sequencer. The last new tick takes it over
    -- unchanged.
    insert into trunkline.ticks (slot, log, first_offset, n, ids, cut_at, snapshot, last_id, whole, own_xid, own_ids)
    select (select slot from trunkline.epoch), v_log, coalesce(t.first_offset + t.n, 1) + x.before + k, least(1000, x.n - k),
           int8multirange(int8range(x.first_id + k, x.first_id + least(x.n, k + 1000))), trunkline.clock(),
           case when y.last and not coalesce(t.shared, false) then coalesce(t.snapshot, '1:1:') end, case when y.last then coalesce(t.last_id, 0) end, case when y.last then coalesce(t.whole, true) end,
           case when y.last then t.own_xid end, case when y.last then t.own_ids end
    from (select u.first_id, u.n, u.ord, sum(u.n) over (order by u.ord) - u.n as before
          from unnest(p_ids, p_ns) with ordinality u(first_id, n, ord)) x
    cross join generate_series(0, x.n - 1, 1000) k
    cross join lateral (select x.ord = cardinality(p_ids) and k + 1000 >= x.n as last) y
    order by x.ord, k;
end
$$;

-- Abandons rows that were staged more than three days ago, and seals staged segments. Deletes records of
-- commits after one day, except for the newest version of a writer. Writers of a single write ('once:...')
-- are deleted as a whole. Returns the number of segments sealed.
create or replace function trunkline._upkeep_stages() returns int
language plpgsql
as $$
begin
    -- Skips rows that a commit has locked: these belong to the commit, however long it takes.
    delete from trunkline.staged s using (select log, first_id from trunkline.staged where at < trunkline.clock() - interval '3 days' for update skip locked) x
    where s.log = x.log and s.first_id = x.first_id;
    delete from trunkline.sink_commits c where c.at < trunkline.clock() - interval '1 day'
       and (c.writer like 'once:%' or c.version < trunkline.newest_commit(c.writer));
    delete from trunkline.sink_writers w where w.at < trunkline.clock() - interval '1 day' and w.writer like 'once:%'
       and not exists (select from trunkline.sink_commits c where c.writer = w.writer);
    return trunkline._seal_staged(null);
end
$$;

-- Seals staged segments that are full or old, or all of one log (p_log), if none of their rows waits for a
-- commit. Returns the number of segments sealed.
create or replace function trunkline._seal_staged(p_log int) returns int
language plpgsql
as $$
declare
    s       record;
    v_next  bigint;
    v_end   bigint;
    v_count int := 0;
begin
    for s in
        select g.log, g.segment, g.created_at, g.role, l.topic_id, l.partition, t.segment_rows, t.retention
        from trunkline.staged_segments g join trunkline.logs l using (log) join trunkline.topics t using (topic_id)
        -- Skips segments that a commit has locked: the commit may be waiting for this transaction.
        where g.sealed_at is null and (p_log is null or g.log = p_log) order by g.log, g.segment for update of g skip locked
    loop
        v_end := (s.segment + 1) * s.segment_rows - 1;
        select i.next_id into v_next from trunkline.staged_ids i where i.log = s.log and i.segment = s.segment;
        continue when p_log is null and v_next <= v_end
                  and s.created_at >= trunkline.clock() - greatest(least(s.retention, interval '30 days') / 8, interval '1 second');
        -- A session that reserves ids in the segment holds this lock, and its row in staged is not visible
        -- yet.
        continue when not pg_try_advisory_xact_lock(778011, s.log);
        -- The remaining ids of the segment are never used.
        update trunkline.staged_ids i set next_id = v_end + 1 where i.log = s.log and i.segment = s.segment and i.next_id <= v_end;
        continue when exists (select from trunkline.staged x where x.log = s.log and x.first_id between s.segment * s.segment_rows and v_end);
        update trunkline.staged_segments g set sealed_at = trunkline.clock(), last_offset = (
            select coalesce(max(k.first_offset + trunkline._size(k.ids * int8multirange(int8range(null, v_end, '[]'))) - 1), 0)
            from trunkline.ticks k where k.log = s.log and not k.shared and k.ids && int8range(s.segment * s.segment_rows, v_end, '[]'))
        where g.log = s.log and g.segment = s.segment;
        -- Revoked so that the role can be dropped. The owner of the table keeps its rights.
        if s.role <> 'trunkline_owner' and exists (select from pg_roles where rolname = s.role and oid <> (select relowner from pg_class where oid = 'trunkline.topics'::regclass)) then
            execute format('revoke insert on trunkline.topic_%s_%s_%s from %I', s.topic_id, s.partition, s.segment, s.role);
        end if;
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;

-- Pipelines

-- Records the status of a pipeline. Arguments that are null keep their former values, and p_detail is merged
-- into the former detail. p_rows is the total so far. When a pipeline starts again, its start time is set and
-- its error is cleared. Raises TL001 unless p_state is running, done, failed or stopped. list_progress keeps the
-- report if the state has changed, or at most every 5 seconds if it has a number, error or detail.
create or replace function trunkline.report_pipeline(
    p_name text, p_kind text, p_state text default 'running', p_batch bigint default null, p_rows bigint default null,
    p_rows_per_second float8 default null, p_lag bigint default null, p_error text default null, p_detail jsonb default null)
returns void
language plpgsql
as $$
declare
    v_now    timestamptz := trunkline.clock();
    v_before trunkline.pipelines;
    v_keep   boolean;
begin
    if p_name is null or length(p_name) not between 1 and 300 then
        perform trunkline._fail('TL001', format('pipeline name must have 1 to 300 characters, got %s', coalesce(length(p_name)::text, 'null')),
                                'Use a shorter name.');
    elsif p_state is null or p_state not in ('running', 'done', 'failed', 'stopped') then
        perform trunkline._fail('TL001', format('state must be "running", "done", "failed" or "stopped", got %s', trunkline._quoted(p_state)),
                                'Use one of these states.');
    end if;
    select * into v_before from trunkline.pipelines where name = p_name;
    v_keep := p_state is distinct from v_before.state or num_nonnulls(p_batch, p_rows, p_rows_per_second, p_lag, p_error, p_detail) > 0
        and coalesce(v_before.progress_at, '-infinity') <= v_now - interval '5 seconds';
    insert into trunkline.pipelines as p (name, kind, state, batch, rows, rows_per_second, lag, error, detail, started_at, updated_at, ended_at, progress_at)
    values (p_name, p_kind, p_state, p_batch, coalesce(p_rows, 0), p_rows_per_second, p_lag, p_error, coalesce(p_detail, '{}'), v_now, v_now,
            case when p_state <> 'running' then v_now end, case when v_keep then v_now end)
    on conflict (name) do update set
        kind = excluded.kind, state = excluded.state, batch = coalesce(excluded.batch, p.batch), rows = coalesce(p_rows, p.rows),
        rows_per_second = coalesce(excluded.rows_per_second, p.rows_per_second), lag = coalesce(excluded.lag, p.lag),
        error = case when excluded.state = 'failed' then excluded.error when excluded.state = 'running' and p.state <> 'running' then null else coalesce(excluded.error, p.error) end,
        detail = p.detail || excluded.detail,
        started_at = case when p.state <> 'running' and excluded.state = 'running' then v_now else p.started_at end,
        updated_at = v_now, ended_at = excluded.ended_at, progress_at = coalesce(excluded.progress_at, p.progress_at);
    insert into trunkline.pipeline_progress (slot, name, at, state, batch, rows, rows_per_second, lag, error, detail)
    select w.slot, p_name, v_now, p_state, p_batch, p_rows, p_rows_per_second, p_lag, p_error, coalesce(p_detail, '{}')
    from trunkline.windows w where w.name = 'pipeline_progress' and v_keep;
end
$$;

-- Returns the reports of a pipeline, the newest first, each as it was made: null for what it left out. Kept for
-- the setting progress_kept (7 days). For more rows, pass the last report_no as p_before. p_limit is 1 to
-- 10,000.
create or replace function trunkline.list_progress(p_name text, p_before bigint default null, p_limit int default 100)
returns table (report_no bigint, at timestamptz, state text, batch bigint, rows bigint, rows_per_second float8, lag bigint, error text, detail jsonb)
language plpgsql
as $$
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    begin
        return query
        select p.no, p.at, p.state || '', p.batch, p.rows, p.rows_per_second, p.lag, p.error || '', p.detail || '{}'
        from trunkline.pipeline_progress p where p.name = p_name and (p_before is null or p.no < p_before) order by p.no desc limit p_limit;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Returns the versions that a Spark writer has published, the newest first. Upkeep removes all but the newest
-- after a day. For more rows, pass the last version as p_before. p_limit is 1 to 10,000.
create or replace function trunkline.list_commits(p_writer text, p_before bigint default null, p_limit int default 100)
returns table (version bigint, rows bigint, at timestamptz)
language plpgsql stable
as $$
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    return query
    select c.version, c.rows, c.at from trunkline.sink_commits c
    where c.writer = p_writer and (p_before is null or c.version < p_before) order by c.version desc limit p_limit;
end
$$;

-- Returns the status of all pipelines, the one that reported last first.
create or replace function trunkline.list_pipelines() returns setof trunkline.pipelines
language sql stable
as $$ select * from trunkline.pipelines order by updated_at desc, name $$;

-- Removes a pipeline from the list; returns true if it was listed.
create or replace function trunkline.forget_pipeline(p_name text) returns boolean
language sql
as $$ with gone as (delete from trunkline.pipelines where name = p_name returning 1) select exists (select from gone) $$;
