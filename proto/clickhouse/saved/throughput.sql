-- name: throughput
-- description: Episodes and tokens per second of a job, in windows of ten seconds.
-- parameters: job:String
SELECT
    toStartOfInterval(finished_at, INTERVAL 10 SECOND) AS time, count() AS episodes,
    round(count() / 10, 2) AS episodes_per_s, round(sum(action_tokens) / 10, 1) AS action_tokens_per_s,
    round(sum(total_tokens) / 10, 1) AS tokens_per_s, round(avg(sandbox_s), 4) AS mean_sandbox_s
FROM samples FINAL
WHERE job_id = {job:String}
GROUP BY time
ORDER BY time
