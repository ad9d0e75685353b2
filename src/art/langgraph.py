"""Agents of LangGraph and LangChain; see ``art.compat.langgraph``."""

from art.compat.langgraph import init_chat_model, wrap_rollout

__all__ = ["init_chat_model", "wrap_rollout"]
