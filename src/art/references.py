"""From trajectories to what a train request says about them: rewards, and references to captured tokens.

Each choice that was sampled through the gateway carries ``art: {turn, rollout, policy_version}``. The reference is what
travels; the tokens stay where they were captured. Conversations that were not captured travel as messages.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

from art.errors import NoTrainingDataError
from art.log_rows import as_number
from art.metrics_taxonomy import scenario_id_of
from art.trajectories import History, Trajectory, TrajectoryGroup
from art.types import MessagesAndChoices
from art.wire import Conversation, Example, TrainGroup, TrainTrajectory


def build_train_groups(
    groups: Sequence[TrajectoryGroup], *, allow_uncaptured: bool = False
) -> tuple[list[TrainGroup], list[str]]:
    """Resolve every trajectory to references.

    Args:
        allow_uncaptured: A trajectory in which nothing was captured is sent as messages instead of being refused.

    Returns:
        The groups that hold something, and one sentence for each thing that was left out: a trajectory in which no
        model was called, a group in which every rollout failed.

    Raises:
        NoTrainingDataError: A reward is not finite, a trajectory is there twice, or its sampled tokens cannot be found; the
            message names the group, the trajectory, the message and the reason. Nothing was sent.
        TypeError: Something else than a group was given, or a reward or a metric is no number.
    """
    built: list[TrainGroup] = []
    left_out: list[str] = []
    seen: dict[int | str, str] = {}
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
            if (first := seen.setdefault(trajectory.rollout_id or id(trajectory), where)) is not where:
                raise NoTrainingDataError(
                    f"{where} is the same run as {first}. What a run sampled is trained once, and counts once in what the "
                    "others are compared with: run the agent again, or leave one out. Nothing was sent."
                )
            member = _reference(trajectory, where, allow_uncaptured)
            if member is None:
                left_out.append(
                    f"{where}: no model was called in it, so there is nothing to learn from; it was left out"
                )
            else:
                members.append(member)
        if not members:
            if group.exceptions:
                left_out.append(f"group {g}: all of its {len(group.exceptions)} rollouts failed; it was left out")
            continue
        scenario = scenario_id_of(group)
        if scenario is not None:  # half a surrogate pair, which cannot be sent, becomes its escape
            scenario = scenario.encode(errors="backslashreplace").decode()
        built.append(TrainGroup(trajectories=members, scenario=scenario))
    return built, left_out


def build_examples(trajectories: Iterable[Trajectory]) -> list[Example]:
    """What supervised fine-tuning learns of each trajectory.

    Where all that the assistant says was captured, its exact ids are learned, by reference. Else the conversations are
    sent as messages, and everything that the assistant says in them is learned.

    Raises:
        NoTrainingDataError: The assistant says nothing in a trajectory; the message names it. Nothing was sent.
        TypeError: Something else than a trajectory was given.
    """
    examples: list[Example] = []
    for t, trajectory in enumerate(trajectories):
        check_kind(trajectory, Trajectory, f"trajectories: item {t}")
        rollout, turns = _captured(trajectory)
        conversations = [history.messages_and_choices for history in _histories(trajectory)]
        if rollout is not None or (turns and not any(_uncaptured(conversations))):
            examples.append(Example(rollout=rollout, turns=turns))
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


def turn_of(item: Any) -> tuple[str, str | None] | None:
    """The captured turn, and its rollout, that a sampled choice refers to, if it does. Also of one that became a dict."""
    extra: Any = None
    if isinstance(item, BaseModel):
        extra = (item.model_extra or {}).get("art")
    elif isinstance(item, Mapping):
        extra = cast(Mapping[str, Any], item).get("art")
    if isinstance(extra, Mapping):
        turn, rollout = (cast(Mapping[str, Any], extra).get(key) for key in ("turn", "rollout"))
        if isinstance(turn, str):
            return turn, rollout if isinstance(rollout, str) else None
    return None


def build_conversations(trajectory: Trajectory, where: str, *, only_choices: bool = False) -> list[Conversation]:
    """The conversations of a trajectory that the assistant takes part in, as plain messages.

    Args:
        where: Which trajectory it is, for errors.
        only_choices: Where a conversation has sampled choices, only they are trained, not messages beside them.
    """
    found: list[Conversation] = []
    for history in _histories(trajectory):
        items = history.messages_and_choices
        messages = cast(list[dict[str, Any]], history.messages())
        _check_unicode(messages, where)
        spoken = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        chosen = [i for i in spoken if isinstance(items[i], Choice)]
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
                f"Message {i} of {where} holds {error.object[error.start]!r}, half of a surrogate pair, which is no character. Replace "
                "it, for example with text.encode(errors='replace').decode(). Nothing was sent."
            ) from error


def _histories(trajectory: Trajectory) -> list[History]:
    main = History(messages_and_choices=trajectory.messages_and_choices, tools=trajectory.tools)
    return [main, *trajectory.additional_histories]


def _sampled_elsewhere(trajectory: Trajectory) -> Iterable[Any]:
    """What was sampled in protocols without chat messages. Chat choices are in the conversations."""
    for exchange in trajectory.exchanges.completions:
        yield from exchange.response.choices
    for exchange in (*trajectory.exchanges.responses, *trajectory.exchanges.messages):
        yield exchange.response


def _reference(trajectory: Trajectory, where: str, allow_uncaptured: bool) -> TrainTrajectory | None:
    metrics = {name: as_number(value, f"the metric {name!r} of {where}") for name, value in trajectory.metrics.items()}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    keyed, turns = _captured(trajectory)
    if turns or keyed is not None:
        return TrainTrajectory(reward=trajectory.reward, rollout=keyed, turns=turns, metrics=metrics)
    if allow_uncaptured:
        plain = build_conversations(trajectory, where, only_choices=True)
        return TrainTrajectory(reward=trajectory.reward, conversations=plain, metrics=metrics) if plain else None
    if reasons := list(_uncaptured([history.messages_and_choices for history in _histories(trajectory)])):
        raise NoTrainingDataError(
            f"No suitable data in {where}: " + "; ".join(reasons[:5]) + ". Append the sampled choice itself, "
            "`messages_and_choices.append(completion.choices[0])`, of a call through model.openai_client(), or capture the run "
            "with `async with model.rollout() as r` and let the agent call r.base_url with r.api_key. For data from elsewhere pass allow_training_without_logprobs=True: it is "
            "tokenised with the chat template, and the policy's own log-probabilities stand in. Nothing was sent."
        )
    return None


def _captured(trajectory: Trajectory) -> tuple[str | None, list[str]]:
    """The keyed rollout of a trajectory, and the captured turns beside it."""
    conversations = [history.messages_and_choices for history in _histories(trajectory)]
    sampled = [*(item for items in conversations for item in items), *_sampled_elsewhere(trajectory)]
    found = [reference for item in sampled if (reference := turn_of(item))]
    keyed = trajectory.rollout_id
    # a keyed rollout brings all of its own turns; calls past it, through the model's own client, count beside them
    return keyed, list(dict.fromkeys(turn for turn, rollout in found if keyed is None or rollout != keyed))


def _uncaptured(conversations: Iterable[MessagesAndChoices]) -> Iterable[str]:
    """What the assistant says without its tokens having been captured: where, and why."""
    for h, items in enumerate(conversations):
        history = f" of additional history {h - 1}" if h else ""
        for i, item in enumerate(items):
            if turn_of(item) is not None:
                continue
            if isinstance(item, Choice):
                yield f"turn {i}{history} was sampled from another endpoint, whose tokens were not captured"
            elif isinstance(item, BaseModel):
                yield f"turn {i}{history} is a {type(item).__name__}, not the sampled Choice that holds it"
            elif item.get("role") == "assistant":
                yield f"turn {i}{history} is a plain dict instead of the sampled Choice"
