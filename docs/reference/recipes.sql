-- The recipes with annotations for sqlc (https://sqlc.dev): copy this file to your queries. Each is one call of a function in schema
-- trunkline (src/trunkline/sql/functions/recipes.sql), so PostgREST offers them under /rpc with the same names and parameters.
-- For topics with one partition.

-- Publishes a batch, all or none; answers the ids in its order. Offsets are given after the commit.
-- name: PublishMessages :many
select id::uuid from trunkline.publish_messages($1::text, $2::bytea[]) as id;

-- Groups are made once, before the first claim; a group that is there stays as it is.
-- name: InitConsumerGroup :exec
select trunkline.init_consumer_group($1::text, $2::text, $3::bigint);

-- Takes the next range of offsets for good (at most once). Nothing new: the end is one below the start. No such group: no row.
-- For at least once, use trunkline.fetch and trunkline.commit.
-- name: ClaimOffsets :one
select claimed_start_offset::bigint, claimed_end_offset::bigint from trunkline.claim_offsets($1::text, $2::bigint, $3::text);

-- name: GetMessages :many
select c_offset::bigint, payload::bytea, created_at::timestamptz from trunkline.get_messages($1::bigint, $2::bigint, $3::text);

-- name: EnqueueJob :one
select trunkline.enqueue_job($1::text, $2::bytea)::uuid as id;

-- A job is leased, not locked: the claim may be a transaction of its own. The id is the receipt.
-- name: ClaimJob :one
select id::text, payload::bytea, created_at::timestamptz from trunkline.claim_job($1::text);

-- Answers done, lost (the lease has ended) or unknown. Finished jobs are in the view trunkline.archive.
-- name: ArchiveJob :one
select trunkline.archive_job($1::text)::text as result;
