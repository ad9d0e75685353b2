"""From an agent to trajectories: its model calls go to the rollout's endpoint, and the session scores what it did."""

import json
from typing import Any

import art

from .agent import AGENTS, INSTRUCTIONS, TOOLS
from .environment import Session, Task


async def find_answer(
    model: art.TrainableModel, task: Task, *, step: int | None = None, agent: str = "plain"
) -> art.Trajectory:
    """Let the agent work on a task, and score it.

    Args:
        step: The policy version that acts; ``None`` follows the latest.
        agent: Which of ``AGENTS``.
    """
    session = Session(task)
    async with model.rollout(step=step) as rollout:
        await AGENTS[agent](rollout.openai_client(), model.get_inference_name(step), session)
        trajectory = rollout.trajectory(
            reward=session.reward, metrics=session.metrics, metadata={"question": task.question, "answer": task.answer}
        )
        return await rollout.fill(trajectory)


def lesson(task: Task) -> art.Trajectory:
    """A scripted episode for the warm-up: the agent searches, reads and answers, as it should."""
    session = Session(task)
    mail = session.mailbox.mails[task.mail - 1]
    steps = (
        ("search", "words", f"{mail.event} {mail.fact}"),
        ("read", "number", str(mail.id)),
        ("answer", "text", task.answer),
    )
    tools = {"search": session.search, "read": session.read, "answer": session.answer}
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": task.question},
    ]
    for name, argument, value in steps:
        call = {"name": name, "arguments": json.dumps({argument: value})}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [{"id": name, "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": name, "content": tools[name](value)},
        ]
    return art.Trajectory(messages_and_choices=messages[:-1], tools=TOOLS)
