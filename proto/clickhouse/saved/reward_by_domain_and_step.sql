-- name: reward_by_domain_and_step
-- description: Mean reward and solve rate per domain and optimizer step of a job.
-- parameters: job:String
SELECT step, domain, domain_reward[domain] AS reward, domain_solved[domain] AS solved, domain_samples[domain] AS samples
FROM steps FINAL
ARRAY JOIN mapKeys(domain_samples) AS domain
WHERE job_id = {job:String}
ORDER BY step, domain
