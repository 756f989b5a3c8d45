-- Cron schedules. A tick is a time at which a schedule fires. SQL evaluates the expressions, so upkeep that
-- is run from psql or pg_cron is enough to fire schedules (docs/adr/0010).

-- Returns one field of a cron expression as a set of bits, one for each value that matches. A field is *, a,
-- a-b, each with an optional /step, or a list of these. "a/step" runs from a to the maximum. p_names: the
-- names that stand for values, from p_min up; null for a field without names. Raises TL001.
create or replace function trunkline._cron_field(p_field text, p_text text, p_min int, p_max int, p_names text[]) returns bigint
language plpgsql immutable
as $$
declare
    v_bits  bigint := 0;
    v_term  text;
    v_parts text[];
    v_first int;
    v_last  int;
    v_step  int;
begin
    foreach v_term in array string_to_array(p_text, ',') loop
        v_parts := regexp_match(v_term, '^(?:(\*)|([0-9]{1,4}|[A-Z]{3})(?:-([0-9]{1,4}|[A-Z]{3}))?)(?:/([0-9]{1,4}))?$');
        if v_parts[1] is not null then
            v_first := p_min;
            v_last := p_max;
        else
            v_first := case when v_parts[2] ~ '^[0-9]' then v_parts[2]::int else array_position(p_names, v_parts[2]) + p_min - 1 end;
            v_last := case when v_parts[3] is null then case when v_parts[4] is null then v_first else p_max end
                           when v_parts[3] ~ '^[0-9]' then v_parts[3]::int else array_position(p_names, v_parts[3]) + p_min - 1 end;
        end if;
        v_step := coalesce(v_parts[4], '1');
        if v_first is null or v_last is null or v_first < p_min or v_last > p_max or v_first > v_last or v_step = 0 then
            perform trunkline._fail('TL001', format('invalid value for cron field %s: "%s"', p_field, left(v_term, 50)),
                format('Use *, a number from %s to %s%s, a range such as %s-%s, a step such as */2, or a list of these.', p_min, p_max,
                       case when p_names is null then '' else format(' or a name (%s to %s)', p_names[1], p_names[cardinality(p_names)]) end, p_min, p_max));
        end if;
        while v_first <= v_last loop
            v_bits := v_bits | (1::bigint << v_first);
            v_first := v_first + v_step;
        end loop;
    end loop;
    return v_bits;
end
$$;

-- Returns a parsed cron expression: five fields, or a shortcut such as @daily. Raises TL001. If day-of-month
-- or day-of-week starts with *, a day must match both fields (both_days); otherwise it must match one of
-- them. fixed: neither minute nor hour starts with *, which decides how _cron_next handles clock changes.
create or replace function trunkline._parse_cron(p_cron text) returns trunkline.cron
language plpgsql immutable
as $$
declare
    v_text  text := upper(btrim(p_cron, E' \t'));
    v_parts text[];
    c       trunkline.cron;
begin
    v_text := case v_text
        when '@HOURLY' then '0 * * * *' when '@DAILY' then '0 0 * * *' when '@MIDNIGHT' then '0 0 * * *' when '@WEEKLY' then '0 0 * * 0'
        when '@MONTHLY' then '0 0 1 * *' when '@YEARLY' then '0 0 1 1 *' when '@ANNUALLY' then '0 0 1 1 *' else v_text end;
    v_parts := regexp_split_to_array(v_text, '[ \t]+');
    if v_text is null or cardinality(v_parts) <> 5 or length(v_text) > 500 then
        perform trunkline._fail('TL001', format('cron expression must have 5 fields, got %s', trunkline._quoted(p_cron)),
            'Write "minute hour day-of-month month day-of-week", for example "0 9 * * MON-FRI", or @hourly, @daily, @weekly, @monthly, @yearly.');
    end if;
    c.minutes := trunkline._cron_field('minute', v_parts[1], 0, 59, null);
    c.hours := trunkline._cron_field('hour', v_parts[2], 0, 23, null);
    c.days := trunkline._cron_field('day of month', v_parts[3], 1, 31, null);
    c.months := trunkline._cron_field('month', v_parts[4], 1, 12, '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}');
    c.weekdays := trunkline._cron_field('day of week', v_parts[5], 0, 7, '{SUN,MON,TUE,WED,THU,FRI,SAT}');
    -- Both 0 and 7 are Sunday.
    c.weekdays := (c.weekdays | (c.weekdays >> 7)) & 127;
    c.both_days := starts_with(v_parts[3], '*') or starts_with(v_parts[5], '*');
    c.fixed := not starts_with(v_parts[1], '*') and not starts_with(v_parts[2], '*');
    return c;
