"""Every function and class that ``art`` lists has an example in its docstring, and every example does what it shows.

Examples of what else scripts import (``EXPORTS``) and of what docs/reference has are run, too; data without behaviour needs none.

Examples are those of doctest, with ``await`` at the top level. They run in an empty directory of their own, in the namespace
of their module, with these names beside it: ``art``; ``base_model``, the directory of a small model; ``backend``, where
``model`` is registered, and its ``service_url`` and ``service_key``; ``rollout(model, scenario)`` and ``groups``, which it played; ``endpoint``, where another model is
that knows one answer.
"""

import ast
import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import traceback
import types

import pytest
import pytest_asyncio
from fastapi import FastAPI
from tests.art.conftest import serving
from tests.art.test_names import EXPORTS
from tests.docs.reference import make_reference

import art

ANSWER = '{"scenarios": [{"task": "Add 2 and 3.", "difficulty": 1}]}'

pytestmark = pytest.mark.asyncio(loop_scope="module")


def public_objects():
    """Functions and classes of ART that public names stand for, each once, under where they are defined."""
    names = [(module, name) for module, listed in EXPORTS.items() for name in listed.split()]
    names += [("art", name) for name in art.__all__]
    names += [
        (module, node.name)
        for _, modules in make_reference.PAGES.values()
        for module in modules
        for node in make_reference.documented(module)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = {}
    for module, name in names:
        value = getattr(importlib.import_module(module), name)
        if isinstance(value, types.FunctionType | type) and value.__module__.startswith("art."):
            found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def has_example(value):
    return ">>> " in (inspect.getdoc(value) or "")


OBJECTS = {name: value for name, value in public_objects().items() if has_example(value)}


async def test_what_art_lists_has_examples():
    listed = [getattr(art, name) for name in art.__all__]
    assert [v for v in listed if isinstance(v, types.FunctionType | type) and not has_example(v)] == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def given(tmp_path_factory, tiny_model_path):
    async def rollout(model, scenario):
        question = {"role": "user", "content": scenario}
        answer = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[question], max_tokens=4
        )
        choice = answer.choices[0]
        reward = float(len(choice.message.content or ""))
        return art.Trajectory(messages_and_choices=[question, choice], reward=reward)

    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat():
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    path = tmp_path_factory.mktemp("examples")
    async with art.LocalBackend(path=path) as backend:
        model = art.TrainableModel(name="learner", project="examples", base_model=str(tiny_model_path))
        await model.register(backend)
        groups = [await art.TrajectoryGroup(rollout(model, "Hi.") for _ in range(2))]
        await backend.get_health()
        service = {"service_url": backend._service.url, "service_key": backend._service.api_key}
        names = {**service, "art": art, "base_model": str(tiny_model_path), "backend": backend, "model": model}
        with serving(app) as url:
            yield {**names, "rollout": rollout, "groups": groups, "endpoint": f"{url}/v1"}


@pytest.mark.parametrize("name", OBJECTS)
async def test_the_example_of(name, given, tmp_path, monkeypatch):
    value = OBJECTS[name]
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
    monkeypatch.chdir(tmp_path)
    namespace = {**vars(importlib.import_module(value.__module__)), **given}
    for example in examples:
        said = await run(example.source, namespace)
        if example.exc_msg is not None:
            said, example.want = said.splitlines()[-1], example.exc_msg.strip()
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        checker = doctest.OutputChecker()
        assert checker.check_output(example.want, said + "\n" if said and said[-1] != "\n" else said, flags), (
            f"{name}: {example.source}gave {said!r}, not {example.want!r}"
        )


async def run(source, namespace):
    """What a statement prints; of one that raises, the traceback."""
    code = compile(source, "<example>", "single", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            running = eval(code, namespace)
            if asyncio.iscoroutine(running):
                await running
        except Exception:  # noqa: BLE001  an example may show one
            return traceback.format_exc()
    return out.getvalue()
