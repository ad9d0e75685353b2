"""Helpers for scripts around a training run. Each function also is a module of its own."""
