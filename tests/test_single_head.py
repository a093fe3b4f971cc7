"""The NumPy library agrees with the loop oracle and with PyTorch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attention.in_numpy.single_head import (
    attention_backward,
    scaled_dot_product_attention,
    softmax,
    softmax_backward,
)

from .oracle import single_head as oracle

settings.register_profile("course", derandomize=True, deadline=None, max_examples=150)
settings.load_profile("course")

# Rounding of weights (between 0 and 1) in each dtype. Half precision is computed in single
# precision, so that its error is one rounding of the result.
ATOL = {np.float16: 1e-3, np.float32: 3e-6, np.float64: 1e-12}
FLOATING = st.sampled_from(list(ATOL))
SPREADS = st.sampled_from([1e-3, 1.0, 30.0, 1e4])
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def broadcastable(draw, shape):
    """Draw a shape that broadcasts to `shape` without enlarging it."""
    start = draw(st.integers(0, len(shape)))
    return tuple(draw(st.sampled_from([1, n])) for n in shape[start:])


@st.composite
def attention_inputs(draw, dtypes=FLOATING, smallest=0):
    """Draw Q, K, V and a mask: any leading axes, lengths from `smallest`, empty rows."""
    dtype = draw(dtypes)
    rng = np.random.default_rng(draw(SEEDS))
    lead = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=smallest, max_side=3))
    L_q, L_k, d_v = (draw(st.integers(smallest, 5)) for _ in range(3))
    d_k = draw(st.integers(1, 5))
    root = draw(SPREADS) ** 0.5  # scores grow with the product of two entries

    def normal(shape, scale):
        return (scale * rng.normal(size=shape)).astype(dtype)

    Q = normal((*lead, L_q, d_k), root)
    K = normal((*draw(broadcastable(lead)), L_k, d_k), root)
    V = normal((*draw(broadcastable(lead)), L_k, d_v), 1.0)
    mask = None
    if draw(st.booleans()):
        mask = rng.random(draw(broadcastable((*lead, L_q, L_k)))) < draw(
            st.sampled_from([0.0, 0.3, 0.8])
        )
    return Q, K, V, mask


def torch_attention(Q, K, V, mask):
    """PyTorch's output, given the broadcasting that its kernels do not all do."""
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    tensors = [torch.tensor(np.broadcast_to(a, (*lead, *a.shape[-2:])).copy()) for a in (Q, K, V)]
    if mask is not None:
        mask = torch.tensor(np.broadcast_to(mask, (*lead, Q.shape[-2], K.shape[-2])).copy())
    return F.scaled_dot_product_attention(*tensors, attn_mask=mask).numpy()


# --- softmax ---------------------------------------------------------------------------------


@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    data=st.data(),
    dtype=FLOATING,
    spread=SPREADS,
    seed=SEEDS,
)
def test_softmax_is_the_oracles_on_every_axis(shape, data, dtype, spread, seed):
    x = (spread * np.random.default_rng(seed).normal(size=shape)).astype(dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    before = x.copy()
    weights = softmax(x, axis=axis)
    assert weights.dtype == dtype
    assert weights.shape == x.shape
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(weights, oracle.softmax(x, axis=axis), rtol=0, atol=ATOL[dtype])
    if x.size:
        expected = F.softmax(torch.tensor(x), dim=axis).numpy()
        np.testing.assert_allclose(weights, expected, rtol=0, atol=ATOL[dtype])


@given(
    x=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=1, max_dims=2, max_side=4),
        elements=st.one_of(st.just(-np.inf), st.floats(-1e308, 1e308)),
    )
)
def test_softmax_takes_any_finite_score_and_minus_infinity(x):
    weights = softmax(x)
    empty = np.isneginf(x).all(axis=-1)
    np.testing.assert_allclose(weights.sum(axis=-1), np.where(empty, 0.0, 1.0), rtol=1e-12)
    assert not weights[np.isneginf(x)].any()


@pytest.mark.parametrize("dtype", ATOL)
def test_softmax_takes_the_largest_and_lowest_number_of_its_dtype(dtype):
    big = np.finfo(dtype).max
    np.testing.assert_array_equal(softmax(np.array([-big, big, -np.inf], dtype=dtype)), [0, 1, 0])


