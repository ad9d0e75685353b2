"""Chunked log-probabilities against the plain computation."""

import numpy as np
import pytest
import torch

from art_backend.training.policy import logits
from art_backend.training.policy.logits import Head, SlotMasks, greedy_logprobs, target_logprobs


@pytest.fixture(params=[1, 3 * 4 * 11, 10**6], ids=["one", "three", "all"])
def chunk(request, monkeypatch):
    """Positions per chunk."""
    monkeypatch.setattr(logits, "CHUNK_BYTES", request.param)


@pytest.fixture(params=[(1.0, None), (0.3, None), (1.0, 1.5), (4.0, 2.0)], ids=["plain", "scaled", "capped", "both"])
def change(request):
    """Scale and cap of the logits."""
    return request.param


def plain_logits(hidden, head):
    """What a model with such a head computes."""
    logits = hidden @ head.weight.T * head.scale
    return logits if head.cap is None else torch.tanh(logits / head.cap) * head.cap


def problem(change=(1.0, None)):
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float32, requires_grad=True)
    head = Head(torch.randn(11, 5), *change)
    temperatures = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0, 0.1, 1.0])
    slots = torch.tensor([0, 0, 1, 2, 2, 2, 5, 6])  # several targets in one slot; slots without a target
    tokens = torch.tensor([3, 3, 0, 1, 2, 10, 4, 5])
    return hidden, head, temperatures, slots, tokens


def masks_of(problem_tokens, slots):
    """Slots 0, 2 and 5 allow their targets and some others, slot 6 its target alone; the rest allow everything."""
    allowed = {0: [3, 5], 2: [0, 1, 2, 10], 5: [4, 9], 6: [5]}
    table = torch.ones(7, 11, dtype=torch.bool)
    for slot, ids in allowed.items():
        table[slot] = False
        table[slot, ids] = True
    packed = [np.packbits(table[slot].numpy(), bitorder="little").tobytes() for slot in allowed]
    index = torch.tensor([list(allowed).index(slot) if slot in allowed else -1 for slot in range(7)])
    return SlotMasks.of(packed, index), table


@pytest.mark.parametrize("kept", [0, 10**9], ids=["computed again", "kept"])
def test_masked_distributions_equal_the_plain_computation(chunk, change, kept, monkeypatch):
    monkeypatch.setattr(logits, "KEPT_BYTES", kept)
    hidden, head, temperatures, slots, tokens = problem(change)
    masks, table = masks_of(tokens, slots)
    coefficients = torch.randn(8)
    out = target_logprobs(hidden, head, temperatures, slots, tokens, masks)
    (out.logprobs * coefficients).sum().backward()
    ours, hidden.grad = hidden.grad, None
    scaled = (plain_logits(hidden, head) / temperatures[:, None]).masked_fill(~table, -torch.inf)
    log_p = torch.log_softmax(scaled, dim=-1)
    (log_p[slots, tokens] * coefficients).sum().backward()
    torch.testing.assert_close(out.logprobs, log_p[slots, tokens], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, hidden.grad, rtol=1e-5, atol=1e-5)
    entropy = -torch.where(table, log_p.exp() * log_p, 0.0).sum(-1)
    torch.testing.assert_close(out.entropy, entropy, rtol=1e-4, atol=1e-4)
    # a token without alternative has probability 1, and nothing to learn
    assert out.logprobs[-1].item() == 0
    assert not ours[6].any()


