"""Training rows, from captured turns or from plain messages: every token to learn is learned exactly once.

A row of captured turns is a path of the tree. Turns on it that another row trains, that cannot be trained, or that were sampled
at another temperature than the row's are context: their ids stand there, masked. Rows to imitate ignore sampling settings.

Plain messages get the tokens that they would have had if the model had said them: the first prompt is rendered, every answer is
spelled as the model samples it, and the next prompt is bridged from there, exactly as the gateway does. Where a prompt cannot be
bridged, a new row begins. Such rows have no log-probabilities.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from art.wire import StructuredSpan, TokenRow
from art_backend.errors import BadRequestError
from art_backend.tokens.likeness import common_length
from art_backend.tokens.render import ChatRenderer, Message, Tools
from art_backend.tokens.setting import Setting
from art_backend.tokens.tree import Turn


def build_rows(turns: Collection[Turn], *, imitate: bool = False) -> tuple[list[TokenRow], list[Turn]]:
    """Turn captured turns into rows.

    Args:
        turns: The turns to train. Their ancestors are context where they are not among them.
        imitate: What was said is to be learned, however it was sampled: every turn counts, and rows have temperature 1.

    Returns:
        The rows, longest path first, and the turns that cannot be trained.
    """
    untrainable = [] if imitate else [turn for turn in turns if turn.untrainable]
    wanted = {turn.id: turn for turn in turns if (imitate or not turn.untrainable) and turn.ids}
    rows: list[TokenRow] = []
    for leaf in sorted(wanted.values(), key=lambda turn: (-turn.length, turn.id)):
        if leaf.id in wanted:
            trained = _trained_on_path(leaf, wanted, any_temperature=imitate)
            row = _build_row(leaf, trained)
            rows.append(row.model_copy(update={"temperature": 1.0}) if imitate else row)
            for turn in trained:
                del wanted[turn.id]
    return rows, untrainable


def describe_untrainable(turn: Turn) -> str:
    """Say in one sentence why a turn cannot be trained."""
    return f"turn {turn.id} cannot be trained: {turn.untrainable}"


def learn_everything(rows: Sequence[TokenRow]) -> list[TokenRow]:
    """The same rows, with every token learned that has something before it; what rows share is learned in the first."""
    learned: list[TokenRow] = []
    for row in rows:
        shared = max((common_length(row.token_ids, other.token_ids) for other in learned), default=1)
        sampled = [i >= max(shared, 1) for i in range(len(row.token_ids))]
        learned.append(row.model_copy(update={"sampled": sampled, "logprobs": None, "structures": []}))
    return learned


def _trained_on_path(leaf: Turn, wanted: dict[str, Turn], *, any_temperature: bool) -> list[Turn]:
    """The turns that the row of ``leaf`` trains.

    They are its ancestors, and also other turns whose whole path has the same ids as the row: conversations that said the
    same so far may have been continued from each other's turns.
    """

    def fits(turn: Turn) -> bool:
        return any_temperature or turn.temperature == leaf.temperature

    trained = [turn for turn in leaf.ancestors() if turn.id in wanted and fits(turn)]
    ids: array[int] | None = None
    for turn in wanted.values():
        if not fits(turn) or turn.length >= leaf.length or _overlaps(turn, trained):
            continue
        if ids is None:
            ids = leaf.path_ids()
        if turn.ids == ids[turn.prompt.length : turn.length] and turn.path_ids() == ids[: turn.length]:
            trained.append(turn)
    return trained


def _overlaps(turn: Turn, others: Iterable[Turn]) -> bool:
    return any(turn.prompt.length < other.length and other.prompt.length < turn.length for other in others)


def _build_row(leaf: Turn, trained: Collection[Turn]) -> TokenRow:
    ids = leaf.path_ids().tolist()
    sampled = [False] * len(ids)
    logprobs = [0.0] * len(ids)
    versions = [-1] * len(ids)
    for turn in leaf.ancestors():
        versions[turn.prompt.length : turn.length] = [turn.policy_version] * len(turn.ids)
    for turn in trained:
        span = slice(turn.prompt.length, turn.length)
        sampled[span] = [True] * len(turn.ids)
        logprobs[span] = turn.logprobs.tolist()
        versions[span] = [turn.policy_version] * len(turn.ids)
    return TokenRow(
        token_ids=ids,
        sampled=sampled,
        logprobs=logprobs,
        policy_versions=versions,
        temperature=leaf.temperature,
        structures=[
            StructuredSpan(
                start=turn.prompt.length,
                stop=turn.length,
                structured_outputs=turn.sampling["structured_outputs"],
                stop_token_ids=turn.sampling["stop_token_ids"],
            )
            for turn in trained
            if "structured_outputs" in turn.sampling
        ],
    )


def spell_conversation(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    tools: Tools,
    *,
    trained: list[int] | None = None,
    train_on: Literal["assistant", "all"] = "assistant",
) -> list[TokenRow]:
    """Return the rows of a conversation that was not sampled here.

    Args:
        trained: Indices of the assistant's messages to learn; ``None``: all of them.
        train_on: ``assistant`` learns those messages; ``all`` every token but the first.

    Raises:
        BadRequestError: The chat template refuses a message, or there is nothing to learn; ``param`` is the path within the
            conversation.
    """
    if train_on == "all":
        ids = renderer.render_whole(messages, tools)
        return [_row(ids, range(1, len(ids)))]
    learn, setting = _find_spoken(messages, trained), Setting()
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
        if at in learn:
            learned.update(range(len(ids), len(ids) + len(answer)))
        ids = ids + answer
        start = at + 1
    return rows + ([_row(ids, learned)] if learned else [])


def _find_spoken(messages: Sequence[Message], wanted: list[int] | None) -> set[int]:
    """Indices of the messages to learn."""
    spoken = {i for i, message in enumerate(messages) if message["role"] == "assistant"}
    if wanted is None:
        if not spoken:
            raise BadRequestError(
                "messages: no message is the assistant's, so there is nothing to learn.", param="messages"
            )
        return spoken
    if wrong := sorted(set(wanted) - spoken):
        raise BadRequestError(f"trained: message {wrong[0]} is not the assistant's.", param="trained")
    if not wanted:
        raise BadRequestError("trained: is empty, so there is nothing to learn.", param="trained")
    return set(wanted)


def _row(ids: list[int], learned: Collection[int]) -> TokenRow:
    sampled = [False] * len(ids)
    for i in learned:
        sampled[i] = True
    return TokenRow(token_ids=ids, sampled=sampled, logprobs=None, policy_versions=[-1] * len(ids), temperature=1.0)
