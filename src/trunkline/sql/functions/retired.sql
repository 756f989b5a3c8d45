-- Signatures of earlier releases. Dropped in the transaction that makes their successors, so that nobody finds neither or both.
drop function if exists trunkline.create_queue(text, interval, int, interval, float8, interval, float8, interval, interval, boolean, int, interval, int, int);
drop function if exists trunkline.alter_queue(text, interval, int, interval, float8, interval, float8, interval, interval, interval, int);
drop function if exists trunkline.enqueue(text, jsonb, text, text, text, jsonb, uuid, timestamptz, text, interval, timestamptz);
drop function if exists trunkline.enqueue_bytes(text, bytea, text, text, text, text, jsonb, uuid, timestamptz, text, interval, timestamptz);
drop function if exists trunkline.enqueue_many(text, bytea[], uuid[], text[], text[], text[], jsonb[], text[], text, timestamptz[], text[], interval[], timestamptz[]);
drop function if exists trunkline._publish_many(trunkline.topics, bytea[], uuid[], text[], text[], text[], jsonb[], text[], text, timestamptz[], text[], interval[], timestamptz[]);
drop function if exists trunkline._publish_one(trunkline.topics, bytea, text, text, text, jsonb, text, uuid, timestamptz, text, interval, timestamptz);
drop function if exists trunkline._append(int, bytea[], uuid[], text[], text[], text[], jsonb[], text[], timestamptz[]);
drop function if exists trunkline._make_topic(text, text, int, interval, bigint, interval, int, int);
drop function if exists trunkline.create_group(text, text, text);
drop function if exists trunkline.ensure_group(text, text, text);
drop function if exists trunkline._make_group(trunkline.topics, text, text);
drop function if exists trunkline._find_offset(int, uuid, boolean);
drop function if exists trunkline.list_topics();
drop function if exists trunkline.list_queues();
drop function if exists trunkline.ensure_topic(text, int, interval);
drop function if exists trunkline.ensure_queue(text);
