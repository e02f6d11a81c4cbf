-- Rankfold tactic database, schema 2. SQLite 3.37 or newer (STRICT tables).
--
-- Facts are append-only: host, environment, variant, campaign, shape, measurement, sweep, finish. Each has a natural key, so
-- that two files merge as a union of sets. `decision` is derived: a pure fold over the facts (db/README.md), verified by
-- `rankfold db check` and made again by `rankfold db fold`. Hashes are XXH3-128 in lower-case hex, and the text that was hashed
-- stands beside them. Times of day are ISO-8601 UTC; durations are nanoseconds per call, the maximum over the ranks.

PRAGMA application_id = 1380664900; -- 'RKFD'
PRAGMA user_version = 2;

-- ---- facts ----

-- Hardware and placement of one group of ranks, in rank order: lines key=value. No names, serials or bus addresses.
CREATE TABLE host(
    hw_fp TEXT NOT NULL PRIMARY KEY CHECK(length(hw_fp) = 32 AND hw_fp NOT GLOB '*[^0-9a-f]*'),
    hw_text TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What may change under the same hardware: driver, kernel, BIOS, probe result.
CREATE TABLE environment(
    env_fp TEXT NOT NULL PRIMARY KEY CHECK(length(env_fp) = 32 AND env_fp NOT GLOB '*[^0-9a-f]*'),
    env_text TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One specialised kernel. The hash is of its source and parameters: a name keeps its meaning, a hash its content.
-- The caller's own collective is the variant 'baseline' with hash 0.
CREATE TABLE variant(
    variant_hash TEXT NOT NULL PRIMARY KEY CHECK(length(variant_hash) = 32 AND variant_hash NOT GLOB '*[^0-9a-f]*'),
    name TEXT NOT NULL CHECK(length(name) BETWEEN 1 AND 95),
    op TEXT NOT NULL,
    world INTEGER NOT NULL,
    dtype TEXT NOT NULL,
    hidden INTEGER NOT NULL, -- 0 = serves any
    algorithm TEXT NOT NULL,
    transport TEXT NOT NULL,
    wire TEXT NOT NULL,
    isa TEXT NOT NULL,
    copy TEXT NOT NULL,
    threads INTEGER NOT NULL,
    unroll INTEGER NOT NULL,
    flags INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX variant_by_name ON variant(name);

-- One tuning session. The id is 128 random bits. admits: the opt-in tactics that were measured with all the others ('' = none).
-- policy: rounds, budget, seed ... as key=value.
CREATE TABLE campaign(
    campaign TEXT NOT NULL PRIMARY KEY CHECK(length(campaign) = 32 AND campaign NOT GLOB '*[^0-9a-f]*'),
    started_utc TEXT NOT NULL CHECK(started_utc GLOB
        '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9].[0-9][0-9][0-9]Z'),
    hw_fp TEXT NOT NULL REFERENCES host,
    env_fp TEXT NOT NULL REFERENCES environment,
    architecture TEXT NOT NULL,
    admits TEXT NOT NULL CHECK(admits IN ('', 'reassoc', 'lossy', 'reassoc,lossy', 'dependent', 'reassoc,dependent',
        'lossy,dependent', 'reassoc,lossy,dependent')),
    tool TEXT NOT NULL,
    toolchain TEXT NOT NULL,
    policy TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX campaign_by_host ON campaign(hw_fp, architecture, env_fp, started_utc);

-- A shape that a campaign measured, as asked.
CREATE TABLE shape(
    campaign TEXT NOT NULL REFERENCES campaign,
    shape_no INTEGER NOT NULL CHECK(shape_no >= 0),
    op TEXT NOT NULL,
    world INTEGER NOT NULL CHECK(world BETWEEN 1 AND 64),
    dtype TEXT NOT NULL,
    mode TEXT NOT NULL CHECK(mode IN ('eager', 'graph')),
    rows INTEGER NOT NULL CHECK(rows > 0),
    hidden INTEGER NOT NULL CHECK(hidden > 0),
    bucket_bytes INTEGER NOT NULL CHECK(bucket_bytes >= 64),
    PRIMARY KEY(campaign, shape_no)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX shape_by_key ON shape(campaign, op, world, dtype, mode, bucket_bytes, hidden, rows);

-- One candidate at one shape. A failed candidate is a fact too; it has no times. 'timeout': it hung twice in a row; 'dropped':
-- it was far too slow, or in the slower half when the field was halved, or another grid of the same variant hung.
CREATE TABLE measurement(
    campaign TEXT NOT NULL,
    shape_no INTEGER NOT NULL,
    measurement_no INTEGER NOT NULL CHECK(measurement_no >= 0), -- in the order they were made
    variant_hash TEXT NOT NULL REFERENCES variant,
    grid INTEGER NOT NULL, -- cuda: blocks; cpu: KiB of payload per step
    outcome TEXT NOT NULL CHECK(outcome IN ('ok', 'wrong', 'timeout', 'launch', 'infeasible', 'dropped')),
    samples INTEGER NOT NULL,
    order_index INTEGER NOT NULL, -- position within its round
    min_ns REAL,
    p10_ns REAL,
    median_ns REAL CHECK(outcome <> 'ok' OR median_ns > 0),
    p90_ns REAL,
    max_ns REAL,
    noise_ns REAL, -- median absolute deviation over the rounds
    PRIMARY KEY(campaign, shape_no, measurement_no),
    FOREIGN KEY(campaign, shape_no) REFERENCES shape(campaign, shape_no)
) STRICT, WITHOUT ROWID;

-- The shape is completely measured: everything feasible there that the campaign admits has its measurement.
CREATE TABLE sweep(
    campaign TEXT NOT NULL,
    shape_no INTEGER NOT NULL,
    completed_utc TEXT NOT NULL,
    PRIMARY KEY(campaign, shape_no),
    FOREIGN KEY(campaign, shape_no) REFERENCES shape(campaign, shape_no)
) STRICT, WITHOUT ROWID;

-- The campaign came to its end; one that was killed has no row here.
CREATE TABLE finish(
    campaign TEXT NOT NULL PRIMARY KEY REFERENCES campaign,
    finished_utc TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- ---- derived ----

-- The choice for a key. admits: it is the best for a caller that admits these opt-in tactics; a sweep decides for every subset
-- of what it admitted. hidden 0 = any, served by generic variants. One row per environment; the incumbent is carried over from
-- one to the next. (campaign, shape_no) is the sweep that confirmed or made the choice.
CREATE TABLE decision(
    hw_fp TEXT NOT NULL REFERENCES host,
    architecture TEXT NOT NULL,
    op TEXT NOT NULL,
    world INTEGER NOT NULL,
    dtype TEXT NOT NULL,
    mode TEXT NOT NULL,
    admits TEXT NOT NULL,
    hidden INTEGER NOT NULL,
    bucket_bytes INTEGER NOT NULL,
    env_fp TEXT NOT NULL REFERENCES environment,
    variant_hash TEXT NOT NULL REFERENCES variant,
    grid INTEGER NOT NULL,
    median_ns REAL NOT NULL,
    noise_ns REAL NOT NULL,
    runner_up_hash TEXT REFERENCES variant, -- NULL: there was no other
    runner_up_grid INTEGER,
    runner_up_median_ns REAL,
    baseline_median_ns REAL, -- the caller's own collective, judged with it; NULL: not measured, Inf: it failed or was dropped
    campaign TEXT NOT NULL,
    shape_no INTEGER NOT NULL,
    PRIMARY KEY(hw_fp, architecture, op, world, dtype, mode, admits, hidden, bucket_bytes, env_fp),
    FOREIGN KEY(campaign, shape_no) REFERENCES sweep(campaign, shape_no)
) STRICT, WITHOUT ROWID;

-- Counts the changes of decisions.
CREATE TABLE generation(
    one INTEGER NOT NULL PRIMARY KEY CHECK(one = 1),
    generation INTEGER NOT NULL
) STRICT;
INSERT INTO generation VALUES(1, 1);

-- ---- facts are append-only ----

CREATE TRIGGER host_no_update BEFORE UPDATE ON host BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER host_no_delete BEFORE DELETE ON host BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER environment_no_update BEFORE UPDATE ON environment BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER environment_no_delete BEFORE DELETE ON environment BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER variant_no_update BEFORE UPDATE ON variant BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER variant_no_delete BEFORE DELETE ON variant BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER campaign_no_update BEFORE UPDATE ON campaign BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER campaign_no_delete BEFORE DELETE ON campaign BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER shape_no_update BEFORE UPDATE ON shape BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER shape_no_delete BEFORE DELETE ON shape BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER measurement_no_update BEFORE UPDATE ON measurement BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER measurement_no_delete BEFORE DELETE ON measurement BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER sweep_no_update BEFORE UPDATE ON sweep BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER sweep_no_delete BEFORE DELETE ON sweep BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER finish_no_update BEFORE UPDATE ON finish BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;
CREATE TRIGGER finish_no_delete BEFORE DELETE ON finish BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END;

-- ---- answers for the person at the prompt ----

-- Every measurement with all that belongs to it.
CREATE VIEW measurements AS
SELECT m.campaign, c.started_utc, c.hw_fp, c.env_fp, c.architecture, c.admits, s.op, s.world, s.dtype, s.mode, s.rows, s.hidden,
       s.bucket_bytes, v.name AS variant, m.grid, m.outcome, m.samples, round(m.median_ns / 1000, 3) AS median_us,
       round(m.min_ns / 1000, 3) AS min_us, round(m.p10_ns / 1000, 3) AS p10_us, round(m.p90_ns / 1000, 3) AS p90_us,
       round(m.max_ns / 1000, 3) AS max_us, round(m.noise_ns / 1000, 3) AS noise_us, m.variant_hash, m.shape_no,
       m.measurement_no, m.order_index
FROM measurement m
JOIN shape s ON s.campaign = m.campaign AND s.shape_no = m.shape_no
JOIN campaign c ON c.campaign = m.campaign
JOIN variant v ON v.variant_hash = m.variant_hash;

-- Tuning sessions, with what they did.
CREATE VIEW campaigns AS
SELECT c.campaign, c.started_utc, f.finished_utc, CASE WHEN f.campaign IS NULL THEN 'open' ELSE 'done' END AS state,
       c.architecture, c.admits,
       (SELECT count(*) FROM shape s WHERE s.campaign = c.campaign) AS shapes,
       (SELECT count(*) FROM sweep w WHERE w.campaign = c.campaign) AS swept,
       (SELECT count(*) FROM measurement m WHERE m.campaign = c.campaign) AS measurements,
       c.tool, c.toolchain, c.policy, c.hw_fp, c.env_fp
FROM campaign c LEFT JOIN finish f ON f.campaign = c.campaign;

-- What is known of each host.
CREATE VIEW hosts AS
SELECT h.hw_fp, c.architecture, count(*) AS campaigns, count(DISTINCT c.env_fp) AS environments,
       max(c.started_utc) AS last_tuned_utc,
       (SELECT count(*) FROM decision d WHERE d.hw_fp = h.hw_fp AND d.architecture = c.architecture) AS decisions,
       h.hw_text
FROM host h JOIN campaign c ON c.hw_fp = h.hw_fp
GROUP BY h.hw_fp, c.architecture;

-- The lines of the environments, one field of one rank a row ("r0.kernel=6.1.0-18").
CREATE VIEW environment_fields AS
WITH RECURSIVE line(env_fp, number, text, rest) AS (
    SELECT env_fp, 0, '', env_text FROM environment
    UNION ALL
    SELECT env_fp, number + 1, substr(rest, 1, instr(rest || char(10), char(10)) - 1),
           substr(rest, instr(rest || char(10), char(10)) + 1)
    FROM line WHERE rest <> ''
), pair AS (
    SELECT env_fp, number, substr(text, 1, instr(text || '=', '=') - 1) AS name,
           substr(text, instr(text || '=', '=') + 1) AS value
    FROM line WHERE text <> ''
)
SELECT env_fp, number, substr(name, 1, instr(name, '.') - 1) AS rank, substr(name, instr(name, '.') + 1) AS field, value
FROM pair;

-- The kinds of memory that the ranks could meet in: what was measured over one says nothing about another. And the grouping of
-- a topology file, if one counted (for sums in its order).
CREATE VIEW environment_transports AS
SELECT e.env_fp, coalesce(f.value, '') AS transports, coalesce(i.value, '') AS islands
FROM environment e
LEFT JOIN environment_fields f ON f.env_fp = e.env_fp AND f.rank = '' AND f.field = 'transports'
LEFT JOIN environment_fields i ON i.env_fp = e.env_fp AND i.rank = '' AND i.field = 'islands';

-- Every decision with all that belongs to it; `newest` numbers those of a key and a set of transports (and a grouping, if it may
-- sum by it), the latest environment first.
CREATE VIEW decisions AS
SELECT substr(d.hw_fp, 1, 8) AS host, d.*, t.transports, t.islands, v.name AS variant, c.started_utc AS tuned_utc,
       row_number() OVER (PARTITION BY d.hw_fp, d.architecture, d.op, d.world, d.dtype, d.mode, d.admits, d.hidden,
                          d.bucket_bytes, t.transports, iif(instr(d.admits, 'reassoc'), t.islands, '')
                          ORDER BY c.started_utc DESC, c.campaign DESC) AS newest
FROM decision d
JOIN variant v ON v.variant_hash = d.variant_hash
JOIN campaign c ON c.campaign = d.campaign
JOIN environment_transports t ON t.env_fp = d.env_fp;

-- Of each key the latest decision for each set of transports (and such a grouping), whatever else its environment is.
CREATE VIEW current AS
SELECT * FROM decisions
WHERE newest = 1
ORDER BY hw_fp, architecture, transports, op, world, dtype, mode, admits, hidden, bucket_bytes;

-- What runs here: the choice for every key.
CREATE VIEW runs AS
SELECT host, architecture, transports, op, world, dtype, mode, admits, CASE hidden WHEN 0 THEN 'any' ELSE hidden END AS hidden,
       bucket_bytes, variant, grid, round(median_ns / 1000, 3) AS median_us, round(noise_ns / 1000, 3) AS noise_us, tuned_utc,
       hw_fp, env_fp, variant_hash
FROM current;

-- Why it runs: who came second, and by how much. A negative margin means that the incumbent stayed, within the noise.
CREATE VIEW why AS
SELECT d.host, d.transports, d.op, d.world, d.dtype, d.mode, d.admits,
       CASE d.hidden WHEN 0 THEN 'any' ELSE d.hidden END AS hidden, d.bucket_bytes, d.variant, d.grid,
       round(d.median_ns / 1000, 3) AS median_us, round(d.noise_ns / 1000, 3) AS noise_us,
       coalesce(r.name, '(no other)') AS runner_up, d.runner_up_grid,
       round(d.runner_up_median_ns / 1000, 3) AS runner_up_us,
       round(100 * (d.runner_up_median_ns - d.median_ns) / d.median_ns, 1) AS margin_pct,
       CASE WHEN d.runner_up_hash IS NULL THEN 'the only one that worked'
            WHEN d.runner_up_median_ns < d.median_ns THEN 'incumbent: the faster one is within the noise'
            WHEN d.runner_up_median_ns - d.median_ns <= 3 * d.noise_ns THEN 'fastest, but within the noise'
            ELSE 'fastest' END AS verdict,
       d.campaign, d.hw_fp, d.env_fp
FROM current d LEFT JOIN variant r ON r.variant_hash = d.runner_up_hash;

-- What is stale: chosen in another environment than the host's latest with these transports and this grouping, or with an
-- earlier build of the variant. The CPUs that the ranks may run on make nothing stale here: they alternate, bound and not.
CREATE VIEW stale AS
WITH lasting AS MATERIALIZED (
    SELECT * FROM environment_fields WHERE field NOT GLOB 'usable_*'
), whole AS MATERIALIZED (
    SELECT env_fp, group_concat(rank || '.' || field || '=' || value) AS fields FROM lasting GROUP BY env_fp
), latest AS (
    SELECT c.hw_fp, c.architecture, t.transports, t.islands, c.env_fp, max(c.started_utc)
    FROM campaign c JOIN environment_transports t ON t.env_fp = c.env_fp
    GROUP BY c.hw_fp, c.architecture, t.transports, t.islands
), newest AS (
    SELECT c.hw_fp, v.name, m.variant_hash, max(c.started_utc)
    FROM measurement m JOIN variant v ON v.variant_hash = m.variant_hash JOIN campaign c ON c.campaign = m.campaign
    GROUP BY c.hw_fp, v.name
)
SELECT d.host, d.transports, d.op, d.world, d.dtype, d.mode, d.admits,
       CASE d.hidden WHEN 0 THEN 'any' ELSE d.hidden END AS hidden, d.bucket_bytes, d.variant,
       CASE WHEN o.fields IS NOT n.fields THEN 'other environment: ' || coalesce((
            SELECT group_concat(change, ', ') FROM (
                SELECT DISTINCT o.field || ' ' || o.value || ' -> ' || n.value AS change
                FROM lasting o JOIN lasting n ON n.rank = o.rank AND n.field = o.field
                WHERE o.env_fp = d.env_fp AND n.env_fp = l.env_fp AND n.value <> o.value)), 'fields came or went')
            ELSE 'earlier build of the variant' END AS reason,
       d.tuned_utc, d.hw_fp, d.env_fp
FROM current d
JOIN latest l ON l.hw_fp = d.hw_fp AND l.architecture = d.architecture AND l.transports = d.transports AND l.islands = d.islands
LEFT JOIN whole o ON o.env_fp = d.env_fp
LEFT JOIN whole n ON n.env_fp = l.env_fp
JOIN newest w ON w.hw_fp = d.hw_fp AND w.name = d.variant
WHERE o.fields IS NOT n.fields OR w.variant_hash <> d.variant_hash;

-- The best of every sweep.
CREATE VIEW sweep_best AS
SELECT c.hw_fp, c.env_fp, t.transports, t.islands, c.architecture, c.admits, s.op, s.world, s.dtype, s.mode, s.rows, s.hidden, s.bucket_bytes, c.started_utc,
       m.campaign, m.shape_no, v.name AS variant, m.grid, min(m.median_ns) AS median_ns, m.noise_ns
FROM sweep w
JOIN shape s ON s.campaign = w.campaign AND s.shape_no = w.shape_no
JOIN campaign c ON c.campaign = w.campaign
JOIN environment_transports t ON t.env_fp = c.env_fp
JOIN measurement m ON m.campaign = w.campaign AND m.shape_no = w.shape_no AND m.outcome = 'ok'
JOIN variant v ON v.variant_hash = m.variant_hash
GROUP BY m.campaign, m.shape_no;

-- What regressed: the best of a sweep is slower than the best of the sweep before it that had the same transports and admitted the
-- same, beyond the noise.
CREATE VIEW regressed AS
WITH step AS (
    SELECT *, lag(median_ns) OVER w AS before_ns, lag(noise_ns) OVER w AS before_noise_ns, lag(variant) OVER w AS before_variant,
           lag(env_fp) OVER w AS before_env_fp, lag(started_utc) OVER w AS before_utc
    FROM sweep_best
    WINDOW w AS (PARTITION BY hw_fp, architecture, transports, admits, iif(instr(admits, 'reassoc'), islands, ''), op, world, dtype,
                              mode, rows, hidden
                 ORDER BY started_utc, campaign)
)
SELECT substr(hw_fp, 1, 8) AS host, transports, op, world, dtype, mode, admits, rows, hidden, before_variant,
       round(before_ns / 1000, 3) AS before_us, variant AS now_variant,
       round(median_ns / 1000, 3) AS now_us, round(100 * (median_ns - before_ns) / before_ns, 1) AS slower_pct, before_utc,
       started_utc AS now_utc,
       CASE WHEN before_env_fp = env_fp THEN 'same environment' ELSE 'other environment' END AS environment, hw_fp, campaign
FROM step
WHERE median_ns - before_ns > max(3 * max(noise_ns, before_noise_ns), 0.01 * before_ns)
ORDER BY slower_pct DESC;

-- What is measured of each kind of call, and how much was begun and never completed.
CREATE VIEW coverage AS
SELECT substr(c.hw_fp, 1, 8) AS host, c.architecture, s.op, s.world, s.dtype, s.mode, s.hidden,
       count(DISTINCT s.rows) AS sizes,
       min(s.bucket_bytes) AS from_bytes, max(s.bucket_bytes) AS to_bytes, count(w.campaign) AS sweeps,
       count(*) - count(w.campaign) AS incomplete, max(c.started_utc) AS last_tuned_utc, c.hw_fp
FROM shape s
JOIN campaign c ON c.campaign = s.campaign
LEFT JOIN sweep w ON w.campaign = s.campaign AND w.shape_no = s.shape_no
GROUP BY c.hw_fp, c.architecture, s.op, s.world, s.dtype, s.mode, s.hidden;

-- How noisy each campaign was: the typical and the worst relative deviation over its rounds, and drift of the extremes.
CREATE VIEW noise AS
SELECT m.campaign, c.started_utc, count(*) AS measurements, round(avg(100 * m.noise_ns / m.median_ns), 2) AS mean_noise_pct,
       round(max(100 * m.noise_ns / m.median_ns), 2) AS worst_noise_pct,
       round(avg(m.max_ns / m.median_ns), 2) AS mean_max_over_median, c.hw_fp
FROM measurement m JOIN campaign c ON c.campaign = m.campaign
WHERE m.outcome = 'ok'
GROUP BY m.campaign;

-- Candidates that did not work, and where.
CREATE VIEW failed AS
SELECT v.name AS variant, m.outcome, s.op, s.world, s.dtype, s.mode, s.rows, s.hidden, m.grid, c.started_utc, m.campaign, c.hw_fp
FROM measurement m
JOIN shape s ON s.campaign = m.campaign AND s.shape_no = m.shape_no
JOIN campaign c ON c.campaign = m.campaign
JOIN variant v ON v.variant_hash = m.variant_hash
WHERE m.outcome NOT IN ('ok', 'dropped');

-- The choice against the caller's own collective, where that was measured too.
CREATE VIEW versus_baseline AS
SELECT d.host, d.transports, d.op, d.world, d.dtype, d.mode, d.admits,
       CASE d.hidden WHEN 0 THEN 'any' ELSE d.hidden END AS hidden, d.bucket_bytes, d.variant,
       round(d.median_ns / 1000, 3) AS median_us, round(d.baseline_median_ns / 1000, 3) AS baseline_us,
       round(d.baseline_median_ns / d.median_ns, 2) AS times_faster, d.hw_fp, d.env_fp
FROM current d
WHERE d.baseline_median_ns < 9e999;

-- Where one kind of tactic takes over from another: sizes that are decided for the same algorithm, transport and wire (or for the
-- baseline) are one row, from the smallest to the largest bucket, among variants for any hidden size. `rival` is the fastest of
-- another kind that was measured at to_bytes in the same environment; '(dropped early)': there were some, all dropped before they
-- were measured to the end; '(no other)': none was there, or none worked.
CREATE VIEW takeover AS
WITH kinds AS MATERIALIZED (
    SELECT variant_hash, CASE name WHEN 'baseline' THEN name ELSE algorithm || ' ' || transport || ' ' || wire END AS kind,
           flags & 1 AS reassoc, flags & 2 AS lossy, flags & 4 AS dependent
    FROM variant WHERE hidden = 0
), best AS MATERIALIZED (
    SELECT c.hw_fp, c.architecture, c.env_fp, s.op, s.world, s.dtype, s.mode, s.bucket_bytes, k.kind, k.reassoc, k.lossy,
           k.dependent, min(m.median_ns) AS median_ns, max(m.outcome = 'dropped') AS dropped
    FROM measurement m
    JOIN kinds k ON k.variant_hash = m.variant_hash
    JOIN shape s ON s.campaign = m.campaign AND s.shape_no = m.shape_no
    JOIN campaign c ON c.campaign = m.campaign
    WHERE m.outcome IN ('ok', 'dropped') -- these have no times
    GROUP BY c.hw_fp, c.architecture, c.env_fp, s.op, s.world, s.dtype, s.mode, s.bucket_bytes, k.kind, k.reassoc, k.lossy,
             k.dependent
), chosen AS (
    SELECT d.host, d.hw_fp, d.architecture, d.transports, d.op, d.world, d.dtype, d.mode, d.admits, d.bucket_bytes, d.median_ns,
           k.kind, r.kind AS rival, min(r.median_ns) AS rival_ns, sum(r.dropped) > 0 AS dropped
    FROM current d
    JOIN kinds k ON k.variant_hash = d.variant_hash
    LEFT JOIN best r ON r.hw_fp = d.hw_fp AND r.architecture = d.architecture AND r.env_fp = d.env_fp AND r.op = d.op
        AND r.world = d.world AND r.dtype = d.dtype AND r.mode = d.mode AND r.bucket_bytes = d.bucket_bytes AND r.kind <> k.kind
        AND (r.reassoc = 0 OR instr(d.admits, 'reassoc')) AND (r.lossy = 0 OR instr(d.admits, 'lossy'))
        AND (r.dependent = 0 OR instr(d.admits, 'dependent'))
    WHERE d.hidden = 0
    GROUP BY d.hw_fp, d.architecture, d.transports, d.op, d.world, d.dtype, d.mode, d.admits, d.bucket_bytes
), marked AS (
    SELECT *, kind IS NOT lag(kind) OVER key AS begins, kind IS NOT lead(kind) OVER key AS ends
    FROM chosen
    WINDOW key AS (PARTITION BY hw_fp, architecture, transports, op, world, dtype, mode, admits ORDER BY bucket_bytes)
), counted AS (
    SELECT *, sum(begins) OVER key AS stretch
    FROM marked
    WINDOW key AS (PARTITION BY hw_fp, architecture, transports, op, world, dtype, mode, admits ORDER BY bucket_bytes)
), stretches AS (
    SELECT *, first_value(bucket_bytes) OVER stretch AS from_bytes, first_value(median_ns) OVER stretch AS from_ns
    FROM counted
    WINDOW stretch AS (PARTITION BY hw_fp, architecture, transports, op, world, dtype, mode, admits, stretch
                       ORDER BY bucket_bytes)
)
SELECT host, architecture, transports, op, world, dtype, mode, admits, from_bytes, bucket_bytes AS to_bytes, kind,
       round(from_ns / 1000, 3) AS from_us, round(median_ns / 1000, 3) AS to_us,
       CASE WHEN rival_ns NOT NULL THEN rival WHEN dropped THEN '(dropped early)' ELSE '(no other)' END AS rival,
       round(rival_ns / 1000, 3) AS rival_us, hw_fp
FROM stretches
WHERE ends
ORDER BY hw_fp, architecture, transports, op, world, dtype, mode, admits, from_bytes;
