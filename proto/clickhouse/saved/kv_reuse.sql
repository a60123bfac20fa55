-- name: kv_reuse
-- description: Per policy version: how old the KV was that samples read, how much context was not computed again, how turns ended.
-- parameters: job:String
SELECT
    max_version AS version,
    count() AS samples,
    max(kv_origin_lag) AS oldest_kv,
    avg(kv_origin_lag) AS mean_kv_lag,
    sum(cached_tokens) AS cached_tokens,
    sum(resumed_tokens) AS resumed_tokens,
    sum(restarts) AS restarts,
    sumMap(map(finish_reason, 1)) AS finished
FROM samples FINAL
WHERE job_id = {job:String} AND purpose = 'train'
GROUP BY version
ORDER BY version
