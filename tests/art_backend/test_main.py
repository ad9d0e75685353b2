"""One directory, one service."""

import pytest

from art_backend.__main__ import claim_directory
from art_backend.errors import ConflictError


def test_a_directory_has_one_service_at_a_time(tmp_path):
    first = claim_directory(tmp_path / "art")
    with pytest.raises(ConflictError, match="RemoteBackend"):
        claim_directory(tmp_path / "art", wait_s=0.1)
    first.release()
    claim_directory(tmp_path / "art", wait_s=0.1).release()
