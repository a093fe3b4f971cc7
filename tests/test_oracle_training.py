"""The oracle's loops agree with PyTorch in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .oracle import training as oracle

CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def case(*shape, classes=5, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(*shape, classes))
    targets = rng.integers(classes, size=shape)
    return logits, targets


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 1, 5)])
@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("left_out", ["nothing", "ignored", "padding"])
def test_lm_loss_and_its_gradient_are_pytorchs(shape, scale, left_out):
    logits, targets = case(*shape, scale=scale)
    if left_out == "ignored":
        targets.flat[::3] = -100
    pad_id = 2 if left_out == "padding" else None
    z = torch.tensor(logits, requires_grad=True)
    expected = F.cross_entropy(
        z.reshape(-1, 5),
        torch.tensor(targets).flatten(),
        ignore_index=-100 if pad_id is None else pad_id,
    )
    expected.backward()
    loss, gradient = oracle.lm_loss(logits, targets, pad_id)
    np.testing.assert_allclose(loss, expected.item(), **CLOSE)
    np.testing.assert_allclose(gradient, z.grad.numpy(), **CLOSE)


def test_lm_loss_leaves_out_padding_and_ignored_targets_together():
    logits, targets = case(3, 4)
    targets[0], targets[1, 2:] = 2, -100
    counted = (targets != 2) & (targets != -100)
    expected = F.cross_entropy(torch.tensor(logits[counted]), torch.tensor(targets[counted]))
    loss, gradient = oracle.lm_loss(logits, targets, pad_id=2)
    np.testing.assert_allclose(loss, expected.item(), **CLOSE)
    assert (gradient[~counted] == 0).all()


def test_lm_loss_is_0_where_no_target_counts():
    logits, targets = case(2, 3)
    loss, gradient = oracle.lm_loss(logits, np.full_like(targets, -100))
    assert loss == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("L", [1, 2, 6])
def test_next_token_loss_is_pytorchs_over_the_tokens_that_follow(L):
    logits, tokens = case(3, L)
    loss, gradient = oracle.next_token_loss(logits, tokens)
    assert (gradient[:, -1] == 0).all()
    if L == 1:
        assert loss == 0
        return
    expected = F.cross_entropy(
        torch.tensor(logits[:, :-1]).flatten(0, 1), torch.tensor(tokens[:, 1:]).flatten()
    )
    np.testing.assert_allclose(loss, expected.item(), **CLOSE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_smoothed_loss_is_pytorchs(smoothing):
    logits, targets = case(3, 4)
    targets[1, 1:] = -100
    expected = F.cross_entropy(
        torch.tensor(logits).flatten(0, 1),
        torch.tensor(targets).flatten(),
        label_smoothing=smoothing,
    )
    np.testing.assert_allclose(
        oracle.smoothed_loss(logits, targets, smoothing), expected.item(), **CLOSE
    )


@pytest.mark.parametrize("max_norm", [None, 0.05, 100.0])
def test_a_step_of_the_linear_model_is_pytorchs(max_norm):
    x, y = case(6, classes=4)
    y[2] = -100
    y = np.minimum(y, 2)
    rng = np.random.default_rng(1)
    W, b = rng.normal(size=(4, 3)), rng.normal(size=3)
    model = nn.Linear(4, 3).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(W.T))
        model.bias.copy_(torch.tensor(b))
    loss = F.cross_entropy(model(torch.tensor(x)), torch.tensor(y))
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    torch.optim.SGD(model.parameters(), lr=0.3).step()
    new_W, new_b, before, dW, db = oracle.linear_step(W, b, x, y, 0.3, max_norm)
    close = {"rtol": 1e-4, "atol": 1e-6} if max_norm == 0.05 else CLOSE  # PyTorch adds 1e-6
    np.testing.assert_allclose(before, loss.item(), **CLOSE)
    np.testing.assert_allclose(dW, model.weight.grad.numpy().T, **close)
    np.testing.assert_allclose(db, model.bias.grad.numpy(), **close)
    np.testing.assert_allclose(new_W, model.weight.detach().numpy().T, **close)
    np.testing.assert_allclose(new_b, model.bias.detach().numpy(), **close)


def test_entropy_is_pytorchs_and_0_for_one_key():
    weights = np.random.default_rng(2).dirichlet([0.5] * 6, size=(2, 3))
    weights[0, 0] = np.eye(6)[4]
    expected = torch.special.entr(torch.tensor(weights)).sum(-1).numpy()
    np.testing.assert_allclose(oracle.entropy(weights), expected, **CLOSE)
    assert oracle.entropy(weights)[0, 0] == 0
