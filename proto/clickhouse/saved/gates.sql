-- name: gates
-- description: What the gates of a job said about every domain, and what followed.
-- parameters: job:String
SELECT step, point, version, verdict, action, domain, bound, check_verdict, round(value, 4) AS value, round(low, 4) AS low,
    round(high, 4) AS high, limit, n, reference, message
FROM gates FINAL
WHERE job_id = {job:String}
ORDER BY time, domain, bound
