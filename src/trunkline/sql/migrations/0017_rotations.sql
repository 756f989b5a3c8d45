-- The number of the newest rotation, in the row and in a sequence, which has no versions: a snapshot that is older than a rotation can tell.
alter table trunkline.epoch add column rotation bigint not null default 0;
create sequence trunkline.rotations minvalue 0 start 0;
