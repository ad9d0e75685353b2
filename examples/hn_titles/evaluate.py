"""``python -m examples.hn_titles.evaluate``."""

from functools import partial
from itertools import islice

from art.evaluation import Interval
from art.experiment import Results, Run, Score, compare, evaluation_command

from .environment import select
from .rollout import score_title, write_title
from .train import EXAMPLE, find_judge, open_reward_model, stories


async def evaluate(run: Run) -> Results:
    """Compare the base model, the trained one, the title that each article had, and its first sentence, on unseen articles."""
    run.check_begun()
    judge = find_judge()
    held_out = list(islice(select(stories(run), "validation"), run.settings.episodes))
    async with await open_reward_model(run) as reward_model:
        titles = {
            "submitted title": {story: story.title for story in held_out},
            "first sentence": {story: story.article.partition(". ")[0] for story in held_out},
        }
        scores = {
            name: {
                story: Score(*await score_title(story.article, title, reward_model, judge))
                for story, title in found.items()
            }
            for name, found in titles.items()
        }
        report = reward_model.report
        return await compare(
            run,
            partial(write_title, reward_model=reward_model, judge=judge),
            held_out,
            {name: found.__getitem__ for name, found in scores.items()},
            measured={
                "pairs of held-out titles that the reward model gets right (chance: 0.5)": Interval(
                    report.accuracy, report.accuracy_low, report.accuracy_high
                )
            },
        )


if __name__ == "__main__":
    evaluation_command(EXAMPLE, evaluate)
