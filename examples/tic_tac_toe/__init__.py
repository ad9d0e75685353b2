"""An agent that learns tic-tac-toe: against a random opponent, a perfect one, and itself."""
