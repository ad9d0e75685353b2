"""Rollouts: one run of the agent, its environment and failures, and what is sent of it for training."""
