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


# --- backward --------------------------------------------------------------------------------


def numerical_gradient(loss, array, step=1e-6):
    """Gradient of a number with respect to each entry of `array`, by central differences."""
    gradient = np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (loss(up) - loss(down)) / (2 * step)
    return gradient


def test_softmax_backward_is_pytorchs_and_that_of_finite_differences():
    rng = np.random.default_rng(9)
    x, dweights = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))
    x[0, 1, 2] = -np.inf
    tensor = torch.tensor(x, requires_grad=True)
    F.softmax(tensor, dim=-1).backward(torch.tensor(dweights))
    dscores = oracle.softmax_backward(dweights, oracle.softmax(x))
    np.testing.assert_allclose(dscores, tensor.grad.numpy(), **CLOSE)
    assert dscores[0, 1, 2] == 0
    numerical = numerical_gradient(lambda a: (oracle.softmax(a) * dweights[1]).sum(), x[1])
    np.testing.assert_allclose(dscores[1], numerical, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)),
        ((2, 1, 4, 2), (3, 5, 2), (5, 3)),
        ((4, 3), (5, 3), (2, 5, 1)),
    ],
)
@pytest.mark.parametrize("share", [1.1, 0.5])
def test_attention_backward_is_pytorchs(q, k, v, share):
    rng = np.random.default_rng(10)
    Q, K, V = (rng.normal(size=shape) for shape in (q, k, v))
    mask = rng.random((4, 5)) < share
    mask[1] |= share > 1
    mask[2] = share > 1  # in the second case a query with no allowed key
    tensors = [torch.tensor(a, requires_grad=True) for a in (Q, K, V)]
    lead = np.broadcast_shapes(q[:-2], k[:-2], v[:-2])
    expected = F.scaled_dot_product_attention(
        *(t.expand(*lead, *t.shape[-2:]) for t in tensors), attn_mask=torch.tensor(mask)
    )
    doutput = rng.normal(size=expected.shape)
    expected.backward(torch.tensor(doutput))
    _, weights = oracle.scaled_dot_product_attention(Q, K, V, mask)
    gradients = oracle.attention_backward(doutput, Q, K, V, weights)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), **CLOSE)


def test_attention_backward_is_that_of_finite_differences():
    rng = np.random.default_rng(11)
    arrays = [rng.normal(size=shape) for shape in [(2, 3), (4, 3), (4, 5)]]
    mask = np.array([[False] * 4, [True, False, True, True]])
    doutput = rng.normal(size=(2, 5))
    _, weights = oracle.scaled_dot_product_attention(*arrays, mask)
    gradients = oracle.attention_backward(doutput, *arrays, weights)
    for i, gradient in enumerate(gradients):

        def loss(array, i=i):
            changed = [array if i == j else other for j, other in enumerate(arrays)]
            return (oracle.scaled_dot_product_attention(*changed, mask)[0] * doutput).sum()

        numerical = numerical_gradient(loss, arrays[i])
        np.testing.assert_allclose(gradient, numerical, rtol=0, atol=1e-8)
    assert not gradients[0][0].any()
