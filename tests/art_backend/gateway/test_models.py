"""The list of models, through the official SDKs of both protocols that read it."""

import anthropic
import openai
import pytest
from tests.art_backend.gateway.conftest import SERVICE_KEY


def connect(gateway, key, rollout=None):
    prefix = f"/r/{rollout}" if rollout else ""
    return anthropic.AsyncAnthropic(base_url=f"{gateway.url}{prefix}", api_key=key, max_retries=0)


@pytest.mark.parametrize("name", ["m", "p/m", "base/owner/Model-1.5B"])
@pytest.mark.parametrize("in_path", [False, True])
async def test_models_are_listed_and_retrieved(gateway, name, in_path):
    gateway.model.name = name
    info = gateway.rollout()
    rollout = info.id if in_path else None
    ours, theirs = gateway.client(info.api_key, rollout), connect(gateway, info.api_key, rollout)
    assert [model.id async for model in ours.models.list()] == [name]
    (listed,) = [model async for model in theirs.models.list()]
    assert (listed.id, listed.type, listed.display_name, listed.created_at.year) == (name, "model", name, 1970)
    for asked in (name, f"{name}@0"):
        one = await ours.models.retrieve(asked)
        assert (one.id, one.object, one.owned_by) == (asked, "model", "art")
        other = await theirs.models.retrieve(asked)
        assert (other.id, other.display_name, other.lifecycle) == (asked, asked, "active")


async def test_unknown_models_and_keys_are_told_in_the_callers_protocol(gateway):
    with pytest.raises(openai.NotFoundError) as ours:
        await gateway.client(SERVICE_KEY).models.retrieve("some/other")
    assert ours.value.param == "model"
    with pytest.raises(anthropic.NotFoundError) as theirs:
        await connect(gateway, SERVICE_KEY).models.retrieve("some/other")
    assert theirs.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(openai.AuthenticationError):
        await gateway.client("nobody").models.list()
    with pytest.raises(anthropic.AuthenticationError) as theirs:
        await connect(gateway, "nobody").models.list()
    assert theirs.value.body["error"]["type"] == "authentication_error"
