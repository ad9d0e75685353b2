"""The machine's CUDA devices, asked from the driver's own tool: the service itself has no business with their memory."""

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from art_backend.errors import BadRequestError

VISIBLE = "CUDA_VISIBLE_DEVICES"

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

    Names that are no numbers are counted, not looked up: a machine's devices are mostly of one kind.
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
