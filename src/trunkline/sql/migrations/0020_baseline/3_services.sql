-- Schedules, jobs, webhooks, and the HTTP service.

-- Cron schedules: what to publish, where, and when next. A row changes when its schedule fires, never with
-- messages.
create table trunkline.schedules (
    schedule_id  int generated always as identity primary key,
    name         text        not null unique,
    -- names, not numbers: a schedule stays when its target is deleted, and then fails
    -- (functions/schedules.sql)
    topic        text,
    queue        text,
    cron         text        not null,
    timezone     text        not null,
    catch_up     text        not null check (catch_up in ('skip', 'one', 'all')),
    payload      bytea       not null,
    content_type text        not null,
    key          text,
    routing_key  text,
    label        text,
    headers      jsonb,
    paused       boolean     not null default false,
    -- the first run that is not done yet
    next_at      timestamptz not null,
    -- the last run, and its message
    last_at      timestamptz,
    last_id      uuid,
    created_at   timestamptz not null default clock_timestamp(),
    check (num_nonnulls(topic, queue) = 1)
);
create index on trunkline.schedules (next_at) where not paused;

-- A parsed cron expression: one bit per allowed value (0 to 59, 0 to 23, 1 to 31, 1 to 12, 0 = Sunday to 6).
create type trunkline.cron as (
    minutes bigint, hours bigint, days bigint, months bigint, weekdays bigint,
    -- both days must match, because one of the two fields starts with *; otherwise one of them is enough
    both_days boolean,
    -- runs at certain times of the day: neither minute nor hour starts with *
    fixed boolean
);

-- Jobs. A job is a message in a queue whose label is the name of the job. These tables hold what the log
-- cannot; plain jobs need none of them.

create sequence trunkline.job_numbers;

-- Results, of jobs that store them or that other jobs wait for. The newest row of a job counts.
create table trunkline.job_results (
    slot   smallint    not null,
    n      bigint      not null default nextval('trunkline.job_numbers'),
    job_id uuid        not null,
    -- d(one), f(ailed: it is a dead letter)
    state  "char"      not null,
    result bytea,
    error  text,
    at     timestamptz not null
) partition by list (slot);
create index on trunkline.job_results (job_id, n);

-- Effects that must not happen twice. The newest row of a scope and key counts; it is read and written under
-- one advisory lock.
create table trunkline.job_once (
    slot   smallint    not null,
    n      bigint      not null default nextval('trunkline.job_numbers'),
    scope  text        not null,
    key    text        not null,
    -- s(tarted), d(one, with its result), f(ailed, may start again)
    state  "char"      not null,
    result bytea,
    at     timestamptz not null
) partition by list (slot);
create index on trunkline.job_once (scope, key, n);

-- A job that waits for others, as it will be enqueued.
create table trunkline.job_waiting (
    waiting_id uuid        primary key,
    queue      text        not null,
    label      text        not null,
    payload    bytea       not null,
    key        text,
    headers    jsonb,
    priority   int,
    created_at timestamptz not null
);

-- One row for each job that another one still waits for.
create table trunkline.job_parents (
    parent_id  uuid not null,
    waiting_id uuid not null references trunkline.job_waiting on delete cascade,
    primary key (parent_id, waiting_id)
);
create index on trunkline.job_parents (waiting_id);

-- Keys that a job holds until it ends: no second job with the same key is enqueued before.
create table trunkline.job_unique (
    key    text        primary key,
    job_id uuid        not null,
    until  timestamptz not null
);
create index on trunkline.job_unique (job_id);

-- Jobs to cancel. Workers read new rows about once a second.
create table trunkline.job_cancels (
    job_id uuid        primary key,
    n      bigint      not null default nextval('trunkline.job_numbers'),
    reason text        not null,
    at     timestamptz not null
);
create index on trunkline.job_cancels (n);

-- Limits over all processes: jobs that run at once, and a rate. Tokens of the rate are taken for many jobs at
-- once.
create table trunkline.job_limits (
    name        text             primary key,
    max_running int,
    rate        double precision,
    burst       double precision,
    tokens      double precision not null default 0,
    at          timestamptz      not null
) with (fillfactor = 50);

-- The share of a limit that a worker holds for a time, for all its jobs.
create table trunkline.job_slots (
    limit_name text        not null references trunkline.job_limits on delete cascade,
    worker     text        not null,
    held       int         not null,
    until      timestamptz not null,
    primary key (limit_name, worker)
) with (fillfactor = 50);

-- Running workers; each reports every few seconds.
create table trunkline.job_workers (
    worker     text        primary key,
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    info       jsonb       not null
) with (fillfactor = 50);

