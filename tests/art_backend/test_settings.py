import pytest

from art_backend.errors import BadRequestError
from art_backend.settings import Settings, is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "example.org"])
def test_a_service_that_others_can_reach_needs_a_key(host, tmp_path):
    with pytest.raises(BadRequestError, match="ART_API_KEY"):
        Settings(path=tmp_path, host=host)
    assert Settings(path=tmp_path, host=host, api_key="k").api_key == "k"


def test_a_loopback_service_without_a_key_gets_a_random_one(tmp_path):
    one, two = Settings(path=tmp_path), Settings(path=tmp_path)
    assert one.generated_key and one.api_key != two.api_key
    assert not Settings(path=tmp_path, api_key="k").generated_key


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("my-box", False),
    ],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected
