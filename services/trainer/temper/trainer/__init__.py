"""The trainer service: groups of episodes in, policy versions out."""
