-- One word per idea: an upkeep task, an alert for the operator.
alter sequence trunkline.duty_expire rename to upkeep_expire;
alter sequence trunkline.duty_due rename to upkeep_due;
alter sequence trunkline.duty_schedules rename to upkeep_schedules;
alter sequence trunkline.duty_sequence rename to upkeep_sequence;
alter sequence trunkline.duty_segments rename to upkeep_segments;
alter sequence trunkline.duty_retention rename to upkeep_retention;
alter sequence trunkline.duty_rotate rename to upkeep_rotate;
alter sequence trunkline.duty_windows rename to upkeep_windows;
alter sequence trunkline.duty_history rename to upkeep_history;
alter sequence trunkline.duty_attempts rename to upkeep_attempts;
alter sequence trunkline.duty_stages rename to upkeep_stages;
alter sequence trunkline.duty_rollups rename to upkeep_rollups;
alter sequence trunkline.duty_jobs rename to upkeep_jobs;

alter table trunkline.notices rename to alerts;
alter table trunkline.alerts rename column notice_id to alert_id;
alter sequence trunkline.notices_notice_id_seq rename to alerts_alert_id_seq;
alter index trunkline.notices_pkey rename to alerts_pkey;

-- An upkeep task that failed when it last ran. Written when it starts to fail and when the error changes, deleted when it succeeds:
-- a task that fails twice a second must not leave a dead row each time.
create table trunkline.upkeep_failures (
    task  text        primary key,
    since timestamptz not null,
    code  text        not null,
    error text        not null
);

-- The time of the last call of upkeep, in milliseconds. In the future: the server's clock was ahead and went back.
create sequence trunkline.upkeep_clock minvalue 0 start 0;
