-- Searching the messages of a log: by key, routing key, label, headers and payload, in a range of offsets or
-- times, within a budget. Only reads. A search is a sequence of pages; between two of them it holds no lock
-- on a table that upkeep empties, and it checks its budget.

-- Returns the messages of a queue's own log from an offset on, consumed or not. Like read, for messages that
-- were sent to the queue directly. p_partition: 0, or the priority. p_limit: at most 100,000. Fails with
-- TL006 if p_from was removed by retention.
create or replace function trunkline.read_queue(p_queue text, p_partition int default 0, p_from bigint default 1, p_limit int default 100)
returns setof trunkline.message
language plpgsql
as $$
declare
    t      trunkline.topics;
    v_head bigint;
begin
    perform trunkline._queue(p_queue);
    t := trunkline._topic('inbox', p_queue);
    perform trunkline._check_log(t, p_partition);
    perform trunkline._check_range('from', p_from, 1, 9223372036854775807);
    perform trunkline._check_range('limit', p_limit, 1, 100000);
    v_head := trunkline._head(t.topic_id * 64 + p_partition);
    if p_from <= v_head then
        return query
        select r.topic, p_partition, r.log_offset, r.id, r.key, r.routing_key, r.label, r.headers, r.payload, r.content_type, r.occurred_at, r.created_at
        from trunkline._read(t.topic_id, p_partition, t.segment_rows, p_from, least(v_head, p_from - 1 + least(p_limit, v_head - p_from + 1))) r;
    end if;
end
$$;

-- Fails with TL001 unless the topic or queue has this partition.
create or replace function trunkline._check_log(t trunkline.topics, p_partition int) returns void
language plpgsql
as $$
begin
    if p_partition is null or p_partition < 0 or p_partition >= t.partitions then
        perform trunkline._fail('TL001', format('partition %s is out of range: %s "%s" has partitions 0 to %s', coalesce(p_partition::text, 'null'),
                                                case t.kind when 'inbox' then 'queue' else 'topic' end, t.name, t.partitions - 1),
                                format('Use a partition from 0 to %s.', t.partitions - 1));
    end if;
end
$$;

-- A selection of messages, after its check. Null: any value.
do $do$
begin
    if to_regtype('trunkline.selection') is null then
        create type trunkline.selection as (key text, routing text, labels text[], headers jsonb, body jsonpath[], contains bytea, regex text);
    end if;
end
$do$;

-- Returns a selection as search_log takes it, checked. Fails with TL001 and names what is wrong.
create or replace function trunkline._selection(p_selection jsonb) returns trunkline.selection
language plpgsql
as $$
declare
    s      trunkline.selection;
    v_name text;
    v_kind text;
begin
    if jsonb_typeof(coalesce(p_selection, '{}')) <> 'object' then
        perform trunkline._fail('TL001', format('selection must be a JSON object, got %s', jsonb_typeof(p_selection)), 'Write for example {"key": "customer-7"}.');
    end if;
    for v_name, v_kind in select e.key, jsonb_typeof(e.value) from jsonb_each(p_selection) e loop
        if v_name not in ('key', 'routing', 'label', 'headers', 'body', 'text', 'regex') then
            perform trunkline._fail('TL001', format('selection has no field %s', trunkline._quoted(v_name, 50)), 'Use key, routing, label, headers, body, text and regex.');
        elsif v_kind <> 'string' and not (v_name in ('label', 'body') and v_kind = 'array') and v_name <> 'headers' then
            perform trunkline._fail('TL001', format('%s of a selection must be a string%s, got %s', v_name, case when v_name in ('label', 'body') then ' or an array of strings' else '' end, v_kind),
                                    'Leave the field out to select every value.');
        end if;
    end loop;
    s.key := p_selection ->> 'key';
    if p_selection ? 'routing' then
        s.routing := trunkline._pattern_regex(p_selection ->> 'routing');
    end if;
    s.labels := case jsonb_typeof(p_selection -> 'label') when 'string' then array[p_selection ->> 'label'] when 'array' then array(select jsonb_array_elements_text(p_selection -> 'label')) end;
    s.headers := p_selection -> 'headers';
    perform trunkline._check_filter(s.headers);
    s.contains := convert_to(nullif(p_selection ->> 'text', ''), 'UTF8');
    begin
        s.body := case jsonb_typeof(p_selection -> 'body') when 'string' then array[(p_selection ->> 'body')::jsonpath]
                                                           when 'array' then array(select x::jsonpath from jsonb_array_elements_text(p_selection -> 'body') x) end;
    exception when others then
        perform trunkline._fail('TL001', format('body of a selection is not a JSON path: %s', sqlerrm), 'Write for example "$.total ? (@ > 100)".');
    end;
    s.regex := nullif(p_selection ->> 'regex', '');
    if length(s.regex) > 1000 then
        perform trunkline._fail('TL001', format('regex must have at most 1,000 characters, got %s', length(s.regex)), 'Use a shorter expression.');
    end if;
    begin
        perform '' ~ s.regex;
    exception when others then
        perform trunkline._fail('TL001', format('regex of a selection is not valid: %s', sqlerrm), 'Write it as Postgres takes it, for example "time(d)? ?out".');
    end;
    return s;