@pytest.mark.parametrize("kept", [0, 10**9], ids=["computed again", "kept"])
def test_values_and_gradients_equal_the_plain_computation(chunk, change, kept, monkeypatch):
    monkeypatch.setattr(logits, "KEPT_BYTES", kept)
    hidden, head, temperatures, slots, tokens = problem(change)
    coefficients = torch.randn(8)
    results = []
    for chunked in (True, False):
        hidden.grad = None
        if chunked:
            out = target_logprobs(hidden, head, temperatures, slots, tokens)
            logprobs, entropy = out.logprobs, out.entropy
            assert not entropy.requires_grad
        else:
            log_p = torch.log_softmax(plain_logits(hidden, head) / temperatures[:, None], dim=-1)
            logprobs, entropy = log_p[slots, tokens], -(log_p.exp() * log_p).sum(-1)
        (logprobs * coefficients).sum().backward()
        assert hidden.grad is not None
        results.append((logprobs.detach(), hidden.grad.clone(), entropy.detach()))
    torch.testing.assert_close(results[0][:2], results[1][:2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[0][2], results[1][2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kept", [0, 10**9])
def test_the_gradient_of_the_entropy_equals_the_plain_computation(chunk, change, kept, monkeypatch):
    monkeypatch.setattr(logits, "KEPT_BYTES", kept)
    hidden, head, temperatures, slots, tokens = problem(change)
    weights, more = torch.randn(8), torch.randn(7)
    gradients = []
    for chunked in (True, False):
        hidden.grad = None
        if chunked:
            out = target_logprobs(hidden, head, temperatures, slots, tokens, entropy_gradient=True)
            logprobs, entropy = out.logprobs, out.entropy
        else:
            log_p = torch.log_softmax(plain_logits(hidden, head) / temperatures[:, None], dim=-1)
            logprobs, entropy = log_p[slots, tokens], -(log_p.exp() * log_p).sum(-1)
        ((logprobs * weights).sum() + (entropy * more).sum()).backward()
        assert hidden.grad is not None
        gradients.append(hidden.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)


def test_the_entropy_of_a_certain_token_has_no_gradient_and_no_nan():
    hidden = torch.tensor([[1e4, 0.0]]).requires_grad_()
    head, ones, zero = Head(torch.eye(2)), torch.ones(1), torch.tensor([0])
    out = target_logprobs(hidden, head, ones, zero, zero, entropy_gradient=True)
    out.entropy.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [[0.0, 0.0]]


def test_the_gradient_of_a_confident_token_survives_bfloat16():
    """p = 0.9995: rounded to bfloat16 it is 1, and the gradient would be nothing or noise."""
    head = torch.tensor([[7.6, 0.0], [0.0, 1.0]]).bfloat16()
    hidden = torch.tensor([[1.0, 0.0]]).bfloat16().requires_grad_()
    ones, slots, tokens = torch.ones(1), torch.tensor([0]), torch.tensor([0])
    target_logprobs(hidden, Head(head), ones, slots, tokens).logprobs.sum().backward()
    exact = hidden.detach().double().requires_grad_()
    torch.log_softmax(exact @ head.double().T, -1)[0, 0].backward()
    assert hidden.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(hidden.grad.double(), exact.grad, rtol=0.02, atol=0)


def test_greedy_logprobs(chunk):
    hidden, head, *_ = problem()
    expected = torch.log_softmax(plain_logits(hidden, head), dim=-1).amax(-1)
    torch.testing.assert_close(greedy_logprobs(hidden, head), expected)


def test_the_gradient_of_a_trained_head_equals_the_plain_computation(chunk, change):
    hidden, head, temperatures, slots, tokens = problem(change)
    weight = head.weight.requires_grad_()
    coefficients = torch.randn(8)
    (target_logprobs(hidden, head, temperatures, slots, tokens).logprobs * coefficients).sum().backward()
    ours, weight.grad = weight.grad, None
    log_p = torch.log_softmax(plain_logits(hidden, head) / temperatures[:, None], dim=-1)
    (log_p[slots, tokens] * coefficients).sum().backward()
    torch.testing.assert_close(ours, weight.grad, rtol=1e-5, atol=1e-5)


def test_no_targets_are_fine(chunk):
    _, head, *_ = problem()
    out = target_logprobs(
        torch.empty(0, 5), head, torch.empty(0), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    )
    assert out.logprobs.shape == (0,)
