-- name: tools
-- description: Tool calls of a job by outcome, with the time they took.
-- parameters: job:String
SELECT domain, tool, outcome, count() AS calls, round(avg(wall_s), 4) AS mean_s, round(quantile(0.99)(wall_s), 4) AS p99_s
FROM tool_uses FINAL
WHERE job_id = {job:String}
GROUP BY domain, tool, outcome
ORDER BY domain, tool, calls DESC
