"""Logged trajectories of many models as one data frame, and charts of it. Needs the extras ``polars`` and ``plot``."""