end
$$;

-- Returns the first local time at p_from or later that matches the expression, or null if none does in 50
-- years. Knows nothing of time zones. p_from must be a whole minute.
create or replace function trunkline._cron_wall(c trunkline.cron, p_from timestamp) returns timestamp
language plpgsql immutable
as $$
declare
    v_day    date := p_from;
    v_minute int := extract(minute from p_from);
    v_hour   int := extract(hour from p_from);
    v_month  date;
    v_d      int;
    v_last   int;
    v_dow    int;
    v_ok     boolean;
begin
    -- The time of day, if p_from's own day matches.
    while v_minute < 60 and (c.minutes >> v_minute) & 1 = 0 loop
        v_minute := v_minute + 1;
    end loop;
    if v_minute = 60 or (c.hours >> v_hour) & 1 = 0 then
        v_hour := v_hour + 1;
        v_minute := 0;
        while (c.minutes >> v_minute) & 1 = 0 loop
            v_minute := v_minute + 1;
        end loop;
        while v_hour < 24 and (c.hours >> v_hour) & 1 = 0 loop
            v_hour := v_hour + 1;
        end loop;
    end if;
    if v_hour = 24 then
        v_day := v_day + 1;
    end if;
    -- The day. Months that do not match are skipped as a whole, so a rare month costs little.
    v_d := extract(day from v_day);
    v_month := v_day - v_d + 1;
    <<months>>
    for i in 0 .. 600 loop
        if (c.months >> extract(month from v_month)::int) & 1 = 1 then
            v_last := extract(day from v_month + interval '1 month' - interval '1 day');
            v_dow := (extract(dow from v_month)::int + v_d - 1) % 7;
            while v_d <= v_last loop
                v_ok := case when c.both_days then ((c.days >> v_d) & (c.weekdays >> v_dow) & 1) = 1
                             else ((c.days >> v_d) | (c.weekdays >> v_dow)) & 1 = 1 end;
                exit months when v_ok;
                v_d := v_d + 1;
                v_dow := (v_dow + 1) % 7;
            end loop;
        end if;
        v_month := v_month + interval '1 month';
        v_d := 1;
    end loop;
    if not coalesce(v_ok, false) then
        return null;
    end if;
    if v_month + v_d - 1 > p_from::date then
        -- A later day than p_from's: the first matching time of that day.
        v_hour := 0;
        while (c.hours >> v_hour) & 1 = 0 loop
            v_hour := v_hour + 1;
        end loop;
        v_minute := 0;
        while (c.minutes >> v_minute) & 1 = 0 loop
            v_minute := v_minute + 1;
        end loop;
    end if;
    return v_month + (v_d - 1) + make_interval(hours => v_hour, mins => v_minute);
end
$$;

-- Returns the instants at which local clocks in a zone show p_wall. Usually there is one (first = second).
-- There are two if the clocks were set back over p_wall. If they were set forward over it there is none:
-- "exists" is false, and both are the instant of the change.
create or replace function trunkline._instants(p_wall timestamp, p_zone text, out first timestamptz, out second timestamptz, out "exists" boolean)
language plpgsql stable
as $$
declare
    v_low timestamptz;
    v_mid timestamptz;
