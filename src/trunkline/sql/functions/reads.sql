-- Reads of tables whose partitions are emptied in turn: ticks, positions, windows, leases and the tables that
-- belong to leases. A lock on a partition prevents upkeep from emptying it until the caller's transaction
-- ends. If such transactions overlap, the partition is never emptied (docs/adr/0022). So each read runs in a
-- subtransaction that is rolled back on purpose: its locks end with it, and the variables that it has set
-- stay. All results must be in memory by then. A whole row in one variable has no values that are stored out
-- of line. A single wide column is copied (`|| ''`).

-- Ends a read by raising TLX00, which rolls the subtransaction back. A transaction above read committed keeps
-- its locks, because its snapshot does not contain the rows that a rotation copies later.
create or replace function trunkline._end_read() returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') = 'read committed' then
        raise exception using errcode = 'TLX00';
    elsif trunkline._rotated_since_snapshot() then
        perform trunkline._fail('40001', 'snapshot of this transaction is older than the last rotation of tables',
                                'Retry in a new transaction, or use READ COMMITTED.');
    end if;
end
$$;

-- Locks the rotated tables for a read with several statements, or with functions that use their caller's
-- snapshot. Upkeep empties no partition until the read ends. Upkeep rotates leases and then swaps partitions in one
-- transaction. This function acquires the locks in the same order, to avoid a deadlock.
create or replace function trunkline._begin_read() returns void
language plpgsql
as $$
begin
    lock table trunkline.leases, trunkline.settled, trunkline.extensions, trunkline.returns, trunkline.later, trunkline.cursor_states, trunkline.passes,
               trunkline.ticks, trunkline.positions in access share mode;
end
$$;

-- Returns the tick that contains an offset. If the offset is null, returns the newest tick of the log.
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

-- Returns the highest offset of a log, or 0 if it has none. Committed messages may still wait for their
-- offset: see _tick.
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

-- Returns the state of a group's cursor: its newest row, or its start position if it has no row.
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
