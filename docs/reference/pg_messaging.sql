-- The queries of pg-messaging with annotations for sqlc (https://sqlc.dev). Copy this file to your queries.
-- Each query calls one function in schema trunkline (src/trunkline/sql/functions/pg_messaging.sql), so PostgREST
-- offers them under /rpc with the same names and parameters. For topics with one partition.

-- Publishes a batch, all or none. Returns the ids in input order. Offsets are assigned after the commit.
-- name: PublishMessages :many
select id::uuid from trunkline.publish_messages($1::text, $2::bytea[]) as id;

-- Creates a group, once, before the first claim. Does not change an existing group.
-- name: InitConsumerGroup :exec
select trunkline.init_consumer_group($1::text, $2::text, $3::bigint);

-- Claims the next range of offsets for good (at most once). If there are no new messages, the end is one
-- below the start. Returns no row if the group does not exist. For at least once, use trunkline.fetch and
-- trunkline.commit.
-- name: ClaimOffsets :one
select claimed_start_offset::bigint, claimed_end_offset::bigint from trunkline.claim_offsets($1::text, $2::bigint, $3::text);

-- name: GetMessages :many
select c_offset::bigint, payload::bytea, created_at::timestamptz from trunkline.get_messages($1::bigint, $2::bigint, $3::text);

-- name: EnqueueJob :one
select trunkline.enqueue_job($1::text, $2::bytea)::uuid as id;

-- A job is leased, not locked, so the claim can be a separate transaction. The id is the receipt.
-- name: ClaimJob :one
select id::text, payload::bytea, created_at::timestamptz from trunkline.claim_job($1::text);

-- Returns done, lost (the lease has ended) or unknown. Completed jobs are in the view trunkline.completed.
-- name: ArchiveJob :one
select trunkline.archive_job($1::text)::text as result;
