-- Rights. There are four roles without a login, to be granted to users: trunkline_publisher,
-- trunkline_consumer, trunkline_reader and trunkline_owner. Roles belong to the cluster, their rights to this
-- database. The role that installed the schema needs none of them.

-- Returns the public functions that each role may call. trunkline_owner may call all functions; its list has
-- those that no other role may call.
create or replace function trunkline._role_functions() returns table (role text, functions text[])
language sql immutable
as $$
    values
    ('trunkline_publisher', '{publish,publish_bytes,publish_many,enqueue,enqueue_bytes,enqueue_many,draw_ids,publish_row,topic_number,
        publish_messages,enqueue_job,enqueue_unique,enqueue_after,job_results,cancel_job,uncancel_job,clock,new_id,
        stage_target,open_stage,close_stage,commit_stage,newest_commit,drop_stage,report_pipeline,sequence,run_pass}'::text[]),
    ('trunkline_consumer', '{poll,pass_and_poll,next_pass,sequence_logs,sequence,run_pass,claim,claim_many,queue_number,ack,ack_lease,nack,bury,release,extend,
        fetch,commit,heartbeat,leave,claim_range,ensure_group,list_subscriptions,get_queue,read,head,
        init_consumer_group,claim_offsets,get_messages,claim_job,archive_job,receive,
        settle_jobs,lost_before,snooze,store_result,begin_once,end_once,list_cancels,ensure_limit,acquire_limit,acquire_tokens,register_worker,forget_worker,
        start_waiting,advance_group,report_pipeline,clock,new_id}'),
    ('trunkline_reader', '{list_topics,get_topic,list_queues,get_queue,peek_queue,list_groups,list_subscriptions,test_subscriptions,list_schedules,list_dead_letters,get_dead_letter,dead_groups,dead_spread,preview_run,list_runs,get_run,
        head,read,offset_at,offset_of,get_messages,topic_stats,group_stats,queue_stats,upkeep_stats,audit_queue,topic_rollups,queue_rollups,group_rollups,
        rollup_lines,topic_map,list_members,retention_deadlines,read_queue,estimate_search,search_log,attention,
        next_runs,explain_message,explain_offset,list_deliveries,list_completed,list_endpoints,list_attempts,endpoint_stats,test_routing,list_jobs,get_job,list_workers,list_limits,job_results,
        list_delayed,list_consumers,list_fires,list_endpoint_events,list_progress,list_commits,list_segments,list_sizes,list_alerts,archive_tiers,list_archive_files,archive_stats,delivery_times,reader_lags,dead_letter_errors,needed_network,
        sequence,run_pass,log_heads,log_runs,log_rows,earliest_offset,list_pipelines,pattern_regex,clock,new_id}'),
    ('trunkline_owner', '{create_topic,ensure_topic,alter_topic,delete_topic,create_group,delete_group,seek,
        create_queue,ensure_queue,alter_queue,delete_queue,pause_queue,resume_queue,purge_queue,trim_queue,subscribe,unsubscribe,
        redrive,redrive_edited,purge_dead_letters,start_run,pause_run,resume_run,abort_run,undo_run,create_schedule,ensure_schedule,pause_schedule,resume_schedule,delete_schedule,run_schedule,
        create_endpoint,alter_endpoint,delete_endpoint,pause_endpoint,resume_endpoint,disable_endpoint,test_endpoint,rotate_secret,endpoint_secrets,
        bind_queue,unbind_queue,replay,dispatch_plan,leave_dispatch,acquire_permits,settle_attempts,open_breaker,acquire_probe,close_breaker,defer_endpoint,deny_egress,return_test,allow_egress,
        require_archive,ensure_archive,move_archive,lock_archive,plan_archive,add_archive_files,keep_plan,forget_pipeline,assign_writer,
        retry_job,list_sessions,close_alert,run_upkeep,upkeep,grant_roles}')
$$;

-- Returns true if a role with this name exists.
create or replace function trunkline._has_role(p_role text) returns boolean
language sql stable
as $$ select exists (select from pg_roles where rolname = p_role) $$;

-- Sets the rights on the generated functions of a topic whose names match p_pattern. Only trunkline_owner may
-- call them, and trunkline_publisher the publish function. Replacing a function keeps its rights, so only new
-- ones, or those of another owner, are changed. Also grants trunkline_owner the right to read and insert rows
-- of the topic's table.
create or replace function trunkline._guard_functions(p_pattern text) returns void
language plpgsql
as $$
declare
    v_owner regrole := (select relowner from pg_class where oid = 'trunkline.topics'::regclass);
    v_table text := substring(p_pattern from '^\^(topic_[0-9]+)_');
    f       record;
begin
    for f in select oid::regprocedure as name, proname, proowner from pg_proc
             where pronamespace = 'trunkline'::regnamespace and proname ~ p_pattern and (proacl is null or proowner <> v_owner) loop
        if f.proowner <> v_owner then
            execute format('alter function %s owner to %s', f.name, v_owner);
        end if;
        execute format('revoke all on function %s from public', f.name);
        if f.proname ~ '^topic_[0-9]+_publish$' and trunkline._has_role('trunkline_publisher') then
            execute format('grant execute on function %s to trunkline_publisher', f.name);
        end if;
        if trunkline._has_role('trunkline_owner') then
            execute format('grant execute on function %s to trunkline_owner', f.name);
        end if;
    end loop;
    if to_regclass('trunkline.' || v_table) is not null and trunkline._has_role('trunkline_owner')
       and not has_table_privilege('trunkline_owner', 'trunkline.' || v_table, 'insert') then
        execute format('grant select, insert on trunkline.%I to trunkline_owner', v_table);
    end if;
