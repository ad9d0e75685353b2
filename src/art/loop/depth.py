"""How many groups are in flight: enough that the engine does not wait, and no more, because the surplus grows stale."""

import math

AIM = 0.05
"""Share of the time for which the engine may wait for environments."""
GAIN = 3.0
"""Steps' worth of groups that are added for each unit of the share above ``AIM``, and taken away for each below it."""
MOST = 1.5
"""The largest surplus, in steps' worth of groups."""


class Depth:
    """Decides, step after step, how many groups are in flight.

    ``(1 + max_staleness)`` steps' worth are what could be trained if all ended in time. Slow environments hold groups up,
    so that the engine idles; a surplus of groups keeps it busy, of which those that end too late are begun again. The
    surplus follows the engine's idle share. Without staleness there is no surplus: a step waits for its own groups.

    Args:
        per_step: Groups that a step trains on.
        max_staleness: Policy versions that a group may be old.
    """

    def __init__(self, per_step: int, max_staleness: int) -> None:
        self._per_step, self._max_staleness = per_step, max_staleness
        self._surplus = 0

    @property
    def groups(self) -> int:
        """Groups that should be in flight now."""
        return self._per_step * (1 + self._max_staleness) + self._surplus

    def adapt(self, idle_share: float | None, ready: int) -> int:
        """Learn from a step, and return ``groups``.

        Args:
            idle_share: Share of the step for which the engine idled; ``None``: it is not known.
            ready: Groups that were ready when it ended. With a whole step's worth, more would not be trained sooner.
        """
        if self._max_staleness and idle_share is not None:
            idle_share = idle_share if ready < self._per_step else 0.0
            surplus = self._surplus + round(GAIN * self._per_step * (idle_share - AIM))
            self._surplus = min(max(surplus, 0), math.ceil(MOST * self._per_step))
        return self.groups
