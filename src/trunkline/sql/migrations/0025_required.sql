-- Types of the columns of topics' tables that must not be null. As types they need no row of pg_constraint per
-- table: attaching a segment reads all rows of that catalog, so creating the 1,000th topic with four partitions
-- took four times as long as the first.
create domain trunkline.required_uuid as uuid not null;
create domain trunkline.required_bytea as bytea not null;
create domain trunkline.required_text as text not null;
create domain trunkline.required_timestamptz as timestamptz not null;
create domain trunkline.required_xid8 as xid8 not null;
