-- Signatures of earlier releases. Dropped in the transaction that makes their successors, so that nobody finds neither or both.
drop function if exists trunkline.create_queue(text, interval, int, interval, float8, interval, float8, interval, interval, boolean, int, interval, int, int);
drop function if exists trunkline.alter_queue(text, interval, int, interval, float8, interval, float8, interval, interval, interval, int);
drop function if exists trunkline.enqueue(text, jsonb, text, text, text, jsonb, uuid, timestamptz, text, interval, timestamptz);
drop function if exists trunkline.enqueue_bytes(text, bytea, text, text, text, text, jsonb, uuid, timestamptz, text, interval, timestamptz);
drop function if exists trunkline.enqueue_many(text, bytea[], uuid[], text[], text[], text[], jsonb[], text[], text, timestamptz[], text[], interval[], timestamptz[]);
drop function if exists trunkline._publish_many(trunkline.topics, bytea[], uuid[], text[], text[], text[], jsonb[], text[], text, timestamptz[], text[], interval[], timestamptz[]);
drop function if exists trunkline._publish_one(trunkline.topics, bytea, text, text, text, jsonb, text, uuid, timestamptz, text, interval, timestamptz);
drop function if exists trunkline._append(int, bytea[], uuid[], text[], text[], text[], jsonb[], text[], timestamptz[]);
drop function if exists trunkline._append(int, bytea[], uuid[], text[], text[], text[], jsonb[], text[], timestamptz[], int[]);
drop function if exists trunkline._append(int, bytea[], uuid[], text[], text[], text[], jsonb[], text[], timestamptz[], int[]);
drop function if exists trunkline._make_topic(text, text, int, interval, bigint, interval, int, int);
drop function if exists trunkline.create_group(text, text, text);
drop function if exists trunkline.ensure_group(text, text, text);
drop function if exists trunkline._make_group(trunkline.topics, text, text);
drop function if exists trunkline._find_offset(int, uuid, boolean);
drop function if exists trunkline.list_topics();
drop function if exists trunkline.list_queues();
drop function if exists trunkline.ensure_topic(text, int, interval);
drop function if exists trunkline.ensure_queue(text);
drop function if exists trunkline.open_stage(text);
drop function if exists trunkline.drop_stage(text);
drop function if exists trunkline.make_room(text[], bigint[]);
drop function if exists trunkline.commit_stage(text, text, bigint, text[], uuid[], bigint[]);
drop function if exists trunkline._empty_stage(int);
drop function if exists trunkline._publish_stage(int, trunkline.topics, text, uuid[], bigint[]);
drop function if exists trunkline._write_claim(int), trunkline._write_claim(int, text, text, text, text, text), trunkline._lease_state(trunkline.cursors),
    trunkline._claim_retries(trunkline.queues, int, interval, text[], text), trunkline._claim(int, int, interval, text[], text), trunkline._record_history(int, bigint[]),
    trunkline._check_leases(int), trunkline._check_queue_leases(int), trunkline._count_pending(int, timestamptz, boolean), trunkline._next_deadline(int),
    trunkline._first_lease(int, timestamptz), trunkline._carry_over(smallint, smallint), trunkline._overtake(int, bigint), trunkline._lease_totals(int),
    trunkline._ack_open(text, int8multirange), trunkline._lease_over(int, bigint), trunkline.ack_lease(text, bigint[]), trunkline._matches(int[], bigint[], int, int, int, bigint, bigint),
    trunkline._lease_many(int[], bigint[], int8multirange[], bigint[], int, int, int, text), trunkline._open_leases(int),
    trunkline._tick(int, int, int, int), trunkline._tick(int, int, int, int, boolean), trunkline._visible_among(int, int, int, int8multirange),
    trunkline._sequence_logs(int[], int, boolean), trunkline._is_unsequenced(int, uuid), trunkline._has_committed(int, int, int, int), trunkline._set_of(bigint, bigint);
drop function if exists trunkline._history_slot(timestamptz), trunkline._empty_days(text, interval);
drop function if exists trunkline._roll_up_queue(trunkline.queues, timestamptz), trunkline._cursor_totals(trunkline.queues);
drop function if exists trunkline._reserve(int, int, int, int);
drop function if exists trunkline._roll(int, int, int);
drop function if exists trunkline._make_staged_segment(int, int, bigint, int);
drop function if exists trunkline.run_duty(text, interval);
drop function if exists trunkline._duty_size();
drop function if exists trunkline._duty_expire();
drop function if exists trunkline._duty_due();
drop function if exists trunkline._duty_schedules();
drop function if exists trunkline._duty_sequence();
drop function if exists trunkline._duty_segments();
drop function if exists trunkline._duty_retention();
drop function if exists trunkline._duty_rotate();
drop function if exists trunkline._duty_windows();
drop function if exists trunkline._duty_history();
drop function if exists trunkline._duty_attempts();
drop function if exists trunkline._duty_stages();
drop function if exists trunkline._duty_rollups();
drop function if exists trunkline._duty_jobs();
