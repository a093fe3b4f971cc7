"""The torch twin agrees with the oracle and with PyTorch: values, gradients, dtypes, devices."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention.in_torch.device import pick_device
from attention.in_torch.single_head import SelfAttention, scaled_dot_product_attention, softmax
from attention.in_torch.weights import copy_from_linear, copy_to_linear

from .oracle import single_head as oracle

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_device = pytest.mark.parametrize("device", DEVICES)


def normal(*shape, seed=0, spread=1.0):
    return torch.tensor(spread * np.random.default_rng(seed).normal(size=shape))


def as_arrays(*tensors):
    return [tensor.detach().double().cpu().numpy() for tensor in tensors]


def close(tensor, expected, times=8):
    """Assert that a result in some dtype is the expected float64 result, up to its rounding."""
    bound = times * torch.finfo(tensor.dtype).eps
    np.testing.assert_allclose(*as_arrays(tensor), expected, rtol=bound, atol=bound)


# --- softmax ---------------------------------------------------------------------------------


@every_device
@every_dtype
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_softmax_is_the_oracles(dtype, device, dim, spread):
    x = normal(3, 4, 5, spread=spread).to(device, dtype)
    weights = softmax(x, dim=dim)
    assert (weights.dtype, weights.device) == (x.dtype, x.device)
    close(weights, oracle.softmax(*as_arrays(x), axis=dim))


@every_device
@every_dtype
def test_an_empty_row_of_softmax_is_zero_and_so_is_its_gradient(dtype, device):
    x = normal(3, 4, seed=1).to(device, dtype)
    x[1] = -torch.inf
    x[2, :2] = -torch.inf
    x.requires_grad_()
    dweights = normal(3, 4, seed=2).to(device, dtype)
    weights = softmax(x)
    weights.backward(dweights)
    close(weights, oracle.softmax(*as_arrays(x)))
    assert not weights[1].any()
    close(x.grad, oracle.softmax_backward(*as_arrays(dweights, weights)), times=16)
    assert not x.grad[1].any()


# --- scaled dot-product attention ------------------------------------------------------------

SHAPES = [
    [(4, 3), (5, 3), (5, 2)],
    [(2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)],
    [(2, 1, 4, 3), (3, 5, 3), (5, 2)],
]


@every_device
@every_dtype
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_its_gradients_are_the_oracles(dtype, device, shapes, masked):
    tensors = [
        normal(*shape, seed=i).to(device, dtype).requires_grad_() for i, shape in enumerate(shapes)
    ]
    mask = None
    if masked:
        mask = np.random.default_rng(3).random((4, 5)) < 0.6
        mask[2] = False
    before = [tensor.detach().clone() for tensor in tensors]
    output, weights = scaled_dot_product_attention(
        *tensors, mask=None if mask is None else torch.tensor(mask, device=device)
    )
    assert output.dtype == weights.dtype == dtype
    assert output.device == weights.device == tensors[0].device
    arrays = as_arrays(*tensors)
    expected_output, expected_weights = oracle.scaled_dot_product_attention(*arrays, mask)
    close(output, expected_output)
    close(weights, expected_weights)

    doutput = normal(*output.shape, seed=4).to(device, dtype)
    output.backward(doutput)
    expected = oracle.attention_backward(*as_arrays(doutput), *arrays, expected_weights)
    for tensor, copy, gradient in zip(tensors, before, expected, strict=True):
        assert tensor.detach().equal(copy)
        assert tensor.grad.dtype == dtype
        close(tensor.grad, gradient, times=64)
    if masked:
        assert not output[..., 2, :].any()
        assert not tensors[0].grad[..., 2, :].any()


@every_device
@every_dtype
def test_attention_is_pytorchs(dtype, device):
    Q, K, V = (normal(*shape, seed=i).to(device, dtype) for i, shape in enumerate(SHAPES[1]))
    mask = torch.tensor(np.random.default_rng(5).random((2, 1, 4, 5)) < 0.6, device=device)
    output, _ = scaled_dot_product_attention(Q, K, V, mask)
    expected = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
    close(output, *as_arrays(expected), times=16)


@every_device
@every_dtype
def test_large_scores_stay_finite_forward_and_backward(dtype, device):
    # 250 * 250 is 62500, and half precision ends at 65504: the unscaled sum of four is beyond.
    Q = torch.tensor([[250.0] * 4, [-200.0] * 4], device=device, dtype=dtype).requires_grad_()
    K = torch.tensor([[250.0] * 4, [200.0] * 4, [-9.0, 0, 0, 0]], device=device, dtype=dtype)
    V = torch.tensor([[1.0, 2], [3, 5], [7, -4]], device=device, dtype=dtype)
    output, weights = scaled_dot_product_attention(Q, K, V)
    assert weights.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert output.tolist() == V[[0, 2]].tolist()
    output.sum().backward()
    assert not Q.grad.any()


def test_gradcheck_with_a_mask_and_an_empty_row():
    tensors = [normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(SHAPES[0])]
    mask = torch.tensor(np.random.default_rng(6).random((4, 5)) < 0.6)
    mask[1] = False
    assert torch.autograd.gradcheck(lambda *t: scaled_dot_product_attention(*t, mask=mask), tensors)


def test_no_keys_at_all_gives_zeros():
    output, weights = scaled_dot_product_attention(normal(2, 3), normal(0, 3), normal(0, 4))
    assert weights.shape == (2, 0)
    assert output.tolist() == torch.zeros(2, 4).tolist()


def test_mixed_dtypes_are_promoted():
    Q, K, V = normal(4, 3).half(), normal(5, 3, seed=1).float(), normal(5, 2, seed=2).half()
    output, weights = scaled_dot_product_attention(Q, K, V)
    assert output.dtype == weights.dtype == torch.float32
    close(output, oracle.scaled_dot_product_attention(*as_arrays(Q, K, V))[0])


@pytest.mark.parametrize(
    ("Q", "K", "V", "mask", "message"),
    [
        (normal(3), normal(4, 3), normal(4, 2), None, "Q: expected at least 2 axes"),
        (
            normal(2, 3),
            normal(4, 5),
            normal(4, 2),
            None,
            "K: expected the width of Q, d_k = 3, got 5",
        ),
        (
            normal(2, 3),
            normal(4, 3),
            normal(5, 2),
            None,
            "V: expected one row for each key, L_k = 4",
        ),
        (
            normal(2, 3).long(),
            normal(4, 3),
            normal(4, 2),
            None,
            "Q: expected floats, got torch.int64",
        ),
        (normal(2, 3), normal(4, 3), normal(4, 2), normal(2, 4), "mask: expected booleans"),
        (
            normal(2, 3),
            normal(4, 3),
            normal(4, 2),
            normal(5, 2, 4) > 0,
            r"mask: .*scores, \(2, 4\), got \(5, 2, 4\)",
        ),
    ],
)
def test_attention_says_what_is_wrong_with_its_input(Q, K, V, mask, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(Q, K, V, mask)


# --- the layer -------------------------------------------------------------------------------


def test_the_layer_has_three_matrices_and_nothing_else():
    layer = SelfAttention(d_model=6, d_k=4, d_v=3)
    shapes = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
    assert shapes == {"W_q.weight": (4, 6), "W_k.weight": (4, 6), "W_v.weight": (3, 6)}


@every_device
@every_dtype
def test_the_layer_is_the_oracles_with_weights_copied(dtype, device):
    rng = np.random.default_rng(7)
    matrices = [rng.normal(size=shape) / 2 for shape in [(6, 4), (6, 4), (6, 3)]]
    layer = SelfAttention(6, 4, 3)
    for name, W in zip(("W_q", "W_k", "W_v"), matrices, strict=True):
        copy_to_linear(getattr(layer, name), W)
    layer.to(device, dtype)
    x = normal(2, 5, 6, seed=8).to(device, dtype).requires_grad_()
    mask = torch.ones(5, 5, dtype=torch.bool, device=device).tril(-1)  # row 0 is empty
    output, weights = layer(x, mask)
    assert output.dtype == dtype
    matrices = [copy_from_linear(linear)[0].astype(np.float64) for linear in layer.children()]
    (X,) = as_arrays(x)
    expected = oracle.scaled_dot_product_attention(*(X @ W for W in matrices), mask.cpu().numpy())
    close(output, expected[0], times=32)
    close(weights, expected[1], times=32)
    output.sum().backward()
    for tensor in (x, *layer.parameters()):
        assert torch.isfinite(tensor.grad).all()
        assert tensor.grad.any()


def test_the_gradients_of_the_layer_are_those_by_hand():
    layer = SelfAttention(6, 4, 3).double()
    x, doutput = normal(5, 6, seed=9), normal(5, 3, seed=10)
    output, weights = layer(x)
    output.backward(doutput)
    matrices = [copy_from_linear(linear)[0] for linear in layer.children()]
    (X,) = as_arrays(x)
    gradients = oracle.attention_backward(
        *as_arrays(doutput), *(X @ W for W in matrices), *as_arrays(weights)
    )
    for linear, gradient in zip(layer.children(), gradients, strict=True):
        close(linear.weight.grad, (X.T @ gradient).T, times=64)


# --- copying weights, choosing a device ------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("bias", [False, True])
def test_weights_make_the_round_trip(dtype, bias):
    linear = nn.Linear(4, 3, bias=bias).to(dtype)
    W = np.arange(12.0).reshape(4, 3) - 5
    b = np.array([0.5, -2.0, 3.0]) if bias else None
    copy_to_linear(linear, W, b)
    assert linear.weight.dtype == dtype
    assert linear.weight.requires_grad
    x = np.array([[1.0, -2.0, 3.0, 0.5]])
    expected = x @ W + (0 if b is None else b)
    np.testing.assert_array_equal(*as_arrays(linear(torch.tensor(x).to(dtype))), expected)
    W_back, b_back = copy_from_linear(linear)
    np.testing.assert_array_equal(W_back, W)
    assert b_back is None if b is None else b_back.tolist() == b.tolist()
    W_back += 1  # a copy: the layer keeps its numbers
    np.testing.assert_array_equal(copy_from_linear(linear)[0], W)


@pytest.mark.parametrize(
    ("bias", "W", "b", "message"),
    [
        (
            False,
            np.zeros((3, 4)),
            None,
            r"W: expected shape \(d_in, d_out\) = \(4, 3\), got \(3, 4\)",
        ),
        (False, np.zeros((4, 3)), np.zeros(3), "b: the layer has no bias, got an array"),
        (True, np.zeros((4, 3)), None, "b: the layer has a bias, got None"),
        (True, np.zeros((4, 3)), np.zeros(4), r"b: expected shape \(d_out,\) = \(3,\), got \(4,\)"),
    ],
)
def test_copying_refuses_what_does_not_fit_and_changes_nothing(bias, W, b, message):
    linear = nn.Linear(4, 3, bias=bias)
    before = linear.weight.detach().clone()
    with pytest.raises(ValueError, match=message):
        copy_to_linear(linear, W, b)
    assert linear.weight.detach().equal(before)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_device_is_the_fastest_at_hand(monkeypatch, cuda, mps, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device() == torch.device(expected)
