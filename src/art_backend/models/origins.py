"""Where a model begins when it does not begin at its base model: another model's checkpoint, or a PEFT adapter on disk.

The new model gets that adapter as its own checkpoint. A fork keeps the step's number, the optimiser and the data
cursor; an adapter from elsewhere becomes step 1 and has a fresh optimiser. ``origin.json`` in the model's directory names
what it began with, so that the same registration again is harmless and another one is refused.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from art.wire import LoraSpec, RegisterModel
from art_backend.errors import BadRequestError, ConflictError, ModelNotAvailableError, NotFoundError, StorageFailedError
from art_backend.settings import Settings
from art_backend.store.checkpoints import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MANIFEST, CheckpointStore

ORIGIN = "origin.json"

_FORK = re.compile(r"(?:(?P<project>[\w.-]+)/)?(?P<name>[\w.-]+)@(?P<step>\d+|latest)")
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "bias": ("none", None),
    "modules_to_save": ([], None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
}
"""Settings of an adapter that training does not keep, with the values under which they change nothing."""


def begin(spec: RegisterModel, base_path: Path, settings: Settings, known: Sequence[RegisterModel]) -> None:
    """Give a model that has no checkpoint yet the one that ``spec.init_adapter`` names.

    Args:
        known: The registered models, which may be forked.

    Raises:
        BadRequestError: ``init_adapter`` is neither an adapter's directory nor ``project/name@step``.
        ConflictError: The model began with something else.
        ModelNotAvailableError: The adapter is of another base model or shape.
        NotFoundError: No such model or step.
        StorageFailedError: The adapter cannot be read, or the disk is full.
    """
    wanted = spec.init_adapter
    if wanted is None:
        return
    if spec.full_finetune:
        raise BadRequestError(
            "init_adapter: a fully fine-tuned model has no adapter. Export the other one with --merged, and take the folder as"
            " base_model.",
            param="init_adapter",
        )
    store = CheckpointStore(settings.checkpoints_dir(spec.project, spec.name))
    record = settings.model_dir(spec.project, spec.name) / ORIGIN
    began = json.loads(record.read_text())["init_adapter"] if record.exists() else None
    if store.steps():
        if began is None or _source(began, spec.project) != _source(wanted, spec.project):
            raise ConflictError(
                f"Model {spec.name!r} has checkpoints already (steps {store.steps()}) and began with "
                f"{began or 'its base model'}, not with {wanted}. Choose a new name to start over.",
                param="init_adapter",
            )
        return
    path = Path(wanted).expanduser()
    fork = None if path.is_dir() else _FORK.fullmatch(wanted)
    if fork is None and not path.is_dir():
        raise BadRequestError(
            f"init_adapter: {wanted!r} is neither a directory on the backend's machine nor project/name@step of one of its"
            " models.",
            param="init_adapter",
        )
    if fork is None:
        step, write = _import_adapter(path, spec, base_path)
    else:
        source = _find(fork["project"] or spec.project, fork["name"], known)
        checkpoints = CheckpointStore(settings.checkpoints_dir(source.project, source.name))
        step, write = _fork(source, checkpoints, fork["step"], spec, base_path)
    record.parent.mkdir(parents=True, exist_ok=True)
    partial = record.with_suffix(".partial")
    partial.write_text(json.dumps({"init_adapter": wanted}))
    partial.replace(record)
    store.save(step, write)


def withdraw(spec: RegisterModel, settings: Settings) -> None:
    """Take back what ``begin`` gave to a model that could not be registered: its first checkpoint, untrained."""
    record = settings.model_dir(spec.project, spec.name) / ORIGIN
    if record.exists():
        shutil.rmtree(settings.checkpoints_dir(spec.project, spec.name), ignore_errors=True)
        record.unlink()


def _find(project: str, name: str, known: Sequence[RegisterModel]) -> RegisterModel:
    for model in known:
        if (model.project, model.name) == (project, name):
            return model
    names = ", ".join(f"{model.project}/{model.name}" for model in known) or "none"
    raise NotFoundError(f"There is no model {project}/{name} to fork. Models: {names}.", param="init_adapter")


def _source(init_adapter: str, project: str) -> str:
    """The part of an origin that is compared: a fork of ``latest`` is of the same model a day later, at another step."""
    fork = None if Path(init_adapter).expanduser().is_dir() else _FORK.fullmatch(init_adapter)
    return f"{fork['project'] or project}/{fork['name']}" if fork else str(Path(init_adapter).expanduser())


def _fork(
    source: RegisterModel,
    checkpoints: CheckpointStore,
    step: str,
    spec: RegisterModel,
    base_path: Path,
) -> tuple[int, Callable[[Path], None]]:
    """Return the step of the first checkpoint, and what fills it."""
    from art_backend.training.state import fingerprint_base, read_state

    what = f"{source.project}/{source.name}"
    if not checkpoints.steps():
        raise NotFoundError(f"Model {what} has no checkpoint to fork. Train it first.", param="init_adapter")
    number = checkpoints.latest_step() if step == "latest" else int(step)
    directory = checkpoints.verify(number)
    if read_state(directory).base_model != fingerprint_base(base_path):
        raise ModelNotAvailableError(
            f"{what}@{number} was trained on {source.base_model}, which is not the {spec.base_model} that {spec.name!r} is"
            " registered with. Register it with the same base model.",
            param="init_adapter",
        )
    if source.full_finetune:
        raise ModelNotAvailableError(
            f"{what} is fully fine-tuned and has no adapter. Export it, and use that folder as base_model.",
            param="init_adapter",
        )
    _check_shape(_read_config(directory), spec.lora, f"{what}@{number}")

    def write(target: Path) -> None:
        for file in directory.iterdir():
            if file.name != MANIFEST:
                os.link(file, target / file.name)

    return number, write


def _import_adapter(path: Path, spec: RegisterModel, base_path: Path) -> tuple[int, Callable[[Path], None]]:
    from art_backend.training.state import STATE, TrainerState, fingerprint_base  # loads torch

    config = _read_config(path)
    claimed = config.get("base_model_name_or_path")
    if claimed and _bare_name(claimed) not in (_bare_name(spec.base_model), _bare_name(str(base_path))):
        raise ModelNotAvailableError(
            f"The adapter in {path} was trained on {claimed}, not on {spec.base_model}. Register the model with the adapter's"
            " base model; if they are the same, correct base_model_name_or_path in its adapter_config.json.",
            param="init_adapter",
        )
    _check_shape(config, spec.lora, str(path))
    _check_weights(path, base_path)
    state = TrainerState(step=1, base_model=fingerprint_base(base_path))

    def write(target: Path) -> None:
        for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            shutil.copyfile(path / name, target / name)
        (target / STATE).write_text(json.dumps(asdict(state), indent=1))

    return state.step, write


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / ADAPTER_CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise StorageFailedError(f"{path} holds no readable PEFT adapter: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ModelNotAvailableError(f"{path / ADAPTER_CONFIG}: peft_type must be LORA.", param="init_adapter")
    return config


def _check_shape(config: dict[str, Any], lora: LoraSpec, what: str) -> None:
    """Refuse an adapter that the registered shape cannot hold; say which registration can."""
    for field, harmless in _HARMLESS.items():
        if field in config and config[field] not in harmless:
            raise ModelNotAvailableError(
                f"{what}: {field}={config[field]!r} cannot be trained here.", param="init_adapter"
            )
    if (config.get("r"), config.get("lora_alpha")) != (lora.rank, lora.alpha):
        raise ModelNotAvailableError(
            f"{what} has rank {config.get('r')} and alpha {config.get('lora_alpha')}; the model is registered with rank {lora.rank}"
            f" and alpha {lora.alpha:g}. Register it with the adapter's.",
            param="lora",
        )


def _check_weights(path: Path, base_path: Path) -> None:
    """Compare the shapes of an adapter's matrices with the layers of the base model; only headers are read."""
    shapes: dict[str, list[int]] = {}
    for file in base_path.glob("*.safetensors"):
        shapes |= _shapes(file)
    for name, shape in _shapes(path / ADAPTER_WEIGHTS).items():
        match = re.fullmatch(r"base_model\.model\.(.+)\.lora_(A|B)\.weight", name)
        layer = shapes.get(f"{match[1]}.weight") if match else None
        fits = match and layer and (shape[1] == layer[1] if match[2] == "A" else shape[0] == layer[0])
        if not fits:
            raise ModelNotAvailableError(
                f"The adapter in {path} does not fit the base model at {base_path}: {name} has shape {shape}, "
                + (f"the layer {layer}." if layer else "and there is no such layer."),
                param="init_adapter",
            )


def _shapes(file: Path) -> dict[str, list[int]]:
    try:
        with safe_open(file, framework="numpy") as content:
            return {name: content.get_slice(name).get_shape() for name in content.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StorageFailedError(f"{file} cannot be read: {error}") from error


def _bare_name(model: str) -> str:
    """The last part of a path or a hub id: prepared models lie in folders called ``owner--name``."""
    return Path(model).name.rpartition("--")[2]
