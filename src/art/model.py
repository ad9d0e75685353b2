"""Models that an agent talks to, and the one that ART trains."""

import asyncio
import json
import weakref
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from pydantic import PrivateAttr

import art
from art.backend import Backend, RolloutSource
from art.logs.files import best_step, read_history
from art.logs.model import LoggedModel, ModelConfig, StateType
from art.logs.rows import TRAIN_GRADIENT_STEPS_KEY
from art.rollouts.rollout import Rollout, read_conversations, record_rollout
from art.terminal import say
from art.trajectories import History, Trajectory, TrajectoryGroup
from art.types import TrainConfig, TrainSFTConfig

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from art import dev
    from art.backend.registration import InternalModelConfig


class Model(LoggedModel[ModelConfig, StateType], Generic[ModelConfig, StateType]):
    """A model under a name, within a project.

    Use this class for models that do not learn, such as a prompted baseline: give ``inference_base_url``,
    ``inference_api_key`` and ``inference_model_name``. A model that learns is a ``TrainableModel``.

    >>> prompted = art.Model(name="baseline", project="games", inference_model_name="gpt-4.1")
    >>> await prompted.log([art.Trajectory(reward=1.0), art.Trajectory(reward=0.0)], split="val")
    """

    _step: int | None = PrivateAttr(default=None)
    """The pinned policy version; ``None``: the latest."""
    _client: "tuple[tuple[Any, ...], AsyncOpenAI] | None" = PrivateAttr(default=None)

    def backend(self) -> Backend:
        """The registered backend.

        Raises:
            ValueError: The model is not registered.
        """
        if self._backend is None:
            raise ValueError(f"Model {self.name!r} is not registered: `await model.register(backend)` first.")
        return self._backend

    async def register(self, backend: Backend) -> None:
        """Register the model with a backend. Registering again is harmless.

        Raises:
            ValueError: ``config`` is not JSON-serialisable.
            TypeError: ``backend`` is ``None``.
        """
        if backend is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise TypeError(
                f"Model {self.name!r} is registered with a backend, such as art.LocalBackend(), not with None."
            )
        if self.config is not None:
            try:
                json.dumps(self.config.model_dump(mode="json"))
            except Exception as error:
                raise ValueError(f"The config of model {self.name!r} is not JSON-serialisable: {error}") from error
        self._backend = backend
        await backend.register(self)

    def openai_client(self) -> "AsyncOpenAI":
        """Return a client for the model's endpoint.

        Raises:
            ValueError: The endpoint is not known.
        """
        if self.inference_api_key is None or self.inference_base_url is None:
            if self.trainable:
                raise ValueError(f"Model {self.name!r} has no endpoint yet: `await model.register(backend)` first.")
            raise ValueError(f"Give model {self.name!r} an inference_api_key and an inference_base_url.")
        # A client's connections belong to the event loop that opened them.
        key = (self.inference_base_url, self.inference_api_key, _running_loop())
        if self._client is None or self._client[0] != key:
            from art.capture.clients import make_client

            self._client = (key, make_client(self.inference_base_url, self.inference_api_key))
        return self._client[1]

    def get_inference_name(self, step: int | None = None) -> str:
        """Return the name for requests to the model, or to its version ``step``."""
        step = self._step if step is None else step
        if self._backend is not None:
            return self._backend._model_inference_name(self, step)  # pyright: ignore[reportPrivateUsage]
        base = self.inference_model_name or self.name
        return base if step is None else f"{base}@{step}"

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Arguments for ``litellm.acompletion``."""
        name = self.get_inference_name(step)
        return {
            "model": f"hosted_vllm/{name}" if self.trainable else name,
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    @asynccontextmanager
    async def rollout(self, step: int | None = None) -> AsyncGenerator[Rollout]:
        """One run of the agent at the model's endpoint, so rollout functions for trainable models work here too.

        Nothing is captured at the endpoint. Clients of the rollout record, as ``art.capture`` says; ``fill`` adds what they recorded.

        Raises:
            ValueError: A ``step`` was given: the model has no versions. Or the endpoint is not known.
        """
        if step is not None:
            raise ValueError(f"Model {self.name!r} is not trained, so it has no version {step}; leave step out.")
        async with record_rollout(self.openai_client()) as run:
            yield run

    async def get_step(self) -> int:
        """Return the latest or the pinned policy version; 0 for a model that is not trained."""
        if self._step is not None:
            return self._step
        return await self.backend()._get_step(cast(Any, self)) if self.trainable else 0  # pyright: ignore[reportPrivateUsage]

    def safe_model_dump(self) -> dict[str, Any]:
        """``model_dump`` without the config, which may hold anything."""
        return {**self.model_dump(exclude={"config"}), "config": None}


class TrainableModel(Model[ModelConfig, StateType], Generic[ModelConfig, StateType]):
    """A model that learns.

    >>> model = art.TrainableModel(name="player", project="games", base_model=base_model)
    >>> await model.register(backend)
    >>> model.get_inference_name()
    'player@0'
    """

    base_model: str
    """A local path, a hub id, or another name the backend resolves."""
    trainable: Literal[True] = True  # type: ignore[assignment]

    _internal_config: "InternalModelConfig | None" = PrivateAttr(default=None)

    def __init__(self, *, _internal_config: "InternalModelConfig | None" = None, **data: Any) -> None:
        super().__init__(**data)
        self._internal_config = _internal_config

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The fields, and ``_internal_config``."""
        return {**super().model_dump(**options), "_internal_config": self._internal_config}

    async def register(self, backend: Backend, _openai_client_config: "dict[str, Any] | None" = None) -> None:
        """Register the model with a backend, which loads and serves it. Registering again is harmless."""
        await super().register(backend)
        base_url, api_key = await backend._prepare_backend_for_training(self, _openai_client_config)  # pyright: ignore[reportPrivateUsage]
        self.inference_base_url = base_url
        self.inference_api_key = api_key
        self.inference_model_name = self.get_inference_name()

    @asynccontextmanager
    async def rollout(self, step: int | None = None) -> AsyncGenerator[Rollout]:
        """One run of the agent under its own key, in any framework, process or language.

            async with model.rollout() as r:
                reward = await run_my_agent(r.base_url, r.api_key)
                return r.trajectory(reward)

        For an agent that builds its clients from ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``:

            async with model.rollout() as r, r.trajectory() as t:
                t.reward = await run_my_agent()
            return t

        Args:
            step: Pin it to this policy version; ``None`` follows the latest.
        """
        step = self._step if step is None else step
        backend = self.backend()
        if not isinstance(backend, RolloutSource):
            raise TypeError(f"{type(backend).__name__} has no rollouts; use LocalBackend or RemoteBackend.")
        rollout_id, base_url, api_key = await backend.create_rollout(self, step)
        client = self.openai_client().with_options(base_url=base_url, api_key=api_key)

        async def read() -> list[History]:
            return read_conversations(await backend.get_rollout(rollout_id))

        yield Rollout(rollout_id, base_url, api_key, client, read)

    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        _config: "dict[str, Any] | None" = None,
        verbose: bool = False,
    ) -> None:
        """Deprecated: ``await backend.train(model, groups, learning_rate=…)``, then ``await model.log(…)``."""
        await art.compat.train_and_log(self, list(trajectory_groups), config, _config, verbose)

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: "dev.TrainSFTConfig | None" = None,
        verbose: bool = False,
    ) -> None:
        """Fine-tune on the given trajectories, log one row, and print how the loss changed. Captured trajectories are learned by their
        exact tokens."""
        check_config(config, TrainSFTConfig)
        result = await self.backend().train_sft(self, trajectories, config, verbose=verbose, **(_config or {}))
        if result is None:
            return
        metrics = result.metrics
        await self.log(split="train", metrics=metrics, step=result.step)
        if "loss/sft_last_batch" in metrics:
            say(
                f"{self.name}: {metrics[TRAIN_GRADIENT_STEPS_KEY]:.0f} updates on examples made step {result.step}; loss per token "
                f"{metrics['loss/sft_first_batch']:.2f} at first, {metrics['loss/sft_last_batch']:.2f} at last"
            )

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> None:
        """Delete all checkpoints but the latest and the one with the highest mean of a metric in ``history.jsonl``."""
        latest = await self.get_step()
        best = best_step(read_history(self._path("history.jsonl")), best_checkpoint_metric)
        if best is None:
            say(f"{self.name}: no {best_checkpoint_metric!r} was logged, so only the latest checkpoint is kept")
        keep = [latest] if best is None or best == latest else [best, latest]
        await self.backend()._delete_checkpoint_files(self, keep)  # pyright: ignore[reportPrivateUsage]


def check_config(config: Any, kind: type[Any]) -> None:
    """Raises TypeError: ``config`` is of another kind."""
    if config is not None and not isinstance(config, kind):
        raise TypeError(f"config must be an art.{kind.__name__}, not {type(config).__name__}.")


def _running_loop() -> "weakref.ref[asyncio.AbstractEventLoop] | None":
    try:
        return weakref.ref(asyncio.get_running_loop())
    except RuntimeError:
        return None
