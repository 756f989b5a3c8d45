-- What a message was before it entered its log: a delayed message was published earlier, a redriven one came from a topic. created_at stays the time at which
-- a row entered its log, by which segments, ttl, delivery delays and seeks by time go.
create type trunkline.origin as (published_at timestamptz, topic text);
do $do$
declare
    v_topic int;
begin
    execute 'alter table trunkline.store add column origin trunkline.origin';
    for v_topic in select topic_id from trunkline.topics where to_regclass(format('trunkline.topic_%s', topic_id)) is not null order by topic_id loop
        execute format('alter table trunkline.topic_%s add column origin trunkline.origin', v_topic);
    end loop;
end
$do$;
alter table trunkline.scheduled add column published_at timestamptz;

-- The dead letter that was redriven, or the delivery that was replayed: null where an earlier release did it.
alter table trunkline.redriven
    add column cursor_id  int,
    add column topic      text,
    add column partition  int,
    add column log_offset bigint,
    add column dead_at    timestamptz,
    add column reason     text,
    add column error      text;

-- Delayed messages that were purged before they entered the queue's log.
alter table trunkline.queues add column purged_delayed bigint not null default 0;
