"""Rollouts: one run of the agent, batches of runs, and what training is told of them."""
