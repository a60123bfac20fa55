-- name: exposure
-- description: Which policy versions were trained on an environment version, for when it is withdrawn; later versions of a job build on them.
-- parameters: env:String, version:String
SELECT
    job_id, env_digest, min(step) AS first_step, max(step) AS last_step, min(produced_version) AS first_version,
    max(produced_version) AS last_version, uniqExact(group_id) AS groups, count() AS samples, countIf(reward > 0) AS rewarded
FROM trained_samples
WHERE env = {env:String} AND env_version = {version:String}
GROUP BY job_id, env_digest
ORDER BY job_id, first_step
