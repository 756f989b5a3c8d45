-- Reading tables whose partitions are emptied in turn: ticks and positions, leases and what belongs to them, windows. A lock on a partition keeps it
-- from being emptied until the transaction of the caller ends, and for ever where such transactions overlap (docs/adr/0022). So a read is a
-- subtransaction that is rolled back on purpose: its locks end with it, the variables it has set stay. What it returns is in memory by then: a whole row in one
-- variable has no parts in another table, and a wide column is copied (`|| ''`).

-- Ends a read by rolling it back. A transaction above read committed keeps its locks: to its snapshot do not belong the rows that are copied later.
create or replace function trunkline._end_read() returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') = 'read committed' then
        raise exception using errcode = 'TLX00';
    end if;
end
$$;

-- Begins a read that has several statements, or functions that see the snapshot of their caller: from here on nothing is emptied until it ends.
create or replace function trunkline._begin_read() returns void
language plpgsql
as $$
begin
    lock table trunkline.ticks, trunkline.positions, trunkline.leases, trunkline.settled, trunkline.extensions, trunkline.returns, trunkline.later,
               trunkline.cursor_states, trunkline.passes in access share mode;
end
$$;

-- The tick that has an offset, or the newest one of a log if the offset is null.
create or replace function trunkline._tick_of(p_log int, p_offset bigint) returns trunkline.ticks
language plpgsql
as $$
declare
    t trunkline.ticks;
begin
    begin
        if p_offset is null then
            t := (select x from trunkline.ticks x where x.log = p_log order by x.first_offset desc limit 1);
        else
            t := (select x from trunkline.ticks x where x.log = p_log and x.first_offset <= p_offset order by x.first_offset desc limit 1);
        end if;
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return t;
end
$$;

-- Highest offset given so far; 0 for none. Not everything committed has an offset yet: see tick().
create or replace function trunkline._head(p_log int) returns bigint
language plpgsql
as $$
declare
    v_head bigint;
begin
    begin
        v_head := (select x.first_offset + x.n - 1 from trunkline.ticks x where x.log = p_log order by x.first_offset desc limit 1);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    return coalesce(v_head, 0);
end
$$;

-- The state of a group's cursor.
create or replace function trunkline._position(c trunkline.cursors) returns trunkline.positions
language plpgsql
as $$
declare
    p trunkline.positions;
begin
    begin
        p := (select x from trunkline.positions x where x.cursor_id = c.cursor_id order by x.state_no desc limit 1);
        perform trunkline._end_read();
    exception when sqlstate 'TLX00' then
        null;
    end;
    if p.cursor_id is null then
        p := row(null, c.cursor_id, 0, c.start_position - 1, c.start_position - 1, null, null, null, null, null)::trunkline.positions;
    end if;
    return p;
end
$$;
