"""Memory planning: whether a model fits into a device's memory, before anything is loaded."""
