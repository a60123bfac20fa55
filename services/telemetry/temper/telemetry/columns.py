"""Columns of every table in the order of its rows, as `proto/clickhouse/tables.sql` declares them (a test compares)."""

from __future__ import annotations

_COLUMNS = {
    "groups": """
        job_id group_id group_index purpose phase domain env env_version env_digest split eval_point
        drop_reason worker engine attempt seed samples samples_per_task table_key
        table_bytes table_sha256 swap_policy numeric batch_invariant
        published_at started_at finished_at rank
    """,
    "samples": """
        job_id group_id position group_index purpose phase domain env env_version env_digest split
        eval_point task_index sample_index class reward solved prompt_tokens action_tokens
        total_tokens turns tool_calls finish_reason min_version max_version wall_s sandbox_s
        sandbox_host detail kv_origin_lag cached_tokens stop_token attention for_training
        resumed_tokens restarts finished_at rank
    """,
    "tool_uses": """
        job_id group_id position call domain env tool outcome wall_s sandbox_host finished_at rank
    """,
    "steps": """
        job_id step phase phase_name algorithm version group_ids samples masked action_tokens
        total_tokens metrics domain_reward domain_solved domain_samples domain_masked domain_flat domain_staleness staleness wait_s data_s
        compute_s publish_s skipped skip_reason restored_step trainer finished_at rank
    """,
    "evals": """
        job_id point domain step min_version max_version n attempted solved pass_at_1 low high
        mean_reward pass_at_k time rank
    """,
    "gates": """
        job_id point domain bound step version verdict check_verdict action value low high limit n
        reference message rollback time rank
    """,
    "job_events": """
        job_id event_id kind state level code message time rank
    """,
    "verdicts": """
        env env_version env_digest verdict_id verdict reason domain params checker backend checks
        evidence time rank
    """,
    "sandbox_sessions": """
        job_id session_id host backend env acquired_at released_at commands cpu_s peak_memory_bytes
        limit_hits end create_s slowest_s rank
    """,
    "ingestion": """
        topic token rank
    """,
}
COLUMNS: dict[str, tuple[str, ...]] = {table: tuple(names.split()) for table, names in _COLUMNS.items()}
"""Columns of each table, in the order of its rows."""
