"""A backend that runs as a child process."""

import asyncio
import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from art.backend import AnyModel, AnyTrainableModel
from art.backend.control import ControlClient
from art.backend.machine import query_gpus
from art.backend.registration import check_names, is_dedicated_mode, validate_dedicated_config
from art.backend.remote import RemoteBackend
from art.errors import BackendError, ConflictError, NotFoundError
from art.local.service import ServiceProcess
from art.logs.directories import (
    get_default_art_path,
    get_model_step,
    get_output_dir_from_model_properties,
    get_step_checkpoint_dir,
)
from art.logs.files import write_json
from art.terminal import say
from art.wire import ModelInfo

if TYPE_CHECKING:
    from art.model import TrainableModel

START_TIMEOUT_S = float(os.environ.get("ART_SERVER_TIMEOUT", "1800"))
"""Cap on the service's start; its death is noticed at once in any case."""
DIRECTORY_WAIT_S = 15.0
"""How long a service that is just ending may keep its directory."""
_PRICE_PER_GPU_HOUR = {"H200": 3.0}


class LocalBackend(RemoteBackend):
    """Starts ``python -m art_backend serve`` on a free loopback port on first use, and stops it when closed.

    Use it as a context manager, sync or async, or call ``close``; the service always ends with this process.

    Args:
        in_process: Has no effect; the service always runs in a separate process.
        path: Directory for metrics, trajectories and checkpoints. ``None`` means ``.art`` in the repository.
        gpu_cost_per_hour_usd: Hourly price of one device, for ``costs/gpu``.
        user_code: Directory whose modules may define advantages and losses for ``train``; ``None`` means the program's directory.
        serve_arguments: More arguments for ``art_backend serve``; not its ``--host`` and ``--port``.

    Raises:
        ValueError: ``serve_arguments`` contain an address.

    >>> backend = art.LocalBackend(path="runs")  # starts nothing yet
    >>> await backend.close()
    """

    _honoured = ("trainer_gpu_ids", "inference_gpu_ids")

    def __init__(
        self,
        *,
        in_process: bool = False,
        path: str | os.PathLike[str] | None = None,
        gpu_cost_per_hour_usd: float | None = None,
        user_code: str | os.PathLike[str] | None = None,
        serve_arguments: list[str] | None = None,
    ) -> None:
        if in_process:
            warnings.warn("in_process has no effect: the service always runs in a separate process.", stacklevel=2)
        arguments = list(serve_arguments or [])
        if taken := [word for word in arguments if word.partition("=")[0] in ("--host", "--port")]:
            raise ValueError(
                f"serve_arguments: {taken[0]} has no effect, since this backend listens on a free loopback port. For another address, run "
                "`art serve` and connect to it with RemoteBackend."
            )
        super().__init__("http://127.0.0.1", "", gpu_cost_per_hour_usd=gpu_cost_per_hour_usd)
        self._path = Path(path or get_default_art_path()).resolve()
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        own_code = Path(user_code).resolve() if user_code is not None else _program_directory()
        self._service = ServiceProcess(self._path, ["--user-code", str(own_code), *arguments])
        self._client = None
        self._death_reported = False
        self._devices: list[str] = []
        """Arguments of the service that models have asked for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_sync()

    async def close(self) -> None:
        """Stop the service. A later call starts it again."""
        self._stop_report()
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        """``close``, for code that cannot await."""
        self._client = None
        self._service.stop()

    async def register(self, model: AnyModel) -> None:
        if model.trainable:
            check_names(model.project, model.name)
        model.base_path = str(self._path)
        directory = Path(get_output_dir_from_model_properties(model.project, model.name, str(self._path)))
        record = {**model.safe_model_dump(), "inference_api_key": None}
        if model.config is not None:
            record["config"] = model.config.model_dump(mode="json")
        write_json(directory / "model.json", record)
        await super().register(model)

    async def _register(self, model: AnyTrainableModel) -> ModelInfo:
        self._take_devices(model)
        return await super()._register(model)

    def _take_devices(self, model: AnyTrainableModel) -> None:
        """Let the service have the devices that a model asks for. They are the service's, so its first model decides.

        Raises:
            ValueError: The settings contradict each other, or the service runs with other devices.
        """
        settings = model._internal_config or {}  # pyright: ignore[reportPrivateUsage]
        validate_dedicated_config(settings)
        if not is_dedicated_mode(settings):
            return
        wanted = [
            *("--engine-devices", ",".join(map(str, settings.get("inference_gpu_ids", [])))),
            *("--trainer-devices", ",".join(map(str, settings.get("trainer_gpu_ids", [])))),
        ]
        if self._service.pid is None and not self._devices:
            self._devices = wanted
            self._service.add_arguments(wanted)
        elif wanted != self._devices:
            raise ValueError(
                f"trainer_gpu_ids, inference_gpu_ids: model {model.name!r} asks for {' '.join(wanted)}, but this backend's service "
                f"has {' '.join(self._devices) or 'no separate devices'}. Use another LocalBackend, with another path."
            )

    async def open_model(self, project: str, name: str, step: int | None = None) -> "TrainableModel[Any, Any]":
        model = await super().open_model(project, name, step)
        model.base_path = str(self._path)
        return model

    async def _experimental_pull_model_checkpoint(
        self,
        model: AnyTrainableModel,
        *,
        step: int | Literal["latest"] | None = None,
        local_path: str | os.PathLike[str] | None = None,
        verbose: bool = False,
    ) -> str:
        """Copy a checkpoint out of the service's directory.

        Args:
            step: ``None`` or ``"latest"`` takes the latest one.
            local_path: New directory to write; ``None`` copies nothing.
            verbose: Print what is copied.

        Returns:
            The copy's directory, or without ``local_path`` the checkpoint's own.

        Raises:
            NotFoundError: There is no such checkpoint.
            FileExistsError: ``local_path`` is there already.
        """
        wanted = get_model_step(model, str(self._path)) if step is None or step == "latest" else step
        source = self._checkpoint_directory(model, wanted)
        if source is None:
            raise NotFoundError(
                f"{model.project}/{model.name} has no checkpoint of step {wanted} on this machine.", 404
            )
        if local_path is None:
            return source
        if verbose:
            say(f"Copying {source} to {local_path}.")
        await asyncio.to_thread(shutil.copytree, source, local_path)
        return str(local_path)

    def automatic_gpu_cost_per_hour_usd(self, model: AnyModel) -> float | None:
        names = query_gpus("name")
        price = self._gpu_cost_per_hour_usd
        if price is None:
            prices = {_price(name) for name in names}
            price = prices.pop() if len(prices) == 1 else None
        count = len(_configured_ids(model)) or len(names)
        return price * count if price is not None and count else None

    def _checkpoint_directory(self, model: AnyTrainableModel, step: int) -> str | None:
        of_model = get_output_dir_from_model_properties(model.project, model.name, str(self._path))
        directory = get_step_checkpoint_dir(of_model, step)
        return directory if Path(directory).is_dir() else None

    async def _control(self) -> ControlClient:
        if self._client is not None and (death := self._service.death()) is not None:
            self._client = None
            self._service.forget()
            if not self._death_reported:  # reported once; the next call starts the service again
                raise death
        if self._client is None:
            await self._wait_for_directory()
            say(f"Starting the ART service in {self._path}; its log is {self._service.log_path}")
            self._service.start()
            url = await self._wait_until_ready()
            self._death_reported = False
            self._client = ControlClient(url, self._service.api_key, reconnect_s=30.0, watch=self._watch)
        return await super()._control()

    async def _wait_for_directory(self) -> None:
        """Wait a little for another service of the same directory, such as one that is just ending; say so at once.

        Raises:
            ConflictError: It does not end.
        """
        if (pid := self._service.other_holder()) is None:
            return
        say(f"The ART service of process {pid} uses {self._path}; waiting up to {DIRECTORY_WAIT_S:g} s for its end.")
        deadline = time.monotonic() + DIRECTORY_WAIT_S
        while (pid := self._service.other_holder()) is not None:
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"Another ART service (process {pid}) uses {self._path}. Close that backend, use the same one in both places, "
                    "connect to it with RemoteBackend, or choose another path.",
                    409,
                )
            await asyncio.sleep(0.1)

    def _watch(self) -> BackendError | None:
        death = self._service.death()
        self._death_reported |= death is not None
        return death

    async def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if (url := self._service.read_ready()) is not None:
                return url
            if (death := self._service.death()) is not None:
                self._service.forget()
                raise death
            await asyncio.sleep(0.05)
        raise BackendError(
            f"The local backend (process {self._service.pid}) is running but did not start to listen within {START_TIMEOUT_S:g} s "
            f"(ART_SERVER_TIMEOUT). The end of its log, {self._service.log_path}:\n{self._service.log_tail()}",
            504,
        )


def _program_directory() -> Path:
    """Where the running program's own modules are: beside its script, or here."""
    main = sys.modules["__main__"]
    file: str | None = vars(main).get("__file__")
    return Path(file).resolve().parent if file is not None and main.__spec__ is None else Path.cwd()


def _configured_ids(model: AnyModel) -> set[int]:
    from art.model import TrainableModel

    if not isinstance(model, TrainableModel):
        return set()
    settings = model._internal_config or {}  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    return {*settings.get("trainer_gpu_ids", []), *settings.get("inference_gpu_ids", [])}


def _price(gpu_name: str) -> float | None:
    return next((price for mark, price in _PRICE_PER_GPU_HOUR.items() if mark in gpu_name), None)
