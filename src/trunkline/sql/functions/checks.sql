-- Input checks and errors. Every error has a stable SQLSTATE of class TL, names the field and the limit, and
-- has a hint. The table of codes is in src/trunkline/errors.py; a test compares it with this schema.

-- Raises an error with this SQLSTATE, message and hint.
create or replace function trunkline._fail(p_code text, p_message text, p_hint text default null) returns void
language plpgsql
as $$
begin
    raise exception using errcode = p_code, message = p_message, hint = coalesce(p_hint, '');
end
$$;

-- Returns a text in double quotes for an error message, or null without quotes. Long texts are cut.
create or replace function trunkline._quoted(p_text text, p_length int default 100) returns text
language sql immutable parallel safe
as $$ select coalesce('"' || left(p_text, p_length) || '"', 'null') $$;

-- Returns a duration for an error message: one unit, such as "12 h", or the interval itself if it has months.
create or replace function trunkline._duration_text(p_value interval) returns text
language sql stable parallel safe
as $$
    select case when extract(year from p_value) <> 0 or extract(month from p_value) <> 0 then p_value::text
                when s = 0 then '0 s'
                when s % 86400 = 0 then trim_scale(s / 86400) || ' d'
                when s % 3600 = 0 then trim_scale(s / 3600) || ' h'
                when s % 60 = 0 then trim_scale(s / 60) || ' min'
                else trim_scale(s) || ' s' end
    from (select extract(epoch from p_value)) x(s)
$$;

-- Fails with TL002 unless the name has 1 to 200 letters, digits, "-", "." or "_".
create or replace function trunkline._check_name(p_what text, p_name text) returns void
language plpgsql
as $$
begin
    if p_name is null or p_name !~ '^[A-Za-z0-9._-]{1,200}$' then
        perform trunkline._fail('TL002',
            format('%s name must have 1 to 200 characters, only letters, digits, "-", "." and "_", got %s', p_what, trunkline._quoted(p_name, 220)),
            'Use a name such as "orders.eu-1".');
    end if;
end
$$;

-- Fails with TL005 unless the duration is between p_min and p_max. Accepts null: each caller decides what
-- null means.
create or replace function trunkline._check_duration(p_field text, p_value interval, p_min interval, p_max interval) returns void
language plpgsql
as $$
begin
    -- 'infinity' intervals exist from Postgres 17 on. They fail this comparison like any other value that is
    -- too large.
    if p_value < p_min or p_value > p_max then
        perform trunkline._fail('TL005',
            format('%s must be between %s and %s, got %s', p_field, trunkline._duration_text(p_min), trunkline._duration_text(p_max), trunkline._duration_text(p_value)),
            case when p_field = 'lease' and p_value > p_max then 'Use a shorter lease and extend it while you work.'
                 else format('Use a %s duration.', case when p_value < p_min then 'longer' else 'shorter' end) end);
    end if;
end
$$;

-- Like _check_duration, but also fails if the duration is null.
create or replace function trunkline._need_duration(p_field text, p_value interval, p_min interval, p_max interval) returns void
language plpgsql
as $$
begin
    if p_value is null then
        perform trunkline._fail('TL005', format('%s must be between %s and %s, got null', p_field, trunkline._duration_text(p_min), trunkline._duration_text(p_max)),
                                'Use a duration such as interval ''30 seconds''.');
    end if;
    perform trunkline._check_duration(p_field, p_value, p_min, p_max);
end
$$;

-- Fails with TL001 unless the number is between p_min and p_max. Null and NaN fail too.
create or replace function trunkline._check_range(p_field text, p_value numeric, p_min numeric, p_max numeric) returns void
language plpgsql
as $$
begin
    if p_value is null or p_value = 'NaN' or p_value < p_min or p_value > p_max then
        perform trunkline._fail('TL001', format('%s must be between %s and %s, got %s', p_field, p_min, p_max, coalesce(p_value::text, 'null')),
                                format('Use a value from %s to %s.', p_min, p_max));
    end if;
end
$$;

-- Returns name patterns as patterns of LIKE: * stands for any characters, as in the scopes of tokens. Null: no
-- filter. Fails with TL001 for more than 1,000.
create or replace function trunkline._name_patterns(p_names text[]) returns text[]
language plpgsql immutable
as $$
begin
    if cardinality(p_names) > 1000 then
        perform trunkline._fail('TL001', format('at most 1,000 names can be given, got %s', cardinality(p_names)), 'Use patterns with *, such as "orders.*".');
    end if;
    return (select case when p_names is not null then coalesce(array_agg(replace(regexp_replace(n, '([\\%_])', '\\\1', 'g'), '*', '%')), '{}') end from unnest(p_names) n);
end
$$;

-- Returns p_limit, the maximum number of rows in a list. Null means all rows. Fails with TL001 unless it is
-- between 1 and 1,000,000.
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

-- Fails with TL008 above read committed. Sequencing, claiming and fetching need a new snapshot for each
-- statement that runs after the lock is granted.
create or replace function trunkline._need_read_committed(p_verb text) returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform trunkline._fail('TL008',
            format('%s cannot run in a %s transaction', p_verb, current_setting('transaction_isolation')),
            'Use a READ COMMITTED transaction. Only publishing works at every isolation level.');
    end if;
end
$$;

-- Makes the caller's transaction commit synchronously, even if the session has set synchronous_commit to off.
create or replace function trunkline._commit_durably() returns void
language plpgsql
as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;

-- Returns the regular expression for a routing-key pattern. Words are separated by dots. * stands for one
-- word, # for any number of words (including empty ones), and all other text is literal. A message without a
-- routing key is matched like one with an empty routing key. Spark evaluates the result with RE2, so every
-- construct must have the same meaning there: "." is never used for "any character", and only characters with
-- a special meaning are escaped.
create or replace function trunkline._pattern_regex(p_pattern text) returns text
language plpgsql immutable
as $$
declare
    -- Several adjacent # match the same text as one #, but each one would multiply the states of the
    -- expression.
    v_words text[] := string_to_array(regexp_replace(p_pattern, '(^|\.)#(?:\.#)+(?=\.|$)', '\1#', 'g'), '.');
    v_count int := cardinality(v_words);
    v_wild  int := cardinality(array_positions(v_words, '*')) + cardinality(array_positions(v_words, '#'));
    v_regex text := '^';
begin
    if p_pattern is null or p_pattern = '' or length(p_pattern) > 1000 then
        perform trunkline._fail('TL001', format('pattern must have 1 to 1,000 characters, got %s', coalesce(length(p_pattern)::text, 'null')),
                                'Separate words with dots. Use * for one word and # for any number of words.');
    elsif v_count > 100 then
        perform trunkline._fail('TL001', format('pattern must have at most 100 words, got %s', v_count),
                                'Use # for any number of words.');
    elsif v_wild > 20 then
        perform trunkline._fail('TL001', format('pattern must have at most 20 wildcards, got %s', v_wild),
                                'Use one # for several wildcards, or match fewer words.');
    end if;
    for i in 1 .. v_count loop
        if v_words[i] = '#' then
            -- Each word that # matches includes one dot: the dot after it, or at the end of the pattern the
            -- dot before it.
            v_regex := v_regex || case when i < v_count then '(?:[^.]*\.)*' when v_count > 1 then '(?:\.[^.]*)*' else '' end;
        else
            if v_words[i] <> '*' and v_words[i] ~ '[*#]' then
                perform trunkline._fail('TL001', format('wildcards of a pattern must be whole words, got "%s"', v_words[i]),
                                        'Separate * and # from other text with dots.');
            end if;
            v_regex := v_regex
                || case when v_words[i] = '*' then '[^.]+' else regexp_replace(v_words[i], '([][\\^$.|?+(){}])', '\\\1', 'g') end
                || case when i = v_count or i = v_count - 1 and v_words[v_count] = '#' then '' else '\.' end;
        end if;
    end loop;
    return v_regex || case when v_count > 1 or v_words[1] <> '#' then '$' else '' end;
end
$$;

-- Returns whether headers match a filter. The filter is an object. For each of its keys the header must equal
-- the value, or one element if the value is a list.
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

-- Fails with TL001 unless the header filter is null or a JSON object.
create or replace function trunkline._check_filter(p_filter jsonb) returns void
language plpgsql
as $$
begin
    if p_filter is not null and jsonb_typeof(p_filter) <> 'object' then
        perform trunkline._fail('TL001', format('header filter must be a JSON object, got %s', jsonb_typeof(p_filter)),
                                'Write the filter as {"header": "value"} or {"header": ["value", "other value"]}.');
    end if;
end
$$;

-- Returns the number of integers in a set. Sets of offsets and ids are multiranges of half-open ranges.
create or replace function trunkline._size(p_set int8multirange) returns bigint
language sql immutable parallel safe
as $$ select coalesce(sum(upper(r) - lower(r)), 0)::bigint from unnest(p_set) r $$;

-- Returns the p_take integers that follow the first p_skip integers of a set.
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

-- Returns the ranges of a set, each with the number of integers before it. Ranges are split at the segment
-- borders of the shared store.
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

-- Makes this session see tables and functions that other sessions have created since its transaction began.
-- Postgres processes such invalidations when a transaction acquires a relation lock that it does not hold
-- yet. Waiting for an advisory lock is not enough. pg_relation_size acquires such a lock and releases it at
-- once.
create or replace function trunkline._catch_up() returns void
language plpgsql
as $$
begin
    perform pg_relation_size('trunkline.invalidation_marker');
end
$$;

-- Limits lock waits to ten seconds, unless the caller has already set lock_timeout. Without a limit, one open
-- transaction could block a caller for ever. Returns whether it changed the setting. The caller passes that
-- result to _wait_as_before, which restores the setting.
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

-- Removes the lock timeout again if _wait_ten_seconds has set it.
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
