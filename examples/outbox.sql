-- A trigger that publishes every changed row: psql "$TRUNKLINE_DATABASE_URL" -f examples/outbox.sql
drop table if exists customers;
do $$ begin perform trunkline.delete_topic('customers'); exception when others then null; end $$;  -- of an earlier run
create table customers (id int primary key, name text, city text);
select name from trunkline.create_topic('customers');

create trigger publish after insert or update or delete on customers
for each row execute function trunkline.publish_row('customers', 'customers.changed', 'id');

insert into customers values (1, 'Ann', 'Bonn'), (2, 'Bob', 'Rome');
update customers set city = 'Oslo' where id = 2;

begin;
delete from customers;
rollback;

-- A running service assigns offsets within 0.2 s; this call assigns them immediately.
call trunkline.sequence();
select log_offset, key, headers ->> 'operation' as operation, convert_from(payload, 'UTF8') as payload
from trunkline.read('customers', 0, 1);