def test_softmax_of_integers_is_that_of_the_same_floats():
    x = np.array([[1, 2, 3, 6], [-4, 0, 2, 2]])
    weights = softmax(x)
    assert weights.dtype == np.float64
    np.testing.assert_allclose(weights, oracle.softmax(x.astype(float)), rtol=1e-12)
    np.testing.assert_array_equal(softmax(x.tolist()), weights)
    np.testing.assert_allclose(softmax([True, False]), oracle.softmax([1.0, 0.0]), rtol=1e-12)


def test_softmax_of_a_row_of_minus_infinity_is_zero():
    x = np.array([[-np.inf, -np.inf], [-np.inf, 3.0]])
    np.testing.assert_array_equal(softmax(x), [[0.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_softmax_of_a_row_that_is_not_a_number_is_not_a_number_and_spares_the_others(bad):
    weights = softmax(np.array([[1.0, bad], [1.0, 3.0]]))
    assert np.isnan(weights[0]).all()
    np.testing.assert_allclose(weights[1], oracle.softmax([1.0, 3.0]), rtol=1e-12)


def test_softmax_in_half_precision_sums_many_terms():
    # In half precision 2048 + 1 is 2048: a plain sum of 5000 terms along axis 0 stops there.
    x = np.tile(np.array([[0.5, -2.0]], dtype=np.float16), (5000, 1))
    np.testing.assert_allclose(softmax(x, axis=0), 1 / 5000, rtol=1e-3)


@pytest.mark.parametrize(
    ("x", "axis", "message"),
    [
        (np.array([1j, 2.0]), -1, r"x: expected real numbers, got dtype complex128"),
        (np.array(["a", "b"]), -1, r"x: expected real numbers, got dtype <U1; convert"),
        (np.arange(3.0), 1, r"axis 1 is out of bounds for array of dimension 1"),
    ],
)
def test_softmax_refuses_what_it_cannot_take(x, axis, message):
    with pytest.raises(ValueError, match=message):
        softmax(x, axis=axis)


# --- scaled dot-product attention ------------------------------------------------------------


@given(inputs=attention_inputs())
def test_attention_is_the_oracles(inputs):
    Q, K, V, mask = inputs
    dtype = Q.dtype.type
    before = [None if a is None else a.copy() for a in inputs]
    output, weights = scaled_dot_product_attention(Q, K, V, mask)
    for array, copy in zip(inputs, before, strict=True):
        assert array is copy is None or np.array_equal(array, copy)
    assert output.dtype == weights.dtype == dtype

    expected_output, expected_weights = oracle.scaled_dot_product_attention(Q, K, V, mask)
    assert output.shape == expected_output.shape
    assert weights.shape == expected_weights.shape
    # A score of size s carries a rounding error of s times the dtype's last digit, and a weight
    # moves at most that much.
    largest = np.abs(Q.astype(float) @ np.swapaxes(K, -1, -2).astype(float)).max(initial=1.0)
    work = np.promote_types(dtype, np.float32)
    atol = ATOL[dtype] + 8 * largest * np.finfo(work).eps
    np.testing.assert_allclose(weights, expected_weights, rtol=0, atol=atol)
    np.testing.assert_allclose(output, expected_output, rtol=1e-3, atol=20 * atol)


@given(inputs=attention_inputs(dtypes=st.just(np.float64), smallest=1))
def test_attention_is_pytorchs(inputs):
    Q, K, V, mask = inputs
    output, _ = scaled_dot_product_attention(Q, K, V, mask)
    expected = torch_attention(Q, K, V, mask)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_attention_is_pytorchs_in_lower_precision(dtype):
    rng = np.random.default_rng(5)
    Q, K, V = (rng.normal(size=s).astype(dtype) for s in [(2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 5)])
    mask = rng.random((2, 1, 6, 7)) < 0.7
    output, _ = scaled_dot_product_attention(Q, K, V, mask)
    atol = {np.float16: 4e-3, np.float32: 4e-6}[dtype]
    np.testing.assert_allclose(output, torch_attention(Q, K, V, mask), rtol=0, atol=atol)


@given(inputs=attention_inputs(smallest=1))
def test_rows_of_weights_sum_to_one_or_are_empty_with_zero_output(inputs):
    Q, K, V, mask = inputs
    output, weights = scaled_dot_product_attention(Q, K, V, mask)
    allowed = np.broadcast_to(True if mask is None else mask, weights.shape)
    some = allowed.any(axis=-1)
    sums = weights.astype(np.float64).sum(axis=-1)
    np.testing.assert_allclose(sums, some.astype(float), rtol=0, atol=5e-3)
    assert not weights[~allowed].any()
    empty = np.broadcast_to(~some, output.shape[:-1])
    np.testing.assert_array_equal(output[empty], 0.0)


@pytest.mark.parametrize("dtype", ATOL)
def test_scores_of_ten_thousand_and_beyond(dtype):
    # 250 * 250 is 62500, and half precision ends at 65504: the unscaled sum of four is beyond.
    Q = np.array([[250, 250, 250, 250], [-200, -200, -200, -200]], dtype=dtype)
    K = np.array([[250, 250, 250, 250], [200, 200, 200, 200], [-9, 0, 0, 0]], dtype=dtype)
    V = np.array([[1, 2], [3, 5], [7, -4]], dtype=dtype)
    output, weights = scaled_dot_product_attention(Q, K, V)
    np.testing.assert_array_equal(weights, [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(output, V[[0, 2]])
    # A mask outweighs any score: leaving out the winner, even where all others are near -1e5.
    mask = np.array([[False, True, True], [True, True, False]])
    _, weights = scaled_dot_product_attention(Q, K, V, mask)
    np.testing.assert_array_equal(weights, [[0, 1, 0], [0, 1, 0]])


def test_a_dtype_is_kept_and_mixed_ones_are_promoted():
    rng = np.random.default_rng(6)
    Q, K, V = (rng.integers(-3, 4, size=s) for s in [(2, 3), (4, 3), (4, 5)])
    expected, _ = oracle.scaled_dot_product_attention(Q, K, V)
    output, weights = scaled_dot_product_attention(Q, K, V)
    assert output.dtype == weights.dtype == np.float64
    np.testing.assert_allclose(output, expected, rtol=1e-12)
    mixed, _ = scaled_dot_product_attention(
        Q.astype(np.float16), K.astype(np.float32), V.astype(np.float16)
    )
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=1e-5)
    from_lists, _ = scaled_dot_product_attention(Q.tolist(), K.tolist(), V.tolist())
    np.testing.assert_array_equal(from_lists, output)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((0, 3), (4, 3), (4, 2)),
        ((2, 3), (0, 3), (0, 2)),
        ((2, 3), (4, 3), (4, 0)),
        ((0, 2, 3), (0, 4, 3), (0, 4, 2)),
    ],
)
def test_zero_length_axes(q, k, v):
    rng = np.random.default_rng(7)
    Q, K, V = (rng.normal(size=s) for s in (q, k, v))
    output, weights = scaled_dot_product_attention(Q, K, V)
    expected_output, expected_weights = oracle.scaled_dot_product_attention(Q, K, V)
    assert output.shape == expected_output.shape
    assert weights.shape == expected_weights.shape
    np.testing.assert_allclose(output, expected_output, rtol=1e-12)


def array(*shape):
    return np.random.default_rng(8).normal(size=shape)


@pytest.mark.parametrize(
    ("Q", "K", "V", "mask", "message"),
    [
        (array(3), array(4, 3), array(4, 2), None, r"Q: expected at least 2 axes .* \(3,\)"),
        (array(2, 3), array(3), array(4, 2), None, r"K: expected at least 2 axes .* \(3,\)"),
        (array(2, 3), array(4, 3), array(4), None, r"V: expected at least 2 axes .* \(4,\)"),
        (array(2, 0), array(4, 0), array(4, 2), None, r"Q: .*d_k of at least 1, .* \(2, 0\)"),
        (array(2, 3), array(4, 5), array(4, 2), None, r"K: .*d_k = 3, got 5 \(shape \(4, 5\)\)"),
        (array(2, 3), array(4, 3), array(5, 2), None, r"V: .*L_k = 4, got 5 \(shape \(5, 2\)\)"),
        (
            array(2, 2, 3),
            array(3, 4, 3),
            array(4, 2),
            None,
            r"Q, K, V: .*broadcast together, got \(2,\), \(3,\) and \(\)",
        ),
        (array(2, 3) * 1j, array(4, 3), array(4, 2), None, r"Q: .*got dtype complex128"),
        (array(2, 3), array(4, 3), array(4, 2).astype(str), None, r"V: .*real numbers, got dtype"),
        (
            array(2, 3),
            array(4, 3),
            array(4, 2),
            np.array([[1, 0, 1, 1]]),
            r"mask: expected booleans \(True = may attend\), got dtype int64; convert",
        ),
        (array(2, 3), array(4, 3), array(4, 2), array(2, 4), r"mask: .*got dtype float64"),
        (
            array(2, 3),
            array(4, 3),
            array(4, 2),
            array(4, 2) > 0,
            r"mask: .*scores, \(2, 4\), got \(4, 2\)",
        ),
        (
            array(2, 3),
            array(4, 3),
            array(4, 2),
            array(5, 2, 4) > 0,
            r"mask: .*scores, \(2, 4\), got \(5, 2, 4\)",
        ),
        (
            array(2, 3),
            array(4, 3),
            array(4, 2),
            array(1, 2, 4) > 0,
            r"mask: .*scores, \(2, 4\), got \(1, 2, 4\)",
        ),
    ],
)
def test_attention_says_what_is_wrong_with_its_input(Q, K, V, mask, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(Q, K, V, mask)


# --- backward --------------------------------------------------------------------------------


@given(data=st.data(), dtype=FLOATING, spread=SPREADS, seed=SEEDS)
def test_softmax_backward_is_the_oracles(data, dtype, spread, seed):
    rng = np.random.default_rng(seed)
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    scores = spread * rng.normal(size=shape)
    scores[rng.random(shape) < 0.3] = -np.inf
    weights = softmax(scores).astype(dtype)
    dweights = rng.normal(size=shape).astype(dtype)
    before = weights.copy(), dweights.copy()
    dscores = softmax_backward(dweights, weights)
    assert dscores.dtype == dtype
    np.testing.assert_array_equal(weights, before[0])
    np.testing.assert_array_equal(dweights, before[1])
    expected = oracle.softmax_backward(dweights, weights)
    np.testing.assert_allclose(dscores, expected, rtol=0, atol=4 * ATOL[dtype])
    assert not dscores[weights == 0].any()


@given(inputs=attention_inputs(), seed=SEEDS)
def test_attention_backward_is_the_oracles(inputs, seed):
    Q, K, V, mask = inputs
    output, weights = scaled_dot_product_attention(Q, K, V, mask)
    doutput = np.random.default_rng(seed).normal(size=output.shape).astype(Q.dtype)
    arrays = (doutput, Q, K, V, weights)
    before = [array.copy() for array in arrays]
    gradients = attention_backward(*arrays)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    # The products sum up to 5 x 9 numbers as large as the largest input.
    largest = max((np.abs(a).max(initial=1.0) for a in (doutput, Q, K, V)), key=float)
    atol = 100 * ATOL[Q.dtype.type] * float(largest) ** 2
    for gradient, array, expected in zip(
        gradients, (Q, K, V), oracle.attention_backward(*arrays), strict=True
    ):
        assert gradient.dtype == Q.dtype
        assert gradient.shape == array.shape
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=atol)


@given(inputs=attention_inputs(dtypes=st.just(np.float64), smallest=1), seed=SEEDS)
def test_attention_backward_is_pytorchs(inputs, seed):
    Q, K, V, mask = inputs
    output, weights = scaled_dot_product_attention(Q, K, V, mask)
    doutput = np.random.default_rng(seed).normal(size=output.shape)
    tensors = [torch.tensor(a, requires_grad=True) for a in (Q, K, V)]
    expanded = [t.expand(*output.shape[:-2], *t.shape[-2:]) for t in tensors]
    allowed = np.broadcast_to(True if mask is None else mask, weights.shape).copy()
    F.scaled_dot_product_attention(*expanded, attn_mask=torch.tensor(allowed)).backward(
        torch.tensor(doutput)
    )
    for gradient, tensor in zip(
        attention_backward(doutput, Q, K, V, weights), tensors, strict=True
    ):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", ATOL)
def test_a_query_with_no_allowed_key_has_gradient_zero_and_contributes_nothing(dtype):
    rng = np.random.default_rng(12)
    doutput, Q, K, V = (rng.normal(size=s).astype(dtype) for s in [(3, 2), (3, 4), (5, 4), (5, 2)])
    mask = np.array(
        [[True, False, True, True, True], [False] * 5, [False, True, True, False, True]]
    )
    _, weights = scaled_dot_product_attention(Q, K, V, mask)
    dQ, dK, dV = attention_backward(doutput, Q, K, V, weights)
    np.testing.assert_array_equal(dQ[1], 0)
    rows = [0, 2]
    without = attention_backward(doutput[rows], Q[rows], K, V, weights[rows])
    for gradient, expected in zip((dQ[rows], dK, dV), without, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=4 * ATOL[dtype])


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((4, 3), (5, 3), (2, 5, 2)),
        ((2, 1, 4, 3), (3, 5, 3), (5, 2)),
        ((4, 3), (2, 5, 3), (1, 5, 2)),
    ],
)
def test_what_broadcasting_repeated_gets_the_sum_of_its_gradients(q, k, v):
    rng = np.random.default_rng(14)
    Q, K, V = (rng.normal(size=shape) for shape in (q, k, v))
    output, weights = scaled_dot_product_attention(Q, K, V)
    doutput = rng.normal(size=output.shape)
    gradients = attention_backward(doutput, Q, K, V, weights)
    expected = oracle.attention_backward(doutput, Q, K, V, weights)
    for gradient, array, wanted in zip(gradients, (Q, K, V), expected, strict=True):
        assert gradient.shape == array.shape
        np.testing.assert_allclose(gradient, wanted, rtol=1e-11, atol=1e-11)


