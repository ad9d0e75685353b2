"""A hosted backend."""

from art.serverless.backend import ServerlessBackend

__all__ = ["ServerlessBackend"]
