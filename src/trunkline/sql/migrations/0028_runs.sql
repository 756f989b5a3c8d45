-- Groups of dead letters. An error is masked, so that values which differ between its occurrences (ids, times,
-- numbers) do not make another group. The same functions are in functions/dead_groups.sql; a generated column
-- needs them now.
create function trunkline._masked(p_text text) returns text
language sql immutable parallel safe
as $$
    select left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(p_text, 1000) collate "C",
        '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}', '<id>', 'g'),
        '[\w.+-]+@[\w-]+(\.[\w-]+)+', '<address>', 'g'),
        '\y(\d{1,3}\.){3}\d{1,3}\y', '<ip>', 'g'),
        '\y\d{4}-\d\d-\d\d([T ][\d:.]+)?(Z|[+-]\d\d:?\d\d)?', '<time>', 'g'),
        '\y0x[0-9a-fA-F]+\y', '<hex>', 'g'),
        '\y[0-9a-fA-F]*\d[0-9a-fA-F]{7,}\y', '<hex>', 'g'),
        '\d+(\.\d+)?', '<n>', 'g'), 300)
$$;
create function trunkline._fingerprint(p_label text, p_masked text) returns text
language sql immutable parallel safe
as $$ select substr(encode(sha256(convert_to(coalesce(p_label, '') || chr(31) || coalesce(p_masked, ''), 'UTF8')), 'hex'), 1, 16) $$;

alter table trunkline.dead_letters
    -- the consumer of the last attempt; null where an earlier release wrote the row
    add column consumer    text,
    add column fingerprint text not null generated always as (trunkline._fingerprint(label, trunkline._masked(coalesce(error, reason)))) stored;
create index on trunkline.dead_letters (queue_id, fingerprint, dead_id);

-- Bulk actions that the database executes step by step (functions/runs.sql). Few rows; one is changed once per step.
create table trunkline.runs (
    run_id        bigint      generated always as identity primary key,
    kind          text        not null check (kind in ('redrive', 'retry_jobs', 'purge_dead_letters', 'replay', 'purge_queue', 'seek')),
    state         text        not null check (state in ('waiting', 'canary', 'running', 'paused', 'stopped', 'done', 'aborted', 'undone')),
    selector      jsonb       not null,
    options       jsonb       not null,
    made_by       text        not null,
    made_at       timestamptz not null,
    start_at      timestamptz not null,
    stepped_at    timestamptz,
    ended_at      timestamptz,
    -- how many messages matched when it was made, and how many are done
    total         bigint      not null,
    done          bigint      not null default 0,
    failed        bigint      not null default 0,
    -- the newest dead letter when the run was made: later ones are not part of it
    upto          bigint      not null default 0,
    -- the dead letter up to which the current sweep has come
    position      bigint      not null default 0,
    -- messages that the rate allows now
    credit        float8      not null default 0,
    -- the stop rule ignores messages up to this number: the run was resumed after them
    rule_from     bigint      not null default 0,
    -- messages of the canary that are not settled
    canary_at     timestamptz,
    canary_ids    uuid[]      not null default '{}',
    canary_failed int         not null default 0,
    -- why it was paused, stopped or aborted
    reason        text,
    -- what an undo restores
    before        jsonb
);
create index on trunkline.runs (run_id) where state in ('waiting', 'canary', 'running');
-- What a run did. Only appended to, removed with the run.
create table trunkline.run_log (
    run_id bigint      not null references trunkline.runs on delete cascade,
    no     bigint      generated always as identity,
    at     timestamptz not null,
    event  text        not null,
    n      bigint,
    detail text,
    primary key (run_id, no)
);
-- The messages that a replay enqueues, noted when it is made. Removed with the run.
create table trunkline.run_items (
    run_id     bigint not null references trunkline.runs on delete cascade,
    no         bigint not null,
    cursor_id  int    not null,
    log_offset bigint not null,
    primary key (run_id, no)
);
-- The run that redrove or replayed a message, and the number of the message in it.
alter table trunkline.redriven
    add column run_id bigint,
    add column run_no bigint;
create unique index on trunkline.redriven (run_id, run_no) where run_id is not null;
create sequence trunkline.upkeep_runs minvalue 0 start 0;
create sequence trunkline.upkeep_took_runs minvalue 0 start 0;

-- What an administrative action was applied to and what it changed, as part of the entry's hash. Null in entries that an
-- earlier release wrote.
alter table trunkline.audit add column detail jsonb;

-- System events (functions/events.sql). position: the newest row of the source that events were published for.
create table trunkline.event_sources (
    source   text   primary key,
    position bigint not null
);
-- The state of an endpoint or schedule that the newest event has reported; deleted with the endpoint or schedule.
create table trunkline.event_states (
    kind    text not null,
    subject text not null,
    state   text not null,
    primary key (kind, subject)
);
create sequence trunkline.upkeep_events minvalue 0 start 0;
create sequence trunkline.upkeep_took_events minvalue 0 start 0;
insert into trunkline.settings values ('events', 'on');
