-- Claims draw positions from sequences, and what must be delivered again goes through a log with one writer, the pass (docs/adr/0019).

-- The inputs of a queue. kind: 'log' reads a partition, 'returns' what came back, 'label' what came back or was passed over with one label.
alter table trunkline.cursors rename column lane to kind;
alter table trunkline.cursors drop constraint cursors_lane_check;
update trunkline.cursors set kind = 'returns' where kind = 'retry';
alter table trunkline.cursors
    add constraint cursors_kind_check check (kind in ('log', 'returns', 'label')),
    -- the label of a cursor of kind 'label'; null: messages without one
    add column label text,
    -- The newest position that was drawn, and the newest that may be: sequences, because they move at once and never roll back. Null for groups
    -- and ordered queues, whose partitions have one owner at a time. What may be drawn of a log is told by its ticks.
    add column drawn_seq regclass,
    add column head_seq regclass,
    -- what was drawn when the queue was purged: a claim of it that was rolled back is not returned
    add column purged_upto bigint not null default 0;

alter table trunkline.leases rename to old_leases;
alter table trunkline.leases_0 rename to old_leases_0;
alter table trunkline.leases_1 rename to old_leases_1;

-- Purges have numbers. What was sent back before the number of a purge was drawn is purged, not delivered; times would be wrong when a clock is set back.
create sequence trunkline.purge_no;
alter table trunkline.queues
    -- the newest purges and their transactions: a pass counts those that its snapshot has seen
    add column purge_xids xid8[] not null default '{}',
    add column purge_nos bigint[] not null default '{}';

drop index trunkline.cursors_queue_id_idx;
create index on trunkline.cursors (queue_id, kind);

-- Where new rows of the rotated tables go. Of the three rotation partitions, one is written, one is being left, one is emptied.
create table trunkline.rotation (
    only_row   boolean     primary key default true check (only_row),
    current    smallint    not null,
    -- the partition that is used next is empty
    emptied    boolean     not null,
    rotated_at timestamptz not null default clock_timestamp()
);
insert into trunkline.rotation (current, emptied) values (0, true);

-- One row per draw of a claim: the positions first to first + n - 1 of a cursor are leased together.
create table trunkline.leases (
    rotation   smallint    not null,
    xid        xid8        not null,
    cursor_id  int         not null,
    first      bigint      not null,
    n          int         not null,
    -- null: all of them are delivered; else those that are, and those that are left to consumers of other labels
    taken      int8multirange,
    passed     int8multirange,
    -- how many of the others do not match the subscription, and how many are older than the ttl
    skipped    int         not null,
    expired    int         not null,
    -- What is at each position: null for a log, where the position is the offset and the attempt is the first.
    source_ids int[],
    offsets    bigint[],
    attempts   int[],
    -- how each came back, as in `settled`; h: a claim of it was rolled back, l: passed over for its label
    whys       "char"[],
    token      uuid        not null,
    consumer   text,
    claimed_at timestamptz not null,
    deadline   timestamptz not null,
    -- Only of ordered queues, whose newest lease is the state of the partition: the next new offset, and what came back and is not in this lease.
    next_offset   bigint,
    held_offsets  bigint[],
    held_attempts int[],
    held_dues     timestamptz[],
    held_errors   text[],
    -- the newest purge when messages were passed over
    purge_no   bigint,
    primary key (cursor_id, first, rotation)
) partition by list (rotation);

-- What became of positions of a lease: a(ck), n(ack), r(elease), b(ury), d(ead: attempts used up), x (lease expired), p(urged),
-- g(one: retention or an unsubscribe took it). One row per run of positions; the key decides between two settles of one message.
create table trunkline.settled (
    rotation  smallint    not null,
    xid       xid8        not null,
    cursor_id int         not null,
    pos       bigint      not null,
    n         int         not null,
    -- the first position of its lease
    first     bigint      not null,
    kind      "char"      not null,
    -- of n, r and x: when it may be delivered again
    due       timestamptz,
    error     text,
    at        timestamptz not null,
    -- of n and r: the newest purge by then
    purge_no  bigint,
    primary key (cursor_id, pos, rotation)
) partition by list (rotation);

-- Positions of a lease that are kept beyond its deadline.
create table trunkline.extensions (
    rotation  smallint       not null,
    cursor_id int            not null,
    first     bigint         not null,
    positions int8multirange not null,
    until     timestamptz    not null
) partition by list (rotation);

-- From here on only the pass writes. What came back and may be drawn now: position pos of a cursor of kind returns or label.
create table trunkline.returns (
    rotation   smallint    not null,
    cursor_id  int         not null,
    pos        bigint      not null,
    source_id  int         not null,
    log_offset bigint      not null,
    -- how many attempts it had
    attempt    int         not null,
    why        "char"      not null,
    error      text,
    at         timestamptz not null,
    -- the newest purge when it was sent back; null: it was drawn from a log and never delivered
    purge_no   bigint,
    primary key (cursor_id, pos, rotation)
) partition by list (rotation);

