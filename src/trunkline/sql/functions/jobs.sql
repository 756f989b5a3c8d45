-- Jobs: what a worker needs beyond claim and settle. Lock order: first the row of the settled lease (see
-- ../README.md). Then rows of job_waiting, in the order of their ids. Then rows of job_limits, in the order
-- of their names.

-- Settles jobs and stores what belongs to their end, in one transaction. Returns done, lost or unknown for
-- each receipt, in their order. p_verb is 'ack', 'bury' or 'nack'; at most 10,000 receipts.
--
-- The other arrays have one element per receipt; all but p_ids may be null. p_ids: the job's id. p_results:
-- its result.
-- p_tracked: the result is stored and, after an ack, jobs that wait for this one are enqueued. p_uniques: the
-- unique key that the job holds, which is released. p_error: stored with each job, at most 10,000 characters.
--
-- Only receipts with the result done have an effect. A repeat is harmless: a repeated ack returns done again,
-- a repeated bury or nack returns lost. Locks the rows of the leases and of waiting jobs until the
-- transaction ends.
create or replace function trunkline.settle_jobs(
    p_verb text, p_receipts text[], p_ids uuid[], p_results bytea[] default null, p_tracked boolean[] default null, p_uniques text[] default null,
    p_error text default null)
returns text[]
language plpgsql
as $$
declare
    v_answers text[];
    v_now     timestamptz := trunkline.clock();
    v_done    uuid[];
begin
    if p_verb is null or p_verb not in ('ack', 'bury', 'nack') then
        perform trunkline._fail('TL001', format('verb must be "ack", "bury" or "nack", got %s', trunkline._quoted(p_verb, 50)),
                                'Use "ack", "bury" or "nack".');
    elsif p_ids is null or cardinality(p_ids) <> cardinality(p_receipts)
          or coalesce(cardinality(p_results), cardinality(p_ids)) <> cardinality(p_ids)
          or coalesce(cardinality(p_tracked), cardinality(p_ids)) <> cardinality(p_ids)
          or coalesce(cardinality(p_uniques), cardinality(p_ids)) <> cardinality(p_ids) then
        perform trunkline._fail('TL001', format('each array must have one element per receipt (%s)', coalesce(cardinality(p_receipts)::text, 'null')),
                                'Use null for an array without values.');
    end if;
    if p_verb = 'ack' then
        select array_agg(r.result order by r.ord) into v_answers from trunkline.ack(p_receipts) r;
    else
        select array_agg(r.result order by r.ord) into v_answers
        from trunkline._settle(case p_verb when 'bury' then 'b' else 'n' end::"char", p_receipts, null, p_error) r;
    end if;
    insert into trunkline.job_results (slot, job_id, state, result, error, at)
    select (select trunkline._window('job_results')), p_ids[i], case p_verb when 'ack' then 'd' else 'f' end::"char", p_results[i], left(p_error, 10000), v_now
    from generate_subscripts(p_ids, 1) i where p_tracked[i] and v_answers[i] = 'done' order by i;
    delete from trunkline.job_unique u using (
        select p_uniques[i] as key, p_ids[i] as id from generate_subscripts(p_ids, 1) i where p_uniques[i] is not null and v_answers[i] = 'done') x
    where u.key = x.key and u.job_id = x.id;
    delete from trunkline.job_cancels c where c.job_id = any (array(select p_ids[i] from generate_subscripts(p_ids, 1) i where v_answers[i] = 'done'));
    if p_verb = 'ack' then
        v_done := array(select p_ids[i] from generate_subscripts(p_ids, 1) i where p_tracked[i] and v_answers[i] = 'done');
        perform trunkline._count_down(v_done);
    end if;
    return v_answers;
end
$$;

-- Removes these completed jobs from the jobs that wait for them, and enqueues each job that waits for nothing
-- else. Returns the number enqueued. Two sessions that complete the last two parents of a job meet at the
-- lock on its row in job_waiting. The second one then sees that no parent is left. Rows are locked in the
-- order of their ids.
create or replace function trunkline._count_down(p_ids uuid[]) returns int
language plpgsql
as $$
declare
    w       trunkline.job_waiting;
    v_count int := 0;
begin
    if p_ids = '{}' or not exists (select from trunkline.job_parents where parent_id = any (p_ids)) then
        return 0;
    end if;
    for w in
        select * from trunkline.job_waiting
        where waiting_id = any (array(select waiting_id from trunkline.job_parents where parent_id = any (p_ids))) order by waiting_id for update
    loop
        delete from trunkline.job_parents where waiting_id = w.waiting_id and parent_id = any (p_ids);
        v_count := v_count + trunkline._start_if_free(w);
    end loop;
    return v_count;
end
$$;

