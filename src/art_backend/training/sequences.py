"""From captured turns to training rows: every sampled token is trained exactly once.

A row is a path of the tree. Turns on it that another row trains, that cannot be trained, or that were sampled at another
temperature than the row's are context: their ids stand there, masked.
"""

from collections.abc import Collection, Sequence

from art.wire import TokenRow
from art_backend.gateway.tree import Turn


def build_rows(turns: Collection[Turn]) -> tuple[list[TokenRow], list[str]]:
    """Turn captured turns into rows.

    Args:
        turns: The turns to train. Their ancestors are context where they are not among them.

    Returns:
        The rows, longest path first, and one sentence per turn that cannot be trained.
    """
    untrainable = [f"turn {turn.id}: {turn.untrainable}" for turn in turns if turn.untrainable]
    wanted = {turn.id: turn for turn in turns if not turn.untrainable and turn.ids}
    rows: list[TokenRow] = []
    for turn in sorted(wanted.values(), key=lambda t: (-len(t.ancestors()), t.id)):
        while turn.id in wanted:
            path = turn.ancestors()
            trained = {t.id for t in path if t.id in wanted and t.temperature == turn.temperature}
            rows.append(_build_row(path, trained, turn.temperature))
            for done in trained:
                del wanted[done]
    return rows, untrainable


def _build_row(path: Sequence[Turn], trained: Collection[str], temperature: float) -> TokenRow:
    ids: list[int] = []
    sampled: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for turn in path:
        observed = len(turn.prompt.ids)
        ids += turn.prompt.ids + turn.ids
        sampled += [False] * observed + [turn.id in trained] * len(turn.ids)
        logprobs += [0.0] * observed + turn.logprobs
        versions += [-1] * observed + [turn.policy_version] * len(turn.ids)
    return TokenRow(
        token_ids=ids, sampled=sampled, logprobs=logprobs, policy_versions=versions, temperature=temperature
    )
