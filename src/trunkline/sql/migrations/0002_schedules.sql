-- Cron schedules: what to publish where, and when next. A row changes with each tick of its schedule, never with messages.
create table trunkline.schedules (
    schedule_id  int generated always as identity primary key,
    name         text        not null unique,
    -- by name: a schedule outlives its target, and says so (functions/schedules.sql)
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
    -- the first tick that was not fired yet
    next_at      timestamptz not null,
    -- the tick that was fired last, and the message it became
    last_at      timestamptz,
    last_id      uuid,
    created_at   timestamptz not null default clock_timestamp(),
    check (num_nonnulls(topic, queue) = 1)
);
create index on trunkline.schedules (next_at) where not paused;

-- A parsed cron expression: one bit per allowed value (0 to 59, 0 to 23, 1 to 31, 1 to 12, 0 = Sunday to 6).
create type trunkline.cron as (
    minutes bigint, hours bigint, days bigint, months bigint, weekdays bigint,
    -- both days must match (one of the two fields starts with *); otherwise one of them is enough
    both_days boolean,
    -- runs at certain times of the day: neither minute nor hour starts with *
    fixed boolean
);

-- A tick of a schedule with catch_up = 'skip' is still on time when it is this late.
insert into trunkline.settings values ('schedule_grace', '2 minutes');

create sequence trunkline.duty_schedules minvalue 0 start 0;