-- Enqueues a waiting job if no parent is left; returns 1 if it did, else 0. The caller holds the lock on its
-- row in job_waiting. If the queue refuses the job or does not exist, the job ends as failed and no error is
-- raised: the transaction that completed the parents must not fail because of it.
create or replace function trunkline._start_if_free(w trunkline.job_waiting) returns int
language plpgsql
as $$
begin
    if exists (select from trunkline.job_parents where waiting_id = w.waiting_id) then
        return 0;
    end if;
    begin
        -- Without an idempotency key: the row in job_waiting is deleted with it.
        perform trunkline._publish_one(trunkline._topic('inbox', w.queue), w.payload, w.key, null, w.label, w.headers, 'application/json',
                                       w.waiting_id, null, null, null, null, w.priority);
        delete from trunkline.job_waiting where waiting_id = w.waiting_id;
        return 1;
    exception when others then
        -- Other errors (a lock timeout, no space) may be gone in the next attempt.
        if sqlstate not like 'TL0%' then
            raise;
        end if;
        perform trunkline._fail_waiting(w, format('could not be enqueued: %s', sqlerrm));
        return 0;
    end;
end
$$;

-- Ends a job that waits for others as failed, with this error as its result.
create or replace function trunkline._fail_waiting(w trunkline.job_waiting, p_error text) returns void
language plpgsql
as $$
begin
    delete from trunkline.job_waiting where waiting_id = w.waiting_id;
    if found then
        insert into trunkline.job_results (slot, job_id, state, error, at)
        values (trunkline._window('job_results'), w.waiting_id, 'f', p_error, trunkline.clock());
    end if;
end
$$;

-- Deletes the parents of a waiting job whose results say that they are done.
create or replace function trunkline._forget_done_parents(p_waiting_id uuid) returns void
language plpgsql
as $$
declare
    v_done uuid[];
begin
    begin
        v_done := array(select p.parent_id from trunkline.job_parents p
                        where p.waiting_id = p_waiting_id and exists (select from trunkline.job_results r where r.job_id = p.parent_id and r.state = 'd'));
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    delete from trunkline.job_parents where waiting_id = p_waiting_id and parent_id = any (v_done);
end
$$;

-- Enqueues a job when all jobs in p_after are done, or now if they already are. Returns its id; duplicate is
-- true if a job with the id p_id is already waiting. The jobs in p_after (1 to 10,000) must be ones whose
-- results are kept.
--
-- If one of them fails or is cancelled, the new job stays blocked until that job is retried and done, or
-- until the new job is cancelled. Raises the errors of enqueue for its message.
create or replace function trunkline.enqueue_after(
    p_queue text, p_after uuid[], p_payload bytea, p_label text, p_key text default null, p_headers jsonb default null, p_id uuid default null,
    p_priority int default null)
returns trunkline.published
language plpgsql
as $$
declare
    t trunkline.topics := trunkline._topic('inbox', p_queue);
    w trunkline.job_waiting;
begin
    if cardinality(p_after) is null or cardinality(p_after) not between 1 and 10000 or array_position(p_after, null) is not null then
        perform trunkline._fail('TL001', 'after must have 1 to 10,000 job ids, without null',
                                'Pass the ids of the jobs to wait for.');
    elsif p_label is null then
        perform trunkline._fail('TL001', 'label must not be null', 'Use the name of the job''s handler as the label.');
    elsif p_priority is not null then
        perform trunkline._refuse_priority(p_priority, coalesce(t.priorities, 1) - 1);
    end if;
    perform trunkline._refuse_message(0, p_payload, p_key, null, p_label, p_headers, 'application/json', t.max_payload);
    insert into trunkline.job_waiting (waiting_id, queue, label, payload, key, headers, priority, created_at)
    values (coalesce(p_id, trunkline.new_id()), p_queue, p_label, p_payload, p_key, p_headers, p_priority, trunkline.clock())
    on conflict (waiting_id) do nothing returning * into w;
    if w.waiting_id is null then
        return row(1, p_id, true)::trunkline.published;
    end if;
    insert into trunkline.job_parents (parent_id, waiting_id) select distinct x, w.waiting_id from unnest(p_after) x;
    -- This statement comes after the insert. A parent that ends later finds the new rows. A parent that ends
    -- at the same time may see neither; upkeep finds that case (start_waiting).
    perform trunkline._forget_done_parents(w.waiting_id);
    perform trunkline._start_if_free(w);
    return row(1, w.waiting_id, false)::trunkline.published;
end
$$;

