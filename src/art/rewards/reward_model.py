"""Rewards from a model trained on preferences."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from art.errors import BadRequestError
from art.rewards.worker import RewardWorker
from art.trajectories import Trajectory, TrajectoryGroup, get_messages
from art.types import MessagesAndChoices
from art.wire.rewards import (
    LoadReward,
    PreferencePair,
    RewardReady,
    RewardReport,
    ScoreConversations,
    ScoredExample,
    Scores,
    TrainReward,
)

__all__ = ["PreferencePair", "RewardModel", "RewardReport", "ScoredExample"]


class RewardModel:
    """A trained scorer of conversations, for use as a reward function.

        pairs = [PreferencePair(chosen=[...], rejected=[...]), ...]
        reward_model = await RewardModel.train("Qwen/Qwen3-0.6B", "rewards/helpful", pairs=pairs)
        print(reward_model.report)
        groups = await art.gather_trajectory_groups(rollouts, after_each=reward_model.score_group)

    Scores are calibrated: sigmoid(a - b) is the probability that the conversation scored ``a`` is better than that scored
    ``b``. It runs in a separate process, which needs the extras ``backend`` and ``trl``.

    >>> def talk(answer):
    ...     return [{"role": "user", "content": "Help me?"}, {"role": "assistant", "content": answer}]
    >>> pairs = [PreferencePair(chosen=talk(f"Gladly {n}."), rejected=talk(f"No {n}."), group=str(n)) for n in range(8)]
    >>> async with await RewardModel.train(base_model, "helpful", pairs=pairs, held_out=0.5) as reward_model:
    ...     scores = await reward_model.score([talk("Gladly."), talk("No.")])
    >>> len(scores), reward_model.report.held_out_pairs
    (2, 2)
    """

    def __init__(self, path: Path, report: RewardReport, worker: RewardWorker) -> None:
        self.path = path
        """Directory of the model, in the Hugging Face format for sequence classification."""
        self.report = report
        """Quality on held-out pairs."""
        self._worker = worker

    @classmethod
    async def train(
        cls,
        base_model: str,
        path: str | Path,
        *,
        pairs: Iterable[PreferencePair | Mapping[str, Any]] = (),
        examples: Iterable[ScoredExample | Mapping[str, Any]] = (),
        learning_rate: float = 1e-5,
        epochs: int = 1,
        batch_size: int = 8,
        max_length: int = 2048,
        held_out: float = 0.2,
        lora_rank: int | None = None,
        seed: int = 0,
    ) -> Self:
        """Train with TRL's ``RewardTrainer``, calibrate, report on held-out pairs, and save.

        Args:
            base_model: A local path, a hub id, or another name that backends resolve.
            path: The directory to save to, which must not exist; it appears as a whole.
            pairs: Preferences: ``{"chosen": messages, "rejected": messages}``, with ``group`` naming the task.
            examples: Scored conversations, such as production feedback: ``{"messages": messages, "score": 1.0}``. Those of
                one ``group`` are compared with each other; those without a group likewise.
            max_length: In tokens. Pairs with a longer conversation are left out and counted in the report.
            held_out: Fraction of the tasks held out: half calibrates the scores, the other half is for the report.
            lora_rank: Train a low-rank adapter and merge it; ``None`` trains all weights.

        Raises:
            BadRequestError: Too few pairs, ``path`` exists, or the base model was not found; the message says which.
            MissingExtraError: TRL or the backend is not installed.
        """
        spec = TrainReward(
            base_model=base_model,
            output=_absolute(path),
            pairs=[_as(PreferencePair, pair, ("chosen", "rejected")) for pair in pairs],
            examples=[_as(ScoredExample, example, ("messages",)) for example in examples],
            learning_rate=learning_rate,
            epochs=epochs,
            batch_size=batch_size,
            max_length=max_length,
            held_out=held_out,
            lora_rank=lora_rank,
            seed=seed,
        )
        return await cls._open(spec)

    @classmethod
    async def load(cls, path: str | Path) -> Self:
        """Load a saved reward model.

        Raises:
            BadRequestError: ``path`` holds no reward model.
        """
        return await cls._open(LoadReward(path=_absolute(path)))

    @classmethod
    async def _open(cls, request: TrainReward | LoadReward) -> Self:
        worker = RewardWorker()
        try:
            ready = await worker.ask(request, RewardReady)
        except BaseException:
            await worker.close()
            raise
        return cls(Path(ready.path), ready.report, worker)

    def save(self, path: str | Path) -> Path:
        """Copy the model to another directory, which must not exist."""
        target = Path(path).absolute()
        if target.exists():
            raise BadRequestError(f"{target} already exists. Choose a new directory.", 400, param="path")
        partial = target.with_name(f".{target.name}.partial")
        try:
            shutil.copytree(self.path, partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target

    async def score(
        self, conversations: Sequence[MessagesAndChoices | Trajectory], *, batch_tokens: int = 16384
    ) -> list[float]:
        """Score conversations, in order.

        Args:
            conversations: Messages, sampled choices among them, or trajectories, of which the main conversation counts.
            batch_tokens: Padded tokens per forward pass.

        Raises:
            BadRequestError: A conversation is longer than the model's ``max_length``; nothing was scored.
        """
        if not conversations:
            return []
        plain = [_plain(one) for one in conversations]
        if not self._worker.running:  # it died, or the model was closed
            await self._worker.ask(LoadReward(path=str(self.path)), RewardReady)
        request = ScoreConversations(conversations=plain, batch_tokens=batch_tokens)
        return (await self._worker.ask(request, Scores)).scores

    async def score_group(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """A copy of ``group`` with the scores as rewards; use it as ``after_each`` of gathering.

        Each trajectory keeps its own reward as ``metrics["independent_reward"]``.
        """
        judged = group.model_copy(deep=True)
        for trajectory, score in zip(judged.trajectories, await self.score(judged.trajectories), strict=True):
            trajectory.metrics["independent_reward"] = trajectory.reward
            trajectory.metrics["reward_model_score"] = score
            trajectory.reward = score
        return judged

    async def close(self) -> None:
        """End the model's process. The next call of ``score`` starts it again."""
        await self._worker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _absolute(path: str | Path) -> str:
    return str(Path(path).absolute())


def _plain(conversation: "MessagesAndChoices | Trajectory") -> list[dict[str, Any]]:
    items = conversation.messages_and_choices if isinstance(conversation, Trajectory) else conversation
    return cast(list[dict[str, Any]], get_messages(items))


def _as(kind: Any, item: Any, conversations: tuple[str, ...]) -> Any:
    """An item with its conversations as plain messages."""
    if isinstance(item, kind):
        return item
    fields = dict(cast(Mapping[str, Any], item))
    for name in conversations:
        if name in fields:
            fields[name] = _plain(fields[name])
    return kind.model_validate(fields)
