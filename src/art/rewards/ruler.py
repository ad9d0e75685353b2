"""Relative rewards from a judge model, which sees all trajectories of a scenario and scores them against each other."""

import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel, ConfigDict, ValidationError

from art.capture.scopes import no_capture
from art.errors import load_extra
from art.metrics import MetricsBuilder
from art.rollouts.references import check_kind
from art.terminal import say
from art.trajectories import TrajectoryGroup

__all__ = ["DEFAULT_RUBRIC", "Judge", "Response", "TrajectoryScore", "ruler", "ruler_score_group"]

ATTEMPTS = 3
"""Attempts before malformed answers of a judge raise an error."""

DEFAULT_RUBRIC = """\
- Reaching the goal matters most: a trajectory that reaches it scores far above every one that does not.
- Of two that reach it, the one that gets there with less waste (fewer turns, calls and words) scores a little higher.
- Let the distance of two scores say how much better one is: small differences get small gaps, large ones large gaps.
- A trajectory that fails but makes real progress earns part of the score, in proportion to the progress.
- Judge what was done, not how confident it sounds."""

_INSTRUCTIONS = """\
You are given several trajectories of an AI agent. All of them pursue the same goal. Compare them with each other and \
give each a score between 0 and 1, by these rules:

{rubric}

Score every trajectory exactly once, under its id, with a short explanation before the score. Answer with JSON that matches \
this schema, and nothing else:

{schema}"""

_OBJECTION = "That answer cannot be used: {problem} Answer again, with JSON that matches the schema and nothing else."

_ELIDED = "\n[… {count} characters omitted to fit the trajectory into the available space …]\n"
_LEAST_CHARACTERS = 400
"""The least that is shown of each text, half of it from the beginning and half from the end."""

Judge = Callable[[list[dict[str, Any]]], Awaitable[str]]
"""Takes chat messages and returns the judge's answer: JSON that matches ``Response``."""


class TrajectoryScore(BaseModel):
    """The judge's word on one trajectory."""

    model_config = ConfigDict(extra="forbid")

    trajectory_id: str
    explanation: str
    score: float


class Response(BaseModel):
    """The judge's answer."""

    model_config = ConfigDict(extra="forbid")

    scores: list[TrajectoryScore]


async def acompletion(**arguments: Any) -> Any:
    """``litellm.acompletion``, loaded when it is first called."""
    what = "litellm, which a judge given by name needs (or give a tuple of an AsyncOpenAI client and a name),"
    return await load_extra("litellm", what, "litellm").acompletion(**arguments)


@runtime_checkable
class ModelResponse(Protocol):
    """Any response with choices. litellm's own type is not imported just to check for it."""

    choices: list[Any]


async def ruler(
    message_lists: Sequence[Sequence[Mapping[str, Any]]],
    judge_model: "str | Judge | tuple[AsyncOpenAI, str]" = "openai/o3",
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    tools: Sequence[Any] | None = None,
    *,
    max_characters: int = 400_000,
    debug: bool = False,
) -> list[TrajectoryScore]:
    """Score trajectories against each other.

    Args:
        message_lists: One conversation per trajectory. A common prefix is shown once, and so are identical conversations.
        judge_model: A litellm model name, an OpenAI client with a model name, or a function that asks a judge.
        extra_litellm_params: Further arguments of the call.
        rubric: How to score.
        tools: Tools available to the agent.
        max_characters: Maximum total length shown to the judge. Of longer trajectories the middles of the longest texts are left
            out, with a mark that says how much, and a warning.
        debug: Print the judge's answers.

    Returns:
        One score per trajectory, in order, with ids from ``"1"``.

    Raises:
        ValueError: The judge's answers were unusable, several times in a row.

    >>> async def judge(messages):
    ...     return '{"scores": [{"trajectory_id": "1", "explanation": "polite", "score": 0.9}]}'
    >>> [score.score for score in await ruler([[{"role": "user", "content": "Hi."}]], judge)]
    [0.9]
    """
    lists = [list(messages) for messages in message_lists]
    if not lists:
        return []
    firsts = [lists.index(messages) for messages in lists]
    shown = {str(i + 1): lists[i] for i in sorted(set(firsts))}
    if len(lists) > 1 and len(shown) == 1:
        say("warning: all trajectories are identical, so all get the same score")
    messages = _prompt(_shortened(shown, max_characters), rubric, tools)
    judge = _as_judge(judge_model, list(shown), dict(extra_litellm_params or {}))
    scores = await _ask(judge, messages, list(shown), debug)
    return [scores[str(first + 1)].model_copy(update={"trajectory_id": str(n)}) for n, first in enumerate(firsts, 1)]


