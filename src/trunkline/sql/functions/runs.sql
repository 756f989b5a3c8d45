-- Runs: actions on many messages that the database executes itself, in steps of at most 1,000 messages. An
-- upkeep task runs the steps, so a run continues after the client, the server or Postgres has ended.
--
-- A step is one transaction: it takes dead letters away, appends their messages, and notes the progress. A run
-- takes only dead letters up to the newest one that existed when it was made. A message that it redrove and
-- that fails again has a higher number, so no run redrives a message twice.
--
-- A session that changes a run locks its row. Upkeep skips runs whose row is locked.

-- Returns the run with this number; raises TL019 if there is none.
create or replace function trunkline._run(p_run_id bigint, p_lock boolean default false) returns trunkline.runs
language plpgsql
as $$
declare
    r trunkline.runs;
begin
    if p_lock then
        select * into r from trunkline.runs where run_id = p_run_id for no key update;
    else
        select * into r from trunkline.runs where run_id = p_run_id;
    end if;
    if r.run_id is null then
        perform trunkline._fail('TL019', format('run %s does not exist', coalesce(p_run_id::text, 'null')), 'List the runs with trunkline.list_runs.');
    end if;
    return r;
end
$$;

-- Appends an entry to the log of a run.
create or replace function trunkline._log_run(p_run_id bigint, p_event text, p_n bigint default null, p_detail text default null) returns void
language sql
as $$ insert into trunkline.run_log (run_id, at, event, n, detail) values (p_run_id, trunkline.clock(), p_event, p_n, p_detail) $$;

-- Returns whether runs of this kind take dead letters.
create or replace function trunkline._takes_dead_letters(p_kind text) returns boolean
language sql immutable
as $$ select p_kind in ('redrive', 'retry_jobs', 'purge_dead_letters') $$;

-- Raises TL001 unless the selector fits the kind and selects something on purpose: a queue alone does not
-- select all of its dead letters, `"all": true` does.
create or replace function trunkline._check_selector(p_kind text, p_selector jsonb) returns void
language plpgsql
as $$
declare
    v_fields text[] := case when trunkline._takes_dead_letters(p_kind) then '{queue,all,ids,fingerprint,label,key,topic,reason,error,headers,since,until}'
                            when p_kind = 'replay' then '{queue,from,to}' when p_kind = 'purge_queue' then '{queue}' end;
    v_bad    text;
    r        record;
