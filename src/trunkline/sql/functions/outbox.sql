-- An outbox without code: a trigger that publishes each changed row in the transaction that changes it.
--
--   create trigger publish after insert or update or delete on orders
--   for each row execute function trunkline.publish_row('orders', 'orders.changed', 'customer_id');
--
-- The payload is the row as JSON (the new one; the old one of a delete), the headers say which table and what was done to it.
-- It runs with the rights of whoever changes the row, who needs trunkline_publisher: making JSON of a row may call functions that
-- belong to the owner of the table, and these must not get the rights of ours. So it calls only what a publisher may call.
create or replace function trunkline.publish_row() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row text;
    v_key text;
begin
    if tg_level <> 'ROW' or tg_when <> 'AFTER' then
        raise exception using errcode = 'TL023', message = format('publish_row cannot be a trigger %s %s for each %s', lower(tg_when), lower(tg_op), lower(tg_level)),
            hint = 'create the trigger AFTER insert, update or delete, FOR EACH ROW';
    end if;
    if tg_nargs not between 1 and 3 or coalesce(tg_argv[0], '') = '' then
        raise exception using errcode = 'TL001', message = format('publish_row on table %I has %s arguments, the first is the topic', tg_table_name, tg_nargs),
            hint = 'write publish_row(''topic''), publish_row(''topic'', ''routing.key'') or publish_row(''topic'', ''routing.key'', ''key_column'')';
    end if;
    v_row := case tg_op when 'DELETE' then row_to_json(old) else row_to_json(new) end::text;
    if tg_nargs = 3 and tg_argv[2] <> '' then
        if v_row::json -> tg_argv[2] is null then
            raise exception using errcode = 'TL001', message = format('publish_row: table %I has no column %L to take the key from', tg_table_name, tg_argv[2]),
                hint = 'name a column of the table as the third argument';
        end if;
        v_key := v_row::json ->> tg_argv[2];
    end if;
    perform trunkline.publish_bytes(tg_argv[0], convert_to(v_row, 'UTF8'), 'application/json', p_key => v_key, p_routing_key => nullif(tg_argv[1], ''),
        p_headers => jsonb_build_object('table', tg_table_name, 'operation', lower(tg_op)));
    return null;
end
$$;
