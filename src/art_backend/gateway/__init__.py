"""The gateway: where agents reach their model, and where every token is remembered."""
