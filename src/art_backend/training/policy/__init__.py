"""The model that is trained: adapter or full weights, its layers, attention and log-probabilities."""
