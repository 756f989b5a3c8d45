-- Tokens of the HTTP service, and the audit log. The server and the command line generate the secrets and
-- call these functions; so all names start with _. Only hashes of secrets are stored.

-- Raises TL001 unless there are 1 to 100 valid scopes.
create or replace function trunkline._check_scopes(p_scopes text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bad text;
begin
    if coalesce(cardinality(p_scopes), 0) not between 1 and 100 then
        perform trunkline._fail('TL001', format('token must have 1 to 100 scopes, got %s', coalesce(cardinality(p_scopes)::text, 'null')),
                                'Use scopes such as publish:orders.* or admin:*.');
    end if;
    select s into v_bad from unnest(p_scopes) s
    where s is null or s !~ '^(publish|consume|view|read|operate|admin):[A-Za-z0-9._*-]{1,200}$' and s !~ '^portal:[A-Za-z0-9._-]{1,200}$' limit 1;
    if found then
        perform trunkline._fail('TL001', format('scope must have the form right:name, got %s', trunkline._quoted(v_bad, 220)),
                                'Write publish, consume, view, read, operate or admin, a colon, and a name in which * matches any characters; or portal: and the name of one endpoint.');
    end if;
end
$$;

-- Creates a token and returns its row. p_made_by: the token that creates it; the role of the session if null.
-- Raises TL020 if the name exists.
create or replace function trunkline._create_token(
    p_token_id text, p_name text, p_hash bytea, p_scopes text[], p_expires_at timestamptz default null, p_made_by text default null)
returns trunkline.tokens
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row trunkline.tokens;
begin
    perform trunkline._check_name('token', p_name);
    perform trunkline._check_scopes(p_scopes);
    if p_expires_at <= trunkline.clock() then
        perform trunkline._fail('TL001', format('expiry of a token must be in the future, got %s', p_expires_at),
                                'Use a later time.');
    end if;
    insert into trunkline.tokens (token_id, name, hash, scopes, expires_at, made_by)
    values (p_token_id, p_name, p_hash, p_scopes, p_expires_at, coalesce(p_made_by, session_user))
    on conflict do nothing returning * into v_row;
    if not found then
        perform trunkline._fail('TL020', format('token "%s" already exists', p_name),
                                'Use another name, or rotate the existing token.');
    end if;
    return v_row;
end
$$;

-- Returns a token by its name; raises TL016 if it does not exist.
create or replace function trunkline._token(p_name text) returns trunkline.tokens
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row trunkline.tokens;
begin
    select * into v_row from trunkline.tokens where name = p_name;
    if not found then
        perform trunkline._fail('TL016', format('token "%s" does not exist', p_name),
                                'List the tokens with "trunkline token list".');
    end if;
    return v_row;
end
$$;

-- Sets a new secret for a token and returns its row. The former secret stays valid for p_grace (0 to 30
-- days), unless the token was revoked: then only the new secret is valid.
create or replace function trunkline._rotate_token(p_name text, p_hash bytea, p_grace interval default '0', p_expires_at timestamptz default null)
returns trunkline.tokens
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row trunkline.tokens := trunkline._token(p_name);
begin
    perform trunkline._need_duration('grace', p_grace, '0', '30 days');
    update trunkline.tokens set old_hash = case when revoked_at is null then hash end, old_until = trunkline.clock() + p_grace, hash = p_hash,
        expires_at = coalesce(p_expires_at, expires_at), revoked_at = null
    where token_id = v_row.token_id returning * into v_row;
    return v_row;
end
$$;

-- Revokes a token. A repeat keeps the time of the first revocation.
create or replace function trunkline._revoke_token(p_name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row trunkline.tokens := trunkline._token(p_name);
begin
    update trunkline.tokens set revoked_at = coalesce(revoked_at, trunkline.clock()) where token_id = v_row.token_id;
end
$$;

-- Returns all tokens by name, including revoked and expired ones.
create or replace function trunkline._list_tokens() returns setof trunkline.tokens
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select * from trunkline.tokens order by name $$;

-- Records that tokens were used, at most once a minute for each.
create or replace function trunkline._note_token_use(p_token_ids text[]) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    update trunkline.tokens t set last_used_at = trunkline.clock()
    where t.token_id = any (p_token_ids) and coalesce(t.last_used_at, '-infinity') < trunkline.clock() - interval '1 minute'
$$;

-- Returns the hash of an audit entry, which includes the hash of the entry before it. Entries without a detail
-- have the hash that they had before details existed.
create or replace function trunkline._audit_hash(
    p_before bytea, p_id bigint, p_at timestamptz, p_actor text, p_address text, p_action text, p_object text, p_detail jsonb default null)
returns bytea
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select sha256(coalesce(p_before, '') || convert_to((jsonb_build_array(p_id, extract(epoch from p_at), p_actor, p_address, p_action, p_object)
                                                       || case when p_detail is not null then jsonb_build_array(p_detail) else '[]' end)::text, 'UTF8'))
$$;

-- Appends an entry to the audit log and returns its number. p_detail: what the action was applied to, and the
-- values that it replaced; more than 10,000 characters are left out. Holds the lock 778006 until the
-- transaction ends.
create or replace function trunkline._record_audit(p_actor text, p_address text, p_action text, p_object text, p_detail jsonb default null) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last trunkline.audit;
    v_id   bigint;
    v_at   timestamptz;
begin
    if length(p_detail::text) > 10000 then
        p_detail := jsonb_build_object('left_out', length(p_detail::text));
    end if;
    perform trunkline._commit_durably();
    -- One writer at a time: each entry needs the hash of the one before.
    perform pg_advisory_xact_lock(778006, 0);
    select * into v_last from trunkline.audit order by audit_id desc limit 1;
    -- Numbers are never reused: a new entry must not hide that the last entries were deleted.
    v_id := greatest(coalesce(v_last.audit_id, 0), coalesce((select audit_id from trunkline.audit_head), 0)) + 1;
    v_at := trunkline.clock();
    insert into trunkline.audit (audit_id, at, actor, address, action, object, detail, hash)
    values (v_id, v_at, p_actor, p_address, p_action, p_object, p_detail,
            trunkline._audit_hash(v_last.hash, v_id, v_at, p_actor, p_address, p_action, p_object, p_detail))
    returning * into v_last;
    insert into trunkline.audit_head (audit_id, hash) values (v_id, v_last.hash)
    on conflict (one) do update set audit_id = excluded.audit_id, hash = excluded.hash;
    return v_id;
end
$$;

-- Returns up to p_limit audit entries with a number above p_after, the oldest first.
create or replace function trunkline._list_audit(p_after bigint default 0, p_limit int default 100)
returns table (audit_id bigint, at timestamptz, actor text, address text, action text, object text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select audit_id, at, actor, address, action, object, detail from trunkline.audit where audit_id > p_after order by audit_id limit p_limit $$;

-- Returns up to p_limit audit entries, the newest first. p_actor: only entries of this token or role. p_action,
-- p_object: only entries whose action contains this text, or that have this object. p_from, p_to: entries from
-- p_from until before p_to. p_before: the number of the last entry of the former page.
create or replace function trunkline._find_audit(
    p_actor text, p_action text, p_object text, p_from timestamptz, p_to timestamptz, p_before bigint, p_limit int)
returns setof trunkline.audit
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform trunkline._check_range('limit', p_limit, 1, 1000);
    return query
    select a.* from trunkline.audit a
    where (p_before is null or a.audit_id < p_before) and (p_actor is null or a.actor = p_actor) and (p_action is null or strpos(lower(a.action), lower(p_action)) > 0)
      and (p_object is null or a.object = p_object) and (p_from is null or a.at >= p_from) and (p_to is null or a.at < p_to)
    order by a.audit_id desc limit p_limit;
end
$$;

-- Returns the number of the first audit entry that was changed, is missing, or follows a missing one; null if
-- the log is complete. audit_head names the newest entry, so a deletion of the last entries is found too.
create or replace function trunkline._verify_audit() returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select min(x.audit_id) from (
        select a.audit_id, a.hash, trunkline._audit_hash(lag(a.hash) over w, a.audit_id, a.at, a.actor, a.address, a.action, a.object, a.detail) as due,
               a.audit_id = coalesce(lag(a.audit_id) over w, 0) + 1 as follows
        from trunkline.audit a window w as (order by a.audit_id)
        union all
        -- If the head is above the last entry, the number after that entry. If the head has another hash, is
        -- below it or is missing, the last entry itself.
        select coalesce(case when h.audit_id > n.audit_id then n.audit_id + 1 else n.audit_id end, 1), n.hash,
               case when h.audit_id = n.audit_id then h.hash end, h.audit_id = n.audit_id
        from (select audit_id, hash from trunkline.audit order by audit_id desc limit 1) n full join trunkline.audit_head h on true) x
    where x.hash is distinct from x.due or x.follows is not true
$$;

-- Opens a session of the console for a token and returns its row. Deletes up to 100 expired sessions. p_lasts:
-- how long it is valid. Raises TL001 unless that is 1 minute to 30 days.
create or replace function trunkline._open_session(p_hash bytea, p_token_id text, p_secret_hash bytea, p_lasts interval, p_address text, p_agent text)
returns trunkline.sessions
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := trunkline.clock();
    v_row trunkline.sessions;
begin
    perform trunkline._need_duration('lasts', p_lasts, '1 minute', '30 days');
    delete from trunkline.sessions
    where hash in (select s.hash from trunkline.sessions s where s.expires_at <= v_now order by s.expires_at limit 100 for update skip locked);
    insert into trunkline.sessions (hash, token_id, secret_hash, created_at, seen_at, expires_at, address, agent)
    values (p_hash, p_token_id, p_secret_hash, v_now, v_now, v_now + p_lasts, p_address, left(p_agent, 200))
    returning * into v_row;
    return v_row;
end
$$;

-- Returns the session with this hash, unless it has expired. Notes at most once a minute that it was seen.
create or replace function trunkline._use_session(p_hash bytea) returns setof trunkline.sessions
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := trunkline.clock();
begin
    if not pg_is_in_recovery() then
        update trunkline.sessions set seen_at = v_now where hash = p_hash and seen_at < v_now - interval '1 minute';
    end if;
    return query select * from trunkline.sessions where hash = p_hash and expires_at > v_now;
end
$$;

-- Ends a session; returns true if it existed.
create or replace function trunkline._end_session(p_hash bytea) returns boolean
language sql
set search_path = pg_catalog, pg_temp
as $$ with gone as (delete from trunkline.sessions where hash = p_hash returning 1) select exists (select from gone) $$;

-- Ends all sessions of a token; returns how many.
create or replace function trunkline._end_sessions(p_token_id text) returns int
language sql
set search_path = pg_catalog, pg_temp
as $$ with gone as (delete from trunkline.sessions where token_id = p_token_id returning 1) select count(*)::int from gone $$;

-- Returns the open sessions with the name of their token, the one seen last first.
create or replace function trunkline._list_sessions() returns table (name text, created_at timestamptz, seen_at timestamptz, expires_at timestamptz, address text, agent text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select t.name, s.created_at, s.seen_at, s.expires_at, s.address, s.agent
    from trunkline.sessions s join trunkline.tokens t using (token_id)
    where s.expires_at > trunkline.clock() order by s.seen_at desc, s.hash
$$;