begin
    -- If there are two instants, Postgres returns the second. If there is none, it returns one after the
    -- change.
    second := p_wall at time zone p_zone;
    "exists" := (second at time zone p_zone) = p_wall;
    -- Converts p_wall with the UTC offset of the day before.
    first := second - interval '24 hours';
    first := (p_wall - ((first at time zone p_zone) - (first at time zone 'UTC'))) at time zone 'UTC';
    if "exists" then
        if (first at time zone p_zone) <> p_wall or first > second then
            first := second;
        end if;
        return;
    end if;
    -- Binary search for the change, to the second: the local time is above p_wall from there on.
    v_low := second - interval '48 hours';
    while second - v_low > interval '1 second' loop
        v_mid := date_trunc('second', v_low + (second - v_low) / 2);
        if (v_mid at time zone p_zone) > p_wall then
            second := v_mid;
        else
            v_low := v_mid;
        end if;
    end loop;
    first := second;
end
$$;

-- Returns the first tick after p_after, or null if there is none in 50 years.
create or replace function trunkline._cron_next(c trunkline.cron, p_zone text, p_after timestamptz) returns timestamptz
language plpgsql stable
as $$
declare
    v_wall timestamp := date_trunc('minute', p_after at time zone p_zone) + interval '1 minute';
    v_next timestamp;
    v_from timestamptz;
    v_tick timestamptz;
    v_now  record;
    t      record;
begin
    if p_zone = 'UTC' then
        return trunkline._cron_wall(c, v_wall) at time zone 'UTC';
    end if;
    if c.fixed then
        -- A fixed time of day: a time that the clocks skip runs at the change, and a time that they repeat
        -- runs the first time only.
        loop
            v_next := trunkline._cron_wall(c, v_wall);
            exit when v_next is null;
            t := trunkline._instants(v_next, p_zone);
            if t.first > p_after then
                return t.first;
            end if;
            v_wall := v_next + interval '1 minute';
        end loop;
        return null;
    end if;
    -- An interval such as "every 15 minutes": all minutes that really occur are considered. A local time that
    -- the clocks repeat matches twice, and one that they skip does not match.
    v_from := p_after + (v_wall - (p_after at time zone p_zone));
    loop
        v_wall := v_from at time zone p_zone;
        v_next := trunkline._cron_wall(c, v_wall);
        exit when v_next is null;
        v_now := trunkline._instants(v_wall, p_zone);
        if v_now.first < v_now.second and v_from = v_now.first then
            -- v_from is in the first run of a repeated period. If the match is not in that run, continue at
            -- the start of the second run.
            v_tick := v_from + (v_next - v_wall);
            if (v_tick at time zone p_zone) = v_next then
                return v_tick;
            end if;
            v_from := trunkline._set_back(v_from, v_now.second, p_zone);
            continue;
        end if;
        t := trunkline._instants(v_next, p_zone);
        if t."exists" then
            return case when t.first >= v_from then t.first else t.second end;
        end if;
        -- The clocks skip this match: continue after the change.
        v_from := t.first;
    end loop;
    return null;
end
$$;

-- Returns the instant between p_first and p_second at which the clocks of a zone were set back, to the
-- second.
create or replace function trunkline._set_back(p_first timestamptz, p_second timestamptz, p_zone text) returns timestamptz
language plpgsql stable
as $$
declare
    v_low    timestamptz := p_first;
    v_high   timestamptz := p_second;
    v_offset interval := (p_first at time zone p_zone) - (p_first at time zone 'UTC');
    v_mid    timestamptz;
begin
    while v_high - v_low > interval '1 second' loop
        v_mid := date_trunc('second', v_low + (v_high - v_low) / 2);
        if (v_mid at time zone p_zone) - (v_mid at time zone 'UTC') = v_offset then
            v_low := v_mid;
        else
            v_high := v_mid;
        end if;
    end loop;
    return v_high;
end
$$;

