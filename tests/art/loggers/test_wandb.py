import sys
from types import SimpleNamespace

import pytest

import art
from art.errors import MissingExtraError


class Run:
    def __init__(self):
        self.calls, self._is_finished, self.config = (
            [],
            False,
            SimpleNamespace(update=lambda value: self.calls.append(("config", value))),
        )

    def define_metric(self, *args, **options):
        self.calls.append(("define", args[0], options))

    def log(self, row):
        self.calls.append(("log", row))


@pytest.fixture
def wandb(monkeypatch):
    runs, inits = [], []

    def init(**options):
        inits.append(options)
        runs.append(Run())
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=lambda **options: options))
    monkeypatch.setenv("WANDB_API_KEY", "key")
    return SimpleNamespace(runs=runs, inits=inits)


@pytest.fixture
def model(tmp_path):
    return art.Model(name="m", project="p", base_path=str(tmp_path))


async def test_rows_go_to_a_run_that_is_resumed(wandb, model):
    model.update_wandb_config({"a": {"b": 1}})
    await model.log(metrics={"reward": 1.0, "costs/gpu": 2.0, "nan": float("nan")}, split="val", step=3)
    await model.log(metrics={"costs/gpu": 2.0}, split="val", step=4)
    (options,) = wandb.inits
    assert (options["project"], options["name"], options["id"], options["resume"]) == ("p", "m", "m", "allow")
    assert options["config"] == {"a": {"b": 1}}
    assert "allow_val_change" not in options
    calls = wandb.runs[0].calls
    defined = [(call[1], call[2]) for call in calls if call[0] == "define"]
    sections = ["reward", "loss", "throughput", "costs", "time", "data", "train", "val", "test", "discarded"]
    by_step = {"step_metric": "training_step"}
    assert defined[:12] == [
        ("training_step", {}),
        ("time/wall_clock_sec", {}),
        *((f"{s}/*", by_step) for s in sections),
    ]
    costs = ["costs/gpu", "costs/all", "costs/cum/gpu", "costs/cum/all"]
    assert sorted(defined[12:], key=str) == sorted([(key, by_step) for key in costs], key=str)
    rows = [call[1] for call in calls if call[0] == "log"]
    assert (rows[0]["val/reward"], rows[0]["training_step"]) == (1.0, 3)
    assert rows[0]["val/nan"] != rows[0]["val/nan"]
    assert not {"step", "recorded_at"} & set(rows[0])
    wandb.runs[0]._is_finished = True
    model._get_wandb_run()
    assert len(wandb.inits) == 2


def test_config_may_grow_but_not_change(wandb, model):
    model.update_wandb_config({"a": {"b": 1}})
    model.update_wandb_config({"a": {"b": 1, "c": 2}})
    with pytest.raises(ValueError, match=r"Conflicting value for 'a\.b'"):
        model.update_wandb_config({"a": {"b": 2}})
    with pytest.raises(TypeError, match="must be a dict"):
        model.update_wandb_config([("a", 1)])
    configs = [call[1] for call in wandb.runs[0].calls if call[0] == "config"]
    assert configs[-1] == {"a": {"b": 1, "c": 2}}


async def test_without_a_key_or_when_switched_off_nothing_happens(wandb, tmp_path, monkeypatch):
    silent = art.Model(name="m", project="p", base_path=str(tmp_path), report_metrics=[])
    await silent.log(metrics={"x": 1.0}, step=1)
    monkeypatch.delenv("WANDB_API_KEY")
    asked = art.Model(name="m", project="p", base_path=str(tmp_path), report_metrics=["wandb"])
    await asked.log(metrics={"x": 1.0}, step=1)
    assert asked._get_wandb_run() is None
    assert wandb.inits == []


def test_a_missing_package_is_one_line(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setenv("WANDB_API_KEY", "key")
    with pytest.raises(MissingExtraError, match=r"pip install 'art-trainer\[wandb\]'"):
        model._get_wandb_run()
