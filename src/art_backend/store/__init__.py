"""Storage: SQLite in WAL mode for runs, rollouts and captures; directories for checkpoints."""