end
$$;

-- Returns a payload as JSON, or null if it is none.
create or replace function trunkline._payload_json(p_payload bytea) returns jsonb
language plpgsql immutable
as $$
begin
    return convert_from(p_payload, 'UTF8')::jsonb;
exception when others then
    return null;
end
$$;

-- Returns a payload as text, or null if it is not UTF-8.
create or replace function trunkline._payload_text(p_payload bytea) returns text
language plpgsql immutable
as $$
begin
    return convert_from(p_payload, 'UTF8');
exception when others then
    return null;
end
$$;

-- Returns whether a payload has all these JSON paths. Errors of a path count as no match.
create or replace function trunkline._has_paths(p_payload bytea, p_paths jsonpath[]) returns boolean
language plpgsql immutable
as $$
declare
    v_body jsonb := trunkline._payload_json(p_payload);
begin
    return v_body is not null and (select bool_and(jsonb_path_exists(v_body, p, '{}', true)) from unnest(p_paths) p);
end
$$;

-- Returns the partitions of a log to search, each with its first and last offset. A key is in one partition.
-- In a queue with priorities, the partition is the priority.
create or replace function trunkline._search_ranges(t trunkline.topics, s trunkline.selection, p_partitions int[], p_from text, p_to text)
returns table (partition int, first_offset bigint, last_offset bigint)
language plpgsql
as $$
declare
    v_parts int[] := p_partitions;
    v_base  bigint;
    v_head  bigint;
begin
    for i in 1 .. coalesce(cardinality(v_parts), 0) loop
        perform trunkline._check_log(t, v_parts[i]);
    end loop;
    if v_parts is null and s.key is not null and t.priorities is null then
        v_parts := array[trunkline._partition_of(s.key, t.partitions)];
    end if;
    for partition in select l.partition from trunkline.logs l where l.topic_id = t.topic_id and (v_parts is null or l.partition = any (v_parts)) order by l.partition loop
        v_base := (select l.base_offset from trunkline.logs l where l.topic_id = t.topic_id and l.partition = _search_ranges.partition);
        v_head := trunkline._head(t.topic_id * 64 + partition);
        first_offset := trunkline._search_place(t, partition, coalesce(p_from, 'earliest'), v_base, v_head);
        last_offset := trunkline._search_place(t, partition, coalesce(p_to, 'latest'), v_base, v_head);
        if coalesce(p_to, 'latest') !~ '^[0-9]+$' then
            -- a time is exclusive, an offset inclusive
            last_offset := last_offset - 1;
        end if;
        first_offset := greatest(first_offset, v_base);
        last_offset := least(last_offset, v_head);
        return next;
    end loop;
end
$$;

-- Returns the offset of a position for a search: like _place, but an offset may be outside of what is stored.
create or replace function trunkline._search_place(t trunkline.topics, p_partition int, p_position text, p_base bigint, p_head bigint) returns bigint
language sql
as $$
    select case when p_position ~ '^[0-9]{1,18}$' then p_position::bigint when p_position = 'earliest' then p_base when p_position = 'latest' then p_head + 1
                else trunkline._resolve_position(t, p_partition, p_position) end
$$;

-- Returns the topic, or the queue's own log (p_kind 'queue').
create or replace function trunkline._searched_log(p_kind text, p_name text) returns trunkline.topics
language plpgsql
as $$
begin
    if p_kind is null or p_kind not in ('topic', 'queue') then
        perform trunkline._fail('TL001', format('kind must be topic or queue, got %s', trunkline._quoted(p_kind)), 'Use "queue" for messages that were sent to a queue directly.');
    elsif p_kind = 'queue' then
        perform trunkline._queue(p_name);
    end if;
    return trunkline._topic(case p_kind when 'queue' then 'inbox' else 'topic' end, p_name);
end
$$;

-- Returns what a search would read at most, per partition: the offsets, their number, and about how many
-- bytes of messages (estimated from up to 20 of them). Takes the same arguments as search_log.
create or replace function trunkline.estimate_search(
    p_name text, p_selection jsonb default '{}', p_partitions int[] default null, p_from text default 'earliest', p_to text default 'latest', p_kind text default 'topic')
