"""What is served: engines, the policy versions loaded in them, where they run, and how they spend their time."""
