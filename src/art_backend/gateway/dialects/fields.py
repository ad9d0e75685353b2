"""The rule for the fields of a request: what would change the answer is honoured, or refused by name.

``schemas`` lists what each protocol honours, ``REFUSED`` what none can. Everything else is accepted: labels and bookkeeping of the caller,
hints that a model may follow or not (such as the effort of its reasoning), and names that no public client knows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from art_backend.errors import BadRequestError

_OFF = (None, False, "", [], {})


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that would change the answer."""

    remedy: str
    """The sentence that says what to do instead."""
    neutral: tuple[Any, ...] = _OFF
    """Values that change nothing."""


_FORM = "constrain the answer with structured_outputs instead"
_TOKENS = "the tokens of each turn are in the service's control API (GET /api/v1/rollouts/{rollout})"
_LIMIT = "limit the answer in this protocol's own field (max_tokens, max_completion_tokens, max_output_tokens)"
_FORMAT = "use this protocol's own field (response_format, text.format, output_config.format)"
_LOGPROBS = "only sampled tokens have log-probabilities"

REFUSED: Mapping[str, Refused] = {
    # what is sampled
    "allowed_token_ids": Refused(_FORM),
    "bad_words": Refused(_FORM),
    "length_penalty": Refused("there is no beam search; ask for n answers and choose", (*_OFF, 1, 1.0)),
    "logit_bias": Refused(_FORM),
    "logits_processors": Refused(_FORM),
    "min_tokens": Refused("ask for a longer answer in the prompt, or " + _FORM, (*_OFF, 0)),
    "repetition_detection": Refused("set stop, or max_tokens"),
    "thinking_token_budget": Refused("limit the whole answer by max_tokens"),
    "use_beam_search": Refused("ask for n answers and choose"),
    "vllm_xargs": Refused("leave it out"),
    # what the prompt says
    "background": Refused("wait for the answer, or stream it"),
    "chat_template_kwargs": Refused("a text is served as it is; use chat completions"),
    "chat_template": Refused("save the tokenizer with that template, and register the model from there"),
    "conversation": Refused("use previous_response_id, or send the whole input"),
    "documents": Refused("put the documents into a message"),
    "mm_processor_kwargs": Refused("send text"),
    "prompt": Refused("send the prompt's text as input"),
    "suffix": Refused("this engine cannot fill in a middle; use a prompt that describes the gap"),
    "truncate_prompt_tokens": Refused("shorten the prompt before sending it"),
    # what the answer holds
    "audio": Refused("models here speak in text"),
    "echo": Refused("put the prompt before the answer yourself"),
    "include_reasoning": Refused("leave the answer's reasoning out of what you show", (None, True)),
    "include_stop_str_in_output": Refused("append the stop string yourself"),
    "modalities": Refused("models here speak in text", (*_OFF, ["text"])),
    "prompt_logprobs": Refused(_LOGPROBS, (None, False)),
    "return_token_ids": Refused(_TOKENS),
    "return_tokens_as_token_ids": Refused(_TOKENS),
    "skip_special_tokens": Refused(_TOKENS, (None, True)),
    "spaces_between_special_tokens": Refused(_TOKENS, (None, True)),
    "web_search_options": Refused("offer a function that searches, and run it yourself", (None,)),
    # what another field, or another protocol, calls something else
    "function_call": Refused("use tool_choice", (*_OFF, "none", "auto")),
    "functions": Refused("use tools"),
    "guided_whitespace_pattern": Refused("leave it out; JSON comes on one line"),
    "logprobs": Refused("use include=['message.output_text.logprobs'] in responses; messages have none"),
    "top_logprobs": Refused("use logprobs in completions; messages have none"),
    "max_completion_tokens": Refused(_LIMIT),
    "max_output_tokens": Refused(_LIMIT),
    "max_tokens": Refused(_LIMIT),
    "n": Refused("this protocol knows one answer a call", (*_OFF, 1)),
    "output_config": Refused(_FORMAT),
    "output_format": Refused(_FORMAT),
    "response_format": Refused(_FORMAT),
    "stop": Refused("use stop_sequences"),
    "add_generation_prompt": Refused("answers are begun in chat completions and messages", (None, True)),
    "continue_final_message": Refused("answers are begun in chat completions and messages"),
    "add_special_tokens": Refused(
        "put the tokens into the prompt as ids, with the completions protocol", (None, False)
    ),
}
"""Fields of the official clients and of vLLM that are not honoured everywhere. Where one is, it is in the protocol's schema."""


def check_fields(body: Mapping[str, Any], honoured: Collection[str]) -> None:
    """Refuse what would change the answer and cannot be honoured.

    Raises:
        BadRequestError: A field is set to more than its neutral value; the message names it and what to do instead.
    """
    for name in body.keys() & (REFUSED.keys() - honoured):
        if not any(type(body[name]) is type(value) and body[name] == value for value in REFUSED[name].neutral):
            raise BadRequestError(f"{name}: is not supported here; {REFUSED[name].remedy}.", param=name)
