"""Stories with titles and scores: a loader for the public data, a small generated sample, and the split between them.

The sample stands for the data where there is none, in tests and in the small form. Its titles are of a few kinds, and what readers
give depends on the kind, with much noise; a reward model has to find out on what.
"""

import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from art.errors import ARTError
from art.rewards import PreferencePair

Part = Literal["reward", "training", "validation"]
"""What a story is for: the reward model, the policy's training, or its test."""

ARTICLE_COLUMNS = ("scraped_body", "text", "article")
"""Names that the article's column has in files; the first one that a row fills counts."""
MAX_CHARACTERS = 4000
"""Of an article, from its beginning; what is beyond is not shown."""


@dataclass(frozen=True)
class Story:
    """An article, the title under which it was submitted, and the votes that it got."""

    article: str
    title: str
    score: float

    @property
    def part(self) -> Part:
        """Decided by a digest of the article: half for the reward model, three eighths for training, one for validation."""
        share = hashlib.sha256(self.article.encode()).digest()[0] % 8
        return "reward" if share < 4 else "training" if share < 7 else "validation"


def load_stories(path: Path) -> Iterator[Story]:
    """Stories of a JSONL or Parquet file with the columns ``title``, ``score`` and one of ``ARTICLE_COLUMNS``.

    Rows without title, score or article are left out, as submissions without text are common.

    Raises:
        ARTError: The file is of another kind, lacks a column, or has a line that is no JSON object.
    """
    for row in _read_rows(path):
        article = next((str(row[name]).strip() for name in ARTICLE_COLUMNS if row.get(name)), "")
        title, score = str(row.get("title") or "").strip(), row.get("score")
        if article and title and score is not None:
            yield Story(article[:MAX_CHARACTERS], title, float(score))


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(path)
        names = set(file.schema_arrow.names)
        columns = [name for name in ("title", "score", *ARTICLE_COLUMNS) if name in names]
        _check_columns(path, columns)
        for batch in file.iter_batches(columns=columns):
            yield from batch.to_pylist()
    elif path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ARTError(f"{path}:{number} is no JSON: {error}", 422) from error
                if number == 1:
                    _check_columns(path, row)
                yield row
    else:
        raise ARTError(f"{path} must be a .jsonl or .parquet file.", 422)


def _check_columns(path: Path, names: Iterable[str]) -> None:
    found = set(names)
    if not {"title", "score"} <= found or found.isdisjoint(ARTICLE_COLUMNS):
        raise ARTError(
            f"{path} has the columns {', '.join(sorted(found))}; needed are title, score and one of "
            f"{', '.join(ARTICLE_COLUMNS)}.",
            422,
        )


# The sample.

KINDS = ("database", "compiler", "editor", "browser", "debugger", "scheduler", "parser", "router")
LANGUAGES = ("Rust", "Go", "Zig", "Python", "C", "Haskell")
GAINS = ("less memory", "less power", "fewer lines", "less time")
SYLLABLES = ("ka", "lo", "mi", "ra", "tu", "ve", "zo", "qui", "pex", "dor")
PLACES = ("Basel", "Oslo", "Lima", "Kyoto", "Perth", "Accra")


@dataclass(frozen=True)
class TitleStyle:
    """A way to title a story, and the votes that it gets, typically."""

    pattern: str
    votes: float


STYLES = (
    TitleStyle("{name}: a {kind} in {language} that needs {percent}% {gain}", 120),
    TitleStyle("Show HN: {name}, a {kind} in {language}", 70),
    TitleStyle("{name}, a {kind} written in {place}", 30),
    TitleStyle("A new {kind}", 10),
    TitleStyle("Thoughts on the {kind} and other things", 8),
    TitleStyle("You will not believe what this {kind} does", 4),
)
NOISE = 0.7
"""Standard deviation of the logarithm of the votes."""


def sample_stories(seed: int = 0) -> Iterator[Story]:
    """Generated stories for ever, in the same order for the same seed."""
    chance = random.Random(f"stories {seed}")
    while True:
        facts = {
            "name": "".join(chance.sample(SYLLABLES, 3)).capitalize(),
            "kind": chance.choice(KINDS),
            "language": chance.choice(LANGUAGES),
            "percent": str(chance.randrange(11, 90)),
            "gain": chance.choice(GAINS),
            "place": chance.choice(PLACES),
        }
        style = chance.choice(STYLES)
        article = (
            "{name} is a {kind}. A team in {place} wrote it in {language}. In their tests it needs {percent}% {gain} than before."
        ).format(**facts)
        yield Story(article, style.pattern.format(**facts), round(style.votes * math.exp(chance.gauss(0, NOISE))))


def select(stories: Iterable[Story], part: Part) -> Iterator[Story]:
    """The stories of one part."""
    return (story for story in stories if story.part == part)


def as_conversation(title: str) -> list[Any]:
    """What the reward model sees: the title alone, as readers of a list do. Whether it is true is not its business."""
    return [{"role": "user", "content": "Title"}, {"role": "assistant", "content": title}]


def make_pairs(stories: Iterable[Story], count: int) -> list[PreferencePair]:
    """Pairs of titles of which one got more votes. Each story is in one pair at most."""
    pairs: list[PreferencePair] = []
    source = iter(stories)
    while len(pairs) < count:
        two = sorted(islice(source, 2), key=lambda story: story.score)
        if len(two) < 2:
            break
        if two[0].score != two[1].score:
            rejected, chosen = (as_conversation(story.title) for story in two)
            pairs.append(PreferencePair(chosen=chosen, rejected=rejected, group=str(len(pairs))))
    return pairs
