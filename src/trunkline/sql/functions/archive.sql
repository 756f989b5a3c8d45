-- The archive: older ranges of a topic's log as files. These functions keep the list of files, which is
-- authoritative. The files are written and read by trunkline.spark. No function here changes a message.

-- Returns the archive row of a topic, created if it is missing, and locks it until the transaction ends. The
-- topic cannot be deleted meanwhile.
create or replace function trunkline._archive(p_topic text) returns trunkline.archives
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('topic', p_topic);
    a trunkline.archives;
begin
    perform trunkline._pin_topic(t);
    -- Every function that changes an archive holds the lock on this row.
    insert into trunkline.archives (topic_id) values (t.topic_id) on conflict do nothing;
    select * into a from trunkline.archives where topic_id = t.topic_id for update;
    return a;
end
$$;

-- Returns the highest archived offset of a partition, or 0 if there is none.
create or replace function trunkline._archived_upto(p_topic_id int, p_partition int) returns bigint
language plpgsql
as $$
begin
    return coalesce((select last_offset from trunkline.archive_files
                     where topic_id = p_topic_id and partition = p_partition order by first_offset desc limit 1), 0);
end
$$;

-- Returns true if retention has to wait: the topic's archive is required and does not reach p_last_offset
-- yet. A file is listed only after it is on disk, and the list only grows. So a result from an older snapshot
-- can only delay retention.
create or replace function trunkline._archive_waits(p_topic_id int, p_partition int, p_last_offset bigint) returns boolean
language plpgsql
as $$
begin
    return exists (select from trunkline.archives where topic_id = p_topic_id and required)
       and trunkline._archived_upto(p_topic_id, p_partition) < p_last_offset;
end
$$;

-- Returns true if an offset is in a listed file.
create or replace function trunkline._is_archived(p_topic_id int, p_partition int, p_offset bigint) returns boolean
language plpgsql
as $$
begin
    return coalesce((select last_offset >= p_offset from trunkline.archive_files
                     where topic_id = p_topic_id and partition = p_partition and first_offset <= p_offset order by first_offset desc limit 1), false);
end
$$;

-- Returns the start offset of a group for a position p_position: a position in the log, an archived offset, or
-- 'archive' for the first archived offset (the earliest available one if nothing is archived). A group reads
-- archived messages through Spark, which moves its position; fetch raises an error that says so.
create or replace function trunkline._resolve_group_position(t trunkline.topics, p_partition int, p_position text) returns bigint
language plpgsql
as $$
declare
    v_place bigint;
begin
    if p_position = 'archive' then
        select first_offset into v_place from trunkline.archive_files
        where topic_id = t.topic_id and partition = p_partition order by first_offset limit 1;
        return coalesce(v_place, trunkline._resolve_position(t, p_partition, 'earliest'));
    end if;
    if p_position ~ '^[0-9]{1,18}$' and trunkline._is_archived(t.topic_id, p_partition, p_position::bigint) then
        return p_position;
    end if;
    return trunkline._resolve_position(t, p_partition, p_position);
end
$$;

-- Makes retention of a topic wait for its archive, or no longer (p_required false), and returns the archive's
-- row. Applies to hard retention too: no message is removed before it is archived.
create or replace function trunkline.require_archive(p_topic text, p_required boolean default true) returns trunkline.archives
language plpgsql
as $$
declare
    a trunkline.archives := trunkline._archive(p_topic);
begin
    update trunkline.archives set required = coalesce(p_required, true) where topic_id = a.topic_id returning * into a;
    return a;
end
$$;

-- Sets the folder of a topic's archive and returns the archive's row. A topic has one archive: once a file is
-- listed, another folder raises TL060; use move_archive. Raises TL001 if the location contains a password or
-- key.
create or replace function trunkline.ensure_archive(p_topic text, p_location text) returns trunkline.archives
language plpgsql
as $$
declare
    a trunkline.archives := trunkline._archive(p_topic);
