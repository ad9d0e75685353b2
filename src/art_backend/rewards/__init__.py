"""Reward models: trained from preferences by TRL's ``RewardTrainer``, calibrated, and served in batches."""
