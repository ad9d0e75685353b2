"""A model on a backend that records its steps."""

import pytest
from tests.support.recording_backend import Recorder

import art


@pytest.fixture
def backend():
    return Recorder()


@pytest.fixture
def make_model(tmp_path, backend):
    async def make():
        model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
        await model.register(backend)
        return model

    return make
