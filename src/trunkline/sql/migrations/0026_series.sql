-- Rollups of endpoints, job kinds (labels) and the database; and the size of topics. removed: offsets of a topic
-- that retention has removed, over all partitions.
alter table trunkline.rollups
    drop constraint rollups_kind_check,
    add constraint rollups_kind_check check (kind in ('topic', 'group', 'queue', 'endpoint', 'label', 'system')),
    add column bytes   bigint,
    add column removed bigint;

-- The labels of a queue that rollups have seen, at most 200: label_id is their subject.
create table trunkline.rollup_labels (
    label_id int  generated always as identity primary key,
    queue_id int  not null references trunkline.queues on delete cascade,
    label    text not null,
    unique (queue_id, label)
);

-- From when on attention() lists something.
insert into trunkline.settings values
    -- the next message of a queue or group waits this long, and five times its usual wait of the last day
    ('attention_wait', '1 minute'),
    -- no claim, commit or archived file for this long while there is something to do
    ('attention_idle', '5 minutes'),
    -- retention will remove unread messages within this time
    ('attention_loss', '1 day'),
    -- dead letters, alerts and failed schedules of this time are listed
    ('attention_recent', '1 hour'),
    -- a transaction that holds back vacuum is this old
    ('attention_transaction', '15 minutes')
on conflict do nothing;

-- A row of attention().
create type trunkline.attention_row as (
    severity text, rule text, kind text, subject text, since timestamptz, deadline timestamptz, n bigint, cause text, next_step text
);
