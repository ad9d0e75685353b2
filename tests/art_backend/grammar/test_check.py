"""No structure ends the process that is asked to enforce it."""

import faulthandler
import json
import os
import resource
import signal
import statistics
import time

import numpy as np
import pytest
from pydantic import BaseModel
from tests.support.hostile import DEEP, FLAT
from tests.support.tiny import build_tiny_tokenizer

from art.wire import StructuredSpan, TokenRow
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar import __main__ as program
from art_backend.tokens.grammar.check import StructureChecker
from art_backend.tokens.grammar.guidance import MAX_CHOICES, StructureError
from art_backend.tokens.grammar.vocabulary import MAX_COMPILED_BYTES, GrammarVocabulary
from art_backend.training.rows.structures import StructureReplay


class Person(BaseModel):
    name: str
    tags: list[str]
    friend: "Person | None" = None


@pytest.fixture
def checker():
    return StructureChecker()


@pytest.mark.parametrize("name", FLAT)
def test_what_exceeds_a_limit_is_refused_unread(checker, name):
    assert "the limit is" in checker.judge(FLAT[name]).problem
    assert checker._child is None


@pytest.mark.parametrize("name", DEEP)
def test_what_kills_its_compiler_is_refused(checker, name):
    assert "too deeply" in checker.judge(DEEP[name]).problem
    assert checker.judge(Structure("regex", "[ab]+")).problem is None


@pytest.mark.parametrize("name", [*FLAT, *DEEP])
def test_neither_engine_nor_trainer_compiles_it(tmp_path, name):
    structure = {**FLAT, **DEEP}[name]
    with pytest.raises(StructureError):
        GrammarVocabulary(build_tiny_tokenizer(), 259).start(structure, [2])
    build_tiny_tokenizer().save_pretrained(tmp_path)
    span = StructuredSpan(start=1, stop=3, structured_outputs=structure.to_wire(), stop_token_ids=[2])
    row = TokenRow(
        token_ids=[5, 6, 7],
        sampled=[False, True, True],
        logprobs=[0.0, -1.0, -1.0],
        policy_versions=[-1, 0, 0],
        temperature=1.0,
        structures=[span],
    )
    replay, trained = StructureReplay(tmp_path, 259), np.array([False, True, True])
    assert replay.replay(row, trained) is not None
    assert replay.lost == 2
    assert not trained.any()


@pytest.mark.parametrize(
    ("structure", "why"),
    [
        (Structure("json", json.dumps({"description": "x" * 300_000})), "bytes, the limit is"),
        (Structure("choice", json.dumps([f"c{i}" for i in range(40_000)])), "the limit is"),
        (Structure("choice", json.dumps([str(i) for i in range(MAX_CHOICES + 1)])), f"the limit is {MAX_CHOICES}"),
        (Structure("regex", "(" * 5000 + "a" + ")" * 5000), "regex"),
        (Structure("json", json.dumps({"type": "integer", "minimum": 5, "maximum": 3})), "maximum"),
        (Structure("json", "[" * 100_000), "JSON"),
    ],
)
def test_each_limit_is_named(checker, structure, why):
    assert why in checker.judge(structure).problem


def die(number):
    faulthandler.disable()
    os.kill(os.getpid(), number)


def spin(structure, tokenizer):
    while True:
        pass


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (spin, "takes more than 1 s"),
        (lambda structure, tokenizer: str(len(bytearray(2**31))), "takes more than 1024 MiB"),
        (lambda structure, tokenizer: die(signal.SIGSEGV), "too deeply"),
        (lambda structure, tokenizer: die(signal.SIGABRT), "MiB"),
        (lambda structure, tokenizer: "x" * 100_000, "x" * 500),
    ],
)
def test_the_end_of_a_compiler_is_explained(monkeypatch, work, why):
    monkeypatch.setattr(program, "try_structure", work)
    assert why in program.fork_and_try(Structure("regex", "a"), None)


def test_ordinary_structures_pass_and_are_tried_once(checker):
    spent, children = [], set()
    for i in range(20):
        structure = Structure("json", json.dumps({**Person.model_json_schema(), "title": str(i)}))
        started = time.perf_counter()
        assert checker.judge(structure).problem is None
        spent.append(time.perf_counter() - started)
        assert checker.recall(structure) is not None
        children.add(checker._child.pid)
    assert len(children) == 1, "a new schema costs no new process"
    assert statistics.median(spent) < 1, "but milliseconds, where nobody else computes"
    child = checker._child
    os.kill(child.pid, signal.SIGSTOP)  # nobody is asked again
    assert checker.judge(structure).problem is None
    os.kill(child.pid, signal.SIGKILL)
    assert checker.judge(Structure("regex", "a")).problem is None, "a child that was ended is replaced"
    assert checker._child.pid != child.pid


def test_compiled_structures_are_bounded_by_bytes():
    vocabulary = GrammarVocabulary(build_tiny_tokenizer(), 259)
    for i in range(12):
        vocabulary.start(Structure("json", json.dumps({"const": f"{i}", "description": "x" * 200_000})), [2])
    assert 0 < vocabulary._compiled_bytes <= MAX_COMPILED_BYTES
    assert vocabulary._compiled_bytes == sum(len(structure.text) for structure in vocabulary._compiled)


def test_the_child_answers_where_very_many_files_are_open(checker):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert checker.judge(Structure("regex", "a+")).problem is None
        assert checker._child.stdout.fileno() > 1024
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
