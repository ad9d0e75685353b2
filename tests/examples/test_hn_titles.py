"""Stories from files and from the sample, their split, pairs, the judge and the reward."""

import json
import math
from itertools import islice

import httpx
import pyarrow
import pyarrow.parquet
import pytest
from examples.hn_titles.environment import (
    MAX_CHARACTERS,
    Story,
    load_stories,
    make_pairs,
    sample_stories,
    select,
)
from examples.hn_titles.judge import ask_model, check_words
from examples.hn_titles.rollout import EXAMPLE_ARTICLE, EXAMPLE_TITLE, score_title
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from art.errors import ARTError

ARTICLE = "Kalomi is a parser. A team in Oslo wrote it in Rust. In their tests it needs 45% less time than before."
ROWS = [
    {"id": 1, "title": "A title", "scraped_body": " The article. ", "score": 12, "text": None},
    {"id": 2, "title": "Only a link", "scraped_body": None, "score": 3, "text": None},
    {"id": 3, "title": "Ask HN: what?", "scraped_body": "", "score": 5, "text": "A question."},
    {"id": 4, "title": None, "scraped_body": "x", "score": 5, "text": None},
    {"id": 5, "title": "Long", "scraped_body": "x" * 9999, "score": 0, "text": None},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_stories_of_a_file(tmp_path, kind):
    path = tmp_path / f"stories.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert list(load_stories(path)) == [
        Story("The article.", "A title", 12),
        Story("A question.", "Ask HN: what?", 5),
        Story("x" * MAX_CHARACTERS, "Long", 0),
    ]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "title", r"must be a \.jsonl or \.parquet"),
        ("a.jsonl", '{"title": "x", "score": 1}\n', "needed are title, score and one of"),
        ("a.jsonl", '{"title": "x", "text": "y"}\n', "needed are title, score and one of"),
        ("a.jsonl", '{"title": "x", "text": "y", "score": 1}\n{"ti', r"a\.jsonl:2 is no JSON"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, name, content, problem):
    (tmp_path / name).write_text(content)
    with pytest.raises(ARTError, match=problem):
        list(load_stories(tmp_path / name))


def test_the_sample_repeats_and_its_parts_share_nothing():
    found = list(islice(sample_stories(), 2000))
    assert found == list(islice(sample_stories(), 2000))
    parts = {part: {story.article for story in select(found, part)} for part in ("reward", "training", "validation")}
    assert 150 < len(parts["validation"]) < 350
    assert 600 < len(parts["training"]) < 900
    assert 850 < len(parts["reward"]) < 1150
    assert parts["reward"].isdisjoint(parts["training"] | parts["validation"])
    assert parts["training"].isdisjoint(parts["validation"])


def test_pairs_prefer_the_title_with_more_votes():
    stories = list(islice(sample_stories(), 400))
    votes = {story.title: [] for story in stories}
    for story in stories:
        votes[story.title].append(story.score)
    pairs = make_pairs(stories, 150)
    assert len(pairs) == 150
    assert len({pair.group for pair in pairs}) == 150
    for pair in pairs:
        chosen, rejected = (one[-1]["content"] for one in (pair.chosen, pair.rejected))
        assert max(votes[chosen]) > min(votes[rejected])
    concrete = [pair.chosen[-1]["content"] for pair in pairs if "% " in pair.chosen[-1]["content"]]
    disliked = [pair.rejected[-1]["content"] for pair in pairs if "% " in pair.rejected[-1]["content"]]
    assert len(concrete) > 3 * len(disliked), "numbers are popular in the sample"
    assert make_pairs([Story("a", "x", 1), Story("b", "y", 1), Story("c", "z", 2)], 5) == [], (
        "equal votes, and one left over"
    )


@pytest.mark.parametrize(
    ("title", "true"),
    [
        ("Kalomi: a parser in Rust that needs 45% less time", 1),
        ("Show HN: Kalomi, a parser in Rust", 1),
        ("KALOMI!", 1),
        ("Kalomi, a parser in Go", 2 / 3),
        ("Kalomi needs 54% less time", 0),
        ("You will believe this", 0),
        ("A new one", 0),
        ("", 0),
    ],
)
async def test_words_that_the_article_does_not_know(title, true):
    assert await check_words(ARTICLE, title) == pytest.approx(true)


@given(st.text(), st.text())
async def test_the_judge_stays_in_its_bounds(article, title):
    assert 0 <= await check_words(article, title) <= 1


async def test_titles_of_the_sample_are_true_if_they_name_their_subject():
    for story in islice(sample_stories(), 200):
        if story.article.split()[0] in story.title:
            assert await check_words(story.article, story.title) == 1
    assert await check_words(EXAMPLE_ARTICLE, EXAMPLE_TITLE) == 1


async def test_a_model_as_judge():
    said = iter(["Yes.", "no", "Yesterday"])

    def answer(request):
        assert ARTICLE in json.loads(request.content)["messages"][0]["content"]
        choice = {"index": 0, "message": {"role": "assistant", "content": next(said)}, "finish_reason": "stop"}
        return httpx.Response(
            200, json={"id": "1", "object": "chat.completion", "created": 0, "model": "any", "choices": [choice]}
        )

    transport = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with AsyncOpenAI(base_url="http://judge/v1", api_key="none", http_client=transport) as client:
        judge = ask_model(client, "any")
        assert [await judge(ARTICLE, "Kalomi") for _ in range(3)] == [1, 0, 0]


class Scorer:
    async def score(self, conversations):
        return [math.log(3) for _ in conversations]


async def test_the_reward_is_popularity_times_truth():
    assert await score_title(ARTICLE, " Kalomi in Rust ", Scorer(), check_words) == (
        pytest.approx(0.75),
        {"popular": pytest.approx(0.75), "true": 1},
    )
    assert (await score_title(ARTICLE, "Kalomi in Go", Scorer(), check_words))[0] == pytest.approx(0.375)
    for title in ("", " \n", "Kalomi\nRust"):
        assert (await score_title(ARTICLE, title, Scorer(), check_words))[0] == 0
