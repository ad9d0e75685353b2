"""One service for the trainings of all examples, with a tiny random model."""

import time
from dataclasses import replace

import pytest

from art.experiment import Run
from art.local.service import ServiceProcess


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    process = ServiceProcess(tmp_path_factory.mktemp("service"), [])
    process.start()
    deadline = time.monotonic() + 120
    while process.read_ready() is None:
        assert time.monotonic() < deadline, process.log_tail()
        assert process.death() is None, process.log_tail()
        time.sleep(0.05)
    yield process
    process.stop()


@pytest.fixture
def make_run(service, tiny_model_path, tmp_path):
    """A run of two steps of two groups of three, with what is given changed."""

    def make(example, settings, variant=None, **changed):
        sizes = {"steps": 2, "groups_per_step": 2, "group_size": 3, "episodes": 4, "max_sequence_length": 2048}
        settings = replace(settings, base_model=str(tiny_model_path), **(sizes | changed))
        url = service.read_ready()
        run = Run(example, "small", 1, settings, tmp_path, variant, backend_url=url, api_key=service.api_key)
        run.open()
        return run

    return make