async def ruler_score_group(
    group: TrajectoryGroup,
    judge_model: "str | Judge | tuple[AsyncOpenAI, str]" = "openai/o3",
    extra_litellm_params: Mapping[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    swallow_exceptions: bool = False,
    max_characters: int = 400_000,
    debug: bool = False,
) -> TrajectoryGroup | None:
    """A copy of ``group`` whose rewards are the judge's scores; use it as ``after_each`` of gathering.

    Each trajectory keeps its own reward as ``metrics["independent_reward"]`` and gets the judge's explanation in its logs.

    Args:
        swallow_exceptions: Print what went wrong and return ``None``, which drops the group, instead of raising.

    Raises:
        ValueError: A trajectory has additional histories, which the judge cannot see.
        TypeError: ``group`` is not a ``TrajectoryGroup``.

    >>> async def judge(messages):
    ...     return '{"scores": [{"trajectory_id": "1", "explanation": "polite", "score": 0.9}]}'
    >>> group = art.TrajectoryGroup([art.Trajectory(messages_and_choices=[{"role": "user", "content": "Hi."}])])
    >>> judged = await ruler_score_group(group, judge)
    >>> judged.trajectories[0].reward, judged.trajectories[0].metrics
    (0.9, {'independent_reward': 0.0, 'ruler_score': 0.9})
    """
    check_kind(group, TrajectoryGroup, "group")
    if any(trajectory.additional_histories for trajectory in group.trajectories):
        raise ValueError("RULER judges single conversations; a trajectory of this group has additional_histories.")
    conversations = [cast(list[Any], trajectory.messages()) for trajectory in group.trajectories]
    tools = group.trajectories[0].tools if group.trajectories else None
    try:
        scores = await ruler(
            conversations,
            judge_model,
            extra_litellm_params,
            rubric,
            tools,
            max_characters=max_characters,
            debug=debug,
        )
    except Exception as error:
        if not swallow_exceptions:
            raise
        say(f"warning: dropped a group that could not be judged: {error}")
        return None
    judged = group.model_copy(deep=True)
    for trajectory, score in zip(judged.trajectories, scores, strict=True):
        trajectory.metrics["independent_reward"] = trajectory.reward
        trajectory.metrics["ruler_score"] = trajectory.reward = score.score
        trajectory.log(f"RULER explanation: {score.explanation}")
    return judged


def _shortened(shown: dict[str, list[Mapping[str, Any]]], budget: int) -> dict[str, list[Mapping[str, Any]]]:
    """The conversations with the longest texts cut in their middles, all to one length, so that they fit."""
    lengths = [len(text) for messages in shown.values() for text in _texts(messages)]
    if sum(lengths) <= budget:
        return shown
    low, high = _LEAST_CHARACTERS, max(lengths)
    while low < high:  # the longest cap under which everything fits
        cap = (low + high + 1) // 2
        low, high = (cap, high) if sum(min(length, cap) for length in lengths) <= budget else (low, cap - 1)
    left_out = sum(max(0, length - low) for length in lengths)
    say(f"warning: RULER omitted {left_out:,} characters of trajectories that are too long to judge")
    return {name: [_cut(message, low) for message in messages] for name, messages in shown.items()}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in cast(Mapping[str, Any], value).values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in cast(list[Any], value):
            yield from _texts(inner)


def _cut(value: Any, cap: int) -> Any:
    if isinstance(value, str) and len(value) > cap:
        half = cap // 2
        return value[:half] + _ELIDED.format(count=f"{len(value) - 2 * half:,}") + value[-half:]
    if isinstance(value, Mapping):
        return {name: _cut(inner, cap) for name, inner in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list):
        return [_cut(inner, cap) for inner in cast(list[Any], value)]
    return value


def _prompt(
    shown: dict[str, list[Mapping[str, Any]]], rubric: str, tools: Sequence[Any] | None
) -> list[dict[str, Any]]:
    lists = list(shown.values())
    shared = 0
    if len(lists) > 1:
        shortest = min(map(len, lists))
        while shared < shortest and all(messages[shared] == lists[0][shared] for messages in lists[1:]):
            shared += 1
    parts: list[str] = []
    if shared:
        parts.append(f"<context>\n{json.dumps(lists[0][:shared], ensure_ascii=False)}\n</context>")
    if tools:
        parts.append(f"<available_tools>\n{json.dumps(tools, ensure_ascii=False)}\n</available_tools>")
    parts.append("Trajectories:")
    for name, messages in shown.items():
        text = json.dumps(messages[shared:], ensure_ascii=False)
        parts.append(f'<trajectory id="{name}">\n{text}\n</trajectory>')
    instructions = _INSTRUCTIONS.format(rubric=rubric, schema=json.dumps(Response.model_json_schema()))
    return [{"role": "system", "content": instructions}, {"role": "user", "content": "\n\n".join(parts)}]


async def _ask(judge: Judge, messages: list[dict[str, Any]], ids: list[str], debug: bool) -> dict[str, TrajectoryScore]:
    """The scores by id. The calls are no part of the trajectory that is captured."""
    conversation, attempt = list(messages), 1
    while True:
        with no_capture():
            answer = await judge(conversation)
        if debug:
            say(f"RULER judge, attempt {attempt}:\n{answer}")
        try:
            return _scores(answer, ids)
        except ValueError as error:
            if attempt == ATTEMPTS:
                raise ValueError(
                    f"The judge's answers could not be used, {ATTEMPTS} times in a row. {error}"
                ) from error
            objection = {"role": "user", "content": _OBJECTION.format(problem=error)}
            conversation = [*messages, {"role": "assistant", "content": answer}, objection]
            attempt += 1


def _as_judge(judge: "str | Judge | tuple[AsyncOpenAI, str]", ids: list[str], extra: dict[str, Any]) -> Judge:
    """The judge as a function, which books what each call cost."""
    if callable(judge):
        return judge

    async def ask(messages: list[dict[str, Any]]) -> str:
        if isinstance(judge, str):
            name = judge
            response = await acompletion(
                model=name, messages=messages, response_format=Response, caching=False, **extra
            )
            if not isinstance(response, ModelResponse):
                raise ValueError(f"The judge returned a {type(response).__name__} without choices.")  # noqa: TRY004
        else:
            client, model = judge
            name = model if "/" in model else f"openai/{model}"
            response = await _create(client, model, messages, ids, extra)
        if not response.choices:
            raise ValueError("The judge returned no choices.")
        _book_cost(name, response)
        return response.choices[0].message.content or ""

    return ask


async def _create(
    client: AsyncOpenAI, model: str, messages: list[dict[str, Any]], ids: list[str], extra: dict[str, Any]
) -> Any:
    """Ask with the schema enforced; of a server that cannot enforce one, as the prompt asks for it alone."""
    create: Any = client.chat.completions.create
    try:
        return await create(model=model, messages=messages, **{"response_format": _response_format(ids), **extra})
    except BadRequestError as error:
        if "response_format" not in str(error) or "response_format" in extra:
            raise
    return await create(model=model, messages=messages, **extra)


def _response_format(ids: list[str]) -> Any:
    """The schema of ``Response``, narrowed to as many scores as there are ids, each of an id and between 0 and 1."""
    schema = Response.model_json_schema()
    schema["properties"]["scores"] |= {"minItems": len(ids), "maxItems": len(ids)}
    score = schema["$defs"]["TrajectoryScore"]["properties"]
    score["trajectory_id"] |= {"enum": ids}
    score["score"] |= {"minimum": 0, "maximum": 1}
    return {"type": "json_schema", "json_schema": {"name": "scores", "strict": True, "schema": schema}}


def _scores(answer: str, expected: list[str]) -> dict[str, TrajectoryScore]:
    """The scores by id.

    Raises:
        ValueError: Saying what is wrong with the answer.
    """
    try:
        found = Response.model_validate_json(_unfenced(answer)).scores
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(
            f"It does not match the schema: {'.'.join(map(str, problem['loc']))}: {problem['msg']}."
        ) from error
    by_id = {score.trajectory_id: score for score in found}
    if len(found) != len(expected) or sorted(by_id) != sorted(expected):
        raise ValueError(
            f"It must score the ids {', '.join(expected)}, each once, not {', '.join(s.trajectory_id for s in found)}."
        )
    for score in found:
        if not (math.isfinite(score.score) and 0 <= score.score <= 1):
            raise ValueError(f"The score of trajectory {score.trajectory_id} is {score.score}, not between 0 and 1.")
    return by_id


def _unfenced(answer: str) -> str:
    text = answer.strip()
    if text.startswith("```"):
        text = text.removeprefix("```json").removeprefix("```").removesuffix("```")
    return text


def _book_cost(judge: str, response: Any) -> None:
    provider, slash, _ = judge.partition("/")
    if not slash:
        return
    try:
        MetricsBuilder.get_active().add_response_cost("judge/ruler", response, provider=provider, model_name=judge)
    except (LookupError, ValueError):  # no one counts, or the judge's prices are unknown
        return
