"""Losses in NumPy. (Cross-entropy and Adam are tested in test_encoder_layer.py.)"""

import numpy as np
import pytest

from attention.in_numpy.training import lm_loss, next_token_loss

from .oracle import training as oracle

CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def case(*shape, classes=6, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(*shape, classes)), rng.integers(classes, size=shape)


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_lm_loss_is_the_oracles(shape, scale):
    logits, targets = case(*shape, scale=scale)
    loss, dlogits = lm_loss(logits, targets)
    expected, gradient = oracle.lm_loss(logits, targets)
    assert isinstance(loss, float)
    np.testing.assert_allclose(loss, expected, **CLOSE)
    np.testing.assert_allclose(dlogits, gradient, **CLOSE)


def test_lm_loss_leaves_out_padding_and_ignored_targets():
    logits, targets = case(4, 5)
    targets[0], targets[2, 3:] = -100, 1
    before = logits.copy(), targets.copy()
    loss, dlogits = lm_loss(logits, targets, pad_id=1)
    expected, gradient = oracle.lm_loss(logits, targets, pad_id=1)
    np.testing.assert_allclose(loss, expected, **CLOSE)
    np.testing.assert_allclose(dlogits, gradient, **CLOSE)
    assert (dlogits[0] == 0).all()
    assert all((a == b).all() for a, b in zip((logits, targets), before, strict=True))


def test_a_loss_over_nothing_is_0_with_gradient_0():
    logits, targets = case(2, 3)
    for no_targets in (np.full_like(targets, -100), np.full_like(targets, 4)):
        loss, dlogits = lm_loss(logits, no_targets, pad_id=4)
        assert loss == 0
        assert (dlogits == 0).all()
    loss, dlogits = next_token_loss(logits[:, :1], targets[:, :1])
    assert loss == 0
    assert (dlogits == 0).all()


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 2)])
def test_next_token_loss_is_the_oracles_and_its_gradient_that_of_differences(shape):
    logits, tokens = case(*shape, seed=3)
    tokens.flat[1] = -100
    loss, dlogits = next_token_loss(logits, tokens)
    expected, gradient = oracle.next_token_loss(logits, tokens)
    np.testing.assert_allclose(loss, expected, **CLOSE)
    np.testing.assert_allclose(dlogits, gradient, **CLOSE)
    step = 1e-6
    for index in list(np.ndindex(logits.shape))[::7]:
        up, down = logits.copy(), logits.copy()
        up[index] += step
        down[index] -= step
        slope = next_token_loss(up, tokens)[0] - next_token_loss(down, tokens)[0]
        np.testing.assert_allclose(dlogits[index], slope / (2 * step), atol=1e-8)


def test_logits_that_foresee_the_next_token_have_almost_no_loss():
    _, tokens = case(3, 8)
    logits = np.zeros((3, 8, 6))
    for b, t in np.ndindex(3, 7):
        logits[b, t, tokens[b, t + 1]] = 40
    assert next_token_loss(logits, tokens)[0] < 1e-12


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gradient_keeps_the_dtype(dtype):
    logits, targets = case(3, 4)
    assert lm_loss(logits.astype(dtype), targets)[1].dtype == dtype
    assert next_token_loss(logits.astype(dtype), targets)[1].dtype == dtype


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lm_loss(np.zeros((2, 3, 4)), np.zeros((2, 4), int)), "logits, targets: expected"),
        (lambda: lm_loss(np.zeros((2, 4)), np.array([0, 4])), "targets: expected integers"),
        (lambda: next_token_loss(np.zeros(4), np.array(0)), "logits: expected shape"),
    ],
)
def test_a_wrong_argument_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
