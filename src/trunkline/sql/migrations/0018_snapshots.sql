-- Messages carry the number of their transaction, and the newest tick of a log the snapshot of its scan: what is new is the difference of two snapshots
-- (docs/adr/0020). Before: gaps between ids, that were kept until whoever may own them had ended.
alter table trunkline.ticks
    drop column next_id,
    drop column old_gaps,
    drop column old_horizon,
    drop column old_since,
    drop column new_gaps,
    drop column new_horizon,
    -- Only of the newest tick of a log: what its scan has seen, the newest id that was drawn before it, and whether nobody owned one of these ids then.
    add column snapshot pg_snapshot,
    add column last_id bigint,
    add column whole boolean,
    -- a scan that was part of a publisher's transaction: which one, and those of its ids that got an offset
    add column own_xid xid8,
    add column own_ids int8multirange;

do $do$
declare
    t trunkline.topics;
    s record;
begin
    for t in select * from trunkline.topics loop
        execute format('drop function if exists trunkline.topic_%s_scan(int, bigint, bigint)', t.topic_id);
        -- a number that every scan has seen
        execute format('alter table trunkline.topic_%s add column xid xid8 not null default ''1''', t.topic_id);
        execute format('alter table trunkline.topic_%s alter column xid set default pg_current_xact_id()', t.topic_id);
        for s in select l.partition, x.segment from trunkline.logs l join trunkline.segments x using (log) where l.topic_id = t.topic_id and x.sealed_at is null loop
            execute format('create index on trunkline.topic_%s_%s_%s (xid, id)', t.topic_id, s.partition, s.segment);
        end loop;
    end loop;
    -- The first scan of the logs of another cluster, or at those of a version before this one, compares ids (_adopt_logs). A new schema has none.
    if not found then
        insert into trunkline.settings select 'cluster', system_identifier from pg_control_system();
    end if;
end
$do$;
