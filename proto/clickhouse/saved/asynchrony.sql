-- name: asynchrony
-- description: How far behind the samples of each step were, how well sampler and trainer agree, and how much was masked or flat.
-- parameters: job:String
SELECT
    step, version, arrayMax(mapKeys(staleness)) AS staleness_max, metrics['mismatch_k1'] AS mismatch_k1,
    metrics['mismatch_k3'] AS mismatch_k3, metrics['mismatch_slope'] AS mismatch_slope, metrics['ess'] AS ess,
    domain_masked, domain_flat, domain_staleness, restored_step
FROM steps FINAL
WHERE job_id = {job:String}
ORDER BY step