end
$$;

-- Creates missing roles, if the caller may create roles, and grants each role its rights; otherwise raises a
-- notice. Every upgrade calls it. Call it again after an administrator has created the roles. Rights that
-- were granted to other roles by hand are kept.
create or replace function trunkline.grant_roles() returns void
language plpgsql
as $$
declare
    r record;
    f record;
begin
    revoke all on all routines in schema trunkline from public;
    for r in select v.role, v.functions from trunkline._role_functions() v loop
        if not trunkline._has_role(r.role) then
            if not exists (select from pg_roles where rolname = current_user and (rolcreaterole or rolsuper)) then
                raise notice 'role "%" does not exist, and role "%" cannot create it', r.role, current_user
                    using hint = format('Run "create role %I nologin" as an administrator, then "select trunkline.grant_roles()".', r.role);
                continue;
            end if;
            begin
                execute format('create role %I nologin', r.role);
            exception when duplicate_object or unique_violation then
                -- A session in another database of this cluster has created the role meanwhile.
                null;
            end;
        end if;
        begin
            execute format('grant usage on schema trunkline to %I', r.role);
        exception when insufficient_privilege then
            raise notice 'cannot grant usage on schema trunkline to role "%": only the owner of the schema can', r.role;
        end;
        -- Revokes rights that an earlier release granted and this one does not.
        execute format('revoke all on all routines in schema trunkline from %I', r.role);
        if r.role = 'trunkline_owner' then
            execute 'grant execute on all routines in schema trunkline to trunkline_owner';
            -- Rights on rows only. A trigger, rule or foreign key on these tables would run inside public
            -- functions, with the rights of the schema's owner.
            execute 'revoke all on all tables in schema trunkline from trunkline_owner';
            execute 'grant select, insert, update, delete on all tables in schema trunkline to trunkline_owner';
            -- Entries of the audit log are never changed or deleted.
            execute 'revoke update, delete on trunkline.audit from trunkline_owner';
            execute 'grant usage, select, update on all sequences in schema trunkline to trunkline_owner';
        else
            for f in select oid::regprocedure as name from pg_proc
                     where pronamespace = 'trunkline'::regnamespace
                       and (proname = any (r.functions)
                            or proname ~ '^topic_[0-9]+_publish$' and r.role = 'trunkline_publisher') loop
                execute format('grant execute on routine %s to %I', f.name, r.role);
            end loop;
            execute format('grant select on trunkline.migrations to %I', r.role);
        end if;
        if r.role = 'trunkline_reader' then
            execute 'grant select on trunkline.alerts to trunkline_reader';
            for f in select oid::regclass as name from pg_class where relnamespace = 'trunkline'::regnamespace and relkind = 'v' loop
                execute format('grant select on %s to trunkline_reader', f.name);
            end loop;
        end if;
    end loop;
end
$$;

-- Returns the number of a topic (p_kind 'topic'), or of a queue's own log (p_kind 'inbox'), as in
-- `topic_<n>_publish`. For clients that call the generated functions of a topic directly.
create or replace function trunkline.topic_number(p_kind text, p_name text) returns int
language sql
as $$ select (trunkline._topic(p_kind, p_name)).topic_id $$;

-- Returns the number of a queue.
create or replace function trunkline.queue_number(p_queue text) returns int
language sql
as $$ select (trunkline._queue(p_queue)).queue_id $$;

-- Makes a role the owner of all tables, views, sequences, types and functions of the schema. For an
-- administrator, after "alter schema trunkline owner to ...". Public functions run with the rights of their
-- owner, so the owner should not be a superuser.
create or replace function trunkline._set_owner(p_owner regrole) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_what text;
begin
    for v_what in
        select format('%s %s', case relkind when 'S' then 'sequence' when 'v' then 'view' else 'table' end, oid::regclass) from pg_class c
        where relnamespace = 'trunkline'::regnamespace and relowner <> p_owner and relkind in ('r', 'p', 'v', 'S')
          -- The sequence of a column has the owner of its table.
          and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i') and c.relkind = 'S')
        union all
        select format('type %s', t.oid::regtype) from pg_type t join pg_class c on c.oid = t.typrelid and c.relkind = 'c'
        where t.typnamespace = 'trunkline'::regnamespace and t.typowner <> p_owner
        union all
        select format('routine %s', oid::regprocedure) from pg_proc where pronamespace = 'trunkline'::regnamespace and proowner <> p_owner
    loop
        execute format('alter %s owner to %s', v_what, p_owner);
    end loop;
end
$$;

-- All objects belong to the role that installed the first version, also after an upgrade by another role.
-- Otherwise public functions would run with the rights of an administrator.
do $do$
begin
    perform trunkline._set_owner((select relowner from pg_class where oid = 'trunkline.topics'::regclass)::regrole);
    perform trunkline.grant_roles();
end
$do$;
