"""telemetry: facts of the event log as rows of ClickHouse, and read-only questions about them."""
