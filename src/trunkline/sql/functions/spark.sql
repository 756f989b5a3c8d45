-- What Spark's readers and writers need: heads and places of offsets in the log, staged writes that are published exactly once, the
-- position of a group that Spark moves, and how pipelines fare.

-- Reading

-- Each partition of these topics: the lowest offset left and the next one to be given, counting everything that was committed when the
-- call began. A standby answers what it has: a contiguous prefix.
create or replace function trunkline.log_heads(p_topics text[])
returns table (topic text, topic_id int, partition int, base_offset bigint, next_offset bigint)
language plpgsql
as $$
declare
    t trunkline.topics;
begin
    perform trunkline._need_read_committed('log_heads');
    -- in the order of their numbers: sequencing locks are taken upwards
    for t in select (x.t).* from (select trunkline._topic('topic', n) as t from unnest(p_topics) n) x order by (x.t).topic_id loop
        topic := t.name;
        topic_id := t.topic_id;
        for p in 0 .. t.partitions - 1 loop
            partition := p;
            next_offset := trunkline._tick(t.topic_id, p, t.segment_rows, 1000000) + 1;
            -- read after the head, so that it is never above it
            select least(l.base_offset, next_offset) into base_offset from trunkline.logs l where l.log = t.topic_id * 64 + p;
            return next;
        end loop;
    end loop;
end
$$;

-- Where offsets p_from to p_until - 1 are in the log: runs of row ids, in the order of offsets. Who reads exactly these rows has
-- read exactly these offsets; fewer rows mean that retention was faster (then lowest_offset says so).
create or replace function trunkline.log_runs(p_topic text, p_topic_id int, p_partition int, p_from bigint, p_until bigint)
returns table (first_offset bigint, first_id bigint, n bigint)
language plpgsql
as $$
declare
    x      trunkline.topics := trunkline._topic('topic', p_topic);
    v_log  int := x.topic_id * 64 + p_partition;
    t      trunkline.ticks;
    v_next bigint := p_from;
    v_take bigint;
    v_lo   bigint;
begin
    if p_topic_id is not null and p_topic_id <> x.topic_id then
        perform trunkline._fail('TL006', format('topic %L was deleted and created again; its offsets are others now', p_topic),
                                'start the query with a new checkpoint');
    end if;
    perform trunkline._check_partition(x, p_partition);
    if p_from < p_until and p_from < (select base_offset from trunkline.logs where log = v_log) then
        perform trunkline._below_base(x.topic_id, p_partition, p_from);
    end if;
    n := 0;
    while v_next < p_until loop
        select * into t from trunkline.ticks k where k.log = v_log and k.first_offset <= v_next order by k.first_offset desc limit 1;
        if not found or v_next >= t.first_offset + t.n then
            if v_next > trunkline._head(v_log) then
                perform trunkline._fail('TL007', format('offset %s of partition %s of topic %L is beyond the head', v_next, p_partition, p_topic),
                                        'a standby may be behind: wait for it, or read from the primary');
            end if;
            perform trunkline._below_base(x.topic_id, p_partition, v_next);
        end if;
        v_take := least(p_until, t.first_offset + t.n) - v_next;
        if upper(t.ids) - lower(t.ids) = t.n then
            -- one run, which may continue the one before
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

-- The rows of spans of ids, lower bounds and upper bounds (not included), for callers that may not read the table of messages itself.
create or replace function trunkline.log_rows(p_topic_id int, p_partition int, p_los bigint[], p_his bigint[])
returns table (id bigint, message_id uuid, key text, routing_key text, label text, headers jsonb, payload bytea, content_type text,
               occurred_at timestamptz, created_at timestamptz)
