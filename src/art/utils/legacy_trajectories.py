"""The older text formats of trajectories on disk: JSONL, and YAML before that."""

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, cast

from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

from art.errors import MissingExtraError
from art.trajectories import History, Trajectory, TrajectoryGroup

Dict = Mapping[str, Any]


def message_or_choice_to_dict(item: Any) -> dict[str, Any]:
    """A message or choice as JSON-able data, without log-probabilities. The argument is not changed.

    >>> message_or_choice_to_dict({"role": "user", "content": "Hi.", "logprobs": None})
    {'role': 'user', 'content': 'Hi.'}
    """
    fields = item.model_dump(mode="json") if isinstance(item, BaseModel) else dict(cast(Dict, item))
    fields.pop("logprobs", None)
    return fields


def dict_to_message_or_choice(fields: Dict) -> Any:
    """The inverse: what has a ``finish_reason`` is a choice.

    >>> dict_to_message_or_choice({"role": "user", "content": "Hi."})
    {'role': 'user', 'content': 'Hi.'}
    """
    if "finish_reason" not in fields:
        return dict(fields)
    return Choice.model_validate({"index": 0, "logprobs": None, **fields})


def history_to_dict(history: History) -> dict[str, Any]:
    """A history as the old format holds it.

    >>> history_to_dict(History(messages_and_choices=[]))
    {'messages_and_choices': [], 'tools': None}
    """
    return {
        "messages_and_choices": [message_or_choice_to_dict(item) for item in history.messages_and_choices],
        "tools": history.tools,
    }


def dict_to_history(fields: Dict) -> History:
    """A history of the old format.

    >>> dict_to_history({"messages_and_choices": []}).tools is None
    True
    """
    items = [dict_to_message_or_choice(item) for item in fields.get("messages_and_choices") or ()]
    return History(messages_and_choices=items, tools=fields.get("tools"))


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as the old format holds it.

    >>> trajectory_to_dict(Trajectory(reward=1.0))["reward"]
    1.0
    """
    return {
        "reward": trajectory.reward,
        "metrics": trajectory.metrics,
        "metadata": trajectory.metadata,
        **history_to_dict(History(messages_and_choices=trajectory.messages_and_choices, tools=trajectory.tools)),
        "additional_histories": [history_to_dict(history) for history in trajectory.additional_histories],
        "logs": trajectory.logs,
    }


def dict_to_trajectory(fields: Dict) -> Trajectory:
    """A trajectory of the old format.

    >>> dict_to_trajectory({"reward": 1.0, "messages_and_choices": []}).reward
    1.0
    """
    main = dict_to_history(fields)
    return Trajectory(
        messages_and_choices=main.messages_and_choices,
        tools=main.tools,
        additional_histories=[dict_to_history(history) for history in fields.get("additional_histories") or ()],
        reward=fields.get("reward") or 0.0,
        metrics=fields.get("metrics") or {},
        metadata=fields.get("metadata") or {},
        logs=fields.get("logs") or [],
    )


def trajectory_group_to_dict(group: TrajectoryGroup) -> dict[str, Any]:
    """A group as the old format holds it.

    >>> len(trajectory_group_to_dict(TrajectoryGroup([Trajectory()]))["trajectories"])
    1
    """
    return {"trajectories": [trajectory_to_dict(trajectory) for trajectory in group.trajectories]}


def dict_to_trajectory_group(fields: Dict) -> TrajectoryGroup:
    """A group of the old format.

    >>> len(dict_to_trajectory_group({"trajectories": []}))
    0
    """
    return TrajectoryGroup([dict_to_trajectory(one) for one in fields["trajectories"]])


def serialize_trajectory_groups(groups: Iterable[TrajectoryGroup]) -> str:
    """One line of JSON per group.

    >>> text = serialize_trajectory_groups([TrajectoryGroup([Trajectory(reward=1.0)])])
    >>> text.startswith('{"trajectories": [{"reward": 1.0,')
    True
    """
    return "\n".join(json.dumps(trajectory_group_to_dict(group)) for group in groups)


def deserialize_trajectory_groups(text: str) -> list[TrajectoryGroup]:
    """Groups from JSONL, else from YAML.

    Raises:
        ValueError: It is neither.

    >>> (group,) = deserialize_trajectory_groups('{"trajectories": [{"reward": 1.0, "messages_and_choices": []}]}')
    >>> group.trajectories[0].reward
    1.0
    """
    try:
        rows: Any = [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError:
        rows = _load_yaml(text)
    try:
        return [dict_to_trajectory_group(row) for row in rows or ()]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"This holds no trajectory groups: {error!r}") from error


def _load_yaml(text: str) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtraError("PyYAML, which trajectories in the YAML format need,", "yaml") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"This is neither JSONL nor YAML: {error}") from error
