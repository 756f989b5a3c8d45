-- Sessions of the console. Only hashes: of the cookie, and of the token's secret that opened the session. A session is valid while that secret is, so it ends with
-- its token, or when the token was rotated and the grace of the former secret is over.
create table trunkline.sessions (
    hash        bytea       primary key,
    token_id    text        not null references trunkline.tokens,
    secret_hash bytea       not null,
    created_at  timestamptz not null,
    -- at most once a minute
    seen_at     timestamptz not null,
    expires_at  timestamptz not null,
    address     text,
    agent       text
);
create index on trunkline.sessions (token_id);
create index on trunkline.sessions (expires_at);
