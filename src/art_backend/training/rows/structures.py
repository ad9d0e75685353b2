"""Structured output in training: which tokens could be sampled where.

A token that was sampled under a structure comes from the policy's distribution *renormalised over what the structure allowed*. That
is the distribution whose log-probability the engine reports and whose gradient the step takes: the trainer replays the structure
over the sampled ids and masks its own logits as the engine did. So the importance ratio is 1 for an unchanged policy, and the gap
between engine and trainer stays a measure of arithmetic alone. Where the structure left no choice, the ratio is 1 and the gradient 0,
whatever the policy prefers: forced tokens contribute no gradient.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from art.wire import StructuredSpan, TokenRow
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.guidance import StructureError
from art_backend.tokens.grammar.vocabulary import GrammarVocabulary

Masks = NDArray[np.object_]
"""[T]; for each token of a row the packed bits of what could have been sampled there, or ``None``: everything."""


MAX_MASK_BYTES = 64 * 2**20
"""Masks that are kept because many tokens share them."""


class StructureReplay:
    """Replays structures over rows of one model.

    Args:
        path: Directory with the model's tokenizer, which is read when it is first needed.
        size: Number of the model's logits.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._vocabulary: GrammarVocabulary | None = None
        self._kept: dict[bytes, bytes] = {}
        self.lost = 0
        """Tokens whose structure could not be replayed. They are context."""

    def replay(self, row: TokenRow, trained: NDArray[np.bool_]) -> Masks | None:
        """Masks of a row; ``None`` if all of it was sampled freely. What cannot be replayed is cleared from ``trained``."""
        if not row.structures:
            return None
        if len(self._kept) * self._size // 8 > MAX_MASK_BYTES:
            self._kept.clear()
        if self._vocabulary is None:
            self._vocabulary = GrammarVocabulary.load(self._path, self._size)
        masks: Masks = np.full(len(row.token_ids), None, np.object_)
        for span in row.structures:
            at = self._replay_span(row.token_ids, span, masks, self._vocabulary)
            self.lost += int(trained[at : span.stop].sum())
            trained[at : span.stop] = False
        return masks

    def _replay_span(
        self, token_ids: list[int], span: StructuredSpan, masks: Masks, vocabulary: GrammarVocabulary
    ) -> int:
        """Fill in the masks of a span; return where it ended, or could not go on."""
        at, stop = span.start, min(span.stop, len(token_ids))
        try:
            guide = vocabulary.start(Structure.from_wire(span.structured_outputs), span.stop_token_ids)
            while at < stop:
                allowed = guide.allowed()
                if not allowed[token_ids[at]]:
                    break
                packed = np.packbits(allowed, bitorder="little").tobytes()
                masks[at] = self._kept.setdefault(packed, packed)
                guide.accept(token_ids[at])
                at += 1
        except StructureError:  # sampled by an engine with other rules
            return at
        return at
