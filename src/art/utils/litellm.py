"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import convert_litellm_choice_to_openai

__all__ = ["convert_litellm_choice_to_openai"]
