-- Spark's writers, their attempts and staged segments belong to the role that opened them; the audit log has a head.

-- The role that may commit versions of a writer: that of its first commit, or the one given by assign_writer.
create table trunkline.sink_writers (
    writer text        primary key,
    role   text        not null,
    at     timestamptz not null
);

-- The role that opened it; null: by an earlier release.
alter table trunkline.staged add column role text;

-- Only its role may copy rows to a segment; null: made by an earlier release, gives out no more ids.
alter table trunkline.staged_segments add column role text;

-- The next id that an open segment gives out. Apart from staged_segments, whose rows commits keep locked.
create table trunkline.staged_ids (
    log     int    not null,
    segment bigint not null,
    next_id bigint not null,
    primary key (log, segment),
    foreign key (log, segment) references trunkline.staged_segments on delete cascade
) with (fillfactor = 50);

-- Open staged segments: of one role, and of all.
insert into trunkline.settings values ('staged_segments_per_role', '1000'), ('staged_segments', '4000');

-- The newest entry of the audit log, so that it is noticed when the last ones are removed.
create table trunkline.audit_head (
    one      boolean primary key default true check (one),
    audit_id bigint  not null,
    hash     bytea   not null
) with (fillfactor = 50);
insert into trunkline.audit_head (audit_id, hash)
select audit_id, hash from trunkline.audit order by audit_id desc limit 1;
