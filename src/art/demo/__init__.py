"""The demo: a small model learns to play tic-tac-toe through ART's endpoint.

``rollout.py`` is the agent, ``run.py`` the training loop, both written with the public interface alone. The rest shows
and keeps what happened.
"""
