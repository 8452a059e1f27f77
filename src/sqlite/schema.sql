-- The whole schema. It is executed when a thread is created, and to migrate a database of the earlier
-- implementation, after the last two columns of `events` have been added.
--
-- Comments are outside the statements: SQLite stores a statement's text and parses it whenever the database
-- is opened.

-- The first six columns, and the two tables after this one, are shared with other programs. `type` is message
-- or record; `metadata` is a JSON object; pushing an event again with the same `idempotency_key` stores
-- nothing.
CREATE TABLE IF NOT EXISTS events (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at      TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    source          TEXT NOT NULL,
    type            TEXT NOT NULL,
    subtype         TEXT,
    content         TEXT NOT NULL,
    metadata        TEXT,
    idempotency_key TEXT
);
CREATE INDEX IF NOT EXISTS idx_events_source ON events (source);
CREATE INDEX IF NOT EXISTS idx_events_type ON events (type);
-- Partial, so that events without a key take no space in it.
CREATE UNIQUE INDEX IF NOT EXISTS idx_events_idempotency_key ON events (idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE IF NOT EXISTS subscriptions (
    consumer_id TEXT NOT NULL PRIMARY KEY,
    handler_cmd TEXT NOT NULL,
    filter      TEXT
);

CREATE TABLE IF NOT EXISTS consumer_progress (
    consumer_id   TEXT NOT NULL PRIMARY KEY,
    last_acked_id INTEGER NOT NULL DEFAULT 0,
    updated_at    TEXT NOT NULL
);

-- Private data of `thread` about each subscription; the triggers keep one row per subscription, whichever
-- program subscribes.
--   token            random, new for each subscription
--   cwd              the handler's working directory; a BLOB if it is not UTF-8
--   options, run     JSON: model::run::Options and model::run::RunState
--   revision         number of changes of `run`
--   rewinds          number of times the cursor was moved back
--   scanned_*        nothing between scanned_from and scanned_upto matches scanned_filter
--   filter_error*    number of events on which the filter failed, and the newest of them
CREATE TABLE IF NOT EXISTS consumers (
    consumer_id     TEXT NOT NULL PRIMARY KEY,
    token           TEXT NOT NULL DEFAULT (lower(hex(randomblob(8)))),
    cwd             TEXT,
    options         TEXT,
    run             TEXT,
    revision        INTEGER NOT NULL DEFAULT 0,
    rewinds         INTEGER NOT NULL DEFAULT 0,
    scanned_filter  TEXT,
    scanned_from    INTEGER,
    scanned_upto    INTEGER,
    filter_errors   INTEGER NOT NULL DEFAULT 0,
    filter_error_id INTEGER NOT NULL DEFAULT 0
);
-- INSERT OR REPLACE fires no delete trigger, so this trigger deletes the old row itself.
CREATE TRIGGER IF NOT EXISTS consumers_subscribed AFTER INSERT ON subscriptions BEGIN
    DELETE FROM consumers WHERE consumer_id = NEW.consumer_id;
    INSERT INTO consumers (consumer_id) VALUES (NEW.consumer_id);
END;
CREATE TRIGGER IF NOT EXISTS consumers_unsubscribed AFTER DELETE ON subscriptions BEGIN
    DELETE FROM consumers WHERE consumer_id = OLD.consumer_id;
END;
CREATE TRIGGER IF NOT EXISTS consumers_rewound AFTER UPDATE OF last_acked_id ON consumer_progress
WHEN NEW.last_acked_id < OLD.last_acked_id BEGIN
    UPDATE consumers SET rewinds = rewinds + 1 WHERE consumer_id = NEW.consumer_id;
END;

-- Events on which a consumer's handler failed until it was out of attempts; they outlive the subscription.
-- `last_exit` is the exit code as in a shell, NULL if it is unknown; `last_error` is the end of the output;
-- `retry` marks dead letters to be delivered again.
CREATE TABLE IF NOT EXISTS dead_letters (
    consumer_id TEXT NOT NULL,
    event_id    INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    last_exit   INTEGER,
    last_error  TEXT,
    parked_at   TEXT NOT NULL,
    retry       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer_id, event_id)
) WITHOUT ROWID;

-- The last runs of each consumer, numbered from 1; they outlive the subscription. `run` is JSON:
-- model::run::Run. An older database gets this table when its first run ends.
CREATE TABLE IF NOT EXISTS runs (
    consumer_id TEXT NOT NULL,
    number      INTEGER NOT NULL,
    run         TEXT NOT NULL,
    PRIMARY KEY (consumer_id, number)
) WITHOUT ROWID;