-- Returns the newest tick in (p_after, p_upto]. The caller must know that there is one. Binary search, so a
-- long pause costs little more than a short one.
create or replace function trunkline._cron_newest(c trunkline.cron, p_zone text, p_after timestamptz, p_upto timestamptz) returns timestamptz
language plpgsql stable
as $$
declare
    v_tick  timestamptz := trunkline._cron_next(c, p_zone, p_after);
    v_later timestamptz;
    v_upto  timestamptz := p_upto;
    v_mid   timestamptz;
begin
    loop
        v_later := trunkline._cron_next(c, p_zone, v_tick);
        if v_later is null or v_later > v_upto then
            return v_tick;
        end if;
        v_mid := v_later + (v_upto - v_later) / 2;
        v_tick := trunkline._cron_next(c, p_zone, v_mid);
        if v_tick is null or v_tick > v_upto then
            v_upto := v_mid;
            v_tick := v_later;
        end if;
    end loop;
end
$$;

-- Raises TL001 unless p_zone is the name of a time zone; the hint suggests similar names.
create or replace function trunkline._check_timezone(p_zone text) returns void
language plpgsql
as $$
declare
    v_near text;
begin
    -- Only names in pg_timezone_names are accepted: an abbreviation or a POSIX rule has no history of UTC
    -- offsets.
    if p_zone = 'UTC' or exists (select from pg_timezone_names where name = p_zone) then
        return;
    end if;
    select string_agg(x.name, ', ') into v_near
    from (select name from pg_timezone_names where name ilike '%' || replace(replace(p_zone, ' ', '_'), '%', '') || '%' and name !~ '^posix/' order by name limit 3) x;
    perform trunkline._fail('TL001', format('time zone %s does not exist', trunkline._quoted(p_zone)),
                            coalesce('Did you mean ' || v_near || '?', 'Use an IANA name such as Europe/Berlin. The view pg_timezone_names lists all names.'));
end
$$;

-- Returns p_tick. Raises TL001 if it is null, because the expression matches no date.
create or replace function trunkline._need_tick(p_tick timestamptz, p_cron text) returns timestamptz
language plpgsql
as $$
begin
    if p_tick is null then
        perform trunkline._fail('TL001', format('cron expression "%s" matches no date in the next 50 years', p_cron),
                                'Check day-of-month and month.');
    end if;
    return p_tick;
end
$$;

-- Returns the next p_limit run times (1 to 10,000) of a cron expression after p_after (default: now). Needs no
-- schedule. Raises TL001 if the expression or time zone is not valid, or if no date matches in 50 years.
create or replace function trunkline.next_runs(p_cron text, p_timezone text default 'UTC', p_limit int default 5, p_after timestamptz default null)
returns setof timestamptz
language plpgsql
as $$
declare
    c      trunkline.cron := trunkline._parse_cron(p_cron);
    v_tick timestamptz := coalesce(p_after, trunkline.clock());
begin
    perform trunkline._check_timezone(p_timezone);
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    if v_tick not between '1900-01-01' and '9000-01-01' then
        perform trunkline._fail('TL001', format('after must be in the years 1900 to 9000, got %s', v_tick),
                                'Use a time in this range.');
    end if;
    for i in 1 .. p_limit loop
        v_tick := trunkline._cron_next(c, p_timezone, v_tick);
        if i = 1 then
            perform trunkline._need_tick(v_tick, p_cron);
        end if;
        exit when v_tick is null;
        return next v_tick;
    end loop;
end
$$;

-- Returns a schedule by its name; raises TL015 if it does not exist. p_lock: locks the row until the
-- transaction ends.
create or replace function trunkline._schedule(p_name text, p_lock boolean default false) returns trunkline.schedules
language plpgsql
as $$
declare
    s trunkline.schedules;
begin
    if p_lock then
        select * into s from trunkline.schedules where name = p_name for update;
    else
        select * into s from trunkline.schedules where name = p_name;
    end if;
    if s.name is null then
        perform trunkline._fail('TL015', format('schedule "%s" does not exist', p_name),
                                format('Create it with trunkline.create_schedule(%L, ...).', p_name));
    end if;
    return s;
