"""Exporting a version of a model as a plain Hugging Face folder: an adapter beside its base model, or both merged.

It reads a service's directory, whether the service runs or not, and writes a folder that appears whole or not at all.
"""

import json
import os
import shutil
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from art.wire import RegisterModel
from art_backend.errors import BadRequestError, ConflictError, ModelNotAvailableError, NotFoundError, StorageFailedError
from art_backend.models.base import default_cache, find_base_model, give_ordinary_modes
from art_backend.models.card import ModelCard
from art_backend.models.compute import Dtype
from art_backend.settings import Settings
from art_backend.store.checkpoints import ADAPTER_CONFIG, ADAPTER_WEIGHTS, CheckpointStore
from art_backend.store.database import open_database
from art_backend.store.runs import RunStore


def export_model(
    settings: Settings,
    model: str,
    target: Path,
    *,
    step: int | None = None,
    merged: bool = False,
    dtype: Dtype = "auto",
) -> ModelCard:
    """Write a version of a model into the new folder ``target``, with its tokenizer and its card, ``README.md``.

    Args:
        settings: Of the service that trained it; only its directory and cache matter.
        model: ``name``, or ``project/name``.
        step: The version; ``None`` takes the latest.
        merged: Whether the adapter is added to the weights of its base model; else it is written alone, in float32. A fully
            fine-tuned model is whole in any case.
        dtype: Type of merged weights; ``auto`` is that of the base model. The sum is made in float32 and rounded once.

    Raises:
        NotFoundError: No such model or version.
        ConflictError: ``target`` exists and is not empty.
        StorageFailedError: The checkpoint is damaged, or ``target`` cannot be written. Nothing is left behind.
    """
    spec = _find(settings, model)
    store = CheckpointStore(settings.checkpoints_dir(spec.project, spec.name))
    version = store.latest_step() if step is None else step
    merged = merged or spec.full_finetune
    if version == 0 and not merged:
        raise BadRequestError(
            f"Version 0 of {spec.name} is the base model itself, which has no adapter. Train it first, or export it with --merged.",
            param="step",
        )
    checkpoint = store.verify(version) if version else None
    base = find_base_model(spec.base_model, cache=settings.cache)
    prepared_here = (settings.cache or default_cache()) in base.parents
    card = ModelCard(
        directory=target,
        project=spec.project,
        name=spec.name,
        step=version,
        base_model=spec.base_model,
        base_source=str(base) if prepared_here else spec.base_model,
        rank=None if merged else spec.lora.rank,
    )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConflictError(f"{target} exists and is not empty; choose a new folder.", param="target")
    staging = target.parent / f".{target.name}.exporting-{os.getpid()}"
    try:
        staging.mkdir(parents=True)
        AutoTokenizer.from_pretrained(base).save_pretrained(staging)
        if merged:
            _merge(base, checkpoint, dtype).save_pretrained(staging)
        else:
            assert checkpoint is not None
            _copy_adapter(checkpoint, staging, card.base_source)
        (staging / "README.md").write_text(card.write(), encoding="utf-8")
        give_ordinary_modes(staging)
        if target.exists():
            target.rmdir()
        staging.rename(target)
    except (OSError, SafetensorError) as error:
        raise StorageFailedError(
            f"Exporting to {target} failed: {error}. Free space there, or get write access to it, and try again; the run"
            " itself is untouched."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return card


def _find(settings: Settings, model: str) -> RegisterModel:
    if not settings.database_path.exists():
        raise NotFoundError(f"{settings.path} contains no run. Pass another --path.", param="path")
    db = open_database(settings.database_path)
    try:
        known = RunStore(db).list_models()
    finally:
        db.close()
    found = [spec for spec in known if model in (spec.name, f"{spec.project}/{spec.name}")]
    if len(found) != 1:
        names = ", ".join(f"{spec.project}/{spec.name}" for spec in known) or "none"
        problem = "There are several models" if found else "There is no model"
        raise NotFoundError(f"{problem} {model!r} in {settings.path}. Models there: {names}.", param="model")
    return found[0]


def _copy_adapter(checkpoint: Path, target: Path, base_model: str) -> None:
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        shutil.copyfile(checkpoint / name, target / name)
    # The checkpoint names the folder that the base model lay in; for one from the hub, its id is of more use elsewhere.
    config = json.loads((target / ADAPTER_CONFIG).read_text())
    config["base_model_name_or_path"] = base_model
    (target / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))


def _merge(base: Path, checkpoint: Path | None, dtype: Dtype) -> PreTrainedModel:
    """The base model plus the adapter, in the type that is saved."""
    try:
        own = AutoConfig.from_pretrained(base).dtype
        adapter = checkpoint if checkpoint and (checkpoint / ADAPTER_CONFIG).exists() else None
        whole = base if adapter or checkpoint is None else checkpoint
        model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
        if adapter is not None:
            model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise ModelNotAvailableError(
            f"The version cannot be merged into {base}: {error}", param="base_model"
        ) from error
    wanted = own if dtype == "auto" else getattr(torch, dtype)
    if isinstance(wanted, torch.dtype):
        model.to(wanted)  # pyright: ignore[reportArgumentType]  # transformers' decorator hides the signature
    return model
