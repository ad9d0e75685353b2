"""Algorithms: advantages, losses, their named compositions, and the user's own."""
