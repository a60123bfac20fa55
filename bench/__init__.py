"""One script per claim. Each measures a ratio against a peer or a bound in the same run and ends with one JSON line."""