-- Enqueues waiting jobs whose parents are all done; returns the number enqueued. Upkeep calls it for jobs
-- that the end of their parents missed. That is rare, so it does not read all waiting jobs. It checks the
-- newest 200 and a sample of four pages, which is the whole table while that is small. Enqueues at most p_limit
-- jobs and skips those that another session has locked.
create or replace function trunkline.start_waiting(p_limit int default 1000) returns int
language plpgsql
-- Without this, a plan made while the tables were empty scans one of them for each row of the other.
set enable_seqscan = off
as $$
declare
    v_percent real := least(100, 100.0 * 4 * 8192 / greatest(pg_relation_size('trunkline.job_waiting'), 1));
    w         trunkline.job_waiting;
    v_free    uuid[];
    v_count   int := 0;
begin
    begin
        v_free := array(
            select x.waiting_id
            from (select y.waiting_id from (select waiting_id from trunkline.job_waiting order by waiting_id desc limit 200) y
                  union select waiting_id from trunkline.job_waiting tablesample system (v_percent)) x
            where exists (select from (select p.parent_id from trunkline.job_parents p where p.waiting_id = x.waiting_id offset 0) p
                          where exists (select from trunkline.job_results r where r.job_id = p.parent_id and r.state = 'd' offset 0) offset 0)
            order by x.waiting_id limit p_limit);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    for w in select * from trunkline.job_waiting x where x.waiting_id = any (v_free) order by x.waiting_id for update skip locked loop
        perform trunkline._forget_done_parents(w.waiting_id);
        v_count := v_count + trunkline._start_if_free(w);
    end loop;
    return v_count;
end
$$;

-- Enqueues a job, unless a job that has not ended holds the unique key p_unique. Returns the job's id; if
-- another job holds the key, returns that job's id with duplicate = true. The key is released when its job
-- ends, and after p_hold (1 second to 365 days) in any case. Two sessions with the same key wait for each
-- other until the first one commits.
create or replace function trunkline.enqueue_unique(
    p_queue text, p_unique text, p_payload bytea, p_label text, p_key text default null, p_headers jsonb default null, p_id uuid default null,
    p_delay interval default null, p_deliver_at timestamptz default null, p_priority int default null, p_hold interval default '1 day')
returns trunkline.published
language plpgsql
as $$
declare
    v_id  uuid := coalesce(p_id, trunkline.new_id());
    v_has uuid;
begin
    if p_unique is null or p_unique = '' or length(p_unique) > 255 then
        perform trunkline._fail('TL001', format('unique key must have 1 to 255 characters, got %s', coalesce(length(p_unique)::text, 'null')),
                                'Use a shorter key, such as a hash.');
    end if;
    perform trunkline._need_duration('hold', p_hold, '1 second', '365 days');
    insert into trunkline.job_unique as u (key, job_id, until) values (p_unique, v_id, trunkline.clock() + p_hold)
    on conflict (key) do update set job_id = excluded.job_id, until = excluded.until where u.until <= trunkline.clock()
    returning job_id into v_has;
    if v_has is null then
        select job_id into v_has from trunkline.job_unique where key = p_unique;
        return row(1, coalesce(v_has, v_id), true)::trunkline.published;
    end if;
    perform trunkline._publish_one(trunkline._topic('inbox', p_queue), p_payload, p_key, null, p_label,
                                   coalesce(p_headers, '{}') || jsonb_build_object('trunkline-unique', p_unique), 'application/json',
                                   v_id, null, null, p_delay, p_deliver_at, p_priority);
    return row(1, v_id, false)::trunkline.published;
end
$$;

-- Returns the results of these jobs, for those that have ended and whose results are kept. state is done or
-- failed; a job that was cancelled while it was blocked is reported as failed, with the reason as its error.
create or replace function trunkline.job_results(p_ids uuid[]) returns table (job_id uuid, state text, result bytea, error text, at timestamptz)
language plpgsql
as $$
#variable_conflict use_column
begin
    begin
        return query
        select r.job_id, case r.state when 'd' then 'done' else 'failed' end, r.result || '', r.error || '', r.at
        from unnest(p_ids) i(id)
        cross join lateral (select * from trunkline.job_results x where x.job_id = i.id order by x.n desc limit 1) r;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
end
$$;

-- Stores the result of a job that was settled elsewhere, as done.
create or replace function trunkline.store_result(p_id uuid, p_result bytea) returns void
language sql
as $$
    insert into trunkline.job_results (slot, job_id, state, result, at)
    select trunkline._window('job_results'), p_id, 'd', p_result, trunkline.clock()
$$;

-- Releases jobs until p_delay (0 to 365 days) has passed, without counting an attempt. Returns done, lost or
-- unknown for each receipt.
create or replace function trunkline.snooze(p_receipts text[], p_delay interval) returns setof trunkline.settlement
language plpgsql
as $$
begin
    perform trunkline._need_duration('delay', p_delay, '0', '365 days');
    return query select * from trunkline._settle('r', p_receipts, p_delay) order by ord;
end
$$;

