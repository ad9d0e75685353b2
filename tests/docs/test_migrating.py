"""What docs/migrating.md says of older names is so: they work, they mean what stands beside them, or they are gone."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from tests.art.test_names import EXPORTS

from art.backend.options import build_options

PAGE = (Path(__file__).parents[2] / "docs/migrating.md").read_text()
OLDER_PATHS = ("art.dev", "art.guided_completion", "art.langgraph", "art.mcp", "art.pipeline_trainer", "art.utils")


def rows(heading):
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in section.splitlines()
        if "`" in line and line.startswith("|")
    ]


def names(heading):
    return [name for older, _ in rows(heading) for name in re.findall(r"`(art[\w.]+)`", older)]


def find(name):
    """The object of a dotted name; raises if there is none."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def keywords(cell):
    call = ast.parse(f"f({cell.strip('`')})", mode="eval").body
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}


@pytest.mark.parametrize("name", names("Names that work"))
def test_it_works(name):
    assert find(name) is not None


@pytest.mark.parametrize(("older", "ours"), rows("Keywords of `backend.train`"))
def test_a_keyword_means_what_stands_beside_it(older, ours):
    meant = {} if ours.startswith("the default") else keywords(ours)
    assert build_options(1e-5, keywords(older)) == build_options(1e-5, meant)


@pytest.mark.parametrize("name", names("Names that are gone"))
def test_it_is_gone(name):
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        find(name)


def test_every_name_of_the_older_paths_is_on_the_page():
    listed = {
        f"{module}.{name}" for module in EXPORTS if module.startswith(OLDER_PATHS) for name in EXPORTS[module].split()
    }
    assert listed - set(names("Names that work")) == set()