end
$$;

-- Returns the row that a schedule with these arguments has. Raises an error for a message that could never be
-- published. Keeps a shared lock on the definition of the target (778012) until the transaction ends.
create or replace function trunkline._make_schedule(
    p_name text, p_cron text, p_topic text, p_queue text, p_payload jsonb, p_key text, p_routing_key text, p_label text, p_headers jsonb,
    p_timezone text, p_catch_up text)
returns trunkline.schedules
language plpgsql
as $$
declare
    s trunkline.schedules;
    t trunkline.topics;
begin
    perform trunkline._check_name('schedule', p_name);
    if num_nonnulls(p_topic, p_queue) <> 1 then
        perform trunkline._fail('TL001', format('schedule must have either a topic or a queue, got %s', case when p_topic is null then 'neither' else 'both' end),
                                'Pass either p_topic or p_queue.');
    end if;
    if p_catch_up is null or p_catch_up not in ('skip', 'one', 'all') then
        perform trunkline._fail('TL001', format('catch_up must be "skip", "one" or "all", got %s', trunkline._quoted(p_catch_up, 50)),
                                'Use "skip" to skip missed runs, "one" for one message for all of them, or "all" for a message for each.');
    end if;
    -- With this lock, a concurrent deletion of the target finds the schedule, or this function finds the
    -- target deleted.
    t := trunkline._lock_topic(case when p_queue is null then 'topic' else 'inbox' end, coalesce(p_queue, p_topic), true);
    s.name := p_name;
    s.topic := p_topic;
    s.queue := p_queue;
    s.cron := p_cron;
    s.timezone := p_timezone;
    s.catch_up := p_catch_up;
    s.payload := convert_to(p_payload::text, 'UTF8');
    s.content_type := 'application/json';
    s.key := p_key;
    s.routing_key := p_routing_key;
    s.label := p_label;
    s.headers := p_headers;
    perform trunkline._refuse_message(0, s.payload, p_key, p_routing_key, p_label, p_headers, s.content_type, t.max_payload);
    perform trunkline._check_timezone(p_timezone);
    s.next_at := trunkline._need_tick(trunkline._cron_next(trunkline._parse_cron(p_cron), p_timezone, trunkline.clock()), p_cron);
    return s;
end
$$;

-- Creates a schedule and returns its row. At each time that matches p_cron in p_timezone (a tick), upkeep
-- publishes the payload to the topic or queue. Each tick is published once, however many processes run
-- upkeep. The message has the header trunkline-schedule with the schedule's name; occurred_at is the time of
-- the tick.
--
-- p_catch_up decides about ticks that were missed because upkeep did not run. 'one' publishes one message for
-- all of them, with the time of the newest. 'all' publishes a message for each. 'skip' publishes none, except
-- for the newest tick if it is not older than the setting schedule_grace (2 minutes).
--
-- Give either p_topic or p_queue. Raises TL020 if the schedule exists, TL001 if p_cron or p_timezone is not
-- valid, and the errors of publish for its message. Locks the definition of the target until the transaction
-- ends; publishers do not wait for this lock.
create or replace function trunkline.create_schedule(
    p_name text, p_cron text, p_topic text default null, p_queue text default null, p_payload jsonb default 'null', p_key text default null,
    p_routing_key text default null, p_label text default null, p_headers jsonb default null, p_timezone text default 'UTC',
    p_catch_up text default 'one')
returns trunkline.schedules
language plpgsql
as $$
declare
    s trunkline.schedules := trunkline._make_schedule(p_name, p_cron, p_topic, p_queue, p_payload, p_key, p_routing_key, p_label, p_headers,
                                                      p_timezone, p_catch_up);