-- Returns for each receipt whether the previous attempt at its message ended because its lease expired: its
-- worker may have crashed while it ran the job. Unknown receipts return false. Reads only leases that
-- rotation has not removed, which is enough: a message is ready again right after its lease expired.
create or replace function trunkline.lost_before(p_receipts text[]) returns boolean[]
language plpgsql
as $$
declare
    v_lost boolean[];
begin
    begin
        v_lost := (
            select array_agg(coalesce(l.whys[r.pos - l.first + 1] = 'x', false)
                   -- The message was then released, skipped by its label, or rolled back. These keep the
                   -- attempt's number.
                   or l.whys[r.pos - l.first + 1] in ('r', 'l', 'h') and exists (
                       select from trunkline.returns b where b.source_id = l.source_ids[r.pos - l.first + 1] and b.log_offset = l.offsets[r.pos - l.first + 1]
                          and b.attempt = l.attempts[r.pos - l.first + 1] and b.why = 'x')
                   or exists (
                       select from trunkline.leases b join trunkline.settled e on e.rotation = b.rotation and e.cursor_id = b.cursor_id and e.first = b.first and e.kind = 'x'
                       where l.next_offset is not null and b.cursor_id = l.cursor_id and b.first < l.first and b.first > l.first - 10000
                         and l.offsets[r.pos - l.first + 1] = b.offsets[e.pos - b.first + 1] and b.attempts[e.pos - b.first + 1] = l.attempts[r.pos - l.first + 1] - 1) order by r.ord)
            from (select x.ord, case when y.good then split_part(x.receipt, '.', 1)::bigint end as pos,
                         case when y.good then split_part(x.receipt, '.', 2)::int end as cursor_id, case when y.good then split_part(x.receipt, '.', 3)::bigint end as first
                  from unnest(p_receipts) with ordinality x(receipt, ord)
                  cross join lateral (select trunkline._names_a_lease(substr(x.receipt, strpos(x.receipt, '.'))) and split_part(x.receipt, '.', 1) ~ '^[0-9]{1,18}$' as good) y) r
            left join trunkline.leases l on l.cursor_id = r.cursor_id and l.first = r.first);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return v_lost;
end
$$;

-- Begins an effect that must not happen twice, identified by p_scope and p_key. Returns one row. State
-- 'start': the caller runs the effect; commit first, so that the start is on disk. State 'done': it was
-- completed, with the stored result. State 'unknown': it was started and its end was not recorded; with
-- p_rerun it is started again.
--
-- Holds a lock on the key until the transaction ends; other calls with the same key wait for it. Scope and
-- key have 1 to 500 characters. Entries are kept for the setting job_once_keep (30 days). Needs read
-- committed.
create or replace function trunkline.begin_once(p_scope text, p_key text, p_rerun boolean default false) returns table (state text, result bytea)
language plpgsql
as $$
declare
    o     trunkline.job_once;
    v_now timestamptz;
begin
    if p_key is null or p_scope is null or length(p_key) not between 1 and 500 or length(p_scope) not between 1 and 500 then
        perform trunkline._fail('TL001', format('scope and key must have 1 to 500 characters each, got %s and %s', coalesce(length(p_scope)::text, 'null'), coalesce(length(p_key)::text, 'null')),
                                'Use a shorter key, such as a hash.');
    end if;
    perform trunkline._need_read_committed('begin_once');
    perform trunkline._commit_durably();
    perform pg_advisory_xact_lock(778009, hashtext(p_scope || ' ' || p_key));
    -- A separate statement: its snapshot must include rows that were written while this session waited for
    -- the lock.
    begin
        o := (select x from trunkline.job_once x where x.scope = p_scope and x.key = p_key order by x.n desc limit 1);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    if o.state = 'd' then
        return query select 'done', o.result;
    elsif o.state = 's' and not p_rerun then
        return query select 'unknown', null::bytea;
    else
        v_now := trunkline.clock();
        insert into trunkline.job_once (slot, scope, key, state, at) values (trunkline._window('job_once'), p_scope, p_key, 's', v_now);
        return query select 'start', null::bytea;
    end if;
end
$$;

-- Records the end of an effect that begin_once started: done with this result, or (p_done false) failed,
-- after which begin_once returns 'start' again.
create or replace function trunkline.end_once(p_scope text, p_key text, p_done boolean, p_result bytea default null) returns void
language plpgsql
as $$
declare
    v_now timestamptz := trunkline.clock();
begin
    perform trunkline._commit_durably();
    insert into trunkline.job_once (slot, scope, key, state, result, at)
    values (trunkline._window('job_once'), p_scope, p_key, case when p_done then 'd' else 'f' end, p_result, v_now);
end
$$;

