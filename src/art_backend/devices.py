"""The machine's CUDA devices, and where engines and trainer run: on shared devices in turns, or on separate devices.

The devices are asked from the driver's own tool, so that the service takes none of their memory.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from art_backend.errors import BadRequestError

VISIBLE = "CUDA_VISIBLE_DEVICES"

PlacementKind = Literal["auto", "colocated", "dedicated"]

_QUERY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Device:
    """One device."""

    name: str
    memory_bytes: int


@functools.cache
def find_devices() -> tuple[Device, ...]:
    """The devices of this machine, in the driver's order; none where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    found = subprocess.run(query, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False)
    return parse_devices(found.stdout) if found.returncode == 0 else ()


def parse_devices(listing: str) -> tuple[Device, ...]:
    """Read lines such as ``NVIDIA H200, 143771``; the size is in MiB."""
    lines = [line.rsplit(",", 1) for line in listing.splitlines() if line.strip()]
    return tuple(Device(name.strip(), int(size) * 2**20) for name, size in lines)


def find_usable_devices(environment: Mapping[str, str] = os.environ) -> tuple[Device, ...]:
    """Those that the installed torch computes on, in a process of this environment."""
    if version("torch").endswith("+cpu"):
        return ()
    return choose_visible(find_devices(), environment.get(VISIBLE))


def choose_visible(devices: Sequence[Device], names: str | None) -> tuple[Device, ...]:
    """The devices that ``CUDA_VISIBLE_DEVICES`` names, in its order; all where it is not set.

    Names that are not numbers are counted, not looked up: a machine's devices are mostly of one kind.
    """
    if names is None:
        return tuple(devices)
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if all(name.isdecimal() for name in chosen):
        return tuple(devices[int(name)] for name in chosen if int(name) < len(devices))
    return tuple(devices[: len(chosen)])


def visible(devices: Sequence[int], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child that sees ``devices`` alone; of one that sees all, nothing.

    Args:
        devices: As this process counts them.
        environment: Of this process. Where it sees some devices only, the child is given their names.

    Raises:
        BadRequestError: This process does not see that many.
    """
    if not devices:
        return {}
    names = [name.strip() for name in environment.get(VISIBLE, "").split(",") if name.strip()]
    if not names:  # all are visible, in the order that nvidia-smi shows
        return {VISIBLE: ",".join(map(str, devices)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if missing := [device for device in devices if device >= len(names)]:
        raise BadRequestError(
            f"devices: {missing[0]} is not visible here: {VISIBLE}={environment[VISIBLE]} makes them 0 to {len(names) - 1}.",
            param="devices",
        )
    return {VISIBLE: ",".join(names[device] for device in devices)}


@dataclass(frozen=True)
class Placement:
    """The requested placement. Devices are CUDA devices, as the service counts them.

    Raises:
        BadRequestError: The parts contradict each other.
    """

    kind: PlacementKind = "auto"
    """``colocated``: the engine gives its memory away while the trainer works. ``dedicated``: both work at the same time.
    ``auto`` is dedicated where both were given devices and share none."""
    engine_devices: tuple[int, ...] = ()
    """Divided among the replicas; empty: all that there are, for a single engine."""
    trainer_devices: tuple[int, ...] = ()
    """What the trainer's process sees; empty: all that there are."""
    replicas: int | None = None
    """Engines of each base model; ``None``: one for each engine device."""

    def __post_init__(self) -> None:
        for name, devices in (("engine_devices", self.engine_devices), ("trainer_devices", self.trainer_devices)):
            if len(set(devices)) < len(devices) or min(devices, default=0) < 0:
                raise BadRequestError(f"{name}: {_join(devices)} must list each device once.", param=name)
        if self.replicas is not None and self.replicas < 1:
            raise BadRequestError("replicas: there must be at least one.", param="replicas")
        if len(self.engine_devices) % self.engines:
            raise BadRequestError(
                f"replicas: {len(self.engine_devices)} engine devices cannot be divided among {self.engines} replicas.",
                param="replicas",
            )
        if self.kind == "dedicated" and (shared := set(self.engine_devices) & set(self.trainer_devices)):
            raise BadRequestError(
                f"placement: dedicated, but engine_devices and trainer_devices share {_join(sorted(shared))}. Give each its own.",
                param="placement",
            )

    @property
    def engines(self) -> int:
        """How many engines serve each base model."""
        return self.replicas or len(self.engine_devices) or 1

    @property
    def dedicated(self) -> bool:
        """Whether engines and trainer work at the same time."""
        if self.kind != "auto":
            return self.kind == "dedicated"
        apart = not set(self.engine_devices) & set(self.trainer_devices)
        return bool(self.engine_devices and self.trainer_devices) and apart

    def check(self, devices: int) -> None:
        """Compare with the machine.

        Args:
            devices: How many it has; 0 computes on the CPU.

        Raises:
            BadRequestError: A device is not there, or is needed and was not given.
        """
        if missing := [n for n in (*self.engine_devices, *self.trainer_devices) if n >= devices]:
            raise BadRequestError(
                f"devices: there is no CUDA device {missing[0]} here; the service sees {devices or 'none'}.",
                param="devices",
            )
        if devices and self.dedicated and not (self.engine_devices and self.trainer_devices):
            raise BadRequestError(
                "placement: dedicated needs --engine-devices and --trainer-devices, such as 0 and 1.", param="placement"
            )
        if devices and self.engines > 1 and not self.engine_devices:
            raise BadRequestError(
                f"replicas: each needs its own device; name them: --engine-devices {_join(range(self.engines))}",
                param="replicas",
            )


def parse_device_list(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers.

    Raises:
        BadRequestError: The text is not such a list.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise BadRequestError(f"devices: write numbers, such as 0,1, not {text!r}.", param="devices")
    return tuple(map(int, parts))


def _join(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices))
