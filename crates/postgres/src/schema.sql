-- Version 1. `@` stands for the name of the schema and a dot.

-- The threads of this schema.
CREATE TABLE @threads (
    thread     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The newest id of each thread. Whoever stores an event holds this row until its transaction ends, so ids are in
-- the order of commits. In a table of its own and with room on its pages, because it changes with each push.
CREATE TABLE @counters (
    thread bigint PRIMARY KEY,
    newest bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- `content` is bytes, because a text may not hold U+0000 here and a part of it is found by its offset; it is
-- always UTF-8. `created_at` is text as it is printed, because filters compare it as text.
CREATE TABLE @events (
    thread          bigint NOT NULL,
    id              bigint NOT NULL,
    created_at      text COLLATE "C" NOT NULL,
    source          text COLLATE "C" NOT NULL,
    type            text COLLATE "C" NOT NULL,
    subtype         text COLLATE "C",
    content         bytea NOT NULL,
    metadata        text COLLATE "C",
    idempotency_key text COLLATE "C",
    PRIMARY KEY (thread, id)
);
CREATE UNIQUE INDEX events_key ON @events (thread, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- One row for each subscription; the columns are those of the SQLite schema. `cwd` is bytes: a path need not be
-- UTF-8. `options` and `run` are JSON as this program wrote it.
CREATE TABLE @consumers (
    thread          bigint NOT NULL,
    consumer_id     text COLLATE "C" NOT NULL,
    handler_cmd     text COLLATE "C" NOT NULL,
    filter          text COLLATE "C",
    token           text NOT NULL DEFAULT md5(gen_random_uuid()::text),
    cwd             bytea,
    options         text NOT NULL,
    run             text,
    revision        bigint NOT NULL DEFAULT 0,
    rewinds         bigint NOT NULL DEFAULT 0,
    scanned_filter  text COLLATE "C",
    scanned_from    bigint,
    scanned_upto    bigint,
    filter_errors   bigint NOT NULL DEFAULT 0,
    filter_error_id bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (thread, consumer_id)
) WITH (fillfactor = 50);

-- Cursors, dead letters and past runs outlive a subscription.
CREATE TABLE @cursors (
    thread        bigint NOT NULL,
    consumer_id   text COLLATE "C" NOT NULL,
    last_acked_id bigint NOT NULL,
    updated_at    text NOT NULL,
    PRIMARY KEY (thread, consumer_id)
) WITH (fillfactor = 50);

CREATE TABLE @dead_letters (
    thread      bigint NOT NULL,
    consumer_id text COLLATE "C" NOT NULL,
    event_id    bigint NOT NULL,
    attempts    bigint NOT NULL,
    last_exit   bigint,
    last_error  text NOT NULL,
    parked_at   text NOT NULL,
    retry       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (thread, consumer_id, event_id)
);

CREATE TABLE @runs (
    thread      bigint NOT NULL,
    consumer_id text COLLATE "C" NOT NULL,
    number      bigint NOT NULL,
    run         text NOT NULL,
    PRIMARY KEY (thread, consumer_id, number)
);
