-- Version 5, with the first step. What handlers have done for events: `step` is JSON as this program wrote it, `result` is
-- what it prints. `over` is since when its event has been known to be finished. The numbers are in the order in which
-- steps were begun.
CREATE TABLE @steps (
    thread      bigint NOT NULL,
    consumer_id text COLLATE "C" NOT NULL,
    event_id    bigint NOT NULL,
    name        text COLLATE "C" NOT NULL,
    number      bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    revision    bigint NOT NULL,
    step        text NOT NULL,
    result      bytea,
    awaits      boolean NOT NULL,
    over        text COLLATE "C",
    PRIMARY KEY (thread, consumer_id, event_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX steps_awaits ON @steps (thread, consumer_id, event_id) WHERE awaits;

-- Whether an event that waits sleeps, because its handler said so.
ALTER TABLE @waits ADD COLUMN asleep bigint NOT NULL DEFAULT 0;
