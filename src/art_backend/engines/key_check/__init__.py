"""Separate directory for the one ART module that vLLM's Python imports."""
