"""Writes ``docs/reference`` from the docstrings: ``python docs/make_reference.py``, or ``--check`` to compare only.

The Python pages are read from the source, so that they do not depend on installed versions; the page of the command line
is read from the commands themselves.
"""

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs" / "reference"

PAGES: dict[str, tuple[str, list[str]]] = {
    "models": ("Models", ["art.model", "art.logs.model", "art.rollouts.rollout"]),
    "trajectories": (
        "Trajectories and capture",
        [
            "art.trajectories",
            "art.capture",
            "art.capture.clients",
            "art.capture.scopes",
            "art.compat.scopes",
            "art.compat.langgraph",
        ],
    ),
    "gathering": ("Gathering", ["art.gather", "art.rollouts.run_sync"]),
    "training": (
        "Training",
        [
            "art.loop.train",
            "art.loop.preflight",
            "art.loop.advice",
            "art.types",
            "art.backend.options",
            "art.backend.registration",
            "art.compat.pipeline",
        ],
    ),
    "experiments": (
        "Measured trainings",
        ["art.experiment.run", "art.experiment.commands", "art.experiment.comparison", "art.experiment.results"],
    ),
    "backends": ("Backends", ["art.backend", "art.local.backend", "art.backend.remote", "art.backend.service"]),
    "rewards": ("Rewards", ["art.rewards.ruler", "art.rewards.reward_model", "art.wire.rewards"]),
    "metrics": (
        "Metrics, costs, loggers, evaluation",
        [
            *(
                "art.metrics",
                "art.logs.costs",
                "art.logs.loggers",
                "art.evaluation",
                "art.logs.statistics",
            ),
        ],
    ),
    "utilities": (
        "Utilities",
        [
            "art.compat.helpers",
            "art.compat.sft",
            "art.compat.benchmarking",
            "art.logs.directories",
            "art.logs.parquet",
            "art.openai",
            "art.compat.guided_completion",
            "art.compat.mcp",
        ],
    ),
    "errors": ("Errors", ["art.errors"]),
    "wire": (
        "The wire contract",
        sorted(
            f"art.wire.{path.stem}"
            for path in (ROOT / "src/art/wire").glob("*.py")
            if path.stem not in ("__init__", "base", "rewards")
        ),
    ),
}


def main() -> int:
    check = "--check" in sys.argv[1:]
    wanted = {f"{name}.md": python_page(title, modules) for name, (title, modules) in PAGES.items()}
    wanted["cli.md"] = cli_page()
    wanted["README.md"] = index_page()
    stale = [name for name, text in wanted.items() if _read(OUTPUT / name) != text]
    stale += [path.name for path in OUTPUT.glob("*.md") if path.name not in wanted]
    if check:
        for name in stale:
            print(f"docs/reference/{name} is not what the source says; run python docs/make_reference.py")
        return 1 if stale else 0
    OUTPUT.mkdir(exist_ok=True)
    for name in stale:
        if name in wanted:
            (OUTPUT / name).write_text(wanted[name])
        else:
            (OUTPUT / name).unlink()
    print(f"{len(stale)} pages written, {len(wanted)} in all")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def index_page() -> str:
    lines = ["# Reference", "", "Made from the docstrings by `python docs/make_reference.py`.", ""]
    lines += [
        f"- [{title}]({name}.md): {', '.join(f'`{module}`' for module in m)}" for name, (title, m) in PAGES.items()
    ]
    lines.append("- [The command line](cli.md)")
    return "\n".join(lines) + "\n"


# Python


def python_page(title: str, modules: list[str]) -> str:
    return f"# {title}\n\n" + "\n".join(_module(module) for module in modules)