begin
    insert into trunkline.schedules (name, topic, queue, cron, timezone, catch_up, payload, content_type, key, routing_key, label, headers, next_at)
    values (s.name, s.topic, s.queue, s.cron, s.timezone, s.catch_up, s.payload, s.content_type, s.key, s.routing_key, s.label, s.headers, s.next_at)
    on conflict (name) do nothing returning * into s;
    if not found then
        perform trunkline._fail('TL020', format('schedule "%s" already exists', p_name),
                                'Use another name, or change the existing schedule with trunkline.ensure_schedule.');
    end if;
    return s;
end
$$;

-- Creates a schedule, or changes an existing one to these arguments, and returns its row. Arguments that are
-- left out get their defaults, as in create_schedule. A paused schedule stays paused. The next tick changes
-- only if p_cron or p_timezone changes.
create or replace function trunkline.ensure_schedule(
    p_name text, p_cron text, p_topic text default null, p_queue text default null, p_payload jsonb default 'null', p_key text default null,
    p_routing_key text default null, p_label text default null, p_headers jsonb default null, p_timezone text default 'UTC',
    p_catch_up text default 'one')
returns trunkline.schedules
language plpgsql
as $$
declare
    s trunkline.schedules := trunkline._make_schedule(p_name, p_cron, p_topic, p_queue, p_payload, p_key, p_routing_key, p_label, p_headers,
                                                      p_timezone, p_catch_up);
begin
    insert into trunkline.schedules as o
           (name, topic, queue, cron, timezone, catch_up, payload, content_type, key, routing_key, label, headers, next_at)
    values (s.name, s.topic, s.queue, s.cron, s.timezone, s.catch_up, s.payload, s.content_type, s.key, s.routing_key, s.label, s.headers, s.next_at)
    on conflict (name) do update set
        topic = excluded.topic, queue = excluded.queue, cron = excluded.cron, timezone = excluded.timezone, catch_up = excluded.catch_up,
        payload = excluded.payload, content_type = excluded.content_type, key = excluded.key, routing_key = excluded.routing_key,
        label = excluded.label, headers = excluded.headers,
        next_at = case when o.cron = excluded.cron and o.timezone = excluded.timezone then o.next_at else excluded.next_at end
    returning * into s;
    return s;
end
$$;

-- Returns all schedules, by name.
create or replace function trunkline.list_schedules() returns setof trunkline.schedules
language sql stable
as $$ select * from trunkline.schedules order by name $$;

-- Pauses a schedule: it does not fire until resume_schedule.
create or replace function trunkline.pause_schedule(p_name text) returns void
language plpgsql
as $$
declare
    s trunkline.schedules := trunkline._schedule(p_name, true);
begin
    update trunkline.schedules set paused = true where schedule_id = s.schedule_id;
end
$$;

-- Resumes a paused schedule; the next tick is the first one after now. Ticks during the pause are dropped,
-- whatever p_catch_up is. Has no effect on a schedule that is not paused. Raises an error if the target no
-- longer exists.
create or replace function trunkline.resume_schedule(p_name text) returns void
language plpgsql
as $$
declare
    s trunkline.schedules := trunkline._schedule(p_name, true);
begin
    if s.paused then
        perform trunkline._topic(case when s.queue is null then 'topic' else 'inbox' end, coalesce(s.queue, s.topic));
        update trunkline.schedules
        set paused = false, next_at = trunkline._need_tick(trunkline._cron_next(trunkline._parse_cron(s.cron), s.timezone, trunkline.clock()), s.cron)
        where schedule_id = s.schedule_id;
    end if;
end
$$;

-- Deletes the schedules that publish to a topic or queue which is being deleted. Without p_force, raises
-- TL021 if there are any.
create or replace function trunkline._drop_schedules(p_what text, p_schedules int[], p_force boolean) returns void
language plpgsql
as $$
begin
    if not p_force and p_schedules <> '{}' then
        perform trunkline._fail('TL021', format('cannot delete %s: it is the target of %s', p_what,
                                                (select string_agg(format('schedule "%s"', name), ', ' order by name) from trunkline.schedules where schedule_id = any (p_schedules))),
                                'Delete these schedules first, or pass p_force => true.');
    end if;
    delete from trunkline.schedules where schedule_id = any (p_schedules);
