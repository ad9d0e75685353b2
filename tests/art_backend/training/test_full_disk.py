"""A disk that fills up while weights are saved: the last checkpoint stays whole, and the same step works later.

Where mounting is allowed, checkpoints are on a disk of a few megabytes, in a mount namespace of the test's own. Elsewhere the
process may not write files of the weights' size.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from art.wire import LoraSpec, SftOptions, TokenRow
from art_backend.errors import StorageFailedError
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training.trainer import Trainer
from art_backend.training.types import ModelSetup, SftInput

KEPT_FREE = 16 * 1024
ENDING = "each kind went on from its last checkpoint"


def test_the_last_checkpoint_stays_whole_and_the_step_works_later(tmp_path, base_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "art", str(disk)]
    try:
        mounts = subprocess.run([*namespace, *mount], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounts = False
    script = [sys.executable, __file__, str(disk), str(base_path)]
    inside = [*namespace, "sh", "-c", f'{" ".join(mount)} && exec "$@"', "sh", *script, "full"]
    done = subprocess.run(
        inside if mounts else [*script, "limited"], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines()[-1] == ENDING


class FullDisk:
    """A file system with a file that fills it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._filler = directory / "filler"

    def __enter__(self) -> None:
        space = os.statvfs(self._directory)
        self._filler.write_bytes(bytes(space.f_bavail * space.f_frsize - KEPT_FREE))

    def __exit__(self, *_: object) -> None:
        self._filler.unlink()


class LimitedFiles:
    """No file may grow beyond what is kept free."""

    def __enter__(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (KEPT_FREE, resource.RLIM_INFINITY))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def lesson(step: int) -> SftInput:
    row = TokenRow(
        token_ids=[1, 2, 3], sampled=[False, True, True], logprobs=None, policy_versions=[-1] * 3, temperature=1.0
    )
    return SftInput([[row]], SftOptions(), step)


def main(disk: Path, base_path: Path, how: str) -> None:
    trouble = FullDisk(disk) if how == "full" else LimitedFiles()
    for whole in (False, True):
        checkpoints = disk / ("whole" if whole else "adapter")
        setup = ModelSetup(base_path, LoraSpec(rank=8), 64, checkpoints, precision="float32", full_finetune=whole)
        trainer = Trainer(setup)
        trainer.train(lesson(1))
        before = contents(checkpoints)
        with trouble:
            for _ in range(2):
                with pytest.raises(StorageFailedError, match=r"Saving the checkpoint of step 2 failed.*Free space"):
                    trainer.train(lesson(2))
            assert contents(checkpoints) == before
            assert CheckpointStore(checkpoints).verify(1)
        assert trainer.train(lesson(2)).trained
        assert CheckpointStore(checkpoints).verify(2)
    print(ENDING)


if __name__ == "__main__":
    _, disk, base_path, how = sys.argv
    main(Path(disk), Path(base_path), how)