def _module(name: str) -> str:
    tree = ast.parse(source_of(name).read_text())
    parts = [f"## `{name}`\n", _prose(ast.get_docstring(tree) or "")]
    notes = {id(node): note for node, note in _with_notes(tree.body)}
    for node in documented_in(tree):
        if isinstance(node, ast.ClassDef):
            parts.append(_class(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts.append(_function(node, "###"))
        elif note := notes[id(node)]:
            parts.append(f"### `{_names(node)[0]}`\n\n{_prose(note)}")
    return "\n".join(part.rstrip() + "\n" for part in parts if part.strip())


def documented(module: str) -> list[ast.stmt]:
    """What a module's section is about: what it lists in ``__all__``, or else all that has no underscore in front."""
    return documented_in(ast.parse(source_of(module).read_text()))


def documented_in(tree: ast.Module) -> list[ast.stmt]:
    listed = _all_of(tree)
    found = [(node, _names(node)) for node in tree.body]
    return [
        node
        for node, names in found
        if names and not names[0].startswith("_") and (listed is None or names[0] in listed) and not is_overload(node)
    ]


def source_of(module: str) -> Path:
    """The file of a module."""
    path = ROOT / "src" / Path(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def _all_of(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and _names(node) == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _with_notes(body: list[ast.stmt]) -> list[tuple[ast.stmt, str]]:
    """Each statement with the string literal under it, which documents an attribute."""
    notes: list[tuple[ast.stmt, str]] = []
    for i, node in enumerate(body):
        after = body[i + 1] if i + 1 < len(body) else None
        match after:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                notes.append((node, inspect.cleandoc(text)))
            case _:
                notes.append((node, ""))
    return notes


def _class(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    parts = [f"### class `{node.name}{f'({bases})' if bases else ''}`\n", _prose(ast.get_docstring(node) or "")]
    fields: list[str] = []
    for inner, note in _with_notes(node.body):
        match inner:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                default = f" = {_short(ast.unparse(inner.value))}" if inner.value is not None else ""
                fields.append(
                    f"- `{name}: {ast.unparse(inner.annotation)}{default}`" + (f": {_line(note)}" if note else "")
                )
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not is_overload(inner):
                if name == "__init__" or (not name.startswith("_") and ast.get_docstring(inner)):
                    parts.append(_function(inner, "####", owner=node.name))
    if fields:
        parts.insert(2, "\n".join(fields) + "\n")
    return "\n".join(part.rstrip() + "\n" for part in parts if part.strip())


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, level: str, owner: str | None = None) -> str:
    decorators = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
    if "property" in decorators:
        returns = f": {ast.unparse(node.returns)}" if node.returns else ""
        return f"{level} `{owner}.{node.name}{returns}`\n\n{_prose(ast.get_docstring(node) or '')}"
    arguments = ast.unparse(node.args)
    if owner and "staticmethod" not in decorators:
        arguments = re.sub(r"^(self|cls)(, )?", "", arguments)
    name = owner if node.name == "__init__" else f"{owner}.{node.name}" if owner else node.name
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) and "asynccontextmanager" not in decorators else ""
    prefix = (
        "async with "
        if "asynccontextmanager" in decorators
        else "with "
        if "contextlib.contextmanager" in decorators
        else prefix
    )
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    signature = f"{prefix}{name}({arguments}){returns}"
    return f"{level} `{name}`\n\n```python\n{_wrapped(signature)}\n```\n\n{_prose(ast.get_docstring(node) or '')}"


def is_overload(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
        ast.unparse(decorator) in ("overload", "typing.overload") for decorator in node.decorator_list
    )


def _wrapped(signature: str) -> str:
    """A long signature with one argument per line."""
    if len(signature) <= 100:
        return signature
    head, rest = signature.split("(", 1)
    arguments, depth, current = [], 0, ""
    for i, char in enumerate(rest):
        if char == ")" and depth == 0:
            return f"{head}(\n" + "".join(f"    {part.strip()},\n" for part in [*arguments, current]) + rest[i:]
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            arguments.append(current)
            current = ""
        else:
            current += char
    return signature


def _prose(docstring: str) -> str:
    """A docstring as Markdown: sections as lists, indented blocks as code."""
    lines: list[str] = []
    section = code = example = False

    def close_fence() -> None:
        nonlocal code, example
        if code or example:
            while not lines[-1]:
                lines.pop()
            lines.extend(["```", ""])
        code = example = False

    for line in docstring.splitlines():
        if (example and line) or (code and (not line or line.startswith("    "))):
            lines.append(line[4:] if code else line)
            continue
        if example or code:
            close_fence()
        if line.startswith(">>> "):
            lines += [*([] if not lines or not lines[-1] else [""]), "```pycon", line]
            example, section = True, False
        elif heading := re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields):", line):
            section = True
            lines += ["", f"**{heading[1]}**", ""]
        elif section and (item := re.fullmatch(r"    (\S.*)", line)):
            name, colon, text = item[1].partition(": ")
            lines.append(f"- `{name}`: {text}" if colon and " " not in name.replace(", ", "") else f"- {item[1]}")
        elif section and line.startswith("        "):
            lines.append("  " + line.strip())
        elif line.startswith("    ") and not section:
            lines += ["", "```python"] if lines and lines[-1] else ["```python"]
            code = True
            lines.append(line[4:])
        else:
            section = section and not line.strip()
            lines.append(line)
    close_fence()
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return re.sub(r"(?<!`)``(?!`)", "`", text) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def _short(text: str) -> str:
    return text if len(text) <= 80 else "…"


# The command line


def cli_page() -> str:
    import typer

    from art.cli import app
    from art_backend.command import cli

    own, backend = typer.main.get_group(app).commands, typer.main.get_group(cli).commands
    parts = ["# The command line\n"]
    for name, command in {**own, **{name: backend[name] for name in own.keys() & backend.keys()}}.items():
        usage = " ".join(p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument")
        parts.append(f"## `art {name}{' ' + usage if usage else ''}`\n\n{inspect.cleandoc(command.help or '')}\n")
        rows = [_option(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        parts.append("| option | | default |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _option(parameter: Any) -> str:
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name.upper()]
    default = parameter.default
    known = "" if default in (None, "", False) or callable(default) else f"`{default}`"
    helped = (parameter.help or "").replace("|", "\\|")
    return f"| {', '.join(f'`{name}`' for name in names)} | {helped} | {'required' if parameter.required else known} |"


if __name__ == "__main__":
    sys.exit(main())
