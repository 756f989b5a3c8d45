-- Refusals. Every error has a stable code of class TL, names the field and the limit, and says what to do.
-- The table of codes is src/trunkline/errors.py; a test compares both.

create or replace function trunkline._fail(p_code text, p_message text, p_hint text default null) returns void
language plpgsql
as $$
begin
    raise exception using errcode = p_code, message = p_message, hint = coalesce(p_hint, '');
end
$$;

create or replace function trunkline._check_name(p_what text, p_name text) returns void
language plpgsql
as $$
begin
    if p_name is null or p_name !~ '^[A-Za-z0-9._-]{1,200}$' then
        perform trunkline._fail('TL002',
            format('%s name %s is not valid', p_what, coalesce(quote_literal(left(p_name, 220)), 'null')),
            'use 1 to 200 characters of letters, digits, "-", "." and "_"');
    end if;
end
$$;

-- A duration must be finite and within [p_min, p_max]; null is the caller's business.
create or replace function trunkline._check_duration(p_field text, p_value interval, p_min interval, p_max interval) returns void
language plpgsql
as $$
begin
    -- 'infinity' intervals exist from Postgres 17 on; they fail the comparison like any other too large value
    if p_value < p_min or p_value > p_max then
        perform trunkline._fail('TL005', format('%s is %s', p_field, p_value),
                                format('it must be between %s and %s', p_min, p_max));
    end if;
end
$$;

-- The same, and not null.
create or replace function trunkline._need_duration(p_field text, p_value interval, p_min interval, p_max interval) returns void
language plpgsql
as $$
begin
    if p_value is null then
        perform trunkline._fail('TL005', p_field || ' is null', format('give a duration between %s and %s', p_min, p_max));
    end if;
    perform trunkline._check_duration(p_field, p_value, p_min, p_max);
end
$$;

create or replace function trunkline._check_range(p_field text, p_value numeric, p_min numeric, p_max numeric) returns void
language plpgsql
as $$
begin
    if p_value is null or p_value = 'NaN' or p_value < p_min or p_value > p_max then
        perform trunkline._fail('TL001', format('%s is %s', p_field, coalesce(p_value::text, 'null')),
                                format('it must be between %s and %s', p_min, p_max));
    end if;
end
$$;

-- How many rows of a list; null for all.
create or replace function trunkline._limit(p_limit int) returns int
language plpgsql immutable
as $$
begin
    if p_limit is not null then
        perform trunkline._check_range('limit', p_limit, 1, 1000000);
    end if;
    return p_limit;
end
$$;

-- Sequencing, claiming and fetching need a new snapshot for each statement after the lock is granted.
create or replace function trunkline._need_read_committed(p_verb text) returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform trunkline._fail('TL008',
            format('%s cannot run in a %s transaction', p_verb, current_setting('transaction_isolation')),
            'use a READ COMMITTED transaction; only publishing works at every level');
    end if;
end
$$;

-- What must be on disk when it returns is never left to a relaxed setting of the session.
create or replace function trunkline._commit_durably() returns void
language plpgsql
as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;

-- Routing-key patterns: words are separated by dots, * is one word, # any number of words (empty ones too), the rest is literal.
-- Spark evaluates the result with RE2: no construct may mean anything else there, so no "." for any character.
create or replace function trunkline._pattern_regex(p_pattern text) returns text
language plpgsql immutable
as $$
declare
    -- adjacent # match what one # matches, but each would multiply the states of the expression
    v_words text[] := string_to_array(regexp_replace(p_pattern, '(^|\.)#(?:\.#)+(?=\.|$)', '\1#', 'g'), '.');
    v_count int := cardinality(v_words);
    v_wild  int := cardinality(array_positions(v_words, '*')) + cardinality(array_positions(v_words, '#'));
    v_regex text := '^';
