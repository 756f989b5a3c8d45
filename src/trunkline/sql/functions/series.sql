-- Rollups of many subjects in one call, for the lines of a page.

-- Returns the number and the name of subjects of rollups: of topics, queues, groups ('topic/group'),
-- endpoints, labels ('queue/label') and the database ('system'). Null names: the first 1,000 of the kind.
create or replace function trunkline._rollup_subjects(p_kind text, p_names text[]) returns table (subject int, name text)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select x.subject, x.name from (
        select t.topic_id as subject, t.name from trunkline.topics t where p_kind = 'topic' and t.kind = 'topic' and (p_names is null or t.name = any (p_names))
        union all
        select q.queue_id, q.name from trunkline.queues q where p_kind = 'queue' and (p_names is null or q.name = any (p_names))
        union all
        select s.subscription_id, t.name || '/' || s.name from trunkline.subscriptions s join trunkline.topics t using (topic_id)
        where p_kind = 'group' and s.kind = 'group'
          and (p_names is null or t.name = any (array(select split_part(n, '/', 1) from unnest(p_names) n)) and t.name || '/' || s.name = any (p_names))
        union all
        select e.endpoint_id, e.name from trunkline.endpoints e where p_kind = 'endpoint' and (p_names is null or e.name = any (p_names))
        union all
        select l.label_id, q.name || '/' || l.label from trunkline.rollup_labels l join trunkline.queues q using (queue_id)
        where p_kind = 'label' and (p_names is null or q.name = any (array(select split_part(n, '/', 1) from unnest(p_names) n)) and q.name || '/' || l.label = any (p_names))
        union all
        select 0, 'system' where p_kind = 'system' and (p_names is null or 'system' = any (p_names))) x
    order by x.name limit 1000;
end
$$;

-- Returns rates, backlog and latencies of many subjects in steps, by name and time: for the lines of a page.
-- p_kind: 'topic', 'queue', 'group', 'endpoint', 'label' or 'system'. p_names: at most 1,000 (null: the first
-- 1,000 of the kind); a group is 'topic/group', a label 'queue/label', unknown names have no rows. p_since and
-- p_step: 1 minute to 25 hours, and at most 200,000 steps over all subjects (TL001).
-- in: messages published or accepted, requests of an endpoint, settled jobs of a label, bytes of write-ahead
-- log of the database. out: acked or committed, requests that succeeded. failed: returned, expired or dead.
-- lag: not committed, ready or (labels and endpoints) ended in the last minute; sessions of the database.
-- oldest_age: seconds; of the database the oldest transaction that holds back vacuum. bytes: topics and
-- database. Counters of labels are estimated from a sample.
create or replace function trunkline.rollup_lines(p_kind text, p_names text[] default null, p_since interval default '1 hour', p_step interval default '1 minute')
returns table (name text, at timestamptz, in_per_second float8, out_per_second float8, failed_per_second float8, lag bigint, leased bigint, oldest_age float8,
               wait_p50 float8, wait_p99 float8, work_p50 float8, work_p99 float8, bytes bigint)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_from     timestamptz;
    v_subjects int[];
    v_names    text[];
begin
    perform trunkline._need_duration('since', p_since, '1 minute', '25 hours');
    perform trunkline._need_duration('step', p_step, '1 minute', '25 hours');
    if p_kind is null or p_kind not in ('topic', 'queue', 'group', 'endpoint', 'label', 'system') then
        perform trunkline._fail('TL001', format('kind must be topic, queue, group, endpoint, label or system, got %s', trunkline._quoted(p_kind)), 'Use for example "queue".');
    elsif cardinality(p_names) > 1000 then
        perform trunkline._fail('TL001', format('at most 1,000 names can be given, got %s', cardinality(p_names)), 'Ask for the names of one page.');
    end if;
    select array_agg(s.subject), array_agg(s.name) into v_subjects, v_names from trunkline._rollup_subjects(p_kind, p_names) s;
    if cardinality(v_subjects) * extract(epoch from p_since) / extract(epoch from p_step) > 200000 then
        perform trunkline._fail('TL001', format('%s subjects over %s in steps of %s are more than 200,000 rows', cardinality(v_subjects), trunkline._duration_text(p_since), trunkline._duration_text(p_step)),
                                'Use longer steps, a shorter time, or fewer names.');
    end if;
    v_from := date_bin(p_step, trunkline.clock() - p_since, 'epoch');
    return query
    with picked as (
        -- one step earlier, as the start of the first
        select u.name, date_bin(p_step, x.at, 'epoch') as step, x as r
        from unnest(v_subjects, v_names) u(subject, name)
        join trunkline.rollups x on x.kind = p_kind and x.subject = u.subject and x.at >= v_from - greatest(p_step, interval '11 minutes')
    ), steps as (
        select p.name, p.step, (array_agg(p.r order by (p.r).at desc))[1] as r,
               percentile_cont(0.5) within group (order by (p.r).wait_p50) as wait_p50, max((p.r).wait_p99) as wait_p99,
               percentile_cont(0.5) within group (order by (p.r).work_p50) as work_p50, max((p.r).work_p99) as work_p99
        from picked p group by p.name, p.step
    ), pairs as (
        select s.*, lag(s.r) over (partition by s.name order by s.step) as was from steps s
    )
    select p.name, p.step, trunkline._per_second((p.r).head, (p.was).head, x.seconds), trunkline._per_second((p.r).acked, (p.was).acked, x.seconds),
           trunkline._per_second((p.r).returned + (p.r).dead + (p.r).expired, (p.was).returned + (p.was).dead + (p.was).expired, x.seconds),
           (p.r).lag, (p.r).leased, (p.r).oldest_age, p.wait_p50, p.wait_p99, p.work_p50, p.work_p99, (p.r).bytes
    from pairs p cross join lateral (select extract(epoch from (p.r).at - (p.was).at)::float8 as seconds) x
    where p.step >= v_from order by p.name, p.step;
end
$$;