language plpgsql
as $$
begin
    if not exists (select from trunkline.topics t where t.topic_id = p_topic_id and t.kind = 'topic') then
        perform trunkline._fail('TL010', format('there is no topic with number %s', p_topic_id), 'it was deleted meanwhile');
    end if;
    return query execute format('
        select m.id, m.message_id, m.key, m.routing_key, m.label, m.headers, m.payload, m.content_type, m.occurred_at, m.created_at
        from unnest($2, $3) r(lo, hi) cross join lateral (
            select * from trunkline.topic_%s where partition = $1 and id >= r.lo and id < r.hi order by id) m', p_topic_id)
        using p_partition, p_los, p_his;
end
$$;

-- The lowest offset that can still be read. Asked after a read: what it names was there during the read.
create or replace function trunkline.lowest_offset(p_topic_id int, p_partition int) returns bigint
language sql
as $$ select base_offset from trunkline.logs where log = p_topic_id * 64 + p_partition $$;

-- A routing-key pattern as the regular expression that claims use for it.
create or replace function trunkline.pattern_regex(p_pattern text) returns text
language sql
as $$ select trunkline._pattern_regex(p_pattern) $$;

-- Spark keeps its own place; a group that shows it to others is moved by this, forwards only.
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
            perform trunkline._fail('TL021', format('member %L reads partition %s of group %L', s.member, c.partition, p_group),
                                    'give the Spark query a group of its own');
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

-- Writing: tasks copy rows to a stage; one transaction publishes them and notes that it did.

-- The name of the table where this writer stages rows; it is made when first asked for. Not logged: a crash empties it, which the
-- count in commit_stage finds out. Ids come with the rows, because random numbers are the dearest part of an insert here.
create or replace function trunkline.open_stage(p_writer text) returns text
language plpgsql
as $$
declare
    v_id  int;
    v_now timestamptz := trunkline.clock();
    v_at  timestamptz;
begin
    if p_writer is null or length(p_writer) not between 1 and 300 then
        perform trunkline._fail('TL001', 'the name of the writer is empty or longer than 300 characters', 'use a short fixed name');
    end if;
    select stage_id, used_at into v_id, v_at from trunkline.stages where writer = p_writer;
    if not found then
        perform pg_advisory_xact_lock(778008, hashtext(p_writer));
        insert into trunkline.stages (writer, used_at) values (p_writer, v_now) on conflict (writer) do nothing returning stage_id into v_id;
        if not found then
            select stage_id into v_id from trunkline.stages where writer = p_writer;
            return format('stage_%s', v_id);
        end if;
        execute format($x$create unlogged table trunkline.stage_%s (
            attempt uuid not null, idx bigint not null, topic text, partition int, id uuid not null, key text check (length(key) <= 1000),
            routing_key text check (length(routing_key) <= 1000), label text check (length(label) <= 200), headers text,
            header_keys text[], header_values text[], payload bytea not null, content_type text check (length(content_type) <= 200),
            occurred_at timestamptz) with (autovacuum_enabled = off)$x$, v_id);
        if trunkline._has_role('trunkline_publisher') then
            execute format('grant insert on trunkline.stage_%s to trunkline_publisher', v_id);
        end if;
    elsif v_at < v_now - interval '1 hour' then
        update trunkline.stages set used_at = v_now where stage_id = v_id;
    end if;
    return format('stage_%s', v_id);
end
$$;

-- Drops what a writer has staged and not committed, with its table.
create or replace function trunkline.drop_stage(p_writer text) returns void
language plpgsql
as $$
declare
    v_id int;
begin
    delete from trunkline.stages where writer = p_writer returning stage_id into v_id;
    if found then
        execute format('drop table if exists trunkline.stage_%s', v_id);
    end if;
end
$$;

-- A topic by its name, or a queue's own inbox by 'queue:<name>'.
create or replace function trunkline._target(p_name text) returns trunkline.topics
language sql
as $$
    select trunkline._topic(case when p_name like 'queue:%' then 'inbox' else 'topic' end, case when p_name like 'queue:%' then substr(p_name, 7) else p_name end)
$$;

-- Makes the segments that so many more rows will need, in a transaction of its own: who publishes meanwhile would wait for a
-- segment that a long commit makes.
create or replace function trunkline.make_room(p_topics text[], p_rows bigint[]) returns void
language plpgsql
as $$
declare
    t      trunkline.topics;
    r      record;
    v_last bigint;
begin
    for r in select u.topic, sum(u.rows)::bigint as rows from unnest(p_topics, p_rows) u(topic, rows) group by u.topic loop
        t := trunkline._target(r.topic);
        for p in 0 .. t.partitions - 1 loop
            v_last := trunkline._last_id(t.topic_id, p);
            for s in v_last / t.segment_rows .. (v_last + least(r.rows, 2 * r.rows / t.partitions)) / t.segment_rows + 1 loop
                perform trunkline._make_segment(t.topic_id, p, s, t.segment_rows);
            end loop;
        end loop;
    end loop;
end
$$;

-- The newest version that a writer has published; null for none.
create or replace function trunkline.newest_commit(p_writer text) returns bigint
language sql
as $$ select version from trunkline.sink_commits where writer = p_writer order by version desc limit 1 $$;

-- Publishes staged rows, once for each version of a writer: answers how many, or null when this version (or a later one) was published
-- before. The arrays name what belongs to it, in order: so many rows for a topic, staged by an attempt. A stage that has other rows
-- than these lost them in a crash: nothing is published, and the tasks have to run again.
create or replace function trunkline.commit_stage(
    p_stage text, p_writer text, p_version bigint, p_topics text[], p_attempts uuid[], p_rows bigint[])
returns bigint
language plpgsql
as $$
declare
    v_id    int;
    v_count bigint := 0;
    r       record;
begin
    perform trunkline._need_read_committed('commit_stage');
    perform pg_current_xact_id();
    perform trunkline._commit_durably();
    perform pg_advisory_xact_lock(778008, hashtext(p_writer));
    if coalesce(trunkline.newest_commit(p_writer) >= p_version, false) then
        return null;
    end if;
    select stage_id into v_id from trunkline.stages where writer = p_stage;
    for r in
        select u.topic, array_agg(u.attempt order by u.ord) as attempts, array_agg(u.rows order by u.ord) as rows
        from unnest(p_topics, p_attempts, p_rows) with ordinality u(topic, attempt, rows, ord) where u.rows > 0 group by u.topic order by u.topic
    loop
        if v_id is null then
            perform trunkline._fail('TL024', 'the staged rows are gone', 'run the write again');
        end if;
        v_count := v_count + trunkline._publish_stage(v_id, trunkline._target(r.topic), r.topic, r.attempts, r.rows);
    end loop;
    insert into trunkline.sink_commits (writer, version, rows, at) values (p_writer, p_version, v_count, trunkline.clock());
    if v_id is not null then
        perform trunkline._empty_stage(v_id);
    end if;
    return v_count;
end
$$;

-- An emptied stage costs two new files and dead rows in the catalogue: not worth it for a few rows. A task that is still at it (its
-- attempt counts no more) must not keep a commit waiting.
create or replace function trunkline._empty_stage(p_stage_id int) returns void
language plpgsql
as $$
declare
    v_wait text := current_setting('lock_timeout');
begin
    if pg_relation_size(format('trunkline.stage_%s', p_stage_id)) < 8388608 then
        return;
    end if;
    begin
        perform set_config('lock_timeout', '50ms', true);
        execute format('truncate trunkline.stage_%s', p_stage_id);
        perform set_config('lock_timeout', v_wait, true);
    exception when lock_not_available then
        null;
    end;
end
$$;

-- Rows get their ids by their place in the write and not by sorting them: a row's place is that of its attempt's first row plus its
-- own number there. So the wide rows are read once, in the order they lie in.
create or replace function trunkline._publish_stage(p_stage_id int, t trunkline.topics, p_topic text, p_attempts uuid[], p_rows bigint[]) returns bigint
language plpgsql
set enable_seqscan = on
set enable_hashjoin = on
set jit = off
set work_mem = '64MB'
as $$
declare
    v_bases   bigint[];
    v_n       bigint;
    v_any     int := floor(random() * t.partitions);
    v_seqs    regclass[];
    v_parts   int[];
    v_ids     bigint[];
    v_found   bigint;
    v_longest bigint;
    v_range   int4range;
    s         record;
begin
    select array_agg(x.base order by x.ord), max(x.base + x.rows) into v_bases, v_n
    from (select u.ord, u.rows, (sum(u.rows) over (order by u.ord))::bigint - u.rows as base from unnest(p_rows) with ordinality u(rows, ord)) x;

    -- A key goes where publish puts it. Rows without one stay together with those of their task.
    execute format($x$
        select count(*), max(length(s.payload)), int4range(min(s.partition), max(s.partition), '[]'),
               case when %2$s > 1 then array_agg(coalesce(s.partition, %3$s) order by a.base + s.idx) end
        from trunkline.stage_%1$s s join unnest($1, $2) with ordinality a(attempt, base, ord) on s.attempt = a.attempt
        where s.topic is not distinct from $3 or s.topic is null$x$,
        p_stage_id, t.partitions,
        case when t.priorities is not null then '0'
             else format('case when s.key is null then (%s + a.ord::int) %% %s else trunkline._partition_of(s.key, %2$s) end', v_any, t.partitions) end)
        into v_found, v_longest, v_range, v_parts using p_attempts, v_bases, p_topic;
    if v_found <> v_n then
        perform trunkline._fail('TL024', format('%s of %s staged rows are left', v_found, v_n), 'the server was restarted meanwhile: run the write again');
    elsif v_longest > t.max_payload then
        perform trunkline._fail('TL003', format('a payload has %s bytes, the limit of %s is %s', v_longest, p_topic, t.max_payload),
                                'store it elsewhere and publish a reference, or raise max_payload with trunkline.alter_topic');
    elsif lower(v_range) < 0 or upper(v_range) > t.partitions then
        perform trunkline._fail('TL001', format('partition is %s', case when lower(v_range) < 0 then lower(v_range) else upper(v_range) - 1 end),
                                format('%s has partitions 0 to %s', p_topic, t.partitions - 1));
    end if;

    -- the caller has a transaction id by now: see publish
    select array_agg(format('trunkline.topic_%s_%s_ids', t.topic_id, p)::regclass order by p) into v_seqs from generate_series(0, t.partitions - 1) p;
    if t.partitions = 1 then
        v_ids := array(select nextval(v_seqs[1]) from generate_series(1, v_n));
        v_parts := '{}';
    else
        select array_agg(u.row_id order by u.ord) into v_ids
        from (select nextval(v_seqs[p.part + 1]) as row_id, p.ord from unnest(v_parts) with ordinality p(part, ord) offset 0) u;
    end if;
    for s in
        select distinct coalesce(u.part, 0) as part, u.row_id / t.segment_rows as segment from unnest(v_parts, v_ids) u(part, row_id)
    loop
        if to_regclass(format('trunkline.topic_%s_%s_%s', t.topic_id, s.part, s.segment)) is null then
            perform trunkline._make_segment(t.topic_id, s.part, s.segment, t.segment_rows);
        end if;
    end loop;

    execute format($x$
        insert into trunkline.topic_%1$s (partition, id, message_id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at)
        select coalesce($4[x.place], 0), $5[x.place], x.id, x.key, x.routing_key, x.label,
               coalesce(x.headers::jsonb, nullif(jsonb_object(x.header_keys, x.header_values), '{}')), x.payload, coalesce(x.content_type, 'application/json'), x.occurred_at, $6
        from (select s.*, a.base + s.idx + 1 as place
              from trunkline.stage_%2$s s join unnest($1, $2) a(attempt, base) on s.attempt = a.attempt
              where s.topic is not distinct from $3 or s.topic is null) x
        where x.headers is null or jsonb_typeof(x.headers::jsonb) = 'object'$x$, t.topic_id, p_stage_id)
        using p_attempts, v_bases, p_topic, v_parts, v_ids, trunkline.clock();
    get diagnostics v_found = row_count;
    if v_found <> v_n then
        perform trunkline._fail('TL001', format('%s messages have headers that are not a JSON object', v_n - v_found), 'write them as {"name": "value"}');
    end if;
    return v_n;
end
$$;

-- Drops stages that nobody has used for a day, and forgets what was published by versions that are long past.
create or replace function trunkline._duty_stages() returns int
language plpgsql
as $$
declare
    v_writer text;
    v_count  int := 0;
begin
    for v_writer in select writer from trunkline.stages where used_at < trunkline.clock() - interval '1 day' loop
        begin
            perform set_config('lock_timeout', '50ms', true);
            perform trunkline.drop_stage(v_writer);
            v_count := v_count + 1;
        exception when lock_not_available then
            null;
        end;
    end loop;
    delete from trunkline.sink_commits c where c.at < trunkline.clock() - interval '1 day'
       and (c.writer like 'once:%' or c.version < trunkline.newest_commit(c.writer));
    return v_count;
end
$$;

-- Pipelines

-- A pipeline says how it fares: what is null stays as it was; rows are all so far.
create or replace function trunkline.report_pipeline(
    p_name text, p_kind text, p_state text default 'running', p_batch bigint default null, p_rows bigint default null,
    p_rows_per_second float8 default null, p_lag bigint default null, p_error text default null, p_detail jsonb default null)
returns void
language plpgsql
as $$
declare
    v_now timestamptz := trunkline.clock();
begin
    if p_name is null or length(p_name) not between 1 and 300 then
        perform trunkline._fail('TL001', 'the name of the pipeline is empty or longer than 300 characters', 'use a short name');
    elsif p_state is null or p_state not in ('running', 'done', 'failed', 'stopped') then
        perform trunkline._fail('TL001', format('state is %s', coalesce(quote_literal(p_state), 'null')), 'use running, done, failed or stopped');
    end if;
    insert into trunkline.pipelines as p (name, kind, state, batch, rows, rows_per_second, lag, error, detail, started_at, updated_at, ended_at)
    values (p_name, p_kind, p_state, p_batch, coalesce(p_rows, 0), p_rows_per_second, p_lag, p_error, coalesce(p_detail, '{}'), v_now, v_now,
            case when p_state <> 'running' then v_now end)
    on conflict (name) do update set
        kind = excluded.kind, state = excluded.state, batch = coalesce(excluded.batch, p.batch), rows = coalesce(p_rows, p.rows),
        rows_per_second = coalesce(excluded.rows_per_second, p.rows_per_second), lag = coalesce(excluded.lag, p.lag),
        error = case when excluded.state = 'failed' then excluded.error when excluded.state = 'running' and p.state <> 'running' then null else coalesce(excluded.error, p.error) end,
        detail = p.detail || excluded.detail,
        started_at = case when p.state <> 'running' and excluded.state = 'running' then v_now else p.started_at end,
        updated_at = v_now, ended_at = excluded.ended_at;
end
$$;

-- How pipelines fare, the one that spoke last first.
create or replace function trunkline.list_pipelines() returns setof trunkline.pipelines
language sql stable
as $$ select * from trunkline.pipelines order by updated_at desc, name $$;

-- Removes a pipeline from the list; answers whether it was there.
create or replace function trunkline.forget_pipeline(p_name text) returns boolean
language sql
as $$ with gone as (delete from trunkline.pipelines where name = p_name returning 1) select exists (select from gone) $$;
