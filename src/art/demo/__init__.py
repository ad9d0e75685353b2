"""The demo: a small model learns to play tic-tac-toe through ART's endpoint.

``game.py`` has the rules, ``rollout.py`` the agent, ``run.py`` trains and compares by ``art.experiment`` and shows what came
of it, ``report.py`` puts several runs side by side.
"""
