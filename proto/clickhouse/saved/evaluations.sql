-- name: evaluations
-- description: pass@1 with its 95 % interval, per evaluation point and domain.
-- parameters: job:String
SELECT point, domain, step, round(pass_at_1, 4) AS pass_at_1, round(low, 4) AS low, round(high, 4) AS high, n, attempted
FROM evals FINAL
WHERE job_id = {job:String}
ORDER BY step, point, domain