begin
    if v_fields is null then
        perform trunkline._fail('TL001', format('kind of a run must be redrive, retry_jobs, purge_dead_letters, replay or purge_queue, got %s', trunkline._quoted(p_kind)),
                                'Use one of these kinds.');
    elsif jsonb_typeof(p_selector) is distinct from 'object' or p_selector = '{}' then
        perform trunkline._fail('TL001', 'selector of a run must not be empty', format('Pass a JSON object with "queue" and some of: %s.', array_to_string(v_fields, ', ')));
    end if;
    select k into v_bad from jsonb_object_keys(p_selector) k where k <> all (v_fields) limit 1;
    if found then
        perform trunkline._fail('TL001', format('selector of a %s run has the unknown field %s', p_kind, trunkline._quoted(v_bad)),
                                format('Use only: %s.', array_to_string(v_fields, ', ')));
    end if;
    for r in select key, value, jsonb_typeof(value) as type from jsonb_each(p_selector) loop
        if r.type <> (case r.key when 'ids' then 'array' when 'headers' then 'object' when 'all' then 'boolean' else 'string' end)
           or r.key = 'ids' and (jsonb_array_length(r.value) not between 1 and 10000
                                 or exists (select from jsonb_array_elements_text(r.value) i where i !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' or i is null)) then
            perform trunkline._fail('TL001', format('field %s of a selector has a wrong value', trunkline._quoted(r.key)),
                                    '"ids" is an array of 1 to 10,000 message ids, "headers" an object, "all" is true; all others are texts.');
        end if;
        if r.key in ('since', 'until', 'from', 'to') then
            perform trunkline._run_time(p_selector, r.key);
        end if;
    end loop;
    perform trunkline._queue(p_selector ->> 'queue');
    if trunkline._takes_dead_letters(p_kind) and p_selector - array['queue', 'all'] = '{}' and (p_selector ->> 'all')::boolean is not true then
        perform trunkline._fail('TL001', format('selector of a %s run selects nothing but a queue', p_kind), 'Add a condition, or "all": true for all dead letters of the queue.');
    elsif p_kind = 'replay' and p_selector ->> 'from' is null then
        perform trunkline._fail('TL001', 'selector of a replay run has no start time', 'Add "from": the time of the first ack.');
    end if;
end
$$;

-- Returns a time of a selector, or null if the selector has no such field. Raises TL001 if it is no time.
create or replace function trunkline._run_time(p_selector jsonb, p_field text) returns timestamptz
language plpgsql
as $$
begin
    return (p_selector ->> p_field)::timestamptz;
exception when data_exception then
    perform trunkline._fail('TL001', format('field "%s" of a selector must be a time, got %s', p_field, trunkline._quoted(p_selector ->> p_field)), 'Use a time such as 2026-11-16T09:12:00Z.');
end
$$;

-- Returns the condition on rows d of `dead_letters` that a checked selector stands for.
create or replace function trunkline._dead_where(p_kind text, p_selector jsonb) returns text
language sql stable
as $$
    -- a field that the selector does not have makes its condition null
    select format('d.queue_id = %s', q.queue_id)
        || case when p_kind = 'retry_jobs' then ' and d.label is not null' else '' end
        || coalesce(' and d.id = any (' || quote_literal((select array_agg(i)::text from jsonb_array_elements_text(p_selector -> 'ids') i)) || '::uuid[])', '')
        || coalesce(' and d.fingerprint = ' || quote_literal(p_selector ->> 'fingerprint'), '')
        || coalesce(' and d.label = ' || quote_literal(p_selector ->> 'label'), '')
        || coalesce(' and d.key = ' || quote_literal(p_selector ->> 'key'), '')
        || coalesce(' and d.topic = ' || quote_literal(p_selector ->> 'topic'), '')
        || coalesce(' and d.reason = ' || quote_literal(p_selector ->> 'reason'), '')
        || coalesce(' and strpos(d.error, ' || quote_literal(p_selector ->> 'error') || ') > 0', '')
        || coalesce(' and d.headers @> ' || quote_literal(p_selector ->> 'headers') || '::jsonb', '')
        || coalesce(' and d.dead_at >= ' || quote_literal(trunkline._run_time(p_selector, 'since')) || '::timestamptz', '')
        || coalesce(' and d.dead_at < ' || quote_literal(trunkline._run_time(p_selector, 'until')) || '::timestamptz', '')
    from trunkline._queue(p_selector ->> 'queue') q
$$;

-- Returns the acked deliveries that a replay selects, as offsets of cursors, at most p_limit.
create or replace function trunkline._replayable(p_selector jsonb, p_limit int) returns table (cursor_id int, log_offset bigint, settled_at timestamptz)
language sql
as $$
    select x.cursor_id, x.log_offset, max(x.settled_at) from (
        select c.cursor_id, o as log_offset, d.settled_at
        from trunkline._queue(p_selector ->> 'queue') q
        cross join lateral trunkline.list_deliveries(q.name, trunkline.clock() - trunkline._run_time(p_selector, 'from'), 1000000) d
        join trunkline.cursors c on c.queue_id = q.queue_id and c.kind = 'log' and c.topic is not distinct from d.topic and c.partition = d.partition
        join trunkline.logs l on l.log = c.log
        cross join lateral generate_series(greatest(d.first_offset, l.base_offset), d.last_offset) o
        where d.outcome = 'acked' and d.settled_at >= trunkline._run_time(p_selector, 'from')
          and (p_selector ->> 'to' is null or d.settled_at < trunkline._run_time(p_selector, 'to'))) x
    group by x.cursor_id, x.log_offset order by max(x.settled_at), x.cursor_id, x.log_offset limit p_limit
$$;

-- Returns what a run with this kind and selector would do, without doing it: `messages`, the number that
-- matches now, counted up to 1,000,000 (a replay: 100,000); `complete`, whether that is all; for dead letters
-- also `first_at`, `last_at` and up to five `samples` of ids. Raises TL001 for a selector that is empty or
-- does not fit the kind. Pass `messages` to start_run.
--
-- Fields of a selector: queue; all, ids, fingerprint, label, key, topic, reason, error (a part of it),
-- headers (contained), since, until (redrive, retry_jobs, purge_dead_letters); from, to (replay: time of the
-- ack). Several fields must all match.
create or replace function trunkline.preview_run(p_kind text, p_selector jsonb) returns jsonb
language plpgsql
as $$
declare
    v_found jsonb;
begin
    perform trunkline._check_selector(p_kind, p_selector);
    if trunkline._takes_dead_letters(p_kind) then
        execute format('
            with found as materialized (select d.dead_id, d.id, d.dead_at from trunkline.dead_letters d where %s order by d.dead_id limit 1000000)
            select jsonb_build_object(''messages'', count(*), ''complete'', count(*) < 1000000, ''first_at'', min(dead_at), ''last_at'', max(dead_at),
                                      ''samples'', (select coalesce(jsonb_agg(x.id), ''[]'') from (select id from found order by dead_id limit 5) x)) from found',
            trunkline._dead_where(p_kind, p_selector)) into v_found;
    elsif p_kind = 'replay' then
        select jsonb_build_object('messages', count(*), 'complete', count(*) < 100000) into v_found from trunkline._replayable(p_selector, 100000);
    else
        select jsonb_build_object('messages', s.ready + s.delayed, 'complete', true) into v_found from trunkline.queue_stats(p_selector ->> 'queue') s;
    end if;
    return v_found;
end
$$;

-- Returns the options of a run with defaults. Raises TL001 for an unknown option or a value out of range.
create or replace function trunkline._run_options(p_kind text, p_options jsonb) returns jsonb
language plpgsql
as $$
declare
    v_purges boolean := p_kind like 'purge%';
    v_known  text[] := case when p_kind in ('redrive', 'retry_jobs') then '{to,canary,canary_timeout,rate,stop_share,stop_window,grace}'
                            when p_kind = 'purge_queue' then '{grace}' else '{rate,grace}' end;
    v_all    jsonb := jsonb_build_object('grace', case when v_purges then 10 else 0 end)
                   || case when p_kind in ('redrive', 'retry_jobs') then '{"canary": 0, "canary_timeout": 300, "stop_window": 200}' else '{}' end::jsonb;
    r        record;
begin
    if jsonb_typeof(coalesce(p_options, '{}')) <> 'object' then
        perform trunkline._fail('TL001', 'options of a run must be a JSON object', format('Use some of: %s.', array_to_string(v_known, ', ')));
    end if;
    for r in select key, value, jsonb_typeof(value) as type from jsonb_each(jsonb_strip_nulls(coalesce(p_options, '{}'))) loop
        if r.key <> all (v_known) then
            perform trunkline._fail('TL001', format('%s run has no option %s', p_kind, trunkline._quoted(r.key)), format('Use some of: %s.', array_to_string(v_known, ', ')));
        elsif r.type <> (case r.key when 'to' then 'string' else 'number' end) then
            perform trunkline._fail('TL001', format('option %s of a run has a wrong type', trunkline._quoted(r.key)), '"to" is the name of a queue; all other options are numbers.');
        end if;
        case r.key
            when 'to' then perform trunkline._queue(r.value #>> '{}');
            when 'canary' then perform trunkline._check_range('canary', r.value::numeric, 0, 1000);
            when 'canary_timeout' then perform trunkline._check_range('canary_timeout', r.value::numeric, 1, 86400);
            when 'rate' then perform trunkline._check_range('rate', r.value::numeric, 0.01, 1000000);
            when 'stop_share' then perform trunkline._check_range('stop_share', r.value::numeric, 0, 1);
            when 'stop_window' then perform trunkline._check_range('stop_window', r.value::numeric, 1, 10000);
            else perform trunkline._check_range('grace', r.value::numeric, 0, 86400);
        end case;
    end loop;
    return v_all || jsonb_strip_nulls(coalesce(p_options, '{}'));
end
$$;

-- Starts a run and returns its number. p_expected: the number of messages that preview_run returned. Raises
-- TL025 if it has changed by more than 10 % since, and TL001 for an empty selector. Nothing happens before
-- this transaction has committed and upkeep runs. p_by: the name of the starter (default: the role of the
-- session).
--
-- Kinds: redrive, retry_jobs (a redrive of jobs that also withdraws their cancel requests),
-- purge_dead_letters, replay, purge_queue. Selectors: see preview_run.
-- Options: grace, seconds to wait (default 0; purges 10); rate, messages per second (default: 1,000 per step);
-- to, another queue; canary, the number of messages to redrive first (0 to 1,000, default 0), then the run waits until they
-- are settled, at most canary_timeout seconds (default 300); stop_share, stops the run if more than this share
-- of stop_window consecutive messages (default 200), or of the canary, are dead letters again.
create or replace function trunkline.start_run(p_kind text, p_selector jsonb, p_expected bigint, p_options jsonb default '{}', p_by text default null) returns bigint
language plpgsql
as $$
declare
    v_options jsonb := trunkline._run_options(p_kind, p_options);
    v_preview jsonb := trunkline.preview_run(p_kind, p_selector);
    v_total   bigint := (v_preview ->> 'messages')::bigint;
    v_now     timestamptz := trunkline.clock();
    v_id      bigint;
begin
    perform trunkline._commit_durably();
    if p_expected is null then
        perform trunkline._fail('TL001', 'a run needs the number of messages that its preview returned', 'Call trunkline.preview_run and pass its "messages".');
    elsif abs(v_total - p_expected) * 10 > p_expected then
        perform trunkline._fail('TL025', format('%s messages match now, %s matched in the preview', v_total, p_expected), 'Call trunkline.preview_run again, and start the run with its result.');
    elsif p_kind = 'replay' and v_total >= 100000 then
        perform trunkline._fail('TL004', 'a replay run cannot have 100,000 messages or more', 'Narrow the time range.');
    end if;
    insert into trunkline.runs (kind, state, selector, options, made_by, made_at, start_at, total, upto)
    values (p_kind, 'waiting', p_selector, v_options, coalesce(p_by, session_user), v_now, v_now + (v_options ->> 'grace')::float8 * interval '1 second', v_total,
            case when trunkline._takes_dead_letters(p_kind) then coalesce((select max(dead_id) from trunkline.dead_letters), 0) else 0 end)
    returning run_id into v_id;
    if p_kind = 'replay' then
        insert into trunkline.run_items (run_id, no, cursor_id, log_offset)
        select v_id, row_number() over (order by x.settled_at, x.cursor_id, x.log_offset), x.cursor_id, x.log_offset from trunkline._replayable(p_selector, 100000) x;
    end if;
    perform trunkline._log_run(v_id, 'started', v_total, 'by ' || coalesce(p_by, session_user));
    return v_id;
end
$$;

-- Sets the state of a run and logs it. The caller has locked the row.
create or replace function trunkline._set_run_state(p_run_id bigint, p_state text, p_event text, p_reason text default null) returns void
language plpgsql
as $$
begin
    update trunkline.runs set state = p_state, reason = p_reason, ended_at = case when p_state in ('done', 'aborted', 'undone') then trunkline.clock() end where run_id = p_run_id;
    perform trunkline._log_run(p_run_id, p_event, (select done from trunkline.runs where run_id = p_run_id), p_reason);
end
$$;

-- Pauses a run that has not ended. Waits for a step that is in progress. Returns the state before; a run that
-- is paused or stopped stays so. Raises TL021 if the run has ended.
create or replace function trunkline.pause_run(p_run_id bigint, p_reason text default null) returns text
language plpgsql
as $$
declare
    r trunkline.runs := trunkline._run(p_run_id, true);
begin
    if r.state in ('waiting', 'canary', 'running') then
        perform trunkline._set_run_state(p_run_id, 'paused', 'paused', p_reason);
    elsif r.state not in ('paused', 'stopped') then
        perform trunkline._fail('TL021', format('cannot pause run %s: it is %s', p_run_id, r.state), 'Start a new run.');
    end if;
    return r.state;
end
$$;

-- Continues a run that was paused, or stopped by its rule or an error. The stop rule counts again from zero,
-- and a canary that was not finished is not waited for. Returns the state before. Raises TL021 if the run has
-- ended.
create or replace function trunkline.resume_run(p_run_id bigint) returns text
language plpgsql
as $$
declare
    r trunkline.runs := trunkline._run(p_run_id, true);
begin
    if r.state in ('paused', 'stopped') then
        update trunkline.runs set rule_from = case when r.state = 'stopped' then r.done else r.rule_from end, canary_ids = '{}', credit = 0, stepped_at = null where run_id = p_run_id;
        perform trunkline._set_run_state(p_run_id, case when r.start_at > trunkline.clock() then 'waiting' else 'running' end, 'resumed');
    elsif r.state not in ('waiting', 'canary', 'running') then
        perform trunkline._fail('TL021', format('cannot resume run %s: it is %s', p_run_id, r.state), 'Start a new run.');
    end if;
    return r.state;
end
$$;

-- Ends a run before its end, and returns the state before. Waits for a step that is in progress. Messages that
-- it has not processed stay as they are. A run that was aborted before stays so; raises TL021 if it has ended
-- otherwise.
create or replace function trunkline.abort_run(p_run_id bigint, p_reason text default null) returns text
language plpgsql
as $$
declare
    r trunkline.runs := trunkline._run(p_run_id, true);
begin
    if r.state in ('done', 'undone') then
        perform trunkline._fail('TL021', format('cannot abort run %s: it is %s', p_run_id, r.state), 'Its messages were processed.');
    elsif r.state <> 'aborted' then
        perform trunkline._set_run_state(p_run_id, 'aborted', 'aborted', p_reason);
    end if;
    return r.state;
end
$$;

-- Moves a group back to the exact positions that it had before a seek, also if it has committed since, and
-- returns the number of partitions. Waits like seek, and fails with TL006 if retention has removed a position.
-- Raises TL023 for other runs: what they have processed is not reverted. Raises TL021 if it was undone.
create or replace function trunkline.undo_run(p_run_id bigint) returns int
language plpgsql
as $$
declare
    r trunkline.runs := trunkline._run(p_run_id, true);
begin
    if r.kind <> 'seek' then
        perform trunkline._fail('TL023', format('cannot undo run %s: it is a %s', p_run_id, r.kind), 'Only a seek can be undone. Abort the run to keep the rest as it is.');
    elsif r.state <> 'done' then
        perform trunkline._fail('TL021', format('cannot undo run %s: it is %s', p_run_id, r.state), 'The undo is in the list itself: undo it to get back to the seek.');
    end if;
    perform trunkline._seek(r.selector ->> 'topic', r.selector ->> 'group', null, null, r.before);
    perform trunkline._set_run_state(p_run_id, 'undone', 'undone');
    return r.total;
end
$$;

-- Returns how many messages of a run became dead letters again, and the most of them in any p_window
-- consecutive messages with a number above p_from. Reads the newest p_limit dead letters of the target queue.
create or replace function trunkline._run_failures(r trunkline.runs, p_window int, p_from bigint, p_limit int, out failed bigint, out worst bigint)
language sql stable
as $$
    select count(*), coalesce(max(x.near), 0) from (
        select count(*) filter (where m.run_no > p_from) over (order by m.run_no range between greatest(p_window - 1, 0)::bigint preceding and current row) as near
        from (select d.id from trunkline.dead_letters d
              where d.queue_id = (select q.queue_id from trunkline.queues q where q.name = coalesce(r.options ->> 'to', r.selector ->> 'queue')) and d.dead_id > r.upto
              order by d.dead_id desc limit p_limit) d
        cross join lateral (select y.run_no from trunkline.redriven y where y.id = d.id and y.run_id = r.run_id offset 0) m) x
$$;

-- Returns the outcome of a message that a run has redriven: 'dead', 'acked', 'failing' (at least one attempt
-- has ended, and it was not acked) or 'open'. The caller has called _begin_read.
create or replace function trunkline._run_outcome(r trunkline.runs, p_id uuid) returns text
language plpgsql
as $$
declare
    m        record;
    v_offset bigint;
    d        record;
begin
    if exists (select from trunkline.dead_letters x where x.id = p_id and x.dead_id > r.upto) then
        return 'dead';
    end if;
    for m in
        select c as cur, y.at from trunkline.redriven y join trunkline.cursors c on c.topic_id = y.topic_id and c.kind = 'log' and c.queue_id is not null
        where y.id = p_id and y.run_id = r.run_id order by c.log
    loop
        v_offset := trunkline._find_in_ticks((m.cur).log, trunkline._tick_at((m.cur).log, m.at), 200, p_id);
        if v_offset is not null then
            -- before the message has its new offset, this is the earlier one
            select x.kind, x.attempt into d from trunkline._deliveries_of(m.cur, v_offset) x where x.claimed_at >= m.at order by x.claimed_at desc limit 1;
            return case when d.kind = 'a' then 'acked' when d.kind is not null and d.kind <> 'r' or d.attempt > 1 then 'failing' else 'open' end;
        end if;
    end loop;
    return 'open';
end
$$;

-- Checks the canary of a run: removes settled messages from canary_ids, and decides when none is left or the
-- time is over. Returns the number of messages that were settled.
create or replace function trunkline._check_canary(r trunkline.runs) returns int
language plpgsql
as $$
declare
    v_over   boolean := trunkline.clock() >= r.canary_at + (r.options ->> 'canary_timeout')::float8 * interval '1 second';
    v_open   uuid[];
    v_bad    bigint;
    v_tried  bigint;
    v_failed bigint;
    v_share  float8 := coalesce((r.options ->> 'stop_share')::float8, 1);
begin
    begin
        perform trunkline._begin_read();
        select coalesce(array_agg(x.id order by x.ord) filter (where x.outcome in ('open', 'failing')), '{}'), count(*) filter (where x.outcome = 'dead'),
               count(*) filter (where x.outcome = 'failing'), count(*) filter (where x.outcome <> 'open')
          into v_open, v_failed, v_bad, v_tried
          from (select u.id, u.ord, trunkline._run_outcome(r, u.id) as outcome from unnest(r.canary_ids) with ordinality u(id, ord) where u.ord <= 200
                union all select u.id, u.ord, 'open' from unnest(r.canary_ids) with ordinality u(id, ord) where u.ord > 200) x;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    v_failed := v_failed + r.canary_failed;
    update trunkline.runs set canary_ids = v_open, canary_failed = v_failed, stepped_at = trunkline.clock() where run_id = r.run_id;
    if v_failed > v_share * r.done or v_over and v_failed + v_bad > v_share * r.done then
        perform trunkline._set_run_state(r.run_id, 'stopped', 'stopped', format('%s of %s messages of the canary failed', v_failed + case when v_over then v_bad else 0 end, r.done));
    elsif v_over and cardinality(v_open) = r.done and v_tried = 0 then
        perform trunkline._set_run_state(r.run_id, 'stopped', 'stopped', format('no message of the canary was delivered within %s s', r.options ->> 'canary_timeout'));
    elsif v_open = '{}' or v_over then
        perform trunkline._set_run_state(r.run_id, 'running', 'canary passed',
                                         format('%s of %s messages failed%s', v_failed, r.done, case when v_open <> '{}' then format(', %s are not settled', cardinality(v_open)) else '' end));
    end if;
    return cardinality(r.canary_ids) - cardinality(v_open);
end
$$;

-- Takes the next dead letters of a run: deletes and returns them, at most p_limit and about 32 MB. Skips rows
-- that another session has locked. Sets `position` of the run. Without fingerprint or ids, one call visits
-- at most 20,000 rows.
create or replace function trunkline._take_for_run(r trunkline.runs, p_limit int) returns setof trunkline.dead_letters
language plpgsql
as $$
declare
    v_where text := trunkline._dead_where(r.kind, r.selector);
    v_upto  bigint := r.upto;
begin
    if r.selector ->> 'fingerprint' is null and r.selector -> 'ids' is null then
        -- a selective condition must not visit all dead letters of the queue in one step
        v_upto := least(r.upto, (select max(x.dead_id) from (
            select d.dead_id from trunkline.dead_letters d
            where d.queue_id = (select q.queue_id from trunkline.queues q where q.name = r.selector ->> 'queue') and d.dead_id > r.position order by d.dead_id limit 20000) x));
    end if;
    return query execute format('
        with step as (
            select d.dead_id, length(d.payload) as bytes from trunkline.dead_letters d
            where %s and d.dead_id > $1 and d.dead_id <= $2 order by d.dead_id limit $3 for update skip locked
        )
        delete from trunkline.dead_letters d using (select dead_id, sum(bytes) over (order by dead_id) - bytes as before from step) x
        where d.dead_id = x.dead_id and x.before < 33554432 returning d.*', v_where) using r.position, v_upto, p_limit;
end
$$;

-- Returns whether dead letters of a run are left, also those that another session has locked.
create or replace function trunkline._left_for_run(r trunkline.runs, p_from bigint) returns boolean
language plpgsql
as $$
declare
    v_left boolean;
begin
    execute format('select exists (select from trunkline.dead_letters d where %s and d.dead_id > $1 and d.dead_id <= $2)', trunkline._dead_where(r.kind, r.selector))
        into v_left using p_from, r.upto;
    return v_left;
end
$$;

-- Redrives, retries or purges the next p_limit dead letters of a run, and returns their number and ids.
create or replace function trunkline._step_dead(r trunkline.runs, p_limit int, out done int, out ids uuid[])
language plpgsql
as $$
declare
    v_taken trunkline.dead_letters[];
    v_last  bigint;
begin
    select coalesce(array_agg(x order by x.dead_id), '{}'), max(x.dead_id), coalesce(array_agg(x.id order by x.dead_id), '{}') into v_taken, v_last, ids from trunkline._take_for_run(r, p_limit) x;
    done := cardinality(v_taken);
    if done > 0 and r.kind <> 'purge_dead_letters' then
        if r.kind = 'retry_jobs' then
            delete from trunkline.job_cancels where job_id = any (ids);
        end if;
        perform trunkline._redrive_taken(trunkline._topic('inbox', coalesce(r.options ->> 'to', r.selector ->> 'queue')), v_taken, r.run_id, r.done);
    end if;
    if done = 0 then
        -- The next rows that match are far away, were skipped because they were locked, or there are none.
        -- A sweep starts from the beginning for those that were skipped.
        v_last := case when trunkline._left_for_run(r, r.position) then
                      coalesce((select max(x.dead_id) from (select d.dead_id from trunkline.dead_letters d
                                where d.queue_id = (select q.queue_id from trunkline.queues q where q.name = r.selector ->> 'queue') and d.dead_id > r.position order by d.dead_id limit 20000) x), r.upto)
                  else 0 end;
        if v_last = 0 and not trunkline._left_for_run(r, 0) then
            perform trunkline._set_run_state(r.run_id, 'done', 'done');
        end if;
    end if;
    update trunkline.runs set position = coalesce(v_last, position) where run_id = r.run_id;
end
$$;

-- Enqueues the next p_limit messages of a replay again. Returns the number of messages that were processed.
-- Messages that retention has removed since are skipped.
create or replace function trunkline._step_replay(r trunkline.runs, p_limit int) returns int
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('inbox', r.selector ->> 'queue');
    m record;
begin
    perform trunkline._pin_topic(t);
    select count(*)::int as items, count(x.id) as n, array_agg(x.payload order by x.no) filter (where x.id is not null) as payloads, array_agg(x.id order by x.no) filter (where x.id is not null) as ids,
           array_agg(x.key order by x.no) filter (where x.id is not null) as keys, array_agg(x.routing_key order by x.no) filter (where x.id is not null) as routing_keys,
           array_agg(x.label order by x.no) filter (where x.id is not null) as labels, array_agg(x.headers order by x.no) filter (where x.id is not null) as headers,
           array_agg(x.content_type order by x.no) filter (where x.id is not null) as content_types, array_agg(x.occurred_at order by x.no) filter (where x.id is not null) as occurred_ats,
           array_agg(x.no order by x.no) filter (where x.id is not null) as nos,
           array_agg(row(x.created_at, coalesce(x.origin, x.topic))::trunkline.origin order by x.no) filter (where x.id is not null) as origins
      into m
      from (select i.no, c.topic, y.id, y.payload, y.key, y.routing_key, y.label, y.headers, y.content_type, y.occurred_at, y.created_at, y.topic as origin
            from (select * from trunkline.run_items z where z.run_id = r.run_id and z.no > r.done order by z.no limit p_limit) i
            left join trunkline.cursors c using (cursor_id)
            left join trunkline.logs l on l.log = c.log and i.log_offset >= l.base_offset
            left join lateral trunkline._read(c.topic_id, c.partition, c.segment_rows, i.log_offset, i.log_offset) y on l.log is not null) x;
    if m.n > 0 then
        insert into trunkline.redriven (id, topic_id, at, run_id, run_no) select u.id, t.topic_id, trunkline.clock(), r.run_id, u.no from unnest(m.ids, m.nos) u(id, no);
        perform trunkline._append(t, m.payloads, m.ids, m.keys, m.routing_keys, m.labels, m.headers, m.content_types, m.occurred_ats, null, m.origins);
    end if;
    if m.items = 0 then
        perform trunkline._set_run_state(r.run_id, 'done', 'done');
    end if;
    return m.items;
end
$$;

-- Runs the next step of a run whose row is locked by this transaction. Returns the number of messages.
create or replace function trunkline._step_run(r trunkline.runs) returns int
language plpgsql
as $$
declare
    v_now    timestamptz := trunkline.clock();
    v_limit  int := 1000;
    v_rate   float8 := (r.options ->> 'rate')::float8;
    v_credit float8 := 0;
    v_canary int := coalesce((r.options ->> 'canary')::int, 0);
    v_window int := greatest(least((r.options ->> 'stop_window')::int, r.total), 1);
    v_done   int;
    v_ids    uuid[] := '{}';
    f        record;
begin
    if not exists (select from trunkline.queues q where q.name = r.selector ->> 'queue') then
        perform trunkline._set_run_state(r.run_id, 'aborted', 'aborted', 'the queue was deleted');
        return 0;
    end if;
    if r.kind = 'purge_queue' then
        update trunkline.runs set done = trunkline.purge_queue(r.selector ->> 'queue'), stepped_at = v_now where run_id = r.run_id;
        perform trunkline._set_run_state(r.run_id, 'done', 'done');
        return 1;
    end if;
    if r.state = 'canary' then
        return case when v_now < r.stepped_at + interval '1 second' and v_now >= r.stepped_at then 0 else trunkline._check_canary(r) end;
    end if;
    if r.options ? 'stop_share' then
        f := trunkline._run_failures(r, v_window, r.rule_from, 5000);
        update trunkline.runs set failed = greatest(failed, f.failed) where run_id = r.run_id;
        if f.worst > (r.options ->> 'stop_share')::float8 * v_window then
            perform trunkline._set_run_state(r.run_id, 'stopped', 'stopped', format('%s of %s consecutive messages failed again', f.worst, v_window));
            return 0;
        end if;
    end if;
    if r.state = 'waiting' and v_canary > 0 and r.done = 0 then
        v_limit := v_canary;
    elsif v_rate is not null then
        -- at most the messages of two seconds, so that a run does not catch up after upkeep has stood still
        v_credit := r.credit + v_rate * least(greatest(coalesce(extract(epoch from v_now - r.stepped_at), 0), 0), 2)::float8;
        if r.stepped_at is null then
            v_credit := 1;
        end if;
        v_limit := least(1000, floor(v_credit))::int;
        if v_limit < 1 then
            update trunkline.runs set credit = v_credit, stepped_at = v_now where run_id = r.run_id;
            return 0;
        end if;
    end if;
    if r.kind = 'replay' then
        v_done := trunkline._step_replay(r, v_limit);
    else
        select x.done, x.ids into v_done, v_ids from trunkline._step_dead(r, v_limit) x;
    end if;
    update trunkline.runs
       set done = done + v_done, stepped_at = v_now, credit = least(greatest(v_credit - v_done, 0), 1000),
           state = case when state = 'waiting' then case when v_canary > 0 and v_done > 0 then 'canary' else 'running' end else state end,
           canary_at = case when state = 'waiting' and v_canary > 0 then v_now else canary_at end,
           canary_ids = case when state = 'waiting' and v_canary > 0 then v_ids else canary_ids end
     where run_id = r.run_id;
    if v_done > 0 then
        perform trunkline._log_run(r.run_id, case when r.state = 'waiting' and v_canary > 0 then 'canary' else 'step' end, v_done);
    end if;
    return v_done;
end
$$;

-- Runs one step of each run that is due, at most 20 of them, the one first that waited longest. A step that
-- fails changes nothing and stops its run, unless it only waited for a lock. Removes runs that ended 90 days
-- ago. Returns the number of messages.
create or replace function trunkline._upkeep_runs() returns int
language plpgsql
as $$
declare
    r       trunkline.runs;
    v_count int := 0;
    v_text  text;
    v_code  text;
begin
    for r in
        select x.* from trunkline.runs x where x.state in ('waiting', 'canary', 'running') and x.start_at <= trunkline.clock()
        order by x.stepped_at nulls first, x.run_id limit 20 for no key update skip locked
    loop
        begin
            v_count := v_count + trunkline._step_run(r);
        exception
            when lock_not_available or deadlock_detected or serialization_failure then
                null;
            when others then
                get stacked diagnostics v_text = message_text, v_code = returned_sqlstate;
                perform trunkline._set_run_state(r.run_id, 'stopped', 'failed', format('%s (%s)', v_text, v_code));
        end;
    end loop;
    if random() < 0.001 then
        delete from trunkline.runs where run_id in (select run_id from trunkline.runs where ended_at < trunkline.clock() - interval '90 days' limit 100);
    end if;
    return v_count;
end
$$;

-- Returns runs, the newest first, at most p_limit (1 to 1,000): those that have not ended, or with a state in
-- p_states; for the next page pass the last run_id as p_before. failed: messages of a redrive that are dead
-- letters again, as of the last step.
create or replace function trunkline.list_runs(p_states text[] default null, p_before bigint default null, p_limit int default 100)
returns table (run_id bigint, kind text, state text, reason text, selector jsonb, options jsonb, made_by text, made_at timestamptz, start_at timestamptz,
               ended_at timestamptz, total bigint, done bigint, failed bigint)
language plpgsql
as $$
begin
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    return query
    select r.run_id, r.kind, r.state, r.reason, r.selector, r.options, r.made_by, r.made_at, r.start_at, r.ended_at, r.total, r.done, r.failed
    from trunkline.runs r where (p_states is null or r.state = any (p_states)) and (p_before is null or r.run_id < p_before) order by r.run_id desc limit p_limit;
end
$$;

-- Returns one run, with up to five ids of messages that failed again (`failures`) and the newest 100 entries
-- of its log (`log`), oldest first. failed: as of now, among the newest 100,000 dead letters of the queue.
-- Raises TL019 if the run does not exist.
create or replace function trunkline.get_run(p_run_id bigint)
returns table (run_id bigint, kind text, state text, reason text, selector jsonb, options jsonb, made_by text, made_at timestamptz, start_at timestamptz,
               ended_at timestamptz, total bigint, done bigint, failed bigint, before jsonb, failures jsonb, log jsonb)
language plpgsql
as $$
declare
    r          trunkline.runs := trunkline._run(p_run_id);
    v_failed   bigint := r.failed;
    v_failures jsonb := '[]';
begin
    if r.kind in ('redrive', 'retry_jobs') and r.done > 0 then
        v_failed := greatest((trunkline._run_failures(r, 1, 0, 100000)).failed, r.failed);
        select coalesce(jsonb_agg(jsonb_build_object('id', x.id, 'error', x.error, 'dead_at', x.dead_at) order by x.dead_id desc), '[]') into v_failures from (
            select d.id, d.error, d.dead_at, d.dead_id from (
                select y.* from trunkline.dead_letters y
                where y.queue_id = (select q.queue_id from trunkline.queues q where q.name = coalesce(r.options ->> 'to', r.selector ->> 'queue')) and y.dead_id > r.upto
                order by y.dead_id desc limit 10000) d
            where exists (select from trunkline.redriven m where m.id = d.id and m.run_id = r.run_id) order by d.dead_id desc limit 5) x;
    end if;
    return query
    select r.run_id, r.kind, r.state, r.reason, r.selector, r.options, r.made_by, r.made_at, r.start_at, r.ended_at, r.total, r.done, v_failed, r.before, v_failures,
           (select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('at', l.at, 'event', l.event, 'n', l.n, 'detail', l.detail)) order by l.no), '[]')
            from (select * from trunkline.run_log g where g.run_id = r.run_id order by g.no desc limit 100) l);
end
$$;
