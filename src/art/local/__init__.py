"""A backend on this machine."""

from art.local.backend import LocalBackend

__all__ = ["LocalBackend"]
