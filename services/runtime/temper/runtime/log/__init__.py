"""The event log: facts in order by key; `base` says what that means."""