returns table (partition int, first_offset bigint, last_offset bigint, messages bigint, bytes bigint)
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._searched_log(p_kind, p_name);
    r record;
begin
    for r in select * from trunkline._search_ranges(t, trunkline._selection(p_selection), p_partitions, p_from, p_to) loop
        partition := r.partition;
        first_offset := r.first_offset;
        last_offset := r.last_offset;
        messages := greatest(0, r.last_offset - r.first_offset + 1);
        bytes := 0;
        if messages > 0 then
            begin
                -- five messages at four places of the range
                select (avg(octet_length(m.payload) + coalesce(pg_column_size(m.headers), 0) + coalesce(octet_length(m.key), 0) + coalesce(octet_length(m.routing_key), 0) + 60) * messages)::bigint into bytes
                from (select distinct least(r.last_offset, r.first_offset + messages * i / 4) as at from generate_series(0, 3) i) p
                cross join lateral trunkline._read(t.topic_id, r.partition, t.segment_rows, p.at, least(r.last_offset, p.at + 4)) m;
            exception when sqlstate 'TL006' then
                -- retention has removed the first messages meanwhile
                null;
            end;
        end if;
        return next;
    end loop;
end
$$;

-- Searches the messages of a topic, or of a queue's own log (p_kind 'queue'), consumed or not. Returns the
-- matches, and a last row without a message that has: scanned and matched (their numbers), stopped, seconds,
-- and next: where to continue, per partition (null: nothing is left).
-- p_selection, a JSON object whose fields must all match: key; routing (a pattern); label (one or an array);
-- headers (as a subscription's filter); body (a JSON path that must exist, or an array of them); text (part
-- of the payload); regex (on the payload as text). An empty one matches all.
-- p_from and p_to: 'earliest', 'latest', an offset, or a time. p_to is inclusive if it is an offset.
-- p_partitions: null is all, or with a key the one that has it; messages with the key that were published
-- before partitions were added may be in another. p_next: `next` of an earlier call, instead of a range.
-- p_backwards: the newest first, in turn from each partition.
-- Stops because of the first of: 'end', 'limit' (p_limit matches, 1 to 1,000), 'rows' (p_scan messages read),
-- 'bytes' (8 MiB of matches) or 'time' (p_budget, 10 ms to 1 minute). The budget is checked between pages of
-- up to 2,000 messages. One expression can take longer than that on a long payload: limit the time of the
-- statement too.
create or replace function trunkline.search_log(
    p_name text, p_selection jsonb default '{}', p_partitions int[] default null, p_from text default 'earliest', p_to text default 'latest', p_limit int default 50,
    p_backwards boolean default true, p_scan bigint default 1000000, p_budget interval default '5 seconds', p_next jsonb default null, p_kind text default 'topic')
returns table (partition int, log_offset bigint, id uuid, key text, routing_key text, label text, headers jsonb, payload bytea, content_type text, occurred_at timestamptz,
               created_at timestamptz, scanned bigint, matched bigint, stopped text, next jsonb, seconds float8)
language plpgsql
as $$
#variable_conflict use_column
declare
    t         trunkline.topics := trunkline._searched_log(p_kind, p_name);
    s         trunkline.selection := trunkline._selection(p_selection);
    v_began   timestamptz := clock_timestamp();
    v_page_at timestamptz;
    v_parts   int[];
    v_from    bigint[];
    v_to      bigint[];
    v_size    int := 100;
    v_first   bigint;
    v_last    bigint;
    v_hits    trunkline.log_row[];
    v_cut     bigint;
    v_added   bigint;
    v_took    float8;
    v_bytes   bigint := 0;
    v_scanned bigint := 0;
    v_matched bigint := 0;
    v_stopped text;
    i         int := 0;
