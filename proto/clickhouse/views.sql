-- Views: each record once, for people and dashboards that ask ClickHouse directly.

-- Reward and solve rate of what the policy sampled, by the step that trained on it.
CREATE OR REPLACE VIEW trained_samples AS
SELECT
    t.step AS step, t.phase_name AS phase_name, t.version AS produced_version,
    s.job_id AS job_id, s.group_id AS group_id, s.position AS position, s.domain AS domain, s.env AS env,
    s.env_version AS env_version, s.env_digest AS env_digest, s.split AS split, s.task_index AS task_index,
    s.sample_index AS sample_index, s.class AS class, s.reward AS reward, s.solved AS solved,
    s.action_tokens AS action_tokens, s.min_version AS min_version, s.max_version AS max_version
FROM
(
    SELECT job_id, step, phase_name, version, arrayJoin(group_ids) AS group_id
    FROM steps FINAL
) AS t
INNER JOIN (SELECT * FROM samples FINAL) AS s ON s.job_id = t.job_id AND s.group_id = t.group_id;

-- Samples by terminal class, with the groups that never ran.
CREATE OR REPLACE VIEW losses AS
SELECT job_id, domain, env, env_version, class, count() AS samples, uniqExact(group_id) AS groups
FROM samples FINAL
GROUP BY job_id, domain, env, env_version, class
UNION ALL
SELECT job_id, domain, env, env_version, concat('dropped: ', drop_reason) AS class, 0 AS samples, count() AS groups
FROM groups FINAL
WHERE drop_reason != ''
GROUP BY job_id, domain, env, env_version, drop_reason;

-- Where each step's time went.
CREATE OR REPLACE VIEW step_time AS
SELECT
    job_id, step, phase_name, wait_s, data_s, compute_s, publish_s,
    wait_s + data_s + compute_s + publish_s AS total_s,
    if(total_s > 0, wait_s / total_s, 0) AS idle_share,
    finished_at
FROM steps FINAL;

-- The newest verdict on each environment variant.
CREATE OR REPLACE VIEW environments AS
SELECT
    env, env_version, env_digest,
    argMax(verdict, time) AS verdict, argMax(reason, time) AS reason, max(time) AS since
FROM verdicts FINAL
GROUP BY env, env_version, env_digest;
