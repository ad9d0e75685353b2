"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import DatasetBatch, iterate_dataset

__all__ = ["DatasetBatch", "iterate_dataset"]
