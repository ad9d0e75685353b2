"""From trajectories to what a train request says about them: rewards, and references to captured tokens.

Each choice that was sampled through the gateway carries ``art: {turn, rollout, policy_version}``. The reference is what
travels; the tokens stay where they were captured. Conversations that were not captured travel as messages.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel

from art.errors import NoTrainingDataError
from art.logs.rows import as_number, scenario_id_of
from art.trajectories import History, Trajectory, TrajectoryGroup, get_messages, is_choice
from art.types import MessagesAndChoices
from art.wire import Conversation, Example, TrainGroup, TrainTrajectory


def build_train_groups(
    groups: Sequence[TrajectoryGroup], *, allow_uncaptured: bool = False
) -> tuple[list[TrainGroup], list[str]]:
    """Resolve every trajectory to references.

    Args:
        allow_uncaptured: A trajectory in which nothing was captured is sent as messages instead of being refused.

    Returns:
        The groups that hold a trajectory, and one sentence for each group in which every rollout failed. A trajectory in which
        nothing was sampled goes without references: its reward counts in its group.

    Raises:
        NoTrainingDataError: A reward is not finite, a turn would be trained twice, or sampled tokens cannot be found; the
            message names the group, the trajectory, the message and the reason. Nothing was sent.
        TypeError: Something else than a group was given, or a reward or a metric is no number.
    """
    built: list[TrainGroup] = []
    left_out: list[str] = []
    once = _Once()
    for g, group in enumerate(groups):
        remedy = "Trajectories are compared within a group: pass [art.TrajectoryGroup(trajectories)]."
        check_kind(group, TrajectoryGroup, f"groups: item {g}", remedy)
        members: list[TrainTrajectory] = []
        for t, trajectory in enumerate(group.trajectories):
            where = f"group {g}, trajectory {t}"
            if not math.isfinite(as_number(trajectory.reward, f"the reward of {where}")):
                raise NoTrainingDataError(
                    f"The reward of {where} is {trajectory.reward}; it must be a finite number. Nothing was sent."
                )
            captured = _captured(trajectory)
            once.check(trajectory, captured, where)
            members.append(_member(trajectory, captured, where, allow_uncaptured))
        if not members:
            if group.exceptions:
                left_out.append(f"group {g}: all {len(group.exceptions)} rollouts failed; the group was left out")
            continue
        scenario = scenario_id_of(group)
        if scenario is not None:  # half a surrogate pair, which cannot be sent, becomes its escape
            scenario = scenario.encode(errors="backslashreplace").decode()
        built.append(TrainGroup(trajectories=members, scenario=scenario))
    return built, left_out


def build_examples(trajectories: Iterable[Trajectory]) -> list[Example]:
    """Build the examples that supervised fine-tuning learns from trajectories.

    Where all that the assistant says was captured, its exact ids are learned, by reference. Else the conversations are
    sent as messages, and everything that the assistant says in them is learned.

    Raises:
        NoTrainingDataError: The assistant says nothing in a trajectory; the message names it. Nothing was sent.
        TypeError: Something else than a trajectory was given.
    """
    examples: list[Example] = []
    for t, trajectory in enumerate(trajectories):
        check_kind(trajectory, Trajectory, f"trajectories: item {t}")
        captured = _captured(trajectory)
        conversations = [history.messages_and_choices for history in _histories(trajectory)]
        if captured.rollout is not None or (captured.turns and not any(_uncaptured(conversations))):
            examples.append(Example(rollout=captured.rollout, turns=list(captured.turns)))
        elif plain := build_conversations(trajectory, f"trajectory {t}"):
            examples.append(Example(conversations=plain))
        else:
            raise NoTrainingDataError(
                f"Trajectory {t} has no message of the assistant, so there is nothing to learn. Nothing was sent."
            )
    return examples


def check_kind(item: Any, kind: type[Any], what: str, remedy: str = "") -> None:
    """Raises TypeError, with the remedy, if an item is of another kind."""
    if not isinstance(item, kind):
        sentences = [f"{what} is a {type(item).__name__}, not an art.{kind.__name__}.", remedy, "Nothing was sent."]
        raise TypeError(" ".join(filter(None, sentences)))


@dataclass(frozen=True)
class Reference:
    """Names the captured turn that a sampled answer is, and its rollout."""

    turn: str | None
    """``None``: the prompt filled the context, so nothing was sampled."""
    rollout: str | None


def find_reference(item: Any) -> Reference | None:
    """The reference that the gateway left on an answer: on a choice or response, also of one that became a dict."""
    found = read_reference(item)
    if found is None:
        return None
    turn, rollout = found["turn"], found.get("rollout")
    return Reference(turn if isinstance(turn, str) else None, rollout if isinstance(rollout, str) else None)


def read_reference(item: Any) -> Mapping[str, Any] | None:
    """The reference as sent, wherever the client or its wrapper keeps unknown fields."""
    fields = _mapping(vars(item) | (item.model_extra or {}) if isinstance(item, BaseModel) else item)
    for holder in (fields, _mapping(fields.get("provider_specific_fields"))):  # litellm moves them there
        if "turn" in (found := _mapping(holder.get("art"))):
            return found
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def build_conversations(trajectory: Trajectory, where: str, *, only_choices: bool = False) -> list[Conversation]:
    """The conversations of a trajectory that the assistant takes part in, as plain messages.

    Args:
        where: Which trajectory it is, for errors.
        only_choices: Where a conversation has sampled choices, only they are trained, not messages beside them.
    """
    found: list[Conversation] = []
    for history in _histories(trajectory):
        items = [item for item in history.messages_and_choices if not _is_empty(item)]
        messages = cast(list[dict[str, Any]], get_messages(items))
        _check_unicode(messages, where)
        spoken = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        chosen = [i for i in spoken if is_choice(items[i])]
        if spoken:
            trained = chosen if only_choices and 0 < len(chosen) < len(spoken) else None
            tools = cast("list[dict[str, Any]] | None", history.tools)
            found.append(Conversation(messages=messages, tools=tools, trained=trained))
    return found


def _check_unicode(messages: list[dict[str, Any]], where: str) -> None:
    """Raises NoTrainingDataError: A message has half a surrogate pair, which no tokenizer can encode."""
    for i, message in enumerate(messages):
        try:
            json.dumps(message, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise NoTrainingDataError(
                f"Message {i} of {where} holds {error.object[error.start]!r}, half of a surrogate pair, which is not a character. Replace "
                "it, for example with text.encode(errors='replace').decode(). Nothing was sent."
            ) from error


def _histories(trajectory: Trajectory) -> list[History]:
    main = History(messages_and_choices=trajectory.messages_and_choices, tools=trajectory.tools)
    return [main, *trajectory.additional_histories]


def find_references(trajectory: Trajectory) -> list[Reference]:
    """The references of everything that was captured in a trajectory, in order, whatever the protocol."""
    items = [item for history in _histories(trajectory) for item in history.messages_and_choices]
    exchanges = trajectory.exchanges  # of chat, the choices are in the conversations
    sampled: list[Any] = [
        *items,
        *(choice for exchange in exchanges.completions for choice in exchange.response.choices),
        *(exchange.response for exchange in (*exchanges.responses, *exchanges.messages)),
    ]
    return [reference for item in sampled if (reference := find_reference(item)) is not None]


@dataclass(frozen=True)
class _Captured:
    """The captured parts of a trajectory."""

    rollout: str | None
    """Its keyed rollout, which brings all of its own turns."""
    turns: dict[str, str | None]
    """The turns beside that, such as those of calls through the model's own client, and the rollout of each."""