begin
    if coalesce(length(p_location), 0) not between 1 and 1000 then
        perform trunkline._fail('TL001', format('archive location must have 1 to 1,000 characters, got %s', coalesce(length(p_location)::text, 'null')),
                                'Use a folder or its URI.');
    end if;
    -- Every role that can read the statistics can read the location.
    if p_location ~* '^[a-z0-9+.-]+://([^/?]*@|.*[?&](access|secret)_key=)' then
        perform trunkline._fail('TL001', 'archive location must not contain a password or key',
                                'Configure credentials where the archive is read and written: for S3 with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by a role.');
    end if;
    if a.location is null or not exists (select from trunkline.archive_files f where f.topic_id = a.topic_id) then
        update trunkline.archives set location = p_location where topic_id = a.topic_id returning * into a;
    elsif a.location <> p_location then
        perform trunkline._fail('TL060', format('cannot archive topic "%s" in %s: its archive is in %s', p_topic, p_location, a.location),
                                'Use the existing folder, or move the files and then call trunkline.move_archive.');
    end if;
    return a;
end
$$;

-- Changes the folder of an archive after its files were moved there, and returns the archive's row. Moves no
-- files.
create or replace function trunkline.move_archive(p_topic text, p_location text) returns trunkline.archives
language plpgsql
as $$
declare
    a trunkline.archives := trunkline._archive(p_topic);
begin
    update trunkline.archives set location = null where topic_id = a.topic_id;
    return trunkline.ensure_archive(p_topic, p_location);
end
$$;

-- Tries to lock the archiving of a topic until the transaction ends; returns false if another run holds the
-- lock. It only prevents duplicate work: add_archive_files checks which files may be listed.
create or replace function trunkline.lock_archive(p_topic text) returns boolean
language sql
as $$ select pg_try_advisory_xact_lock(778010, trunkline.topic_number('topic', p_topic)) $$;

-- Returns the next ranges of offsets to archive, about p_rows (1 to 16,777,216) each. A range ends with a
-- segment where possible, so that retention can remove whole segments. Includes sealed segments only, or with
-- p_open all offsets up to the head. Needs read committed.
create or replace function trunkline.plan_archive(p_topic text, p_rows int default 262144, p_open boolean default false)
returns table (partition int, first_offset bigint, last_offset bigint)
language plpgsql
as $$
declare
    t      trunkline.topics := trunkline._topic('topic', p_topic);
    r      record;
    v_end  bigint;
    v_last bigint;
begin
    perform trunkline._need_read_committed('plan_archive');
    perform trunkline._check_range('rows', p_rows, 1, 16777216);
    for r in select l.* from trunkline.logs l where l.topic_id = t.topic_id order by l.log loop
        partition := r.partition;
        first_offset := greatest(trunkline._archived_upto(t.topic_id, r.partition) + 1, r.base_offset);
        v_end := coalesce((select max(s.last_offset) from trunkline._all_segments() s where s.log = r.log and s.sealed_at is not null), 0);
        if p_open then
            v_end := greatest(v_end, trunkline._head(t.topic_id * 64 + r.partition));
        end if;
        while first_offset <= v_end loop
            -- As many whole segments as fit into p_rows. A larger segment is divided into equal ranges.
            select max(s.last_offset) filter (where s.last_offset < plan_archive.first_offset + p_rows),
                   min(s.last_offset) filter (where s.last_offset >= plan_archive.first_offset)
              into v_last, last_offset
            from trunkline._all_segments() s
            where s.log = r.log and s.sealed_at is not null and s.last_offset >= plan_archive.first_offset;
            if v_last is null then
                last_offset := least(coalesce(last_offset, v_end), v_end);
                v_last := first_offset - 1
                    + ceil((last_offset - first_offset + 1)::numeric / ceil((last_offset - first_offset + 1)::numeric / p_rows))::bigint;
            end if;
            last_offset := v_last;
            return next;
            first_offset := v_last + 1;
        end loop;
    end loop;
end
$$;

-- Adds files to the list of a topic's archive, all or none, and returns their number. Each file must follow
-- the archived offsets of its partition, without a gap or an overlap. Offsets that retention removed before
-- they were archived are not a gap. p_topic_id: the number of the topic that the files were written from.
--
-- Raises TL060 for a gap or an overlap, TL007 if an offset is above the head, and TL006 if the topic was
-- deleted and created again since (its number is not p_topic_id). Locks the archive's row
-- until the transaction ends. Needs read committed.
create or replace function trunkline.add_archive_files(
    p_topic text, p_partitions int[], p_first_offsets bigint[], p_last_offsets bigint[], p_paths text[], p_bytes bigint[],
    p_min_created_ats timestamptz[], p_max_created_ats timestamptz[], p_checksums text[], p_topic_id int default null)
returns int
language plpgsql
as $$
declare
    a       trunkline.archives := trunkline._archive(p_topic);
    f       record;
    v_upto  bigint;
    v_base  bigint;
    v_count int := 0;
