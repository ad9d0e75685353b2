"""Keyword arguments that scripts know under an older name."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take a keyword argument under its older name, too: ``@renamed(trajectory_groups="groups")``.

    >>> @renamed(message="text")
    ... def say(text):
    ...     return text
    >>> say(message="Hi.")
    'Hi.'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in names.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{function.__name__}() got {new} twice: {old} is its older name.")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
