"""From captured turns to training rows: every sampled token is trained exactly once.

A row is a path of the tree. Turns on it that another row trains, that cannot be trained, or that were sampled at another
temperature than the row's are context: their ids stand there, masked. Where rows are to be imitated, settings do not matter.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence

from art.wire import StructuredSpan, TokenRow
from art_backend.tokens.tree import Turn


def build_rows(turns: Collection[Turn], *, imitate: bool = False) -> tuple[list[TokenRow], list[str]]:
    """Turn captured turns into rows.

    Args:
        turns: The turns to train. Their ancestors are context where they are not among them.
        imitate: What was said is to be learned, however it was sampled: every turn counts, and rows have temperature 1.

    Returns:
        The rows, longest path first, and one sentence per turn that cannot be trained.
    """
    refused = [] if imitate else [turn for turn in turns if turn.untrainable]
    untrainable = [f"turn {turn.id} cannot be trained: {turn.untrainable}" for turn in refused]
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


def learn_everything(rows: Sequence[TokenRow]) -> list[TokenRow]:
    """The same rows, with every token learned that has something before it; what rows share is learned in the first."""
    learned: list[TokenRow] = []
    for row in rows:
        shared = max((_common_prefix(row.token_ids, other.token_ids) for other in learned), default=1)
        sampled = [i >= max(shared, 1) for i in range(len(row.token_ids))]
        learned.append(row.model_copy(update={"sampled": sampled, "logprobs": None, "structures": []}))
    return learned


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


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
