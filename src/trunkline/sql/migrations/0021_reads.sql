-- A cursor with something to draw: up to which position, whether all that comes next is for the queue, and, if the newest tick of its log is one
-- run of ids in the shared store, its first offset and its first id.
create type trunkline.drawable as (cur trunkline.cursors, head bigint, plain boolean, run_offset bigint, run_id bigint);
