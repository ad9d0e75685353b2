"""``python -m art_backend.tokens.grammar``: tries structures, each in a fork that may die of it.

Reads one JSON list a line, kind and text; answers with one line: ``null``, or why the structure cannot be enforced. Ends with its
standard input.
"""

import json
import os
import resource
import signal
import sys

from llguidance import LLMatcher, LLTokenizer

from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.guidance import StructureError, compile_structure, first_line

STACK_BYTES = 2**20
"""An eighth of what threads and processes have by default: enough for about a hundred references in a chain."""

CPU_S = 1
MEMORY_BYTES = 2**30

MAX_ANSWER = 500
"""Characters."""


class _Bytes:
    """A vocabulary of bytes."""

    eos_token_id = 256
    bos_token_id: int | None = None
    tokens = [*(bytes([i]) for i in range(256)), b""]
    special_token_ids = [256]
    is_tokenizer_wrapper = True

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def try_structure(structure: Structure, tokenizer: LLTokenizer) -> str | None:
    """Do what engines and trainers will do; return the error of the compiler, if there is one."""
    try:
        grammar = compile_structure(structure)
    except StructureError as error:
        return str(error)
    if problem := first_line(LLMatcher.validate_grammar(grammar)):
        return problem
    # The mask itself depends on the vocabulary and does not matter here: computing it must be survived.
    LLMatcher(tokenizer, grammar, log_level=0).deep_copy().compute_bitmask()
    return None


def fork_and_try(structure: Structure, tokenizer: LLTokenizer) -> str | None:
    """Try a structure in a fork with its own limits."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
            problem = try_structure(structure, tokenizer)
            os.write(writing, json.dumps(problem and problem[:MAX_ANSWER]).encode())
        finally:
            os._exit(0)  # whatever was raised: without an answer it failed
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status == 0 and answer:
        return json.loads(answer)
    ended_by = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    if ended_by in (signal.SIGXCPU, signal.SIGKILL):
        return f"compiling it takes more than {CPU_S} s; make it simpler"
    if ended_by in (signal.SIGSEGV, signal.SIGBUS):
        return "it is nested, or its references are chained, too deeply; make it flatter"
    return f"compiling it takes more than {MEMORY_BYTES // 2**20} MiB; make it simpler"


def main() -> None:
    tokenizer = LLTokenizer(_Bytes(), n_vocab=257)  # pyright: ignore[reportArgumentType]
    for line in sys.stdin.buffer:
        kind, text = json.loads(line)
        sys.stdout.write(json.dumps(fork_and_try(Structure(kind, text), tokenizer)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
