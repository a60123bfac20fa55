"""Commands, requests, events, dead letters and last values; `base` says what they mean."""
