"""``python -m examples.email_agent.evaluate``."""

from functools import partial

from art.experiment import Results, Run, Score, compare, evaluation_command

from .environment import Session, Task, tasks
from .rollout import find_answer
from .train import EXAMPLE


async def evaluate(run: Run) -> Results:
    """Compare the base model, the warmed-up one, the trained one and a scripted agent on mailboxes that were never seen."""
    held_out = list(tasks(range(run.settings.episodes)))
    rollout = partial(find_answer, agent="plain" if run.variant == "ruler" else str(run.variant))
    return await compare(run, rollout, held_out, {"first search result": score_first_result})


def score_first_result(task: Task) -> Score:
    """A scripted agent that searches for the question's words, reads the first mail, and answers with its last number or name."""
    session = Session(task)
    first, _, _ = session.search(task.question).partition(":")
    words = session.read(first).partition(". ")[0].replace(":", "").split()
    session.answer(next((word for word in reversed(words) if word.isdigit() or word[0].isupper()), ""))
    return Score(session.reward, session.metrics)


if __name__ == "__main__":
    evaluation_command(EXAMPLE, evaluate)
