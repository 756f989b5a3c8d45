-- Tokens of the HTTP service. The secret itself is never stored: it has 256 random bits, so a plain hash of it is enough.
create table trunkline.tokens (
    token_id   text        primary key,
    name       text        not null unique,
    hash       bytea       not null,
    -- after a rotation the former secret is good for a while
    old_hash   bytea,
    old_until  timestamptz,
    -- 'verb:pattern', such as 'publish:orders.*'
    scopes     text[]      not null,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz
);

-- What administrators did. Only ever appended to; each entry holds the hash of the one before.
create table trunkline.audit (
    audit_id bigint      primary key,
    at       timestamptz not null,
    actor    text        not null,
    address  text,
    action   text        not null,
    object   text,
    hash     bytea       not null
);