end
$$;

-- Deletes a schedule.
create or replace function trunkline.delete_schedule(p_name text) returns void
language plpgsql
as $$
declare
    s trunkline.schedules := trunkline._schedule(p_name, true);
begin
    delete from trunkline.schedules where schedule_id = s.schedule_id;
end
$$;

-- Publishes the message of one tick and returns its id.
create or replace function trunkline._fire(s trunkline.schedules, p_tick timestamptz) returns uuid
language plpgsql
as $$
declare
    v_headers jsonb := coalesce(s.headers, '{}') || jsonb_build_object('trunkline-schedule', s.name);
begin
    if s.queue is null then
        return (trunkline.publish_bytes(s.topic, s.payload, s.content_type, p_key => s.key, p_routing_key => s.routing_key, p_label => s.label,
                                        p_headers => v_headers, p_occurred_at => p_tick)).id;
    end if;
    return (trunkline.enqueue_bytes(s.queue, s.payload, s.content_type, p_key => s.key, p_routing_key => s.routing_key, p_label => s.label,
                                    p_headers => v_headers, p_occurred_at => p_tick)).id;
end
$$;

-- Records what happened to a tick of a schedule.
create or replace function trunkline._note_fire(p_schedule_id int, p_kind "char", p_tick timestamptz, p_at timestamptz, p_id uuid, p_error text default null) returns void
language sql
as $$
    insert into trunkline.schedule_fires (slot, schedule_id, kind, tick, at, id, error)
    select w.slot, p_schedule_id, p_kind, p_tick, p_at, p_id, left(p_error, 1000) from trunkline.windows w where w.name = 'schedule_fires'
$$;

-- Publishes the schedule's message now and returns its id. Works for paused schedules too, and does not
-- change the next tick. Locks the schedule until the transaction ends; upkeep skips it meanwhile.
create or replace function trunkline.run_schedule(p_name text) returns uuid
language plpgsql
as $$
declare
    s     trunkline.schedules := trunkline._schedule(p_name, true);
    v_now timestamptz := trunkline.clock();
    v_id  uuid := trunkline._fire(s, v_now);
begin
    update trunkline.schedules set last_at = v_now, last_id = v_id where schedule_id = s.schedule_id;
    perform trunkline._note_fire(s.schedule_id, 'm', v_now, v_now, v_id);
    return v_id;
end
$$;

-- Returns how a tick was fired: on time if it was due in the last 10 seconds; else caught up if ticks were
-- missed, or late.
create or replace function trunkline._fire_kind(p_behind boolean, p_tick timestamptz, p_now timestamptz) returns "char"
language sql immutable
as $$ select case when p_tick > p_now - interval '10 seconds' then 'o' when p_behind then 'c' else 'l' end::"char" $$;

-- Publishes the due ticks of one schedule and stores its next tick in the same transaction. Returns the
-- number of messages, at most p_limit. The caller holds the lock on the schedule's row.
create or replace function trunkline._fire_due(s trunkline.schedules, p_now timestamptz, p_limit int) returns int
language plpgsql
as $$
declare
    c       trunkline.cron := trunkline._parse_cron(s.cron);
    v_tick  timestamptz := s.next_at;
    v_next  timestamptz := trunkline._cron_next(c, s.timezone, v_tick);
    v_count int := 0;
    -- Ticks were missed: their messages are late because upkeep catches up.
    v_behind boolean := v_next <= p_now;