-- Requests the cancellation of a job and returns the outcome. 'cancelled': the job was blocked by other jobs
-- and is removed. 'requested': a job in a queue will not start, and a running job is stopped by its worker.
-- Both become dead letters. If the job has already ended, returns its state: 'done', 'dead', 'cancelled',
-- 'failed' or 'gone'.
--
-- Raises TL018 if there is no such job. For an id that is not a version 7 uuid it may return 'requested'
-- instead.
create or replace function trunkline.cancel_job(p_id uuid, p_reason text default null) returns text
language plpgsql
as $$
declare
    v_reason text := left(coalesce(p_reason, 'cancelled'), 1000);
    v_state  text;
begin
    if p_id is null then
        perform trunkline._fail('TL001', 'id must not be null', 'Pass the id that enqueue returned.');
    end if;
    delete from trunkline.job_waiting where waiting_id = p_id;
    if found then
        insert into trunkline.job_results (slot, job_id, state, error, at)
        values (trunkline._window('job_results'), p_id, 'c', v_reason, trunkline.clock());
        return 'cancelled';
    end if;
    v_state := trunkline._job_state(p_id);
    if v_state in ('done', 'dead', 'cancelled', 'failed', 'gone') then
        return v_state;
    elsif v_state is null and trunkline._uuid_time(p_id) is not null then
        perform trunkline._fail_job(p_id);
    end if;
    -- Only version 7 ids are found anywhere in the log. Another id may belong to a job that is too old to be
    -- found.
    insert into trunkline.job_cancels (job_id, reason, at) values (p_id, v_reason, trunkline.clock()) on conflict (job_id) do nothing;
    return 'requested';
end
$$;

-- Returns the pending cancel requests with a number above p_after, in the order of their numbers. Workers
-- poll it about once a second.
create or replace function trunkline.list_cancels(p_after bigint default 0) returns table (n bigint, job_id uuid, reason text)
language sql stable
as $$ select c.n, c.job_id, c.reason from trunkline.job_cancels c where c.n > p_after order by c.n $$;

-- Moves a job from the dead letters back to its queue and returns the name of the queue. Attempts start again
-- from 1, and a pending cancel request is removed. Raises TL014 if the job is not a dead letter, and TL018 if
-- there is no such job.
create or replace function trunkline.retry_job(p_id uuid) returns text
language plpgsql
as $$
declare
    v_queue text;
    v_state text;
begin
    select q.name into v_queue from trunkline.dead_letters d join trunkline.queues q using (queue_id) where d.id = p_id order by d.dead_id desc limit 1;
    if not found then
        v_state := trunkline._job_state(p_id);
        if v_state is null and trunkline._uuid_time(p_id) is not null then
            perform trunkline._fail_job(p_id);
        end if;
        perform trunkline._fail('TL014', format('cannot retry job %s: it is %s', p_id, coalesce(v_state || ', not dead', 'not a dead letter')),
                                'Retry only jobs that are dead. List them with trunkline.list_jobs.');
    end if;
    delete from trunkline.job_cancels where job_id = p_id;
    perform trunkline.redrive(v_queue, array[p_id]);
    return v_queue;
end
$$;

-- Limits that all processes share

-- Creates a limit, or changes an existing one to these arguments. p_max_running: jobs that run at the same
-- time. p_rate: tokens per second. p_burst: the most tokens that can accumulate (default: p_rate, at least
-- 1). Null means no limit. A new limit starts with all its tokens; a changed one keeps its tokens, up to the
-- new burst.
create or replace function trunkline.ensure_limit(p_name text, p_max_running int default null, p_rate double precision default null, p_burst double precision default null) returns void
language plpgsql
as $$
begin
    perform trunkline._check_name('limit', p_name);
    if p_max_running is not null then
        perform trunkline._check_range('max_running', p_max_running, 0, 1000000);
    end if;
    if p_rate is not null then
        perform trunkline._check_range('rate', p_rate::numeric, 0.000001, 1000000);
        perform trunkline._check_range('burst', coalesce(p_burst, greatest(p_rate, 1))::numeric, 1, 10000000);
    end if;
    insert into trunkline.job_limits as l (name, max_running, rate, burst, tokens, at)
    values (p_name, p_max_running, p_rate, coalesce(p_burst, greatest(p_rate, 1)), coalesce(p_burst, greatest(p_rate, 1), 0), trunkline.clock())
    on conflict (name) do update set max_running = excluded.max_running, rate = excluded.rate, burst = excluded.burst, tokens = least(l.tokens, excluded.burst)
    where (l.max_running, l.rate, l.burst) is distinct from (excluded.max_running, excluded.rate, excluded.burst);
end
$$;

