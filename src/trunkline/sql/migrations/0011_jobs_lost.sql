-- Leases that ended without an answer are few; a worker asks for them when a job comes back for its last attempt.
create index on trunkline.lease_events (cursor_id) where kind = 'x';
