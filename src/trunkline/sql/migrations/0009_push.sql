-- Push: endpoints, which queues they serve, who dispatches, and what became of each request.

-- An HTTP receiver. Changed by operators and by the breaker, never by a delivery that went well.
-- Each endpoint also has a sequence endpoint_<id>_pace: the time up to which its rate is used up, in microseconds. A sequence changes in
-- place, so that a limit asked for many times a second leaves no dead rows.
create table trunkline.endpoints (
    endpoint_id   int generated always as identity primary key,
    name          text        not null unique,
    url           text        not null,
    -- request starts per second over all dispatchers; null: no limit
    rate          float8,
    burst         int         not null,
    max_in_flight int         not null,
    timeout       interval    not null,
    mode          text        not null check (mode in ('single', 'batch')),
    batch_size    int         not null,
    headers       jsonb       not null,
    -- the newest first; with two, deliveries carry a signature of each
    secrets       text[]      not null check (cardinality(secrets) between 1 and 2),
    state         text        not null default 'enabled' check (state in ('enabled', 'paused', 'disabled')),
    reason        text,
    -- the breaker: nothing is sent before this time; then one request at a time until one goes well
    open_until    timestamptz,
    -- how often it opened in a row; 0: closed
    openings      int         not null default 0,
    probe_until   timestamptz,
    -- the receiver asked for a pause
    held_until    timestamptz,
    created_at    timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp()
);

create table trunkline.bindings (
    queue_id    int primary key references trunkline.queues on delete cascade,
    endpoint_id int not null references trunkline.endpoints
);
create index on trunkline.bindings (endpoint_id);

-- Processes that dispatch, so that they can share the requests under way among them.
create table trunkline.dispatchers (
    dispatcher text        primary key,
    joined_at  timestamptz not null,
    seen_until timestamptz not null
);

-- Test requests that somebody asked for; the next dispatcher that looks takes them.
create table trunkline.endpoint_tests (
    id          uuid        primary key,
    endpoint_id int         not null references trunkline.endpoints on delete cascade,
    asked_at    timestamptz not null
);

-- One row per message and attempt, never changed. A slot holds one day and is emptied by truncate before its number comes round again.
create table trunkline.attempts (
    slot        smallint    not null,
    endpoint_id int         not null,
    -- null: a test
    queue_id    int,
    id          uuid        not null,
    attempt     int         not null,
    started_at  timestamptz not null,
    seconds     float8      not null,
    -- null: there was no answer
    status      int,
    outcome     text        not null,
    error       text,
    snippet     text,
    dispatcher  text        not null
) partition by list (slot);
do $do$
begin
    for s in 0 .. 31 loop
        execute format('create table trunkline.attempts_%s partition of trunkline.attempts for values in (%s)', s, s);
    end loop;
end
$do$;
create index on trunkline.attempts (endpoint_id, started_at);
create index on trunkline.attempts (id);

create sequence trunkline.duty_attempts minvalue 0 start 0;

insert into trunkline.settings values ('attempts_kept', '3 days');

-- What a receiver has done already, by the ids of deliveries: in the window they came in and the next one, emptied by truncate.
create table trunkline.inbox_keys (
    slot     smallint    not null,
    win      bigint      not null,
    receiver text        not null,
    id       text        not null,
    at       timestamptz not null,
    primary key (slot, win, receiver, id)
) partition by list (slot);
create table trunkline.inbox_keys_0 partition of trunkline.inbox_keys for values in (0);
create table trunkline.inbox_keys_1 partition of trunkline.inbox_keys for values in (1);
create table trunkline.inbox_keys_2 partition of trunkline.inbox_keys for values in (2);
create table trunkline.inbox_keys_3 partition of trunkline.inbox_keys for values in (3);

insert into trunkline.settings values ('inbox_window', '7 days');
