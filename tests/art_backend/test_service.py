"""The service itself, without models."""

import asyncio

from art_backend import service as service_module
from art_backend.errors import NotFoundError
from art_backend.service import Service
from art_backend.settings import Settings


async def test_old_captures_are_deleted_while_the_service_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "RETENTION_CHECK_S", 0.02)
    service = Service(Settings(path=tmp_path, api_key="k", capture_retention_days=0.2 / 86_400))
    await service.restore()
    rollout = service.captures.create_rollout("p", "m").id
    await asyncio.sleep(0.05)
    assert service.captures.get(rollout).id == rollout
    async with asyncio.timeout(5):
        while True:
            try:
                service.captures.get(rollout)
            except NotFoundError:
                break
            await asyncio.sleep(0.02)
    await service.close()


async def test_captures_outlive_a_restart_within_their_time(tmp_path):
    first = Service(Settings(path=tmp_path, api_key="k"))
    await first.restore()
    made = first.captures.create_rollout("p", "m")
    await first.close()
    second = Service(Settings(path=tmp_path, api_key="k"))
    await second.restore()
    await asyncio.sleep(0.01)
    assert second.captures.get(made.id).model_copy(update={"api_key": made.api_key}) == made
    assert second.keyring.identify(made.api_key).rollout == made.id
    await second.close()