-- Reserves capacity under concurrency limits for a worker. Returns how many jobs it may run under each limit
-- of p_limits, at most the number in p_wants. A limit that does not exist, or has no max_running, grants
-- everything.
--
-- The reservation replaces the worker's former one and lasts for p_for (1 second to 1 hour). If the number is
-- unchanged, it is extended only when less than 60 % of p_for remain. So repeat the call within 60 % of
-- p_for. The capacity of a worker that died is free when its reservation expires.
--
-- Locks the rows of the limits until the transaction ends. p_relaxed turns synchronous_commit off for the
-- transaction. Needs read committed.
create or replace function trunkline.acquire_limit(p_worker text, p_limits text[], p_wants int[], p_for interval default '15 seconds', p_relaxed boolean default false) returns int[]
language plpgsql
as $$
declare
    v_now    timestamptz;
    v_max    int;
    v_free   int;
    v_grant  int;
    s        trunkline.job_limit_shares;
    v_grants int[] := array_fill(0, array[cardinality(p_limits)]);
    r        record;
begin
    perform trunkline._need_read_committed('acquire_limit');
    perform trunkline._need_duration('for', p_for, '1 second', '1 hour');
    if p_relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    for r in select x.name, x.want, x.ord from unnest(p_limits, p_wants) with ordinality x(name, want, ord) order by x.name loop
        select max_running into v_max from trunkline.job_limits where name = r.name for update;
        if v_max is null then
            v_grants[r.ord] := r.want;
            continue;
        end if;
        v_now := trunkline.clock();
        select v_max - coalesce(sum(held), 0) into v_free from trunkline.job_limit_shares where limit_name = r.name and worker <> p_worker and until > v_now;
        v_grant := greatest(0, least(r.want, v_free));
        select * into s from trunkline.job_limit_shares where limit_name = r.name and worker = p_worker;
        -- Whether the worker waits for more is written when it changes, not each number that it wants.
        if s.held is distinct from v_grant or s.until < v_now + p_for * 0.6 or (s.wanted > s.held) is distinct from (r.want > v_grant) then
            insert into trunkline.job_limit_shares (limit_name, worker, held, wanted, until) values (r.name, p_worker, v_grant, r.want, v_now + p_for)
            on conflict (limit_name, worker) do update set held = excluded.held, wanted = excluded.wanted, until = excluded.until;
        end if;
        v_grants[r.ord] := v_grant;
    end loop;
    return v_grants;
end
$$;

-- Acquires up to p_want tokens of a rate limit. Returns the number granted and, if that is fewer than p_want,
-- the seconds until the next token (else 0). A limit that does not exist, or has no rate, grants everything.
-- Locks the row of the limit until the transaction ends. p_relaxed turns synchronous_commit off for the
-- transaction. Needs read committed.
create or replace function trunkline.acquire_tokens(p_limit text, p_want int, p_relaxed boolean default false, out granted int, out seconds double precision)
language plpgsql
as $$
declare
    l       trunkline.job_limits;
    v_now   timestamptz;
    v_have  double precision;
begin
    perform trunkline._need_read_committed('acquire_tokens');
    if p_relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    select * into l from trunkline.job_limits where name = p_limit for update;
    if l.rate is null then
        granted := p_want;
        seconds := 0;
        return;
    end if;
    v_now := trunkline.clock();
    v_have := least(l.burst, l.tokens + l.rate * greatest(0, extract(epoch from v_now - l.at)));
    granted := greatest(0, least(p_want, floor(v_have)::int));
    seconds := case when granted < p_want then greatest(0, (granted + 1 - v_have) / l.rate) else 0 end;
    update trunkline.job_limits set tokens = v_have - granted, at = v_now where name = p_limit;
end
$$;

-- Workers

-- Registers a running worker with its description, or updates it. Workers call it every few seconds.
-- p_schemas: the JSON schema of the arguments of each kind; null keeps the former value. Turns
-- synchronous_commit off for the transaction.
create or replace function trunkline.register_worker(p_worker text, p_info jsonb, p_schemas jsonb default null) returns void
language plpgsql
as $$
begin
    if p_worker is null or length(p_worker) not between 1 and 200 then
        perform trunkline._fail('TL001', format('worker name must have 1 to 200 characters, got %s', coalesce(length(p_worker)::text, 'null')),
                                'Use a shorter name.');
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into trunkline.job_workers as w (worker, started_at, seen_at, info, schemas)
    values (p_worker, trunkline.clock(), trunkline.clock(), coalesce(p_info, '{}'), p_schemas)
    on conflict (worker) do update set seen_at = excluded.seen_at, info = excluded.info, schemas = coalesce(excluded.schemas, w.schemas);
end
$$;

-- Removes a worker that has ended, and releases the capacity that it reserved with acquire_limit.
create or replace function trunkline.forget_worker(p_worker text) returns void
language sql
as $$
    delete from trunkline.job_limit_shares where worker = p_worker;
    delete from trunkline.job_workers where worker = p_worker
$$;

