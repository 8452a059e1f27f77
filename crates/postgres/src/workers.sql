-- Outside of the versions, because older programs can do without it. The processes that start handlers, wherever they
-- run: one row each, which it renews as long as it lives. `process` is JSON and identifies it, `threads` are those that
-- it follows (NULL: all).
CREATE TABLE IF NOT EXISTS @workers (
    process text COLLATE "C" PRIMARY KEY,
    host    text NOT NULL,
    threads bigint[],
    since   timestamptz NOT NULL,
    seen    timestamptz NOT NULL
);
