-- Why a message that could be delivered still waits, and until when: for explain.sql. Reads rollups, workers,
-- limits and endpoints, and no messages.

-- Returns how much a total of a subject grew per second in its newest rollups, over five to fifteen minutes;
-- null if they are older than five minutes, or there is only one.
create or replace function trunkline._recent_rate(p_kind text, p_subject int) returns float8
language sql stable
as $$
    select trunkline._per_second(n.total, w.total, extract(epoch from n.at - w.at)::float8)
    from (select x.at, case p_kind when 'group' then x.acked else x.delivered end as total from trunkline.rollups x
          where x.kind = p_kind and x.subject = p_subject and x.at > (select trunkline.clock() - interval '5 minutes') order by x.at desc limit 1) n
    cross join lateral (select y.at, case p_kind when 'group' then y.acked else y.delivered end as total from trunkline.rollups y
                        where y.kind = p_kind and y.subject = p_subject and y.at < n.at and y.at > n.at - interval '15 minutes'
                        order by abs(extract(epoch from n.at - y.at) - 300) limit 1) w
$$;

-- Returns when a queue was last claimed from: by its leases, or if they are gone, by its rollups of the last
-- day. Null: not in that time.
create or replace function trunkline._last_claim(p_queue_id int) returns timestamptz
language sql stable
as $$
    select coalesce(
        (select max(l.claimed_at) from trunkline.cursors c
         cross join lateral (select x.claimed_at, x.deadline from trunkline.leases x where x.cursor_id = c.cursor_id order by x.first desc limit 1) l
         -- a purge has no time to work
         where c.queue_id = p_queue_id and l.deadline > l.claimed_at),
        (select w.at from (select y.delivered from trunkline.rollups y where y.kind = 'queue' and y.subject = p_queue_id order by y.at desc limit 1) n
         cross join lateral (select y.at from trunkline.rollups y where y.kind = 'queue' and y.subject = p_queue_id and y.delivered < n.delivered order by y.at desc limit 1) w))
$$;

-- Returns why no worker starts a job of this kind: none is alive, none knows the kind, or a limit is reached.
-- Null for messages that are not jobs, and if there is no such reason.
create or replace function trunkline._not_started(p_queue text, p_label text, out cause text, out reason text)
language plpgsql stable
as $$
declare
    v_now   timestamptz := trunkline.clock();
    v_alive int;
    v_known int;
    l       record;
begin
    if p_label is null or not exists (select from trunkline.job_workers w where w.info -> 'queues' ? p_queue) then
        return;
    end if;
    select count(*), count(*) filter (where w.info -> 'kinds' ? p_label) into v_alive, v_known
      from trunkline.job_workers w where w.info -> 'queues' ? p_queue and w.seen_at > v_now - interval '1 minute';
    if v_alive = 0 then
        cause := 'no_worker';
        reason := format('no live worker works on queue "%s"', p_queue);
    elsif v_known = 0 then
        cause := 'kind_unknown';
        reason := format('no live worker of queue "%s" knows jobs of kind "%s"', p_queue, p_label);
    else
        for l in
            select x.name, x.max_running, x.rate, h.held, h.holders, least(x.burst, x.tokens + extract(epoch from v_now - x.at) * x.rate) as tokens
            from (select distinct n.name from trunkline.job_workers w
                  cross join lateral jsonb_array_elements_text(case jsonb_typeof(w.info -> 'limits' -> p_label) when 'array' then w.info -> 'limits' -> p_label else '[]' end) n(name)
                  where w.info -> 'queues' ? p_queue and w.seen_at > v_now - interval '1 minute') n
            join trunkline.job_limits x on x.name = n.name
            cross join lateral (select coalesce(sum(s.held), 0) as held, string_agg(format('%s (%s)', s.worker, s.held), ', ' order by s.held desc, s.worker) as holders
                                from trunkline.job_limit_shares s where s.limit_name = x.name and s.until > v_now and s.held > 0) h
            order by x.name
        loop
            if l.held >= l.max_running then
                cause := 'limit';
                reason := concat_ws('; ', reason, format('limit "%s" of %s running jobs is reached: held by %s', l.name, l.max_running, l.holders));
            elsif l.tokens < 1 then
                cause := coalesce(cause, 'rate');
                reason := concat_ws('; ', reason, format('limit "%s" of %s jobs per second has its next start in %s s', l.name, l.rate, round(((1 - l.tokens) / l.rate)::numeric, 1)));
            end if;
        end loop;
    end if;
end
$$;

-- Returns what is known of a message that waits in a queue, to be added to its explanation: reason (more of
-- it), cause (a stable name), last_claim_at, rate_per_second and expected_at, an estimate from the rate of the
-- last minutes. p_ahead: messages before it in its partition.
create or replace function trunkline._waiting_for(q trunkline.queues, p_ahead bigint, p_label text) returns jsonb
language plpgsql stable
as $$
declare
    v_now     timestamptz := trunkline.clock();
    v_sent    text := trunkline._not_sent(q.queue_id);
    v_job     record;
    e         trunkline.endpoints;
    v_claimed timestamptz := trunkline._last_claim(q.queue_id);
    v_rate    float8 := trunkline._recent_rate('queue', q.queue_id);
    v_logs    int;
    v_cause   text := 'behind';
    v_why     text;
    v_at      timestamptz;
begin
    if v_sent is not null then
        v_cause := 'endpoint';
        v_why := v_sent;
    else
        select * into v_job from trunkline._not_started(q.name, p_label);
        if v_job.cause is not null then
            v_cause := v_job.cause;
            v_why := v_job.reason;
        elsif v_claimed is null then
            v_cause := 'no_consumer';
            v_why := 'no consumer has claimed from the queue in the last day';
        elsif v_claimed < v_now - trunkline._attention_setting('idle') then
            v_cause := 'no_consumer';
            v_why := format('no consumer has claimed from the queue for %s', trunkline._age_text(extract(epoch from v_now - v_claimed)));
        end if;
    end if;
    select x.* into e from trunkline.bindings b join trunkline.endpoints x using (endpoint_id) where b.queue_id = q.queue_id;
    if v_sent is null and e.rate is not null and (v_rate is null or v_rate >= e.rate * 0.8) then
        v_rate := e.rate;
        v_cause := 'endpoint_rate';
        v_why := concat_ws('; ', v_why, format('endpoint "%s" takes %s requests per second', e.name, e.rate));
    end if;
    if v_rate > 0 and v_cause in ('behind', 'endpoint_rate') then
        -- consumers take from all logs of a queue in turn
        v_logs := (select count(*) from trunkline.cursors c where c.queue_id = q.queue_id and c.kind = 'log' and trunkline._head(c.log) >= trunkline._next_offset(c));
        v_at := v_now + least((p_ahead + 1) * greatest(1, v_logs) / v_rate, 3e8) * interval '1 second';
    end if;
    return jsonb_build_object('cause', v_cause, 'why', v_why, 'last_claim_at', v_claimed, 'rate_per_second', v_rate, 'expected_at', v_at, 'ahead', p_ahead);
end
$$;
