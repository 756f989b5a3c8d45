-- Groups with a pattern or a header filter: the last offset of what was fetched that matched. What follows it, up to fetched, was looked at
-- and is not for the group, so a commit of last_match is a commit of all of it. Null for groups that read everything.
alter table trunkline.positions add column last_match bigint;

-- A queue and what it has from its inbox.
create type trunkline.queue_row as (
    queue_id int, name text, inbox_id int, lease interval, max_attempts int, backoff_base interval, backoff_factor float8, backoff_cap interval,
    backoff_jitter float8, ttl interval, delivery_delay interval, ordered boolean, paused boolean, created_at timestamptz, updated_at timestamptz,
    history interval, partitions int, retention interval, max_payload int, priorities int
);
