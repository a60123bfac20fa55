"""What a report asks ClickHouse; each takes the parameter `job`."""

STEPS = (
    "SELECT step, phase_name, algorithm, version, samples, action_tokens, total_tokens, toJSONString(metrics) AS metrics,"
    " toJSONString(domain_reward) AS domain_reward,"
    " toJSONString(staleness) AS staleness, wait_s, data_s, compute_s, publish_s, skipped,"
    " toFloat64(finished_at) AS finished_at"
    " FROM steps FINAL WHERE job_id = {job:String} ORDER BY step"
)
ERRORS = (
    "SELECT step, domain, stddevSamp(reward) / sqrt(count()) AS error FROM trained_samples"
    " WHERE job_id = {job:String} AND reward IS NOT NULL GROUP BY step, domain"
)
SAMPLES = (
    "SELECT s.domain AS domain, s.eval_point AS eval_point, s.task_index AS task_index, s.position AS position,"
    " s.reward AS reward, s.solved AS solved, s.class AS class, s.tool_calls AS tool_calls,"
    " s.min_version AS min_version, s.group_id AS group_id, g.table_key AS table_key,"
    " g.table_sha256 AS table_sha256, g.table_bytes AS table_bytes"
    " FROM samples AS s FINAL INNER JOIN groups AS g FINAL ON g.job_id = s.job_id AND g.group_id = s.group_id"
    " WHERE s.job_id = {job:String} AND s.purpose = 'eval' AND s.sample_index = 0"
    " AND s.eval_point IN ('before', 'after') AND s.reward IS NOT NULL"
    " ORDER BY s.domain, s.task_index, s.eval_point"
)
WORKERS = (
    "SELECT worker, engine, count() AS groups, round(avg(toFloat64(finished_at) - toFloat64(started_at)), 3) AS mean_s"
    " FROM groups FINAL WHERE job_id = {job:String} AND drop_reason = '' GROUP BY worker, engine ORDER BY worker"
)
EVENTS = (
    "SELECT toFloat64(time) AS time, kind, level, code, message, state FROM job_events FINAL"
    " WHERE job_id = {job:String} AND kind IN ('state', 'notice', 'gate') ORDER BY time"
)
