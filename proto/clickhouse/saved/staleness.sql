-- name: staleness
-- description: How many samples were how many policy versions behind when the trainer consumed them.
-- parameters: job:String
SELECT versions_behind, sum(count) AS samples, round(samples / sum(samples) OVER (), 4) AS share
FROM steps FINAL
ARRAY JOIN mapKeys(staleness) AS versions_behind, mapValues(staleness) AS count
WHERE job_id = {job:String}
GROUP BY versions_behind
ORDER BY versions_behind
