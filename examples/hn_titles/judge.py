"""Is a title true to its article? A program checks words and numbers; a model can check what it means."""

import re
from collections.abc import Awaitable, Callable

from openai import AsyncOpenAI

Judge = Callable[[str, str], Awaitable[float]]
"""(article, title) → from 0, made up, to 1, true."""

_FREE = """a an the and or of in on for with to from by at as is are it its this that than show hn ask new how why what using
without about written made now one"""
FREE_WORDS = frozenset(_FREE.split())
"""Words that claim nothing."""

QUESTION = """\
Article:
{article}

Title: {title}

Is everything that the title says supported by the article? Answer yes or no."""


async def check_words(article: str, title: str) -> float:
    """The share of the title's words that stand in the article; 0 if a number does not, or if there is nothing to check.

    It sees made-up words and numbers, not a wrong order of right ones.
    """
    known = set(_words(article))
    claims = [word for word in _words(title) if word not in FREE_WORDS]
    if not claims or any(word[0].isdigit() and word not in known for word in claims):
        return 0.0
    return sum(word in known for word in claims) / len(claims)


def ask_model(client: AsyncOpenAI, name: str) -> Judge:
    """A judge behind an OpenAI endpoint. Only an answer whose first word is yes counts as one."""

    async def judge(article: str, title: str) -> float:
        completion = await client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": QUESTION.format(article=article, title=title)}],
            max_tokens=4,
            temperature=0,
        )
        return float(_words(completion.choices[0].message.content or "")[:1] == ["yes"])

    return judge


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
