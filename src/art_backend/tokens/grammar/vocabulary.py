"""The tokens of a model under a structure: which may come next.

The engine samples under these masks, and the trainer replays them over the sampled ids: both see the same distribution. The
grammars are compiled and walked by ``llguidance``, which works on bytes, so any tokenizer will do whose tokens have bytes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from art_backend.tokens.detokenize import Detokenizer
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.check import CHECKER
from art_backend.tokens.grammar.guidance import StructureError, compile_structure, first_line

MAX_COMPILED_BYTES = 2**20
"""Text of the structures whose compiled form is kept. Compiled, a structure takes up to some 300 times as much."""

LIMITS = LLParserLimits(max_lexer_states=50_000)
"""States take up to 2 kB each; the other limits are llguidance's own, a few ten milliseconds for a token."""


class GrammarVocabulary:
    """The tokens of one model, and the grammars compiled for them.

    Args:
        size: Number of logits, which may be larger than the tokenizer's vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, size: int) -> None:
        self.size = size
        self.eos_token_id = tokenizer.eos_token_id if isinstance(tokenizer.eos_token_id, int) else size - 1
        self._tokenizer = LLTokenizer(_Tokens(tokenizer, size, self.eos_token_id), n_vocab=size)  # pyright: ignore[reportArgumentType]
        self._compiled: OrderedDict[Structure, LLMatcher] = OrderedDict()
        self._compiled_bytes = 0

    @classmethod
    def load(cls, path: Path, size: int) -> "GrammarVocabulary":
        """Read the tokenizer in a model's directory. Takes up to a second.

        Raises:
            StructureError: The directory has no tokenizer whose tokens have known bytes.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise StructureError(f"the model in {path} has no tokenizer: {error}") from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise StructureError(f"the model in {path} has no tokenizer.json")
        return cls(tokenizer, size)

    def start(self, structure: Structure, stop_token_ids: Sequence[int]) -> "Guide":
        """Begin a completion. Safe to call from any thread, one at a time.

        Args:
            stop_token_ids: Ids that end a completion; they may come where the structure is whole. None: the tokenizer's own.

        Raises:
            StructureError: The structure is malformed or cannot begin.
        """
        matcher = self._compiled.get(structure)
        if matcher is None:
            matcher = self._compile(structure)
        self._compiled.move_to_end(structure)
        guide = Guide(matcher.deep_copy(), self, tuple(stop_token_ids) or (self.eos_token_id,))
        guide.allowed()
        return guide

    def _compile(self, structure: Structure) -> LLMatcher:
        if problem := CHECKER.judge(structure).problem:
            raise StructureError(problem)
        matcher = LLMatcher(self._tokenizer, compile_structure(structure), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise StructureError(first_line(matcher.get_error()))
        self._compiled[structure] = matcher
        self._compiled_bytes += len(structure.text)
        while self._compiled_bytes > MAX_COMPILED_BYTES:
            oldest, _ = self._compiled.popitem(last=False)
            self._compiled_bytes -= len(oldest.text)
        return matcher


class Guide:
    """One completion under a structure."""

    def __init__(self, matcher: LLMatcher, vocabulary: GrammarVocabulary, stop_token_ids: tuple[int, ...]) -> None:
        self.stop_token_ids = stop_token_ids
        self._matcher = matcher
        self._vocabulary = vocabulary

    def allowed(self) -> NDArray[np.bool_]:
        """[vocabulary]; which tokens may come next.

        Raises:
            StructureError: No token may follow: the vocabulary cannot spell what the structure requires.
        """
        packed = self._matcher.compute_bitmask()
        whole = self._matcher.is_accepting()
        if self._matcher.is_error():
            raise StructureError(first_line(self._matcher.get_error()))
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
        mask = np.zeros(self._vocabulary.size, np.bool_)
        mask[: bits.size] = bits[: mask.size]
        mask[self._vocabulary.eos_token_id] = False
        mask[list(self.stop_token_ids)] = whole
        if not mask.any():
            raise StructureError("no token of this model's vocabulary can continue it")
        return mask

    def accept(self, token: int) -> None:
        """Go on after ``token``; one that ends the completion changes nothing.

        Raises:
            StructureError: It was not allowed.
        """
        if token not in self.stop_token_ids and not self._matcher.consume_token(token):
            raise StructureError(
                f"token {token} cannot be followed by anything ({first_line(self._matcher.get_error())})"
            )


class _Tokens:
    """A tokenizer in the form that llguidance expects: the bytes of each token."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: PreTrainedTokenizerFast, size: int, eos_token_id: int) -> None:
        detokenizer = Detokenizer(tokenizer)
        known = min(size, len(tokenizer))
        self.eos_token_id = eos_token_id
        self.bos_token_id: int | None = None
        self.tokens = [detokenizer.token_bytes(i) for i in range(known)] + [b""] * (size - known)
        self.special_token_ids = [i for i in range(known) if detokenizer.is_special(i)]
        self._backend = tokenizer.backend_tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        spelled = text if isinstance(text, str) else text.decode(errors="replace")
        return self._backend.encode(spelled, add_special_tokens=False).ids
