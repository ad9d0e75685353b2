"""Refuses structures that cannot be enforced, before an engine is asked."""

from art_backend.errors import BadRequestError
from art_backend.gateway.sources import Source
from art_backend.gateway.threads import FairThreads
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.check import CHECKER


class StructureGuard:
    """Tries new structures beside the event loop, one at a time."""

    def __init__(self) -> None:
        self._thread = FairThreads(1, "structures")

    async def check(self, caller: str, structure: Structure, source: Source) -> None:
        """Check the structure of a prompt's completions.

        Args:
            caller: Who must wait for their own structures: a rollout, or a model.

        Raises:
            BadRequestError: It cannot be enforced; the error names the field that demanded it.
        """
        problem = await self._explain(caller, structure)
        if problem is None:
            return
        field = source.structure_field
        for part, at in source.demands():
            if (of_part := await self._explain(caller, part)) is not None:
                problem, field = of_part, at
                break
        raise BadRequestError(f"{field}: cannot be enforced: {problem}.", param=field)

    async def _explain(self, caller: str, structure: Structure) -> str | None:
        if (known := CHECKER.recall(structure)) is not None:
            return known.problem
        return (await self._thread.run(caller, CHECKER.judge, structure)).problem