begin
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    perform trunkline._check_range('scan', p_scan, 1, 1000000000);
    perform trunkline._need_duration('budget', p_budget, '10 milliseconds', '1 minute');
    select array_agg(r.partition), array_agg(r.first_offset), array_agg(r.last_offset) into v_parts, v_from, v_to
      from trunkline._search_ranges(t, s, p_partitions, p_from, p_to) r;
    if p_next is not null then
        if jsonb_typeof(p_next) <> 'object' or exists (select from jsonb_each_text(p_next) e where e.key !~ '^[0-9]{1,2}$' or e.value !~ '^[0-9]{1,18}$') then
            perform trunkline._fail('TL001', 'next must be what an earlier search has returned', 'Pass it unchanged, or leave it out.');
        end if;
        for n in 1 .. coalesce(cardinality(v_parts), 0) loop
            if not p_next ? v_parts[n]::text then
                -- nothing is left in this partition
                v_to[n] := v_from[n] - 1;
            elsif p_backwards then
                v_to[n] := least(v_to[n], (p_next ->> v_parts[n]::text)::bigint);
            else
                v_from[n] := greatest(v_from[n], (p_next ->> v_parts[n]::text)::bigint);
            end if;
        end loop;
    end if;
    loop
        -- the next partition, in turn, that has something left
        v_stopped := 'end';
        for n in 1 .. coalesce(cardinality(v_parts), 0) loop
            i := i % cardinality(v_parts) + 1;
            if v_from[i] <= v_to[i] then
                v_stopped := null;
                exit;
            end if;
        end loop;
        exit when v_stopped is not null;
        v_stopped := case when v_matched >= p_limit then 'limit' when v_bytes >= 8388608 then 'bytes' when v_scanned >= p_scan then 'rows'
                          -- at least one page, so that repeated calls end
                          when v_scanned > 0 and clock_timestamp() - v_began >= p_budget then 'time' end;
        exit when v_stopped is not null;
        v_page_at := clock_timestamp();
        v_size := least(v_size, p_scan - v_scanned);
        if p_backwards then
            v_last := v_to[i];
            v_first := greatest(v_from[i], v_last - v_size + 1);
        else
            v_first := v_from[i];
            v_last := least(v_to[i], v_first + v_size - 1);
        end if;
        begin
            begin
                perform trunkline._begin_read();
                select array_agg(row(x.log_offset, x.id, x.key, x.routing_key, x.label, x.headers, x.payload, x.content_type, x.occurred_at, x.created_at, x.entered_at, x.topic)::trunkline.log_row
                                 order by x.ord) filter (where not x.cut), (array_agg(x.log_offset order by x.ord) filter (where x.cut))[1],
                       coalesce(sum(octet_length(x.payload)) filter (where not x.cut), 0)
                  into v_hits, v_cut, v_added
                  from (select y.*, y.ord > p_limit - v_matched or sum(octet_length(y.payload)) over (order by y.ord) - octet_length(y.payload) + v_bytes >= 8388608 as cut
                        -- only what is returned is copied from its table
                        from (select r.*, row_number() over (order by case when p_backwards then -r.log_offset else r.log_offset end) as ord
                              from trunkline._read(t.topic_id, v_parts[i], t.segment_rows, v_first, v_last) r
                              where (s.key is null or r.key = s.key) and (s.labels is null or r.label = any (s.labels))
                                and (s.routing is null or coalesce(r.routing_key, '') ~ s.routing)
                                and (s.headers is null or trunkline._filter_matches(s.headers, coalesce(r.headers, '{}')))
                                and (s.contains is null or position(s.contains in r.payload) > 0)
                                and (s.body is null or trunkline._has_paths(r.payload, s.body))
                                and (s.regex is null or trunkline._payload_text(r.payload) ~ s.regex)
                              order by ord limit p_limit - v_matched + 1) y) x;
                perform trunkline._end_read();
            exception when sqlstate 'TLX00' then
                null;
            end;
        exception when sqlstate 'TL006' then
            -- retention has removed the first messages meanwhile
            v_from[i] := (select l.base_offset from trunkline.logs l where l.topic_id = t.topic_id and l.partition = v_parts[i]);
            continue;
        end;
        return query
        select v_parts[i], h.log_offset, h.id, h.key, h.routing_key, h.label, h.headers, h.payload, h.content_type, h.occurred_at, h.created_at, null::bigint, null::bigint, null::text, null::jsonb, null::float8
        from unnest(v_hits) h;
        v_matched := v_matched + coalesce(cardinality(v_hits), 0);
        v_bytes := v_bytes + v_added;
        if p_backwards then
            v_to[i] := coalesce(v_cut, v_first - 1);
            v_scanned := v_scanned + v_last - v_to[i];
        else
            v_from[i] := coalesce(v_cut, v_last + 1);
            v_scanned := v_scanned + v_from[i] - v_first;
        end if;
        v_took := extract(epoch from clock_timestamp() - v_page_at);
        v_size := case when v_took > 0.1 then greatest(10, v_size / 2) when v_took < 0.03 then least(2000, v_size * 2) else v_size end;
    end loop;
    return query
    select null::int, null::bigint, null::uuid, null::text, null::text, null::text, null::jsonb, null::bytea, null::text, null::timestamptz, null::timestamptz, v_scanned, v_matched, v_stopped,
           (select jsonb_object_agg(v_parts[n], case when p_backwards then v_to[n] else v_from[n] end) from generate_subscripts(v_parts, 1) n where v_from[n] <= v_to[n]),
           extract(epoch from clock_timestamp() - v_began)::float8;
end
$$;
