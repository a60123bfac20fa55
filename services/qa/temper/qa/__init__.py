"""qa: environments as assets, and the gate they pass before anything trains on them."""
