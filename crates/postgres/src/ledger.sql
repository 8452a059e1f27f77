-- Version 3, with the first consumer that finishes events singly. What such consumers have done past their cursors:
-- ranges of finished ids, events that wait before they are tried again, and events that are claimed by a run.
CREATE TABLE @finished (
    thread      bigint NOT NULL,
    consumer_id text COLLATE "C" NOT NULL,
    first_id    bigint NOT NULL,
    last_id     bigint NOT NULL,
    PRIMARY KEY (thread, consumer_id, first_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE @waits (
    thread      bigint NOT NULL,
    consumer_id text COLLATE "C" NOT NULL,
    event_id    bigint NOT NULL,
    attempts    bigint NOT NULL,
    deferred    bigint NOT NULL,
    since       text NOT NULL,
    until       text NOT NULL,
    PRIMARY KEY (thread, consumer_id, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE @claims (
    thread      bigint NOT NULL,
    consumer_id text COLLATE "C" NOT NULL,
    event_id    bigint NOT NULL,
    place       bigint NOT NULL,
    since       text NOT NULL,
    -- Of a program that has taken the event by itself, at no place: what it shows, and until when, in milliseconds of the
    -- server's clock. Of a place: its machine.
    token       text,
    until       bigint,
    dead_letter boolean NOT NULL DEFAULT false,
    PRIMARY KEY (thread, consumer_id, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
