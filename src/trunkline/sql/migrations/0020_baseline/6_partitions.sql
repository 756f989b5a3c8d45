-- Partitions, <table>_0 and up. They are used in turn and emptied by truncate, so that no row is deleted one
-- by one.
do $do$
declare
    v_table text;
    v_count int;
begin
    for v_table, v_count in values
        -- a ring of segments
        ('store', 8),
        -- two slots
        ('ticks', 2), ('positions', 2),
        -- rotation
        ('leases', 3), ('settled', 3), ('extensions', 3), ('returns', 3), ('later', 3),
        ('cursor_states', 3), ('passes', 3),
        -- windows of days
        ('history', 4), ('attempts', 4), ('job_results', 4), ('job_once', 4),
        -- windows of keys
        ('idempotency', 4), ('inbox_keys', 4)
    loop
        for i in 0 .. v_count - 1 loop
            execute format('create table trunkline.%1$s_%2$s partition of trunkline.%1$s', v_table, i)
                    || format(' for values in (%s)', i);
            -- Postgres has no primary key over partitions by an expression
            if v_table = 'store' then
                execute format('alter table trunkline.store_%s add primary key (id)', i);
            end if;
        end loop;
    end loop;
end
$do$;

-- The first pass has seen everything before it.
insert into trunkline.passes
values (0, 0, pg_current_xact_id(), pg_current_snapshot(), clock_timestamp(), clock_timestamp());
