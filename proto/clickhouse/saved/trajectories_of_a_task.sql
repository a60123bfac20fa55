-- name: trajectories_of_a_task
-- description: Every sample of one task of an environment, oldest first, with the policy versions that produced it.
-- parameters: env:String, split:String, task:UInt64
SELECT
    job_id, group_id, sample_index, purpose, class, reward, solved, turns, tool_calls, action_tokens,
    min_version, max_version, finish_reason, detail, finished_at
FROM samples FINAL
WHERE env = {env:String} AND split = {split:String} AND task_index = {task:UInt64}
ORDER BY finished_at, group_id, position
