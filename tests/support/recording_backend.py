"""A backend that records its steps, for tests of the loop alone."""

import asyncio

from art.types import TrainResult


class Recorder:
    """Counts its steps, remembers its batches, and does in a step what the test wants."""

    def __init__(self):
        self.step, self.batches, self.options = 0, [], []
        self.during = None

    async def register(self, model):
        pass

    async def _prepare_backend_for_training(self, model, config):
        return "http://127.0.0.1:1/v1", "key"

    async def _get_step(self, model):
        return self.step

    def _model_inference_name(self, model, step=None):
        return model.name if step is None else f"{model.name}@{step}"

    async def train(self, model, groups, **options):
        self.batches.append(groups)
        self.options.append(options)
        await asyncio.sleep(0)
        if self.during is not None:
            await self.during()
        self.step += 1
        return TrainResult(self.step, {"loss/train": 0.5})

    def scenarios(self):
        """Of each batch, in order."""
        return [[group.trajectories[0].metadata["scenario"] for group in batch] for batch in self.batches]
