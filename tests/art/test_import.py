import importlib
import subprocess
import sys

import pytest

import art

HEAVY = (
    "torch",
    "transformers",
    "fastapi",
    "litellm",
    "pandas",
    "polars",
    "pyarrow",
    "openai",
    "httpx",
    "wandb",
    "art_backend",
)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_art_loads_nothing_heavy_and_changes_nothing():
    code = f"""
import os, sys
before = dict(os.environ)
import pytest

import art
print([name for name in {HEAVY!r} if name in sys.modules], dict(os.environ) == before)
"""
    assert run(code).strip() == "[] True"


def test_using_the_frontend_loads_nothing_of_the_backend():
    code = """
import sys, art
[getattr(art, name) for name in art.__all__]
print([name for name in ("torch", "transformers", "fastapi", "pandas", "art_backend") if name in sys.modules])
"""
    assert run(code).strip() == "[]"


def test_every_public_name_resolves_and_is_listed():
    for name in art.__all__:
        assert getattr(art, name) is not None
        assert name in dir(art)


def test_an_unknown_name_is_an_attribute_error():
    try:
        art.no_such_name  # noqa: B018
    except AttributeError as error:
        assert "no attribute 'no_such_name'" in str(error)
    else:
        raise AssertionError("resolved")


@pytest.mark.parametrize("module", ["art.loss", "art.serverless", "art.utils.deployment", "art.utils.s3"])
def test_what_is_not_offered_does_not_import(module):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(module)
