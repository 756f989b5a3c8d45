-- The last group that was rolled up in turn.
create unlogged sequence trunkline.groups_visited minvalue 0 start 1;
-- Passes visit cursors of queues in turn; groups may have many times as many.
create index on trunkline.cursors (cursor_id) where drawn_seq is not null;
-- How much was copied into the current partition when the next one was emptied.
alter table trunkline.rotation add column carried_bytes bigint not null default 0;
