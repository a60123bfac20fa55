-- Tables of the platform's records. Applied at start by the telemetry service, in the database it is configured with.
--
-- Delivery from the event log is at least once; a row's sorting key is its identity, so a repeat replaces itself
-- (ReplacingMergeTree) and `FINAL`, or the setting final = 1 that the Query RPC uses, shows each record once.
-- Where two different records may claim one identity, `rank` decides: the higher one stays.
--
-- Only statements that repeat without harm: a later version adds columns with ALTER TABLE … ADD COLUMN IF NOT EXISTS.

-- One row per group of episodes (topic trajectories). The first record of a group counts, as it does for the trainer.
CREATE TABLE IF NOT EXISTS groups
(
    job_id           LowCardinality(String),
    group_id         String,
    group_index      UInt64,
    purpose          LowCardinality(String)      COMMENT 'train, demo or eval',
    phase            UInt32,
    domain           LowCardinality(String),
    env              LowCardinality(String),
    env_version      LowCardinality(String),
    env_digest       LowCardinality(String),
    split            LowCardinality(String),
    eval_point       LowCardinality(String)      COMMENT 'before, step-20, after; empty unless purpose is eval',
    drop_reason      LowCardinality(String)      COMMENT 'empty for groups that ran to their end',
    worker           LowCardinality(String),
    engine           LowCardinality(String),
    attempt          UInt32,
    seed             UInt64,
    samples          UInt32,
    samples_per_task UInt32,
    table_key        String                      COMMENT 'token arrays in object storage',
    table_bytes      UInt64,
    table_sha256     String                      COMMENT 'checksum of the token arrays, for their claim check',
    swap_policy      LowCardinality(String)      COMMENT 'what a weight update did to running sequences; empty for demonstrations',
    numeric          LowCardinality(String)      COMMENT 'numeric mode of the engine, e.g. fp32',
    batch_invariant  Bool                        COMMENT 'numbers do not depend on neighbours in the batch',
    published_at     DateTime64(6, 'UTC'),
    started_at       DateTime64(6, 'UTC'),
    finished_at      DateTime64(6, 'UTC'),
    rank             UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (job_id, group_id);

-- One row per sample of a group. A reward that is absent is NULL, never 0.
CREATE TABLE IF NOT EXISTS samples
(
    job_id        LowCardinality(String),
    group_id      String,
    position      UInt32                          COMMENT 'place in the group, task-major',
    group_index   UInt64,
    purpose       LowCardinality(String),
    phase         UInt32,
    domain        LowCardinality(String),
    env           LowCardinality(String),
    env_version   LowCardinality(String),
    env_digest    LowCardinality(String),
    split         LowCardinality(String),
    eval_point    LowCardinality(String),
    task_index    UInt64,
    sample_index  UInt32,
    class         LowCardinality(String)          COMMENT 'scored, agent_failed, infra_failed, stale, revoked, invalid_tokens',
    reward        Nullable(Float64),
    solved        Bool,
    prompt_tokens UInt32,
    action_tokens UInt32,
    total_tokens  UInt32,
    turns         UInt32,
    tool_calls    UInt32,
    finish_reason LowCardinality(String),
    min_version   UInt64                          COMMENT 'oldest policy version over action tokens',
    max_version   UInt64,
    wall_s        Float64,
    sandbox_s     Float64,
    sandbox_host  LowCardinality(String),
    detail        String,
    kv_origin_lag UInt64                          COMMENT 'most versions that KV read by an action token was older than its weights',
    cached_tokens UInt64                          COMMENT 'context tokens whose KV was not computed for this sample',
    stop_token    Nullable(UInt32)                COMMENT 'what ended the last turn, if a stop token did',
    attention     LowCardinality(String)          COMMENT 'dense or sparse',
    for_training  Bool                            COMMENT 'false: a trainer refuses it',
    resumed_tokens UInt32                         COMMENT 'action tokens taken over from an earlier delivery',
    restarts      UInt32                          COMMENT 'times it was begun again',
    finished_at   DateTime64(6, 'UTC'),
    rank          UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (job_id, group_id, position);

-- For databases made before these columns were there.
ALTER TABLE groups
    ADD COLUMN IF NOT EXISTS swap_policy LowCardinality(String) AFTER table_sha256,
    ADD COLUMN IF NOT EXISTS numeric LowCardinality(String) AFTER swap_policy,
    ADD COLUMN IF NOT EXISTS batch_invariant Bool AFTER numeric;

ALTER TABLE samples
    ADD COLUMN IF NOT EXISTS kv_origin_lag UInt64 AFTER detail,
    ADD COLUMN IF NOT EXISTS cached_tokens UInt64 AFTER kv_origin_lag,
    ADD COLUMN IF NOT EXISTS stop_token Nullable(UInt32) AFTER cached_tokens,
    ADD COLUMN IF NOT EXISTS attention LowCardinality(String) AFTER stop_token,
    ADD COLUMN IF NOT EXISTS for_training Bool DEFAULT true AFTER attention,
    ADD COLUMN IF NOT EXISTS resumed_tokens UInt32 AFTER for_training,
    ADD COLUMN IF NOT EXISTS restarts UInt32 AFTER resumed_tokens;

-- One row per tool call of a sample.
CREATE TABLE IF NOT EXISTS tool_uses
(
    job_id       LowCardinality(String),
    group_id     String,
    position     UInt32,
    call         UInt32                           COMMENT 'place in the episode, from 0',
    domain       LowCardinality(String),
    env          LowCardinality(String),
    tool         LowCardinality(String),
    outcome      LowCardinality(String),
    wall_s       Float64,
    sandbox_host LowCardinality(String),
    finished_at  DateTime64(6, 'UTC'),
    rank         UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (job_id, group_id, position, call);

-- One row per optimizer step (topic steps). A step that is redone after a recovery replaces itself.
CREATE TABLE IF NOT EXISTS steps
(
    job_id         LowCardinality(String),
    step           UInt64,
    phase          UInt32,
    phase_name     LowCardinality(String),
    algorithm      LowCardinality(String),
    version        UInt64                         COMMENT 'policy version that the step produced',
    group_ids      Array(String),
    samples        UInt32,
    masked         Map(String, UInt32)            COMMENT 'samples masked out, by reason',
    action_tokens  UInt64,
    total_tokens   UInt64,
    metrics        Map(String, Float64)           COMMENT 'loss, kl, entropy, grad_norm, lr, …',
    domain_reward  Map(String, Float64),
    domain_solved  Map(String, Float64),
    domain_samples Map(String, UInt32),
    domain_masked  Map(String, Float64)           COMMENT 'share of the samples that were masked out',
    domain_flat    Map(String, Float64)           COMMENT 'share of the tasks whose samples all earned the same',
    domain_staleness Map(String, Float64)         COMMENT 'mean versions behind at consumption',
    staleness      Map(UInt32, UInt32)            COMMENT 'samples by versions behind at consumption',
    wait_s         Float64,
    data_s         Float64,
    compute_s      Float64,
    publish_s      Float64,
    skipped        Bool,
    skip_reason    String,
    restored_step  Nullable(UInt64)               COMMENT 'a rollback in the place of a step: the step whose state was restored',
    trainer        LowCardinality(String),
    finished_at    DateTime64(6, 'UTC'),
    rank           UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (job_id, step);

-- For databases made before these columns were there.
ALTER TABLE steps
    ADD COLUMN IF NOT EXISTS restored_step Nullable(UInt64) AFTER skip_reason,
    ADD COLUMN IF NOT EXISTS domain_masked Map(String, Float64) AFTER domain_samples,
    ADD COLUMN IF NOT EXISTS domain_flat Map(String, Float64) AFTER domain_masked,
    ADD COLUMN IF NOT EXISTS domain_staleness Map(String, Float64) AFTER domain_flat;

-- One row per bound that a gate looked at (topic jobs).
CREATE TABLE IF NOT EXISTS gates
(
    job_id        LowCardinality(String),
    point         LowCardinality(String)          COMMENT 'evaluation point, collapse-1 or asked-1',
    domain        LowCardinality(String),
    bound         LowCardinality(String)          COMMENT 'min_pass, max_drop, samples or collapse',
    step          UInt64,
    version       UInt64                          COMMENT 'policy version that was judged',
    verdict       LowCardinality(String)          COMMENT 'of all bounds: pass, fail or insufficient_data',
    check_verdict LowCardinality(String)          COMMENT 'of this bound',
    action        LowCardinality(String)          COMMENT 'what followed: alarm, hold, rollback or stop',
    value         Float64                         COMMENT 'pass@1, its change, or the recent success rate',
    low           Float64,
    high          Float64,
    limit         Float64,
    n             UInt32                          COMMENT 'tasks, or groups of a collapse',
    reference     LowCardinality(String)          COMMENT 'evaluation point that it was compared with',
    message       String,
    rollback      UInt32                          COMMENT 'number of the rollback that was ordered',
    time          DateTime64(6, 'UTC'),
    rank          UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (job_id, point, domain, bound);

-- One row per evaluation point and domain (topic jobs).
CREATE TABLE IF NOT EXISTS evals
(
    job_id      LowCardinality(String),
    point       LowCardinality(String),
    domain      LowCardinality(String),
    step        UInt64,
    min_version UInt64,
    max_version UInt64,
    n           UInt32,
    attempted   UInt32,
    solved      UInt32,
    pass_at_1   Float64,
    low         Float64                           COMMENT '95 % interval (Wilson)',
    high        Float64,
    mean_reward Float64,
    pass_at_k   Map(UInt32, Float64),
    time        DateTime64(6, 'UTC'),
    rank        UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (job_id, point, domain);

-- One row per change of state or notice of a job (topic jobs).
CREATE TABLE IF NOT EXISTS job_events
(
    job_id   LowCardinality(String),
    event_id String,
    kind     LowCardinality(String)               COMMENT 'state, notice, eval, gate or progress',
    state    LowCardinality(String),
    level    LowCardinality(String),
    code     LowCardinality(String),
    message  String,
    time     DateTime64(6, 'UTC'),
    rank     UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (job_id, event_id);

-- One row per verdict on an environment variant (topic verdicts).
CREATE TABLE IF NOT EXISTS verdicts
(
    env         LowCardinality(String),
    env_version LowCardinality(String),
    env_digest  LowCardinality(String),
    verdict_id  String,
    verdict     LowCardinality(String)            COMMENT 'admitted, rejected, quarantined, lifted',
    reason      String,
    domain      LowCardinality(String),
    params      String,
    checker     LowCardinality(String),
    backend     LowCardinality(String),
    checks      Map(String, Bool)                 COMMENT 'check id -> passed',
    evidence    Map(String, String),
    time        DateTime64(6, 'UTC'),
    rank        UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (env, env_version, env_digest, verdict_id);

-- One row per finished sandbox session (topic sandbox).
CREATE TABLE IF NOT EXISTS sandbox_sessions
(
    job_id            LowCardinality(String),
    session_id        String,
    host              LowCardinality(String),
    backend           LowCardinality(String),
    env               LowCardinality(String),
    acquired_at       DateTime64(6, 'UTC'),
    released_at       DateTime64(6, 'UTC'),
    commands          UInt32,
    cpu_s             Float64,
    peak_memory_bytes UInt64,
    limit_hits        Map(String, UInt32),
    end               LowCardinality(String)      COMMENT 'finished, released, reaped, drained',
    create_s          Float64                     COMMENT '0 from the warm pool',
    slowest_s         Float64,
    rank              UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY (job_id, session_id, host, acquired_at);

-- How far the log was read: written after the rows it stands for, so a crash in between repeats rows and loses none.
CREATE TABLE IF NOT EXISTS ingestion
(
    topic LowCardinality(String),
    token String                                  COMMENT 'opaque position in the event log',
    rank  UInt64
)
ENGINE = ReplacingMergeTree(rank)
ORDER BY topic;
