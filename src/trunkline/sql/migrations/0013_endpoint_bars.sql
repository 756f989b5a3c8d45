-- A dispatcher that may not send to an endpoint, because its own egress guard refuses the address: for a while it leaves the endpoint to the
-- others. Written when the guard refuses, which is at most once per pause; goes with the dispatcher, the endpoint, a new url or a request that went out.
create table trunkline.endpoint_bars (
    endpoint_id int         not null references trunkline.endpoints on delete cascade,
    dispatcher  text        not null references trunkline.dispatchers on delete cascade,
    -- refused in a row
    times       int         not null,
    until       timestamptz not null,
    reason      text        not null,
    primary key (endpoint_id, dispatcher)
);
create index on trunkline.endpoint_bars (dispatcher);
