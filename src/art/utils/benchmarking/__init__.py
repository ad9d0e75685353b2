"""Logged trajectories as data frames, and charts of them; see ``art.compat.benchmarking``."""