def test_backward_of_integers_is_that_of_the_same_floats():
    rng = np.random.default_rng(13)
    doutput, Q, K, V = (rng.integers(-3, 4, size=s) for s in [(3, 2), (3, 4), (5, 4), (5, 2)])
    _, weights = scaled_dot_product_attention(Q, K, V)
    expected = oracle.attention_backward(doutput, Q, K, V, weights)
    for gradient, wanted in zip(
        attention_backward(doutput, Q, K, V, weights), expected, strict=True
    ):
        assert gradient.dtype == np.float64
        np.testing.assert_allclose(gradient, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("doutput", "weights", "message"),
    [
        (array(2, 2), array(2, 5), r"weights: expected shape \(2, 4\), got \(2, 5\)"),
        (array(2, 3), array(2, 4), r"doutput: expected shape \(2, 2\), got \(2, 3\)"),
        (array(1, 2, 2), array(2, 4), r"doutput: expected shape \(2, 2\), got \(1, 2, 2\)"),
        (array(2, 2) * 1j, array(2, 4), r"doutput: expected real numbers, got dtype complex128"),
    ],
)
def test_attention_backward_says_what_is_wrong_with_its_input(doutput, weights, message):
    with pytest.raises(ValueError, match=message):
        attention_backward(doutput, array(2, 3), array(4, 3), array(4, 2), weights)