def _captured(trajectory: Trajectory) -> _Captured:
    keyed, found = trajectory.rollout_id, find_references(trajectory)
    turns = {one.turn: one.rollout for one in found if one.turn is not None and (not keyed or one.rollout != keyed)}
    return _Captured(keyed, turns)


@dataclass(frozen=True)
class _Once:
    """Refuses what would train a turn twice: a copy, another trajectory that holds the turn or the rollout around it."""

    runs: dict[int, str] = field(default_factory=dict[int, str])
    """By the object's identity, which alone distinguishes equal runs of which nothing was captured."""
    rollouts: dict[str, str] = field(default_factory=dict[str, str])
    """By keyed rollout: the trajectory that trains all of it."""
    parts: dict[str, str] = field(default_factory=dict[str, str])
    """By rollout: the first trajectory that trains single turns of it."""
    turns: dict[str, str] = field(default_factory=dict[str, str])

    def check(self, trajectory: Trajectory, captured: _Captured, where: str) -> None:
        """Raises NoTrainingDataError: An earlier trajectory trains the same."""
        self._refuse(self.runs.get(id(trajectory)), where, "they are the same object")
        self.runs[id(trajectory)] = where
        if (rollout := captured.rollout) is not None:
            first = self.rollouts.get(rollout) or self.parts.get(rollout)
            self._refuse(first, where, f"both would train turns of rollout {rollout}")
            self.rollouts[rollout] = where
        for turn, around in captured.turns.items():
            first = self.turns.get(turn) or (self.rollouts.get(around) if around is not None else None)
            self._refuse(first, where, f"both would train turn {turn}")
            self.turns[turn] = where
            if around is not None:
                self.parts.setdefault(around, where)

    def _refuse(self, first: str | None, where: str, why: str) -> None:
        if first is not None:
            raise NoTrainingDataError(
                f"{where} is the same run as {first}: {why}. Each run may be trained only once per step, and count once in its "
                "group's mean. Run the agent again, or leave one out. Nothing was sent."
            )


