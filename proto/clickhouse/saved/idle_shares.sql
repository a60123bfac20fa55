-- name: idle_shares
-- description: Share of the trainer's time spent waiting for data, per phase, and where the rest went.
-- parameters: job:String
SELECT
    phase_name, count() AS steps,
    round(sum(wait_s) / sum(total_s), 4) AS trainer_idle,
    round(sum(data_s) / sum(total_s), 4) AS data, round(sum(compute_s) / sum(total_s), 4) AS compute,
    round(sum(publish_s) / sum(total_s), 4) AS publish, round(sum(total_s), 2) AS seconds
FROM step_time
WHERE job_id = {job:String}
GROUP BY phase_name
ORDER BY min(step)
