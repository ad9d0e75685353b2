"""Agents that learn, each in a folder of its own that can be copied."""