def test_softmax_backward_refuses_two_shapes():
    with pytest.raises(ValueError, match=r"dweights: expected shape \(2, 4\), got \(4,\)"):
        softmax_backward(array(4), array(2, 4))


# --- the extract of a real model --------------------------------------------------------------


def test_the_extract_of_a_real_head_is_small_and_shows_what_the_chapter_says():
    path = Path(__file__).resolve().parent.parent / "book" / "data" / "minilm_head.npz"
    assert path.stat().st_size < 150_000
    data = np.load(path)
    tokens, twin_weight = data["tokens"].tolist(), data["twin_weight"]
    assert 8 <= len(tokens) <= 12
    assert data["X"].shape == (len(tokens), 384)
    assert np.unravel_index(twin_weight.argmax(), (6, 12)) == (data["layer"], data["head"])
    X = data["X"].astype(np.float64)
    Q, K, V = (X @ data[f"W_{c}"] + data[f"b_{c}"] for c in "qkv")
    _, weights = scaled_dot_product_attention(Q, K, V)
    twins = [
        (i, j) for i, t in enumerate(tokens) for j, u in enumerate(tokens) if t == u and i != j
    ]
    assert {tokens[i] for i, _ in twins} == {"cats", "chase"}
    measured = np.mean([weights[i, j] for i, j in twins])
    np.testing.assert_allclose(measured, twin_weight.max(), atol=2e-3)


def test_numpy_runs_where_there_is_no_pytorch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import attention.in_numpy.single_head\n"
        "assert not any(name.startswith('torch.') for name in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