def _member(trajectory: Trajectory, captured: _Captured, where: str, allow_uncaptured: bool) -> TrainTrajectory:
    metrics = {name: as_number(value, f"the metric {name!r} of {where}") for name, value in trajectory.metrics.items()}
    sent = TrainTrajectory(
        reward=trajectory.reward,
        rollout=captured.rollout,
        turns=list(captured.turns),
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
    )
    if captured.rollout is not None or captured.turns:
        return sent
    if allow_uncaptured:
        plain = build_conversations(trajectory, where, only_choices=True)
        return sent.model_copy(update={"conversations": plain})
    if reasons := list(_uncaptured([history.messages_and_choices for history in _histories(trajectory)])):
        raise NoTrainingDataError(
            f"No suitable data in {where}: " + "; ".join(reasons[:5]) + ". Append the sampled choice itself, "
            "`messages_and_choices.append(completion.choices[0])`, of a call through model.openai_client(), or capture the run "
            "with `async with model.rollout() as r` and let the agent call r.base_url with r.api_key. For data from elsewhere pass allow_training_without_logprobs=True: it is "
            "tokenised with the chat template, and the policy's own log-probabilities stand in. Nothing was sent."
        )
    return sent


def _is_empty(item: Any) -> bool:
    """Whether it is the answer to a prompt that left no room to sample anything."""
    return (reference := find_reference(item)) is not None and reference.turn is None


def _uncaptured(conversations: Iterable[MessagesAndChoices]) -> Iterable[str]:
    """Name the assistant's messages whose tokens were not captured, and why."""
    for h, items in enumerate(conversations):
        history = f" of additional history {h - 1}" if h else ""
        for i, item in enumerate(items):
            if find_reference(item) is not None:
                continue
            if is_choice(item):
                yield f"turn {i}{history} was sampled from another endpoint, whose tokens were not captured"
            elif isinstance(item, BaseModel):
                yield f"turn {i}{history} is a {type(item).__name__}, not the sampled Choice that holds it"
            elif item.get("role") == "assistant":
                yield f"turn {i}{history} is a plain dict instead of the sampled Choice"
