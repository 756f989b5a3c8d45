-- Publishes each changed row of a table, in the transaction that changes it. A trigger function, for an
-- outbox without application code:
--
--   create trigger publish after insert or update or delete on orders
--   for each row execute function trunkline.publish_row('orders', 'orders.changed', 'customer_id');
--
-- Arguments: topic, then optionally routing key and key column. The payload is the row as JSON: the new row,
-- or the old one for a delete. The headers `table` and `operation` name the table and the operation.
-- Raises TL023 unless the trigger is AFTER and FOR EACH ROW, and TL001 for wrong arguments.
-- Runs with the rights of the role that changes the row, which needs trunkline_publisher. Converting a row to
-- JSON can call functions of the table's owner, and these must not run with the rights of Trunkline's owner.
-- For the same reason it calls only functions that a publisher may call.
create or replace function trunkline.publish_row() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row text;
    v_key text;
begin
    if tg_level <> 'ROW' or tg_when <> 'AFTER' then
        raise exception using errcode = 'TL023', message = format('publish_row must be an AFTER trigger FOR EACH ROW, got %s %s for each %s', lower(tg_when), lower(tg_op), lower(tg_level)),
            hint = 'Create the trigger AFTER insert, update or delete, FOR EACH ROW.';
    end if;
    if tg_nargs not between 1 and 3 or coalesce(tg_argv[0], '') = '' then
        raise exception using errcode = 'TL001', message = format('publish_row on table "%s" must have 1 to 3 arguments, the first one a topic, got %s', tg_table_name, tg_nargs),
            hint = 'Write publish_row(''topic''), publish_row(''topic'', ''routing.key'') or publish_row(''topic'', ''routing.key'', ''key_column'').';
    end if;
    v_row := case tg_op when 'DELETE' then row_to_json(old) else row_to_json(new) end::text;
    if tg_nargs = 3 and tg_argv[2] <> '' then
        if v_row::json -> tg_argv[2] is null then
            raise exception using errcode = 'TL001', message = format('key column "%s" of publish_row does not exist in table "%s"', tg_argv[2], tg_table_name),
                hint = 'Use a column of the table as the third argument.';
        end if;
        v_key := v_row::json ->> tg_argv[2];
    end if;
    perform trunkline.publish_bytes(tg_argv[0], convert_to(v_row, 'UTF8'), 'application/json', p_key => v_key, p_routing_key => nullif(tg_argv[1], ''),
        p_headers => jsonb_build_object('table', tg_table_name, 'operation', lower(tg_op)));
    return null;
end
$$;