-- Returns the workers that reported in the last p_within, the one that started last first. schemas: the JSON
-- schema of the arguments of each kind.
create or replace function trunkline.list_workers(p_within interval default '1 minute')
returns table (worker text, started_at timestamptz, seen_at timestamptz, info jsonb, schemas jsonb)
language sql stable
as $$
    select w.worker, w.started_at, w.seen_at, w.info, w.schemas
    from trunkline.job_workers w where w.seen_at > trunkline.clock() - p_within order by w.started_at desc
$$;

-- Inspecting. A job is a message with a label; messages without a label are not jobs. Its state is one of:
--   running (leased by a worker), ready (can start now), delayed (until due_at), blocked (by other jobs),
--   dead (a dead letter), done, cancelled (while it was blocked),
--   failed (its dead letter was removed, or its queue refused it when its parents were done),
--   gone (settled, expired or purged, longer ago than the delivery history reaches).

-- Returns one job in any state, with its arguments, its attempts and its end. reason: why the job has this
-- state. cancel: the reason of a pending cancel request. Raises TL018 if there is no such job, or if the
-- message has no label.
create or replace function trunkline.get_job(p_id uuid)
returns table (id uuid, queue text, kind text, state text, reason text, attempt int, due_at timestamptz, worker text, error text, created_at timestamptz,
               ended_at timestamptz, key text, headers jsonb, payload bytea, result bytea, history jsonb, waits_for uuid[], cancel text)
language plpgsql
as $$
declare
    v_found boolean;
begin
    begin
        perform trunkline._begin_read();
        return query
        select j.id, j.queue, j.kind || '', j.state, j.reason, j.attempt, j.due_at, j.worker, j.error || '', j.created_at, j.ended_at, j.key || '', j.headers || '{}', j.payload || '', j.result || '',
               j.history, j.waits_for, j.cancel
        from trunkline._job(p_id) j;
        v_found := found;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    if not v_found then
        perform trunkline._fail_job(p_id);
    end if;
end
$$;

-- Returns the state of a job, or null if there is none. Keeps no lock on rotated tables.
create or replace function trunkline._job_state(p_id uuid) returns text
language plpgsql
as $$
declare
    v_state text;
begin
    begin
        perform trunkline._begin_read();
        v_state := (select j.state from trunkline._job(p_id) j);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return v_state;
end
$$;

-- Raises TL018: there is no message with this id, or it is not a job.
create or replace function trunkline._fail_job(p_id uuid) returns void
language plpgsql
as $$
begin
    if trunkline.explain_message(p_id) ->> 'state' = 'unknown' then
        perform trunkline._fail('TL018', format('job %s does not exist', p_id),
                                'List jobs with trunkline.list_jobs. The job was never enqueued, is not committed yet, or was removed by retention.');
    end if;
    perform trunkline._fail('TL018', format('message %s is not a job: it has no label', p_id),
                            'Inspect the message with trunkline.explain_message.');
end
$$;

-- Returns one row, or none if the id is not that of a job. Translates the state that explain_message reports
-- to the states of jobs. The caller has called _begin_read.
create or replace function trunkline._job(p_id uuid)
returns table (id uuid, queue text, kind text, state text, reason text, attempt int, due_at timestamptz, worker text, error text, created_at timestamptz,
               ended_at timestamptz, key text, headers jsonb, payload bytea, result bytea, history jsonb, waits_for uuid[], cancel text)
language plpgsql stable
as $$
declare
    e jsonb;
    r jsonb;
    m trunkline.log_row;
    t trunkline.topics;
    p record;
    d trunkline.dead_letters;
    a trunkline.job_results;
