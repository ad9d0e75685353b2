"""A generated mailbox with full-text search, and questions whose answers are known.

Each mail tells one fact about one event: the room of the budget meeting, say. Facts are drawn anew for every mailbox, so an answer has
to be found; there is nothing to remember.
"""

import random
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

_EVENTS = """budget launch picnic audit harvest garden tax music safety travel museum river
winter school market bridge coffee chess theatre railway library kitchen forest harbour"""
EVENTS = tuple(_EVENTS.split())
NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
FACTS = {
    "room": "The {event} meeting is in room {value}.",
    "day": "We hold the {event} meeting on {value}.",
    "price": "A ticket for the {event} meeting costs {value} euros.",
    "host": "{value} is the host of the {event} meeting.",
}
SMALL_TALK = ("Best wishes", "See you there", "Thank you", "Please tell the others", "More news soon")

RESULTS = 4
"""Mails that a search shows."""


@dataclass(frozen=True)
class Mail:
    """A mail that tells one fact."""

    id: int
    sender: str
    subject: str
    body: str
    event: str
    fact: str
    value: str


@dataclass(frozen=True)
class Task:
    """A question to a mailbox."""

    seed: int
    question: str
    answer: str
    mail: int
    """The mail that tells it."""


def tasks(seeds: Iterable[int]) -> Iterator[Task]:
    """A question to the mailbox of each seed."""
    for seed in seeds:
        mail = random.Random(seed).choice(open_mailbox(seed).mails)
        yield Task(seed, f"What is the {mail.fact} of the {mail.event} meeting?", mail.value, mail.id)


class Mailbox:
    """Mails in SQLite's full-text index (FTS5), in memory."""

    def __init__(self, mails: tuple[Mail, ...]) -> None:
        self.mails = mails
        self._store = sqlite3.connect(":memory:", check_same_thread=False)
        self._store.execute("CREATE VIRTUAL TABLE mail USING fts5(sender, subject, body, tokenize = 'porter')")
        self._store.executemany(
            "INSERT INTO mail (rowid, sender, subject, body) VALUES (?, ?, ?, ?)",
            [(mail.id, mail.sender, mail.subject, mail.body) for mail in mails],
        )

    def search(self, words: str) -> list[Mail]:
        """Mails with any of the words, those that fit best first. Anything may be typed; it is no query language."""
        quoted = ['"' + word.replace('"', '""') + '"' for word in words.replace("\0", " ").split()]
        if not quoted:
            return []
        rows = self._store.execute(
            "SELECT rowid FROM mail WHERE mail MATCH ? ORDER BY bm25(mail), rowid LIMIT ?",
            (" OR ".join(quoted), RESULTS),
        )
        return [self.mails[number - 1] for (number,) in rows]

    def read(self, number: str) -> Mail | None:
        """The mail of this number; ``None`` if there is none."""
        text = number.strip().removeprefix("#")
        return (
            self.mails[int(text) - 1]
            if text.isdecimal() and text.isascii() and 0 < int(text) <= len(self.mails)
            else None
        )


@lru_cache(maxsize=512)
def open_mailbox(seed: int) -> Mailbox:
    """The mailbox of a seed: every fact of twelve events."""
    chance = random.Random(seed)
    mails: list[tuple[str, str]] = [(event, fact) for event in chance.sample(EVENTS, 12) for fact in FACTS]
    chance.shuffle(mails)
    return Mailbox(tuple(_write(number, event, fact, chance) for number, (event, fact) in enumerate(mails, 1)))


def _write(number: int, event: str, fact: str, chance: random.Random) -> Mail:
    value = chance.choice({"day": DAYS, "host": NAMES}.get(fact) or tuple(map(str, range(10, 100))))
    sender = chance.choice(NAMES)
    body = f"{FACTS[fact].format(event=event, value=value)} {chance.choice(SMALL_TALK)}, {sender}"
    return Mail(number, sender, f"{event} {fact}", body, event, fact, value)


class Session:
    """One task in progress: what the tools do, and how far the agent came."""

    def __init__(self, task: Task) -> None:
        self.task, self.mailbox = task, open_mailbox(task.seed)
        self.given: str | None = None
        """The answer, once it was given."""
        self.found = self.opened = False
        """Whether the mail that tells the answer was listed, and read."""
        self.calls = 0

    def search(self, words: str) -> str:
        """A line for each mail that fits."""
        self.calls += 1
        mails = self.mailbox.search(words)
        self.found |= any(mail.id == self.task.mail for mail in mails)
        return "\n".join(f"{mail.id}: {mail.subject}" for mail in mails) or "nothing found"

    def read(self, number: str) -> str:
        """What a mail says."""
        self.calls += 1
        mail = self.mailbox.read(number)
        self.opened |= mail is not None and mail.id == self.task.mail
        return "no such mail" if mail is None else f"From {mail.sender}: {mail.body}"

    def answer(self, text: str) -> str:
        """End the task. The first answer counts."""
        self.calls += 1
        if self.given is None:
            self.given = text
        return "thank you"

    @property
    def is_right(self) -> bool:
        """Whether the answer is the known one, give or take case and blanks around it."""
        return self.given is not None and self.given.strip().strip(".").casefold() == self.task.answer.casefold()

    @property
    def reward(self) -> float:
        """1 for the right answer; else a little for the way: 0.1 for having found the mail, 0.2 for having read it."""
        return 1.0 if self.is_right else 0.2 if self.opened else 0.1 if self.found else 0.0

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "right": float(self.is_right),
            "answered": float(self.given is not None),
            "found": float(self.found),
            "calls": float(self.calls),
        }
