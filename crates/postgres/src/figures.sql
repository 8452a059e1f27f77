-- Outside of the versions, because older programs can do without it; they count nothing. How much was done in a period,
-- which begins at `at` (in seconds since 1970) and has so many `seconds`. `took` has how many attempts are in each bucket
-- of durations, `runs` and `ms` have their number and sum. The row of the thread itself has the empty name, and the ids of
-- events that were deleted.
CREATE TABLE IF NOT EXISTS @figures (
    thread      bigint NOT NULL,
    seconds     bigint NOT NULL,
    at          bigint NOT NULL,
    consumer_id text COLLATE "C" NOT NULL,
    first_id    bigint,
    last_id     bigint,
    handled     bigint NOT NULL,
    failed      bigint NOT NULL,
    dead        bigint NOT NULL,
    runs        bigint NOT NULL,
    ms          bigint NOT NULL,
    took        bigint[] NOT NULL,
    PRIMARY KEY (thread, seconds, at, consumer_id)
) WITH (fillfactor = 50);