-- What is to be done at a time, in its order: check whether leases have ended (positions of a cursor), or return a message.
create table trunkline.later (
    rotation   smallint    not null,
    due        timestamptz not null,
    no         bigint      not null generated by default as identity,
    -- l: leases to check, r: a message to return
    kind       "char"      not null,
    queue_id   int         not null,
    cursor_id  int,
    positions  int8multirange,
    source_id  int,
    log_offset bigint,
    attempt    int,
    why        "char",
    error      text,
    -- the true time, where due had to be another one
    due_at     timestamptz not null,
    -- when it was settled, and the newest purge by then
    at         timestamptz not null,
    purge_no   bigint
) partition by list (rotation);

-- The state of a cursor after a pass; the newest counts. Totals are of positions: a message that came back has another one.
create table trunkline.cursor_states (
    rotation  smallint not null,
    cursor_id int      not null,
    pass      bigint   not null,
    -- what was drawn at this pass, and at the one before: only what was drawn by then is judged
    drawn     bigint   not null,
    drawn_before bigint not null,
    -- up to here every position is accounted for, but for those in `open`: drawn by a transaction that has not ended
    upto      bigint   not null,
    open      int8multirange not null,
    -- the newest position in returns
    head      bigint   not null,
    delivered bigint   not null,
    passed    bigint   not null,
    skipped   bigint   not null,
    expired   bigint   not null,
    holes     bigint   not null,
    -- how many of the delivered ones were settled, and how
    settled   bigint   not null,
    acked     bigint   not null,
    returned  bigint   not null,
    dead      bigint   not null,
    gone      bigint   not null,
    purged    bigint   not null,
    -- messages in `later` that will come back here
    delayed   bigint   not null,
    primary key (cursor_id, pass, rotation)
) partition by list (rotation);

-- One row per pass: what it has seen, and up to which time it has done what was due.
create table trunkline.passes (
    rotation smallint    not null,
    pass     bigint      not null,
    -- its own transaction, which its snapshot may not count as finished
    xid      xid8        not null,
    snapshot pg_snapshot not null,
    walked   timestamptz not null,
    at       timestamptz not null,
    primary key (pass, rotation)
) partition by list (rotation);

-- What a pass works with: the pass before it, what it sees of others, and the times between which it does what is due.
create type trunkline.pass_run as (
    before trunkline.passes, snapshot pg_snapshot, own xid8, rotation smallint, now timestamptz, upto timestamptz,
    -- the numbers of transactions that ended between the pass before and this one, as ranges
    from_xids xid8[], upto_xids xid8[]
);

do $do$
declare
    v_table text;
begin
    foreach v_table in array '{leases,settled,extensions,returns,later,cursor_states,passes}'::text[] loop
        for r in 0 .. 2 loop
            execute format('create table trunkline.%1$s_%2$s partition of trunkline.%1$s for values in (%2$s)', v_table, r);
        end loop;
    end loop;
end
$do$;
create index on trunkline.leases (xid);
create index on trunkline.settled (xid);
create index on trunkline.extensions (cursor_id, first);
create index on trunkline.cursor_states (pass);
create index on trunkline.returns (source_id, log_offset);
create index on trunkline.later (due, no);
create index on trunkline.later (queue_id, due);

-- Unlogged sequences: they change in place, need no transaction, and nothing depends on them over a crash.
-- Counts passes, at their beginning: a claim compares it around its draw.
create unlogged sequence trunkline.pass_epoch minvalue 0 start 1;
-- When a service has run the newest pass, in milliseconds.
create unlogged sequence trunkline.pass_ended minvalue 0 start 1;
-- The last cursor that was visited in turn.
create unlogged sequence trunkline.pass_visited minvalue 0 start 1;
-- The last log that was visited in turn.
create unlogged sequence trunkline.logs_visited minvalue 0 start 1;
-- As before: `expire` is done by passes.
create sequence trunkline.upkeep_pass minvalue 0 start 0;
drop sequence trunkline.upkeep_expire;
insert into trunkline.passes values (0, 0, pg_current_xact_id(), pg_current_snapshot(), clock_timestamp(), clock_timestamp());

-- A statement of plain SQL gives offsets itself when no pass has run for this long: nobody runs upkeep.
insert into trunkline.settings values ('sequence_alone_after', '1 second'), ('rotate_bytes', '33554432');

-- Open leases end with this migration: what was not settled is delivered again.
do $do$
declare
    c         record;
    v_pos     bigint;
    v_returns int;