begin
    perform trunkline._need_read_committed('add_archive_files');
    perform trunkline._commit_durably();
    perform trunkline._check_topic_id(p_topic, a.topic_id, p_topic_id);
    for f in
        select * from unnest(p_partitions, p_first_offsets, p_last_offsets, p_paths, p_bytes, p_min_created_ats, p_max_created_ats, p_checksums)
            u(part, lo, hi, path, bytes, min_at, max_at, checksum) order by part, lo
    loop
        perform trunkline._check_partition(trunkline._topic('topic', p_topic), f.part);
        v_upto := trunkline._archived_upto(a.topic_id, f.part);
        select l.base_offset into v_base from trunkline.logs l where l.topic_id = a.topic_id and l.partition = f.part;
        if f.lo <= v_upto then
            perform trunkline._fail('TL060', format('offset %s of topic "%s", partition %s, is already archived', f.lo, p_topic, f.part),
                                    format('Continue from offset %s. Another run has archived the offsets before it.', v_upto + 1));
        elsif f.lo > greatest(v_upto + 1, v_base) then
            perform trunkline._fail('TL060', format('cannot archive offset %s of topic "%s", partition %s: offsets %s to %s are not archived yet',
                                                    f.lo, p_topic, f.part, greatest(v_upto + 1, v_base), f.lo - 1), 'Archive the missing offsets first.');
        elsif f.hi > trunkline._head(a.topic_id * 64 + f.part) then
            perform trunkline._fail('TL007', format('cannot archive offset %s of topic "%s", partition %s: the head is %s', f.hi, p_topic, f.part, trunkline._head(a.topic_id * 64 + f.part)),
                                    'Archive only offsets up to the head.');
        end if;
        insert into trunkline.archive_files
        values (a.topic_id, f.part, f.lo, f.hi, f.path, f.bytes, f.min_at, f.max_at, f.checksum, trunkline.clock());
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;

-- Fails with TL006 if the topic with this name does not have the number that the caller expects.
create or replace function trunkline._check_topic_id(p_topic text, p_topic_id int, p_expected int) returns void
language plpgsql
as $$
begin
    if p_expected <> p_topic_id then
        perform trunkline._fail('TL006', format('topic "%s" was deleted and created again; offsets of the deleted topic are no longer valid', p_topic),
                                'Start the query with a new checkpoint.');
    end if;
end
$$;

-- Returns where offsets p_first to p_last of a partition can be read, in order, without a gap or an overlap.
-- tier is 'archive' (with the file), 'live' (in the log), or 'gone'. For offsets that are in both, p_prefer
-- decides: 'archive' or 'live'. Offsets above the head are returned as 'live'. p_topic_id: the number of the
-- topic that the offsets belong to. Raises TL006 if the topic was deleted and created again since (its number
-- is not p_topic_id). Needs read committed.
create or replace function trunkline.archive_tiers(
    p_topic text, p_partition int, p_first bigint, p_last bigint, p_prefer text default 'archive', p_topic_id int default null)
returns table (tier text, first_offset bigint, last_offset bigint, location text, path text, file_first bigint, file_last bigint, bytes bigint, checksum text)
language plpgsql
as $$
declare
    t      trunkline.topics := trunkline._topic('topic', p_topic);
    f      trunkline.archive_files;
    v_base bigint;
    v_next bigint := p_first;
    -- Files are used only for offsets below this one.
    v_live bigint;
