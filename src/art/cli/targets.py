"""Arguments that several commands share: functions and scenarios by name, a backend by address."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from art.backend.machine import find_missing

if TYPE_CHECKING:
    from art.backend.remote import RemoteBackend

RolloutArgument = Annotated[str, typer.Argument(metavar="MODULE:ROLLOUT", help="Function that runs the agent once.")]
ScenariosOption = Annotated[
    str, typer.Option(metavar="FILE|MODULE:NAME", help="A JSONL file with one scenario per line, or a Python object.")
]
BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
BaseModelOption = Annotated[str, typer.Option(help="A local directory or a hub id.", show_default="SmolLM2-135M")]
GroupsPerStepOption = Annotated[int, typer.Option(min=1, help="Scenarios per step.")]
GroupSizeOption = Annotated[int, typer.Option(min=2, help="Rollouts per scenario.")]
TimeoutOption = Annotated[float | None, typer.Option(min=0.001, help="Maximum seconds per rollout.")]
PathOption = Annotated[Path, typer.Option(help="Directory of the local backend.")]
BackendOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Use the backend at this address instead of a local one.")
]
KeyOption = Annotated[str | None, typer.Option(envvar="ART_API_KEY", help="API key of that backend.", show_envvar=True)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def find_object(target: str, parameter: str) -> Any:
    """The object that ``module:name`` names, from the working directory or the installed packages."""
    module, colon, name = target.partition(":")
    if not colon or not name:
        raise typer.BadParameter(f"write MODULE:NAME, such as my_agent:rollout, not {target!r}.", param_hint=parameter)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return vars(import_module(module))[name]
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"no module named {error.name!r}.", param_hint=parameter) from None
    except KeyError:
        raise typer.BadParameter(f"{module} has no {name!r}.", param_hint=parameter) from None


def read_scenarios(target: str, parameter: str) -> list[Any]:
    """The scenarios of a JSONL file, or of a Python object or function."""
    if not target.endswith((".jsonl", ".json")):
        found: Any = find_object(target, parameter)
        items: Any = found() if callable(found) else found
        return list(items)
    path = Path(target)
    if not path.is_file():
        raise typer.BadParameter(f"no such file: {target}.", param_hint=parameter)
    text = path.read_text(encoding="utf-8")
    if target.endswith(".jsonl"):  # a string may hold other marks that Python takes for the end of a line
        lines = enumerate(text.split("\n"), 1)
        return [_read_json(line, f"{target}, line {n}", parameter) for n, line in lines if line.strip()]
    whole = _read_json(text, target, parameter)
    if not isinstance(whole, list):
        raise typer.BadParameter(f"{target} must contain a list.", param_hint=parameter)
    return cast(list[Any], whole)


def _read_json(text: str, where: str, parameter: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"{where} is not valid JSON: {error}", param_hint=parameter) from None


def split_model(target: str, parameter: str) -> tuple[str, str, int | None]:
    """``project/name`` or ``project/name@step``."""
    full, _, step = target.partition("@")
    project, slash, name = full.partition("/")
    if not (project and slash and name) or (step and not step.isdecimal()):
        raise typer.BadParameter(f"write PROJECT/NAME or PROJECT/NAME@STEP, not {target!r}.", param_hint=parameter)
    return project, name, int(step) if step else None


def open_backend(backend: str | None, api_key: str | None, path: Path) -> "RemoteBackend":
    """The backend at an address, or a local one."""
    import art

    check_address(backend)
    if backend is None:
        return art.LocalBackend(path=path)
    return art.RemoteBackend(backend, api_key)


def check_address(backend: str | None) -> None:
    """Refuse a ``--backend`` that is not a URL."""
    if backend is not None and not backend.startswith(("http://", "https://")):
        raise typer.BadParameter("must be a URL such as http://127.0.0.1:8000.", param_hint="--backend")


def check_backend() -> None:
    """Fail unless the backend is installed here."""
    if missing := find_missing():
        fail(f"The backend is not installed: {', '.join(missing)}. Install it: pip install 'art-trainer[backend]'")


def run_or_explain(main: Callable[[], Any]) -> Any:
    """Run a coroutine function; expected failures end as one line and exit code 1."""
    import asyncio

    from openai import APIError

    from art.errors import ARTError

    try:
        return asyncio.run(main())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (ARTError, APIError, OSError, ValueError) as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    """End with one line on standard error."""
    from art.terminal import say_error

    say_error(message)
    raise typer.Exit(1)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))
