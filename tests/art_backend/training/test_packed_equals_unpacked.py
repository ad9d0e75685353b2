"""The packed computation is the unpacked one: log-probabilities, loss and every gradient, in float32."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from art.wire import LoraSpec
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.rows.packing import TrainingRow, pack_rows
from art_backend.training.rows.targets import read_targets

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module", params=["branches", "dense"])
def policy(base_path, request):
    policy = AdapterPolicy(base_path, LoraSpec(rank=4, alpha=8), precision="float32", attention=request.param)
    torch.manual_seed(1)
    policy.weights.copy_(torch.randn_like(policy.weights) * 0.1)  # a fresh adapter changes nothing; this one does
    policy.publish_weights()
    return policy


@pytest.fixture(scope="module")
def plain(base_path):
    """The base model as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32).eval()


def training_row(ids, trained, advantage, temperature=1.0):
    ids = np.array(ids, np.int64)
    return TrainingRow(ids, np.array(trained, np.bool_), np.full(ids.size, -2.0), temperature, advantage, 0.1)


def loss_and_gradient(policy, rows, budget):
    """A loss with all the parts that matter: weights, advantages, temperature; and log-probabilities by (row, token)."""
    policy.gradient.zero_()
    total, logprobs = 0.0, {}
    for pack in pack_rows(rows, budget):
        targets = read_targets(pack, policy.device)
        found = targets.logprobs(policy.forward(pack), policy.head)
        loss = -(targets.weights * targets.advantages * found.logprobs).sum()
        loss.backward()
        total += loss.item()
        for row, parent, token, value in zip(
            targets.rows.tolist(),
            pack.depths[targets.positions[targets.slots].numpy()].tolist(),
            targets.token_ids.tolist(),
            found.logprobs.tolist(),
            strict=True,
        ):
            logprobs[row, parent, token] = value
    return total, policy.gradient.clone(), logprobs


def unpacked(policy, rows):
    """Every row alone."""
    total, gradient, logprobs = 0.0, torch.zeros_like(policy.gradient), {}
    for i, row in enumerate(rows):
        loss, part, found = loss_and_gradient(policy, [row], 1)
        total += loss
        gradient += part
        logprobs |= {(i, depth, token): value for (_, depth, token), value in found.items()}
    return total, gradient, logprobs


# Two distinct tokens and short rows: nearly every draw has stems, branches, repeated rows, and prefixes of others.
row_strategy = st.tuples(
    st.lists(st.integers(1, 3), min_size=3, max_size=10),
    st.lists(st.booleans(), min_size=10, max_size=10),
    st.sampled_from([-1.5, 0.5, 1.0]),
    st.sampled_from([1.0, 0.7]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(row_strategy, min_size=1, max_size=7), st.integers(3, 40))
def test_on_random_trees(policy, drawn, budget):
    rows = [
        training_row(ids, [False, True, *mask[2 : len(ids)]], advantage, temperature)
        for ids, mask, advantage, temperature in drawn
    ]
    loss, gradient, logprobs = loss_and_gradient(policy, rows, budget)
    expected_loss, expected_gradient, expected_logprobs = unpacked(policy, rows)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, **TOLERANCE)
    assert logprobs == pytest.approx(expected_logprobs, rel=1e-5, abs=1e-5)


def test_the_reference_is_the_base_model(policy, plain):
    ids = [1, 5, 9, 2, 40, 3]
    with policy.as_reference(None):
        (pack,) = pack_rows([training_row(ids, [0, 1, 1, 1, 1, 1], 1.0)], 100)
        targets = read_targets(pack, policy.device)
        ours = targets.logprobs(policy.forward(pack), policy.head).logprobs
    with torch.no_grad():
        log_p = torch.log_softmax(plain(torch.tensor([ids])).logits[0], -1)
    expected = torch.stack([log_p[i, token] for i, token in enumerate(ids[1:])])
    torch.testing.assert_close(ours, expected, **TOLERANCE)


def test_the_adapter_changes_the_policy_but_not_its_gradient_s_home(policy):
    (pack,) = pack_rows([training_row([1, 5, 9, 2], [0, 1, 1, 1], 1.0)], 100)
    targets = read_targets(pack, policy.device)
    with torch.no_grad():
        adapted = targets.logprobs(policy.forward(pack), policy.head).logprobs
    with policy.as_reference(None):
        reference = targets.logprobs(policy.forward(pack), policy.head).logprobs
    assert (adapted - reference).abs().max() > 1e-3
    policy.gradient.zero_()
    targets.logprobs(policy.forward(pack), policy.head).logprobs.sum().backward()
    assert policy.gradient.abs().sum() > 0
    assert all(p.grad is None for p in policy.model.parameters())
