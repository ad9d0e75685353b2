"""Rewards: a judge that compares trajectories, and a reward model trained on preferences."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art.rewards.reward_model import PreferencePair, RewardModel, RewardReport, ScoredExample
    from art.rewards.ruler import ruler, ruler_score_group

__all__ = ["PreferencePair", "RewardModel", "RewardReport", "ScoredExample", "ruler", "ruler_score_group"]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in __all__:
        home = "ruler" if name.startswith("ruler") else "reward_model"
        return getattr(import_module(f"art.rewards.{home}"), name)
    raise AttributeError(f"module 'art.rewards' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps ``art.rewards.ruler`` the function, although its module has the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "ruler" and isinstance(value, ModuleType):
            value = vars(value)[name]
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
