"""An agent that learns to play 2048."""