begin
    for c in
        select k.*, q.ordered, coalesce(l.position, k.start_position) as position, l.delivered, l.skipped, l.expired, l.purged, h.acked, h.dead
        from trunkline.cursors k join trunkline.queues q using (queue_id)
        left join lateral (select * from trunkline.old_leases x where x.cursor_id = k.cursor_id order by x.lease_no desc limit 1) l on true
        left join lateral (select * from trunkline.lease_checks x where x.cursor_id = k.cursor_id order by x.check_no desc limit 1) h on true
        order by k.cursor_id
    loop
        if not c.ordered then
            execute format('create sequence trunkline.cursor_%s_drawn', c.cursor_id);
            update trunkline.cursors set drawn_seq = format('trunkline.cursor_%s_drawn', c.cursor_id)::regclass where cursor_id = c.cursor_id;
            if c.kind = 'returns' then
                execute format('create sequence trunkline.cursor_%s_head', c.cursor_id);
                update trunkline.cursors set head_seq = format('trunkline.cursor_%s_head', c.cursor_id)::regclass where cursor_id = c.cursor_id;
            elsif c.position > c.start_position then
                update trunkline.cursors set start_position = c.position where cursor_id = c.cursor_id;
            end if;
        end if;
        insert into trunkline.cursor_states
        values (0, c.cursor_id, 0, c.position - 1, c.position - 1, c.position - 1, '{}', 0, coalesce(c.acked, 0) + coalesce(c.dead, 0), 0, coalesce(c.skipped, 0),
                coalesce(c.expired, 0), 0, coalesce(c.acked, 0) + coalesce(c.dead, 0), coalesce(c.acked, 0), 0, coalesce(c.dead, 0), 0, coalesce(c.purged, 0), 0);
    end loop;
    -- what waits to be delivered again, and what is leased
    for c in
        select q.queue_id, q.ordered, p.cursor_id, array_agg(p.log_offset order by p.log_offset) as offsets, array_agg(p.attempt order by p.log_offset) as attempts,
               array_agg(p.due_at order by p.log_offset) as dues, array_agg(p.error order by p.log_offset) as errors, max(k.next_offset) as next_offset
        from (
            select cursor_id, log_offset, attempt, due_at, error from trunkline.pending
            union all
            select l.source_id, o, l.attempt, clock_timestamp(), null
            from trunkline.old_leases l
            cross join lateral (select l.offsets - coalesce(range_agg(e.offsets) filter (where e.kind <> 'e'), '{}') as open from trunkline.lease_events e
                                where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no) x
            cross join lateral unnest(x.open) r cross join lateral generate_series(lower(r), upper(r) - 1) o
            where l.n > 0
        ) p
        join trunkline.cursors s on s.cursor_id = p.cursor_id join trunkline.queues q on q.queue_id = s.queue_id
        left join lateral (select x.position as next_offset from trunkline.old_leases x where x.cursor_id = p.cursor_id order by x.lease_no desc limit 1) k on true
        group by 1, 2, 3 order by 1, 3
    loop
        if c.ordered then
            insert into trunkline.leases (rotation, xid, cursor_id, first, n, taken, skipped, expired, token, claimed_at, deadline, next_offset,
                                          held_offsets, held_attempts, held_dues, held_errors)
            values (0, pg_current_xact_id(), c.cursor_id, 1, 1, '{}', 0, 0, gen_random_uuid(), clock_timestamp(), clock_timestamp(), c.next_offset,
                    c.offsets, c.attempts, c.dues, c.errors);
        else
            select cursor_id into v_returns from trunkline.cursors where queue_id = c.queue_id and kind = 'returns';
            insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, source_id, log_offset, attempt, why, error, due_at, at, purge_no)
            select 0, greatest(c.dues[i], clock_timestamp() + interval '1 second'), 'r', c.queue_id, v_returns, c.cursor_id, c.offsets[i], c.attempts[i], 'n', c.errors[i], c.dues[i], clock_timestamp(), 0
            from generate_subscripts(c.offsets, 1) i;
            update trunkline.cursor_states set delayed = delayed + cardinality(c.offsets) where cursor_id = v_returns;
        end if;
    end loop;
    -- ordered partitions that have moved and have nothing to deliver again
    insert into trunkline.leases (rotation, xid, cursor_id, first, n, taken, skipped, expired, token, claimed_at, deadline, next_offset)
    select 0, pg_current_xact_id(), k.cursor_id, 1, 1, '{}', 0, 0, gen_random_uuid(), clock_timestamp(), clock_timestamp(), l.position
    from trunkline.cursors k join trunkline.queues q using (queue_id)
    cross join lateral (select * from trunkline.old_leases x where x.cursor_id = k.cursor_id order by x.lease_no desc limit 1) l
    where q.ordered and k.kind = 'log' and not exists (select from trunkline.leases x where x.cursor_id = k.cursor_id);
end
$do$;

do $do$
declare
    v_queue int;
begin
    for v_queue in select queue_id from trunkline.queues loop
        execute format('drop function if exists trunkline.queue_%s_claim', v_queue);
        execute format('drop function if exists trunkline.queue_%s_take', v_queue);
    end loop;
end
$do$;
drop table trunkline.pending, trunkline.old_leases, trunkline.lease_events, trunkline.lease_checks;
drop type trunkline.taken;
