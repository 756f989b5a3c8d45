-- Topics and queues that were deleted. Their tables and functions are dropped once no transaction is left that may use them (_drop_deleted).
create table trunkline.deletions (
    topic_id int         primary key,
    -- null: a topic; otherwise the queue whose own log the topic was
    queue_id int,
    at       timestamptz not null,
    -- transactions that were open when upkeep first saw the deletion, and had read `topics`; null: not seen yet
    holders  text[]
);
