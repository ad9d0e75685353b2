"""Conversations that were not sampled here, as training rows.

They get the tokens that they would have got had the model said them: the first prompt is rendered, every answer is spelled
as the model samples it, and the next prompt is bridged from there, exactly as the gateway does. Where it cannot be bridged, a
new row begins. Nobody knows the log-probabilities of such rows.
"""

from collections.abc import Collection, Sequence
from typing import Literal

from art.wire import Conversation, TokenRow
from art_backend.errors import BadRequestError
from art_backend.gateway.dialects.chat_messages import read_messages, read_tools
from art_backend.tokens.render import ChatRenderer, Message
from art_backend.tokens.setting import Setting


def render_conversation(
    renderer: ChatRenderer, conversation: Conversation, *, train_on: Literal["assistant", "all"] = "assistant"
) -> list[TokenRow]:
    """Return the rows of a conversation; each token that is learned is learned once.

    Args:
        train_on: ``assistant`` learns the answers that the conversation names; ``all`` every token but the first.

    Raises:
        BadRequestError: A message is malformed, the chat template refuses it, or there is nothing to learn; ``param`` is the
            path within the conversation.
    """
    messages = read_messages(conversation.messages)
    tools = read_tools(conversation.tools).functions
    if train_on == "all":
        ids = renderer.render_whole(messages, tools)
        return [_row(ids, range(1, len(ids)))]
    trained, setting = _trained(messages, conversation.trained), Setting()
    rows: list[TokenRow] = []
    ids: list[int] = []
    answer: list[int] = []
    learned: set[int] = set()
    start = 0
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        extension = None
        if ids:
            prompt = ids[: len(ids) - len(answer)]
            extension = renderer.bridge(prompt, answer, messages[start:at], tools, setting, messages[:start])
        if extension is None:
            rows += [_row(ids, learned)] if learned else []
            ids, learned = renderer.render(messages[:at], tools, setting), set()
        else:
            ids = ids + extension
        answer = renderer.spell(messages[:at], message, tools, setting)
        if at in trained:
            learned.update(range(len(ids), len(ids) + len(answer)))
        ids = ids + answer
        start = at + 1
    return rows + ([_row(ids, learned)] if learned else [])


def _trained(messages: Sequence[Message], wanted: list[int] | None) -> set[int]:
    """Indices of the messages to learn."""
    spoken = {i for i, message in enumerate(messages) if message["role"] == "assistant"}
    if wanted is None:
        if not spoken:
            raise BadRequestError("messages: none is the assistant's, so there is nothing to learn.", param="messages")
        return spoken
    if wrong := sorted(set(wanted) - spoken):
        raise BadRequestError(f"trained: message {wrong[0]} is not one of the assistant's.", param="trained")
    if not wanted:
        raise BadRequestError("trained: is empty, so there is nothing to learn.", param="trained")
    return set(wanted)


def _row(ids: list[int], learned: Collection[int]) -> TokenRow:
    sampled = [False] * len(ids)
    for i in learned:
        sampled[i] = True
    return TokenRow(token_ids=ids, sampled=sampled, logprobs=None, policy_versions=[-1] * len(ids), temperature=1.0)
