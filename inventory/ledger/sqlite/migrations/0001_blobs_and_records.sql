-- Bytes that never change once stored.
CREATE TABLE blobs (
    kind      TEXT NOT NULL,
    key       TEXT NOT NULL,
    data      BLOB NOT NULL,
    stored_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (kind, key)
) STRICT;

-- One row a rollout. The columns are what is asked for; record is the whole, as JSON.
CREATE TABLE records (
    rollout     TEXT PRIMARY KEY,
    of          TEXT NOT NULL, -- the rollout that this one takes back, or ''
    environment TEXT NOT NULL,
    deployment  TEXT NOT NULL,
    sequence    INTEGER NOT NULL,
    started_at  INTEGER NOT NULL, -- microseconds since 1970, UTC
    record      TEXT NOT NULL
) STRICT;

CREATE INDEX records_by_lane ON records (environment, deployment, started_at);
