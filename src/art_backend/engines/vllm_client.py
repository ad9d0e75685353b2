"""What vLLM does otherwise than the engine contract says: whole weights that are replaced."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from art_backend.engines.client import EngineClient, EngineError
from art_backend.engines.contract import Generation, GenerationDelta, Sampling


class VllmClient(EngineClient):
    """One vLLM server.

    vLLM reads other weights from disk into the place of its own, but goes on calling them by the name that it was started with.
    Here each version has its name: others are refused, and vLLM is asked which version it holds before it is listed.

    Args:
        served_name: What vLLM calls its model.
    """

    def __init__(self, address: str, api_key: str, served_name: str) -> None:
        super().__init__(address, api_key)
        self._served_name = served_name
        self._weights = served_name
        """Name of the weights that it holds."""

    async def generate(
        self,
        model: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        request_id: str | None = None,
        *,
        rollout: str | None = None,
    ) -> Generation:
        return await super().generate(self._translate(model), token_ids, sampling, request_id, rollout=rollout)

    async def stream(
        self,
        model: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        request_id: str | None = None,
        *,
        rollout: str | None = None,
    ) -> AsyncGenerator[GenerationDelta, None]:
        async for delta in super().stream(self._translate(model), token_ids, sampling, request_id, rollout=rollout):
            yield delta

    async def load_weights(self, name: str, path: Path) -> None:
        self._weights = ""  # until it is done, whatever it holds is no version
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})
        cleared = await self._ask("POST", "/reset_prefix_cache")
        if not cleared["success"]:
            raise EngineError(
                409, f"Completions are in flight, so the cache of the last weights stays. ({name!r} at {path})"
            )
        await self._post("/update_weight_version", {"new_version": name})
        self._weights = name

    async def models(self) -> list[str]:
        names = await super().models()
        if self._weights == self._served_name:
            return names
        held = (await self._ask("GET", "/weight_info"))["weight_version"]
        return [held if name == self._served_name else name for name in names]

    def _translate(self, model: str) -> str:
        if model == self._weights:
            return self._served_name
        if model == self._served_name:
            raise EngineError(
                404, f"The model {model!r} does not exist. The weights that are served: {self._weights!r}."
            )
        return model
