"""A new version on a share of the traffic: ``evidence`` (statistics), ``state`` (the machine), both pure."""
