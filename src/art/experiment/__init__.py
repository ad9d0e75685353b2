"""Measured trainings: a command that trains, and one that compares the result with what was there before.

An example is a task and two small programs. ``train.py`` says how the model learns, in plain calls of ART; ``evaluate.py`` names
the task's held-out scenarios and scripted players. The rest is here: options, the run's directory, intervals, a plot, and results
that a script can read. ``art demo`` is such an example too.
"""

from art.experiment.commands import evaluation_command, training_command
from art.experiment.comparison import Score, compare
from art.experiment.results import Results
from art.experiment.run import Example, Run, Settings, training_seeds

__all__ = [
    "Example",
    "Results",
    "Run",
    "Score",
    "Settings",
    "compare",
    "evaluation_command",
    "training_command",
    "training_seeds",
]
