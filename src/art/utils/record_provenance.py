"""An older path of ``art.compat.helpers``."""

from art.compat.helpers import record_provenance

__all__ = ["record_provenance"]