-- Webhooks.

-- An HTTP receiver. Changed by operators and by the circuit breaker, never by a successful delivery. Each
-- endpoint also has a sequence endpoint_<id>_pace: the time up to which its rate is used up, in microseconds.
-- A sequence changes in place, so a limit that is checked many times a second leaves no dead rows.
create table trunkline.endpoints (
    endpoint_id   int generated always as identity primary key,
    name          text        not null unique,
    url           text        not null,
    -- requests started per second, over all dispatchers; null: no limit
    rate          float8,
    burst         int         not null,
    max_in_flight int         not null,
    timeout       interval    not null,
    mode          text        not null check (mode in ('single', 'batch')),
    batch_size    int         not null,
    headers       jsonb       not null,
    -- the newest first; with two, requests have a signature of each
    secrets       text[]      not null check (cardinality(secrets) between 1 and 2),
    state         text        not null default 'enabled' check (state in ('enabled', 'paused', 'disabled')),
    reason        text,
    -- The breaker sends nothing before this time, then one request at a time until one succeeds.
    open_until    timestamptz,
    -- how often it opened in a row; 0: closed
    openings      int         not null default 0,
    probe_until   timestamptz,
    -- backing off: the receiver asked for a pause
    held_until    timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp()
);

-- The endpoint that the messages of a queue are sent to.
create table trunkline.bindings (
    queue_id    int primary key references trunkline.queues on delete cascade,
    endpoint_id int not null references trunkline.endpoints
);
create index on trunkline.bindings (endpoint_id);

-- Running dispatchers, which share the requests of an endpoint among them.
create table trunkline.dispatchers (
    dispatcher text        primary key,
    joined_at  timestamptz not null,
    seen_until timestamptz not null
);

-- A dispatcher whose egress policy denies the address of an endpoint; it leaves the endpoint to the others
-- until then. Written at most once per pause. Deleted with the dispatcher or endpoint, by a new url, and by a
-- request that was sent.
create table trunkline.endpoint_bars (
    endpoint_id int         not null references trunkline.endpoints on delete cascade,
    dispatcher  text        not null references trunkline.dispatchers on delete cascade,
    -- denials in a row
    times       int         not null,
    until       timestamptz not null,
    reason      text        not null,
    primary key (endpoint_id, dispatcher)
);
create index on trunkline.endpoint_bars (dispatcher);

-- Requested test requests; the next dispatcher that asks for its plan sends them.
create table trunkline.endpoint_tests (
    id          uuid        primary key,
    endpoint_id int         not null references trunkline.endpoints on delete cascade,
    asked_at    timestamptz not null
);

-- One row per message and attempt, never changed.
create table trunkline.attempts (
    slot        smallint    not null,
    endpoint_id int         not null,
    -- null: a test
    queue_id    int,
    id          uuid        not null,
    attempt     int         not null,
    started_at  timestamptz not null,
    seconds     float8      not null,
    -- null: there was no response
    status      int,
    outcome     text        not null,
    error       text,
    -- the beginning of the response body
    snippet     text,
    dispatcher  text        not null
) partition by list (slot);
create index on trunkline.attempts (endpoint_id, started_at);
create index on trunkline.attempts (id);

-- Inbox of a receiver: ids of deliveries that it has processed, in the window of their arrival and in the
-- next one, as in idempotency.
create table trunkline.inbox_keys (
    slot     smallint    not null,
    win      bigint      not null,
    receiver text        not null,
    id       text        not null,
    at       timestamptz not null,
    primary key (slot, win, receiver, id)
) partition by list (slot);

-- The HTTP service.

-- Tokens. The secret is not stored: it has 256 random bits, so a plain hash of it is enough.
create table trunkline.tokens (
    token_id   text        primary key,
    name       text        not null unique,
    hash       bytea       not null,
    -- the secret before a rotation, valid until old_until
    old_hash   bytea,
    old_until  timestamptz,
    -- 'verb:pattern', such as 'publish:orders.*'
    scopes     text[]      not null,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz
);

-- The audit log of administrative actions. Append-only; each hash covers the entry and the hash before it.
create table trunkline.audit (
    audit_id bigint      primary key,
    at       timestamptz not null,
    actor    text        not null,
    address  text,
    action   text        not null,
    object   text,
    hash     bytea       not null
);

-- The newest entry of the audit log (one row), to detect that the last entries were removed.
create table trunkline.audit_head (
    one      boolean primary key default true check (one),
    audit_id bigint  not null,
    hash     bytea   not null
) with (fillfactor = 50);
