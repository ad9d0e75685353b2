"""ART trains the agent you already have: your code runs it and scores it, ART makes its model better."""
