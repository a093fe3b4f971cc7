"""The oracle's loops agree with PyTorch in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from .oracle import single_head as oracle

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_softmax_is_pytorchs(axis, spread):
    x = spread * np.random.default_rng(1).normal(size=(3, 4, 5))
    expected = F.softmax(torch.tensor(x), dim=axis).numpy()
    np.testing.assert_allclose(oracle.softmax(x, axis=axis), expected, **CLOSE)


def test_softmax_gives_minus_infinity_no_weight():
    x = np.array([[0.5, -np.inf, 2.0], [-np.inf, -np.inf, -7.0]])
    expected = F.softmax(torch.tensor(x), dim=-1).numpy()
    np.testing.assert_allclose(oracle.softmax(x), expected, **CLOSE)
    assert oracle.softmax([-np.inf, -np.inf]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("mask_shape", [None, (4, 5), (5,), (4, 1), (2, 1, 1, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_attention_is_pytorchs(mask_shape, spread):
    rng = np.random.default_rng(2)
    Q, K, V = (
        spread * rng.normal(size=shape) for shape in [(2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)]
    )
    mask, attn_mask = None, None
    if mask_shape is not None:
        mask = rng.random(mask_shape) < 0.6
        attn_mask = torch.tensor(np.broadcast_to(mask, (2, 3, 4, 5)).copy())
    expected = F.scaled_dot_product_attention(*map(torch.tensor, (Q, K, V)), attn_mask=attn_mask)
    # PyTorch returns no weights. With the identity as values, its output is the weights.
    eye = np.broadcast_to(np.eye(5), (2, 3, 5, 5)).copy()
    expected_weights = F.scaled_dot_product_attention(
        *map(torch.tensor, (Q, K, eye)), attn_mask=attn_mask
    )
    output, weights = oracle.scaled_dot_product_attention(Q, K, V, mask)
    np.testing.assert_allclose(output, expected.numpy(), rtol=1e-11, atol=1e-11 * spread)
    np.testing.assert_allclose(weights, expected_weights.numpy(), rtol=1e-11, atol=1e-11)


def test_attention_without_an_allowed_key_is_zero():
    rng = np.random.default_rng(3)
    Q, K, V = rng.normal(size=(2, 3)), rng.normal(size=(4, 3)), rng.normal(size=(4, 5))
    mask = np.array([[False] * 4, [True, False, True, True]])
    expected = F.scaled_dot_product_attention(
        *(torch.tensor(a)[None] for a in (Q, K, V)), attn_mask=torch.tensor(mask)[None]
    )[0]
    output, weights = oracle.scaled_dot_product_attention(Q, K, V, mask)
    assert not output[0].any()
    assert not weights[0].any()
    np.testing.assert_allclose(output, expected.numpy(), **CLOSE)


def test_leading_axes_broadcast_as_in_pytorch():
    rng = np.random.default_rng(4)
    Q, K, V = (rng.normal(size=shape) for shape in [(2, 1, 4, 3), (3, 5, 3), (5, 2)])
    output, weights = oracle.scaled_dot_product_attention(Q, K, V)
    full = [torch.tensor(np.broadcast_to(a, (2, 3, *a.shape[-2:])).copy()) for a in (Q, K, V)]
    np.testing.assert_allclose(output, F.scaled_dot_product_attention(*full).numpy(), **CLOSE)
    assert weights.shape == (2, 3, 4, 5)


def test_no_keys_at_all_is_zero():
    output, weights = oracle.scaled_dot_product_attention(
        np.arange(6.0).reshape(2, 3), np.zeros((0, 3)), np.zeros((0, 4))
    )
    assert weights.shape == (2, 0)
    assert output.tolist() == np.zeros((2, 4)).tolist()


def test_a_mask_that_would_enlarge_the_scores_is_refused():
    Q = K = V = np.arange(6.0).reshape(3, 2)
    with pytest.raises(ValueError, match="more dimensions than allowed"):
        oracle.scaled_dot_product_attention(Q, K, V, np.zeros((2, 3, 3), dtype=bool))
