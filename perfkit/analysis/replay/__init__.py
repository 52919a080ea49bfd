"""Play a recorded job again with other durations: what depends on what, and how long a step would take then."""
