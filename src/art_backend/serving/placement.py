"""Where engines and trainer compute: on the same devices in turns, or on devices of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from art_backend.errors import BadRequestError

PlacementKind = Literal["auto", "colocated", "dedicated"]


@dataclass(frozen=True)
class Placement:
    """What the service was asked for. Devices are CUDA devices, as the service counts them.

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
                raise BadRequestError(f"{name}: {_join(devices)} is not a list of different devices.", param=name)
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
                f"replicas: each needs a device of its own; name them: --engine-devices {_join(range(self.engines))}",
                param="replicas",
            )


def parse_device_list(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers.

    Raises:
        BadRequestError: It is no such list.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise BadRequestError(f"devices: write numbers, such as 0,1, not {text!r}.", param="devices")
    return tuple(map(int, parts))


def _join(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices))
