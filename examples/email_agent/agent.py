"""The agent, twice: with plain calls of the OpenAI SDK, and with the OpenAI Agents SDK.

Neither knows of training. In production, pass ``AsyncOpenAI()`` and the name of a model; to be trained, the client and name of a
rollout. The base URL is all that differs.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from openai import AsyncOpenAI

from .environment import Session

INSTRUCTIONS = "Find the answer in the mailbox: search, read the mail, then give the answer in one word."
MAX_TURNS = 6
MAX_TOKENS = 48
"""Of one message: a call of a tool and its arguments."""

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        },
    }
    for name, argument, description in (
        ("search", "words", "List mails with these words."),
        ("read", "number", "Read a mail."),
        ("answer", "text", "Give the answer."),
    )
]

Agent = Callable[[AsyncOpenAI, str, Session], Awaitable[None]]


async def run_plain(client: AsyncOpenAI, model: str, session: Session) -> None:
    """Call the model and the tools in turns, until it answers or says something that is no call."""
    tools = {"search": session.search, "read": session.read, "answer": session.answer}
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": session.task.question},
    ]
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, max_tokens=MAX_TOKENS, temperature=1.0
        )
        message = completion.choices[0].message
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        for call in message.tool_calls or []:
            if call.type == "function":
                result = call_tool(tools, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not message.tool_calls or session.given is not None:
            return


def call_tool(tools: dict[str, Callable[[str], str]], name: str, arguments: str) -> str:
    """What a tool says to a call; to one that it cannot understand, what is wrong with it."""
    if name not in tools:
        return f"There is no tool {name!r}."
    try:
        values = list(json.loads(arguments).values())
    except (json.JSONDecodeError, AttributeError):
        return "The arguments are no JSON object."
    if len(values) != 1 or not isinstance(values[0], str | int):
        return "Give one argument, a text."
    return tools[name](str(values[0]))


async def run_with_agents_sdk(client: AsyncOpenAI, model: str, session: Session) -> None:
    """The same agent, in the framework's words."""
    from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool
    from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError

    @function_tool(strict_mode=False)
    def search(words: str) -> str:
        """List mails with these words."""
        return session.search(words)

    @function_tool(strict_mode=False)
    def read(number: str) -> str:
        """Read a mail."""
        return session.read(number)

    @function_tool(strict_mode=False)
    def answer(text: str) -> str:
        """Give the answer."""
        return session.answer(text)

    agent = Agent(
        "mail agent",
        instructions=INSTRUCTIONS,
        model=model,
        tools=[search, read, answer],
        model_settings=ModelSettings(temperature=1.0, max_tokens=MAX_TOKENS),
        tool_use_behavior={"stop_at_tool_names": ["answer"]},
    )
    provider = OpenAIProvider(openai_client=client, use_responses=False)
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    try:
        await Runner.run(agent, session.task.question, run_config=config, max_turns=MAX_TURNS)
    except (MaxTurnsExceeded, ModelBehaviorError):
        return  # it did not answer in time, or called a tool that does not exist: the reward says the rest


AGENTS: dict[str, Agent] = {"plain": run_plain, "agents-sdk": run_with_agents_sdk}
