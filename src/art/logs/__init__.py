"""A model's logs: rows of metrics, trajectories, totals; where they lie, and where else they go."""
