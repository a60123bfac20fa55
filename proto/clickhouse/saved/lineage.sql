-- name: lineage
-- description: Which environments, policy versions and rewards produced a gradient step.
-- parameters: job:String, step:UInt64
SELECT
    step, group_id, env, env_version, env_digest, task_index, min(min_version) AS oldest_version,
    max(max_version) AS newest_version, produced_version, count() AS samples, countIf(class = 'scored') AS scored,
    groupArray(reward) AS rewards
FROM trained_samples
WHERE job_id = {job:String} AND step = {step:UInt64}
GROUP BY step, group_id, env, env_version, env_digest, task_index, produced_version
ORDER BY group_id, task_index
