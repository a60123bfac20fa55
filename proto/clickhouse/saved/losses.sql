-- name: losses
-- description: What became of every sample, counts by terminal class and environment, and groups dropped by reason.
-- parameters: job:String
SELECT domain, env, env_version, class, samples, groups
FROM losses
WHERE job_id = {job:String}
ORDER BY domain, env, class
