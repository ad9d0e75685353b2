"""Compile structures in a separate process first, before this process or an engine does.

``llguidance`` recurses on the native stack: a structure that is nested or chained deeply enough ends the process that compiles it.
So each new structure is first compiled, and its first mask computed, in a child that may die of it (``art_backend.tokens.grammar``
as a program), on a stack that is a fraction of ours. What survives there is safe here. Verdicts are kept by digest.
"""

import contextlib
import hashlib
import json
import selectors
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO

from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.guidance import StructureError, check_size

MAX_VERDICTS = 8192
"""Verdicts that are kept; each is a digest and at most one short sentence."""

ANSWER_TIMEOUT_S = 60.0
"""Seconds that the child may take. It limits its own processor time to seconds, so this only ends one that hangs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``problem`` says why a structure cannot be enforced, as far as that depends on no vocabulary; ``None`` if it can."""

    problem: str | None


class StructureChecker:
    """The verdicts of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._verdicts: dict[bytes, Verdict] = {}
        self._asking = threading.Lock()

    def recall(self, structure: Structure) -> Verdict | None:
        """Return the verdict on a structure that was tried before. Never waits."""
        return self._verdicts.get(_digest(structure))

    def judge(self, structure: Structure) -> Verdict:
        """Try a structure, unless it was tried before.

        An ordinary one that is new takes milliseconds, a hostile one about a second; one waits for the other.
        """
        with self._asking:
            if (known := self.recall(structure)) is not None:
                return known
            verdict = self._verdicts[_digest(structure)] = Verdict(self._try(structure))
            while len(self._verdicts) > MAX_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            return verdict

    def _try(self, structure: Structure) -> str | None:
        try:
            check_size(structure)
        except StructureError as error:
            return str(error)
        failure: Exception | None = None
        for _ in range(2):
            try:
                return self._ask(structure)
            except (OSError, EOFError) as error:  # the child was ended from outside, or hangs
                self._end()
                failure = error
        raise RuntimeError(f"The process that compiles structures failed twice: {failure!r}") from failure

    def _ask(self, structure: Structure) -> str | None:
        """Raises OSError or EOFError where the child ended; TimeoutError where it hangs."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "art_backend.tokens.grammar"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([structure.kind, structure.text]).encode() + b"\n")
        self._child.stdin.flush()
        return json.loads(_read_line(self._child.stdout))

    def _end(self) -> None:
        if (child := self._child) is not None:
            self._child = None
            child.kill()
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            child.wait()


CHECKER = StructureChecker()
"""This process's own."""


def _read_line(pipe: IO[bytes]) -> bytes:
    with selectors.DefaultSelector() as selector:  # select() itself knows no files beyond the first 1,024
        selector.register(pipe, selectors.EVENT_READ)
        if not selector.select(ANSWER_TIMEOUT_S):
            raise TimeoutError(f"the process that compiles structures did not answer within {ANSWER_TIMEOUT_S:g} s")
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


def _digest(structure: Structure) -> bytes:
    return hashlib.blake2b(f"{structure.kind}\0{structure.text}".encode(), digest_size=16).digest()
