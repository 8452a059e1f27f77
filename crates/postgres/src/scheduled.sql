-- Version 4, when something is scheduled for the first time. Events that become events when they are due, and schedules
-- of events that come again and again; the columns are those of the SQLite schema. The numbers are those of a sequence:
-- they need not be in the order of commits.
CREATE SEQUENCE @scheduled_ids;

CREATE TABLE @scheduled (
    thread          bigint NOT NULL,
    id              bigint NOT NULL,
    due             text COLLATE "C" NOT NULL,
    delay_ms        bigint,
    source          text COLLATE "C" NOT NULL,
    type            text COLLATE "C" NOT NULL,
    subtype         text COLLATE "C",
    content         bytea NOT NULL,
    metadata        text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C",
    PRIMARY KEY (thread, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX scheduled_due ON @scheduled (thread, due, id);
CREATE INDEX scheduled_delayed ON @scheduled (thread, due) WHERE delay_ms IS NOT NULL;
CREATE UNIQUE INDEX scheduled_key ON @scheduled (thread, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE @schedules (
    thread   bigint NOT NULL,
    name     text COLLATE "C" NOT NULL,
    schedule text NOT NULL,
    revision bigint NOT NULL,
    PRIMARY KEY (thread, name)
) WITH (fillfactor = 50);
