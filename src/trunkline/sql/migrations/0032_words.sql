-- Tables with their names of the glossary. Functions that are applied before this migration use the earlier
-- names until the upgrade applies the new ones, in a later transaction; for these, each earlier name is a view
-- until then (functions/retired.sql drops the views).
do $do$
declare
    r record;
    o record;
begin
    for r in select * from (values ('endpoint_bars', 'egress_denials'), ('job_slots', 'job_limit_shares'), ('bell', 'invalidation_marker')) x(old, new) loop
        for o in select c.conname from pg_catalog.pg_constraint c
                 where c.conrelid = format('trunkline.%I', r.old)::regclass and starts_with(c.conname, r.old || '_') loop
            execute format('alter table trunkline.%I rename constraint %I to %I', r.old, o.conname, r.new || substr(o.conname, length(r.old) + 1));
        end loop;
        -- The indexes of constraints have their new names already.
        for o in select c.relname from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
                 where i.indrelid = format('trunkline.%I', r.old)::regclass and starts_with(c.relname, r.old || '_') loop
            execute format('alter index trunkline.%I rename to %I', o.relname, r.new || substr(o.relname, length(r.old) + 1));
        end loop;
        execute format('alter table trunkline.%I rename to %I', r.old, r.new);
        execute format('create view trunkline.%I as select * from trunkline.%I', r.old, r.new);
        if exists (select from pg_catalog.pg_roles where rolname = 'trunkline_owner') then
            execute format('grant select, insert, update, delete on trunkline.%I to trunkline_owner', r.old);
        end if;
    end loop;
end
$do$;

-- The file has the name pg_messaging.sql now.
delete from trunkline.function_files where name = 'recipes.sql';
