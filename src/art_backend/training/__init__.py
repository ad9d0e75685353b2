"""Training: from captured tokens to a new policy version."""
