"""The trainer's verbs, driven without its job."""

import torch

from art.wire import SftOptions
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training.learner import Learner
from art_backend.training.metrics import SftMeter
from art_backend.training.rows.packing import pack_rows
from art_backend.training.rows.sft import plan_examples
from art_backend.training.trainer import Trainer
from art_backend.training.types import SftInput
from art_backend.training.update import add_sft_gradient


def test_load_add_gradients_step_and_save_are_what_a_training_step_does(setup, make_row, tmp_path):
    """The weights are the job's, bit for bit, and the job goes on from the checkpoint."""
    lesson = SftInput([[make_row([1, 2, 3], [4, 5])], [make_row([1, 2], [7, 8])]], SftOptions(), 1)
    job = Trainer(setup).train(lesson)

    store, learner, meter = CheckpointStore(tmp_path / "driven"), Learner.load(setup, None), SftMeter()
    (update,) = plan_examples(lesson, vocabulary=learner.policy.vocabulary, max_length=64).updates
    meter.start_update(update.learning_rate)
    for pack in pack_rows(update.rows, 1_536):
        add_sft_gradient(learner.policy, pack, meter)
    norm = learner.step(lesson.options, update.learning_rate)
    assert norm == job.metrics["loss/grad_norm"]
    learner.save(store, 1, changed=True)

    loaded = Learner.load(setup, store.verify(1))
    theirs = Learner.load(setup, job.checkpoint)
    assert torch.equal(loaded.policy.weights, theirs.policy.weights)
    assert loaded.state == theirs.state
    setup.checkpoints = store.directory
    assert Trainer(setup).train(SftInput(lesson.examples, SftOptions(), 2)).trained