begin
    if s.catch_up <> 'all' and v_behind then
        v_tick := trunkline._cron_newest(c, s.timezone, v_tick, p_now);
        v_next := trunkline._cron_next(c, s.timezone, v_tick);
        -- One entry for all ticks before the newest one, with the first of them.
        perform trunkline._note_fire(s.schedule_id, 's', s.next_at, p_now, null);
    end if;
    if s.catch_up <> 'skip' or v_tick >= p_now - trunkline._setting('schedule_grace')::interval then
        s.last_id := trunkline._fire(s, v_tick);
        s.last_at := v_tick;
        v_count := 1;
        perform trunkline._note_fire(s.schedule_id, trunkline._fire_kind(v_behind, v_tick, p_now), v_tick, p_now, s.last_id);
    elsif not v_behind then
        perform trunkline._note_fire(s.schedule_id, 's', v_tick, p_now, null);
    end if;
    while s.catch_up = 'all' and v_next <= p_now and v_count < p_limit loop
        s.last_id := trunkline._fire(s, v_next);
        s.last_at := v_next;
        v_count := v_count + 1;
        perform trunkline._note_fire(s.schedule_id, trunkline._fire_kind(true, v_next, p_now), v_next, p_now, s.last_id);
        v_next := trunkline._cron_next(c, s.timezone, v_next);
    end loop;
    update trunkline.schedules set next_at = trunkline._need_tick(v_next, s.cron), last_at = s.last_at, last_id = s.last_id
    where schedule_id = s.schedule_id;
    return v_count;
end
$$;

-- Fires the schedules that are due and returns the number of messages, at most 1,000 per run. The next run
-- continues with the rest. If the target does not exist or refuses the message, the schedule is paused, an
-- alert is written, and the run continues with the other schedules. Skips schedules that another session has
-- locked.
create or replace function trunkline._upkeep_schedules() returns int
language plpgsql
as $$
declare
    s       trunkline.schedules;
    v_now   timestamptz := trunkline.clock();
    v_count int := 0;
begin
    for s in select * from trunkline.schedules where not paused and next_at <= v_now order by next_at limit 1000 for update skip locked loop
        begin
            v_count := v_count + trunkline._fire_due(s, v_now, 1000 - v_count);
        exception when others then
            -- 22023: the server no longer has the time zone. Other errors (no space, a lock timeout) may be
            -- gone in the next run.
            if sqlstate not like 'TL%' and sqlstate <> '22023' then
                raise warning 'cannot fire schedule "%", will retry in the next run of upkeep: % (%)', s.name, sqlerrm, sqlstate;
            else
                update trunkline.schedules set paused = true where schedule_id = s.schedule_id;
                perform trunkline._note_fire(s.schedule_id, 'f', s.next_at, v_now, null, sqlerrm);
                insert into trunkline.alerts (at, kind, detail)
                values (v_now, 'schedule_paused', jsonb_build_object('schedule', s.name, 'topic', s.topic, 'queue', s.queue, 'code', sqlstate, 'error', sqlerrm));
                raise warning 'paused schedule "%": %', s.name, sqlerrm;
            end if;
        end;
        exit when v_count >= 1000;
    end loop;
    return v_count;
end
$$;

-- Returns what happened to the ticks of a schedule, the newest first. outcome: on_time (fired within 10
-- seconds), late, caught_up (fired after ticks were missed), skipped (no message; one row for all ticks from
-- `tick` to the next row), manual (run_schedule) or failed (the schedule was paused). Rows are kept for the
-- setting fires_kept (30 days). For more rows, pass the last fire_no as p_before. p_limit is 1 to 10,000.
create or replace function trunkline.list_fires(p_schedule text, p_before bigint default null, p_limit int default 100)
returns table (fire_no bigint, outcome text, tick timestamptz, fired_at timestamptz, id uuid, error text)
language plpgsql
as $$
declare
    s trunkline.schedules := trunkline._schedule(p_schedule);
begin
    perform trunkline._check_range('limit', p_limit, 1, 10000);
    begin
        return query
        select f.no, case f.kind when 'o' then 'on_time' when 'l' then 'late' when 'c' then 'caught_up' when 's' then 'skipped' when 'm' then 'manual' else 'failed' end,
               f.tick, f.at, f.id, f.error || ''
        from trunkline.schedule_fires f where f.schedule_id = s.schedule_id and (p_before is null or f.no < p_before) order by f.no desc limit p_limit;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;
