-- Version 2. Which machine has a consumer's runs for itself. `epoch` rises each time that the lease is taken, `renewal`
-- with each renewal too, and is the time of that in milliseconds since 1970, if the clock was not set back; `holder` identifies a machine since it was started, `host` is its name for people. Without a
-- holder the lease is free. The row outlives a subscription, so that no epoch is given twice.
CREATE TABLE @leases (
    thread      bigint NOT NULL,
    consumer_id text COLLATE "C" NOT NULL,
    epoch       bigint NOT NULL,
    renewal     bigint NOT NULL,
    holder      text,
    host        text NOT NULL,
    length_ms   bigint NOT NULL,
    PRIMARY KEY (thread, consumer_id)
) WITH (fillfactor = 50);
