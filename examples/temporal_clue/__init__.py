"""An agent that learns to solve puzzles of who, where, when and with what."""