begin
    perform trunkline._need_read_committed('archive_tiers');
    perform trunkline._check_topic_id(p_topic, t.topic_id, p_topic_id);
    perform trunkline._check_partition(t, p_partition);
    perform trunkline._check_range('first', p_first, 1, 9223372036854775807);
    if coalesce(p_prefer, '') not in ('archive', 'live') then
        perform trunkline._fail('TL001', format('prefer must be "archive" or "live", got %s', trunkline._quoted(p_prefer)),
                                'Use "archive" or "live".');
    end if;
    select base_offset into v_base from trunkline.logs where topic_id = t.topic_id and logs.partition = p_partition;
    select a.location into archive_tiers.location from trunkline.archives a where a.topic_id = t.topic_id;
    v_live := case p_prefer when 'live' then v_base else p_last + 1 end;
    for f in
        select * from trunkline.archive_files x
        where x.topic_id = t.topic_id and x.partition = p_partition and x.first_offset <= least(p_last, v_live - 1)
          -- The file with p_first is the last one that starts at or before it.
          and x.first_offset >= coalesce((select y.first_offset from trunkline.archive_files y
                                          where y.topic_id = t.topic_id and y.partition = p_partition and y.first_offset <= p_first
                                          order by y.first_offset desc limit 1), p_first)
        order by x.first_offset
    loop
        -- The rest of the file is also in the log.
        exit when v_next >= v_live;
        continue when f.last_offset < v_next;
        if f.first_offset > v_next then
            tier := 'gone'; first_offset := v_next; last_offset := f.first_offset - 1;
            path := null; file_first := null; file_last := null; bytes := null; checksum := null;
            return next;
            v_next := f.first_offset;
        end if;
        tier := 'archive'; first_offset := v_next; last_offset := least(f.last_offset, p_last, v_live - 1);
        path := f.path; file_first := f.first_offset; file_last := f.last_offset; bytes := f.bytes; checksum := f.checksum;
        return next;
        v_next := last_offset + 1;
    end loop;
    path := null; file_first := null; file_last := null; bytes := null; checksum := null;
    if v_next <= p_last and v_next < v_base then
        tier := 'gone'; first_offset := v_next; last_offset := least(v_base - 1, p_last);
        return next;
        v_next := last_offset + 1;
    end if;
    if v_next <= p_last then
        tier := 'live'; first_offset := v_next; last_offset := p_last;
        return next;
    end if;
end
$$;

-- Returns the files of a topic's archive, or of all archives (null), by topic, partition and offset.
create or replace function trunkline.list_archive_files(p_topic text default null)
returns table (topic text, topic_id int, partition int, first_offset bigint, last_offset bigint, rows bigint, bytes bigint, min_created_at timestamptz,
               max_created_at timestamptz, location text, path text, checksum text, archived_at timestamptz)
language plpgsql stable
as $$
begin
    if p_topic is not null then
        perform trunkline._topic('topic', p_topic);
    end if;
    return query
    select t.name, t.topic_id, f.partition, f.first_offset, f.last_offset, f.last_offset - f.first_offset + 1, f.bytes, f.min_created_at, f.max_created_at,
           a.location, f.path, f.checksum, f.archived_at
    from trunkline.topics t join trunkline.archives a on a.topic_id = t.topic_id join trunkline.archive_files f on f.topic_id = t.topic_id
    where t.kind = 'topic' and (p_topic is null or t.name = p_topic)
    order by t.name, f.partition, f.first_offset;
end
$$;

-- Returns one row for each partition of a topic with an archive, or of all such topics (null): which offsets
-- are archived, which are still in the log, and the number and size of the files.
create or replace function trunkline.archive_stats(p_topic text default null)
returns table (topic text, partition int, location text, required boolean, earliest_archived bigint, archived_upto bigint, earliest_live bigint, head bigint,
               files bigint, rows bigint, bytes bigint)
language plpgsql
as $$
begin
    if p_topic is not null then
        perform trunkline._topic('topic', p_topic);
    end if;
    return query
    select t.name, l.partition, a.location, a.required, min(f.first_offset), coalesce(max(f.last_offset), 0), l.base_offset, trunkline._head(l.log),
           count(f.path), coalesce(sum(f.last_offset - f.first_offset + 1), 0)::bigint, coalesce(sum(f.bytes), 0)::bigint
    from trunkline.topics t join trunkline.archives a on a.topic_id = t.topic_id join trunkline.logs l on l.topic_id = t.topic_id
    left join trunkline.archive_files f on f.topic_id = l.topic_id and f.partition = l.partition
    where t.kind = 'topic' and (p_topic is null or t.name = p_topic)
    group by t.name, l.log, a.topic_id order by t.name, l.partition;
end
$$;

-- Stores the plan of a pipeline under its name and returns the stored plan. If the name already has a plan,
-- that one is kept and returned.
create or replace function trunkline.keep_plan(p_name text, p_plan jsonb) returns jsonb
language plpgsql
as $$
begin
    if coalesce(length(p_name), 0) not between 1 and 300 or jsonb_typeof(p_plan) is distinct from 'object' then
        perform trunkline._fail('TL001', 'pipeline plan must be a JSON object with a name of 1 to 300 characters',
                                'See docs/how-to/spark-pipelines.md for the form of a plan.');
    end if;
    insert into trunkline.pipeline_plans (name, plan) values (p_name, p_plan) on conflict (name) do nothing;
    return (select plan from trunkline.pipeline_plans where name = p_name);
end
$$;
