"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import group_aggregate

__all__ = ["group_aggregate"]