begin
    id := p_id;
    attempt := 0;
    history := '[]';
    cancel := (select c.reason from trunkline.job_cancels c where c.job_id = p_id);
    select null, w.waiting_id, w.key, null, w.label, w.headers, w.payload, null, null, w.created_at into m from trunkline.job_waiting w where w.waiting_id = p_id;
    if found then
        state := 'blocked';
        queue := (select w.queue from trunkline.job_waiting w where w.waiting_id = p_id);
        waits_for := array(select x.parent_id from trunkline.job_parents x where x.waiting_id = p_id order by x.parent_id);
        reason := case cardinality(waits_for) when 1 then 'waits for another job' else format('waits for %s other jobs', cardinality(waits_for)) end;
    else
        select * into a from trunkline.job_results x where x.job_id = p_id order by x.n desc limit 1;
        e := trunkline._explain_message(p_id);
        queue := e ->> 'queue';
        reason := e ->> 'reason';
        due_at := e ->> 'until';
        state := case e ->> 'state' when 'delayed' then 'delayed' when 'not_sequenced' then 'ready' when 'dead' then 'dead' else 'gone' end;
        if e ->> 'state' = 'delayed' then
            select null, s.id, s.key, null, s.label, s.headers, s.payload, null, null, null into m from trunkline._delayed s where s.id = p_id limit 1;
        elsif e ->> 'state' = 'not_sequenced' then
            t := trunkline._topic(case when queue is null then 'topic' else 'inbox' end, coalesce(queue, e ->> 'topic'));
            select * into m from trunkline._find_unsequenced(t.topic_id * 64 + (e ->> 'partition')::int, p_id);
        elsif e ->> 'state' = 'in_log' then
            t := trunkline._topic(case when queue is null then 'topic' else 'inbox' end, coalesce(queue, e ->> 'topic'));
            select * into m from trunkline._read(t.topic_id, (e ->> 'partition')::int, t.segment_rows, (e ->> 'offset')::bigint, (e ->> 'offset')::bigint);
            -- A topic message counts as a job of the first queue whose subscription matches it.
            r := (select x from jsonb_array_elements(e -> 'readers') x
                  where x ->> 'kind' = 'queue' and case when t.kind = 'inbox' then x ->> 'name' = t.name else x ->> 'state' <> 'not_matched' end limit 1);
            queue := r ->> 'name';
            reason := r ->> 'reason';
            due_at := r ->> 'until';
            attempt := coalesce((r ->> 'attempt')::int, 0);
            history := coalesce(r -> 'history', history);
            state := case when r ->> 'state' = 'acked' then 'done' when r ->> 'state' = 'leased' then 'running'
                         when r ->> 'state' in ('blocked', 'paused') then 'ready' when r ->> 'state' in ('ready', 'delayed', 'dead') then r ->> 'state' else 'gone' end;
            select x.* into p from trunkline.queues q join trunkline.cursors c using (queue_id) cross join lateral trunkline._returned_at(c, m.log_offset) x
            where q.name = r ->> 'name' and c.topic_id = t.topic_id and c.partition = (e ->> 'partition')::int;
            if p.source_id is not null then
                state := case when p.due_at > trunkline.clock() then 'delayed' else 'ready' end;
                due_at := p.due_at;
                attempt := p.attempt;
                error := p.error;
            elsif state = 'running' or state = 'ready' and history -> -1 ? 'settled_at' and history -> -1 ->> 'settled_at' is null then
                -- An expired lease counts as running until a pass ends it; list_jobs does the same.
                state := 'running';
                due_at := null;
                worker := history -> -1 ->> 'consumer';
            elsif state = 'done' then
                ended_at := history -> -1 ->> 'settled_at';
            end if;
        end if;
        if state = 'dead' then
            select * into d from trunkline.dead_letters x where x.id = p_id order by x.dead_id desc limit 1;
            m := row(d.log_offset, d.id, d.key, null, d.label, d.headers, d.payload, null, null, d.created_at);
            attempt := d.attempts;
            error := coalesce(d.error, d.reason);
            ended_at := d.dead_at;
        elsif state = 'gone' and a.job_id is not null then
            state := case a.state when 'd' then 'done' when 'c' then 'cancelled' else 'failed' end;
            reason := null;
            error := a.error;
        end if;
        if state in ('done', 'cancelled', 'failed') and a.job_id is not null then
            result := a.result;
            ended_at := a.at;
        end if;
        -- Not a job: the message has no label, no queue has it, or there is none. A message without an offset
        -- that cannot be read yet is reported anyway.
        if a.job_id is null and (m.label is null or queue is null) and not (e ->> 'state' = 'not_sequenced' and m.id is null) then
            return;
        end if;
    end if;
    kind := m.label;
    key := m.key;
    headers := m.headers;
    payload := m.payload;
    created_at := m.created_at;
    return next;
end
$$;

-- Enqueues waiting jobs whose parents are done, and removes what is no longer kept: old partitions of results
-- and effects, expired unique keys and those of dead letters, and workers and reservations that ended an hour
-- ago. Cancel requests are removed after 400 days. Returns the number of jobs enqueued and partitions
-- emptied.
create or replace function trunkline._upkeep_jobs() returns int
language plpgsql
as $$
declare
    v_count int := trunkline.start_waiting();
begin
    delete from trunkline.job_unique u where u.until <= trunkline.clock() or exists (select from trunkline.dead_letters d where d.id = u.job_id);
    delete from trunkline.job_workers where seen_at < trunkline.clock() - interval '1 hour';
    delete from trunkline.job_limit_shares where until < trunkline.clock() - interval '1 hour';
    delete from trunkline.job_cancels where at < trunkline.clock() - interval '400 days';
    return v_count + trunkline._turn_window('job_results', trunkline._setting('job_results_keep')::interval)
                   + trunkline._turn_window('job_once', trunkline._setting('job_once_keep')::interval);
end
$$;