begin
    if p_pattern is null or p_pattern = '' or length(p_pattern) > 1000 then
        perform trunkline._fail('TL001', 'the pattern is empty or longer than 1,000 characters',
                                'use words separated by dots, * for one word, # for any number of words');
    elsif v_count > 100 then
        perform trunkline._fail('TL001', format('pattern must have at most 100 words, got %s', v_count),
                                'use # for a run of words');
    elsif v_wild > 20 then
        perform trunkline._fail('TL001', format('pattern must have at most 20 wildcards, got %s', v_wild),
                                'use one # for a run of wildcards, or match fewer words');
    end if;
    for i in 1 .. v_count loop
        if v_words[i] = '#' then
            -- the words bring their dot along: behind them, but in front of them at the end of the pattern
            v_regex := v_regex || case when i < v_count then '(?:[^.]*\.)*' when v_count > 1 then '(?:\.[^.]*)*' else '' end;
        else
            if v_words[i] <> '*' and v_words[i] ~ '[*#]' then
                perform trunkline._fail('TL001', format('the pattern %L has a wildcard inside a word', p_pattern),
                                        '* and # stand for whole words');
            end if;
            v_regex := v_regex
                || case when v_words[i] = '*' then '[^.]+' else regexp_replace(v_words[i], '([^A-Za-z0-9_])', '\\\1', 'g') end
                || case when i = v_count or i = v_count - 1 and v_words[v_count] = '#' then '' else '\.' end;
        end if;
    end loop;
    return v_regex || case when v_count > 1 or v_words[1] <> '#' then '$' else '' end;
end
$$;

-- A header filter is an object; a value or each of a list of values is allowed for its key.
create or replace function trunkline._filter_matches(p_filter jsonb, p_headers jsonb) returns boolean
language sql immutable parallel safe
as $$
    select not exists (
        select from jsonb_each(p_filter) f
        where not coalesce(
            case jsonb_typeof(f.value)
                when 'array' then f.value @> jsonb_build_array(p_headers -> f.key)
                else f.value = p_headers -> f.key
            end, false)
           or p_headers -> f.key is null)
$$;

create or replace function trunkline._check_filter(p_filter jsonb) returns void
language plpgsql
as $$
begin
    if p_filter is not null and jsonb_typeof(p_filter) <> 'object' then
        perform trunkline._fail('TL001', 'the header filter is not an object',
                                'write it as {"header": ["value", "or another"], ...}');
    end if;
end
$$;

-- Integer sets. Offsets and ids are kept as multiranges of half-open ranges.
create or replace function trunkline._size(p_set int8multirange) returns bigint
language sql immutable parallel safe
as $$ select coalesce(sum(upper(r) - lower(r)), 0)::bigint from unnest(p_set) r $$;

-- The p_take numbers that follow the first p_skip ones.
create or replace function trunkline._slice(p_set int8multirange, p_skip bigint, p_take bigint) returns int8multirange
language sql immutable parallel safe
as $$
    select coalesce(range_agg(int8range(
               lo + greatest(0, p_skip - before),
               least(hi, lo + p_skip + p_take - before))), '{}')
    from (
        select lower(r) as lo, upper(r) as hi,
               (sum(upper(r) - lower(r)) over (order by lower(r)) - (upper(r) - lower(r)))::bigint as before
        from unnest(p_set) r
    ) s
    where before < p_skip + p_take and before + hi - lo > p_skip
$$;

-- The ranges of a set, cut where a segment of the shared store ends, each with the number of elements before it.
create or replace function trunkline._runs(p_set int8multirange) returns table (lo bigint, hi bigint, before bigint)
language sql immutable parallel safe
as $$
    select x.lo, x.hi, (sum(x.hi - x.lo) over (order by x.lo) - (x.hi - x.lo))::bigint
    from (select greatest(lower(r), s << 30) as lo, least(upper(r), s + 1 << 30) as hi
          from unnest(p_set) r cross join lateral generate_series(lower(r) >> 30, upper(r) - 1 >> 30) s) x
$$;

create or replace function trunkline._setting(p_name text) returns text
language sql stable
as $$ select value from trunkline.settings where name = p_name $$;

-- Makes this session notice tables and functions that others have made since its transaction began. Postgres does so whenever
-- a transaction takes a lock on a relation that it does not hold yet; waiting for an advisory lock is not enough. pg_relation_size
-- takes such a lock and lets it go again.
create or replace function trunkline._catch_up() returns void
language plpgsql
as $$
begin
    perform pg_relation_size('trunkline.bell');
end
$$;

-- Nobody waits for ever for a row or a log that somebody keeps locked: ten seconds, unless the caller has set a time of its own.
-- Answers whether it changed the setting, for _wait_as_before: the caller's settings stay the caller's.
create or replace function trunkline._wait_ten_seconds() returns boolean
language plpgsql
as $$
declare
    v_set text;
begin
    if current_setting('lock_timeout') <> '0' then
        return false;
    end if;
    v_set := set_config('lock_timeout', '10s', true);
    return true;
end
$$;

create or replace function trunkline._wait_as_before(p_changed boolean) returns void
language plpgsql
as $$
declare
    v_set text;
begin
    if p_changed then
        v_set := set_config('lock_timeout', '0', true);
    end if;
end
$$;
