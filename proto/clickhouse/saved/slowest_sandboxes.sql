-- name: slowest_sandboxes
-- description: Sandbox sessions with the slowest commands, with their limits hit.
-- parameters: job:String
SELECT session_id, host, env, round(slowest_s, 3) AS slowest_s, commands, round(cpu_s, 3) AS cpu_s, peak_memory_bytes, limit_hits, end
FROM sandbox_sessions FINAL
WHERE job_id = {job:String}
ORDER BY slowest_s DESC
LIMIT 50
