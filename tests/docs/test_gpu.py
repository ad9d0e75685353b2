"""What docs/gpu.md shows is what the planner computes and what the commands take."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import art
from art.cli import app
from art_backend.command import cli
from art_backend.devices import Placement, parse_device_list
from art_backend.planning.architecture import KNOWN
from art_backend.planning.memory import GIB, MemoryPlan, Wanted, plan
from art_backend.planning.verdict import gb, leanest

PAGE = (Path(__file__).parents[2] / "docs/gpu.md").read_text()
COMMANDS = [
    shlex.split(line.split("art ", 1)[1])
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if re.search(r"(^|/| )art (serve|doctor)", line)
]

MODELS = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B")
DEVICES_GB = (16, 24, 48, 80, 141)


def documented_table() -> str:
    """Markdown: training's peak for each model on one device of each size, LoRA of rank 16, 4,096 tokens of context."""
    rows = [
        f"| model | {' | '.join(f'{size} GB' for size in DEVICES_GB)} | CPU memory |",
        f"|---|{'---|' * len(DEVICES_GB)}---|",
    ]
    for name in MODELS:
        plans = [plan(Wanted(KNOWN[name], size * GIB)) for size in DEVICES_GB]
        rows.append(f"| {name} | {' | '.join(map(_summarise, plans))} | {gb(plans[0].host)} |")
    return "\n".join(rows)


def _summarise(found: MemoryPlan) -> str:
    """One cell: as it is, with checkpointing in passes of one sequence, or not at all."""
    if found.fits_well:
        return _size(found)
    small = plan(leanest(found.wanted))
    if small.fits_well:
        return f"{_size(small)} ¹"
    return "–"


def _size(found: MemoryPlan) -> str:
    return f"{found.training / GIB:.0f} GB, {found.kv_tokens // found.wanted.context}×"


def test_the_table_is_the_planners():
    (shown,) = re.findall(r"<!-- memory table -->\n(.*?)\n<!-- end of the table -->", PAGE, re.DOTALL)
    assert shown == documented_table()


def test_one_cell_by_hand():
    wanted = Wanted(KNOWN["Qwen2.5-7B"], 24 * GIB, gradient_checkpointing=True, batch_tokens=4096)
    frozen, adapter = 15_231_233_024, 18 * 40_370_176
    activations = 4096 * (28 * 3584 * 2 + 90_424 + 8 * (18_944 + 3584)) + 320 * 2**20
    libraries = (0.6 + 0.9 + 0.6) * GIB
    assert plan(wanted).training == pytest.approx(frozen + adapter + activations + libraries, abs=2)
    assert plan(wanted).training / GIB == pytest.approx(19.07, abs=0.01)
    assert f"| Qwen2.5-7B | – | {plan(wanted).training / GIB:.0f} GB, 24× ¹ |" in PAGE


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_are_understood(words):
    commands = {**typer.main.get_group(app).commands, **typer.main.get_group(cli).commands}  # art hands serve on
    command = commands[words[0]]
    given = command.make_context(words[0], words[1:]).params
    if words[0] == "serve":
        devices = [
            parse_device_list(given[name]) if given[name] else () for name in ("engine_devices", "trainer_devices")
        ]
        Placement(given["placement"], *devices, replicas=given["replicas"]).check(8)


def test_the_page_speaks_of_every_case():
    assert [words[0] for words in COMMANDS] == ["serve", "doctor", "serve", "serve", "serve", "serve"]
    (arguments,) = re.findall(r"LocalBackend\(serve_arguments=(\[.*?\])\)", PAGE)
    assert "--trainer-devices" in arguments
    assert {"trainer_gpu_ids", "inference_gpu_ids"} <= set(art.dev.InternalModelConfig.__annotations__)
