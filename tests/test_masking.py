"""The NumPy masks agree with the loop oracle, and attention keeps what a mask promises."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.in_numpy import masking
from attention.in_numpy.multi_head import multi_head_attention
from attention.in_numpy.single_head import attention_backward

from .oracle import masking as oracle

settings.register_profile("course", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("course")

ATOL = {np.float16: 2e-3, np.float32: 4e-6, np.float64: 1e-12}
FLOATING = st.sampled_from(list(ATOL))
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(0, 6)


def array(*shape, seed=8):
    return np.random.default_rng(seed).normal(size=shape)


def same_mask(mask, expected):
    """Assert that a mask is boolean and has the expected shape and values."""
    assert mask.dtype == bool
    assert mask.shape == expected.shape
    np.testing.assert_array_equal(mask, expected)


# --- the masks -------------------------------------------------------------------------------


@given(L_q=SIZES, L_k=SIZES, window=st.integers(1, 8))
def test_masks_of_positions_are_the_oracles(L_q, L_k, window):
    same_mask(masking.causal_mask(L_q), oracle.causal_mask(L_q))
    same_mask(masking.causal_mask_rect(L_q, L_k), oracle.causal_mask_rect(L_q, L_k))
    same_mask(masking.sliding_window_mask(L_k, window), oracle.sliding_window_mask(L_k, window))


@given(L=SIZES, B=st.integers(0, 4), L_q=SIZES, data=st.data())
def test_masks_of_sequences_are_the_oracles(L, B, L_q, data):
    lengths = data.draw(st.lists(st.integers(0, L), min_size=B, max_size=B))
    same_mask(masking.padding_mask(lengths, L), oracle.padding_mask(lengths, L))
    same_mask(masking.prefix_lm_mask(np.array(lengths, int), L), oracle.prefix_lm_mask(lengths, L))
    rng = np.random.default_rng(data.draw(SEEDS))
    segments = rng.integers(-1, 3, size=(B, L))
    same_mask(masking.packed_mask(segments), oracle.packed_mask(segments))
    keep, causal = rng.random((B, L)) < 0.6, rng.random((L_q, L)) < 0.6
    before = keep.copy(), causal.copy()
    same_mask(masking.combine_masks(keep, causal), oracle.combine_masks(keep, causal))
    np.testing.assert_array_equal(keep, before[0])
    np.testing.assert_array_equal(causal, before[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masking.padding_mask([2, 4], 3), "lengths: expected 0 to 3, got 4"),
        (lambda: masking.padding_mask([2, -1], 3), "lengths: expected 0 to 3, got -1"),
        (lambda: masking.padding_mask([2.0], 3), "lengths: expected integers, got dtype float64"),
        (lambda: masking.padding_mask(2, 3), r"lengths: expected axes \(B\), got shape \(\)"),
        (lambda: masking.padding_mask([[2]], 3), r"lengths: .*\(B\), got shape \(1, 1\)"),
        (lambda: masking.padding_mask([2], 3.0), "max_len: expected an integer .* got 3.0"),
        (lambda: masking.causal_mask(-1), "L: expected an integer of at least 0, got -1"),
        (lambda: masking.causal_mask_rect(2, -3), "L_k: expected an integer of at least 0, got -3"),
        (lambda: masking.causal_mask_rect(2.5, 3), "L_q: expected an integer .* got 2.5"),
        (lambda: masking.sliding_window_mask(4, 0), "window: .* at least 1, got 0"),
        (
            lambda: masking.combine_masks(np.array([[1, 0]]), np.full((2, 2), True)),
            "keep: expected booleans, got dtype int",
        ),
        (
            lambda: masking.combine_masks(np.full((3, 2), True), np.full((2, 3), True)),
            r"causal: expected shape \(2, 2\), got \(2, 3\)",
        ),
        (
            lambda: masking.combine_masks(np.full((3, 1, 1, 2), True), np.full((2, 2), True)),
            r"keep: expected axes \(B, L_k\), got shape \(3, 1, 1, 2\)",
        ),
        (lambda: masking.packed_mask([0, 0, 1]), r"segments: .*\(B, L\), got shape \(3,\)"),
        (lambda: masking.packed_mask([[True]]), "segments: expected integers, got dtype bool"),
        (lambda: masking.prefix_lm_mask([5], 4), "lengths: expected 0 to 4, got 5"),
    ],
)
def test_masks_say_what_is_wrong_with_their_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- the mean over real tokens ---------------------------------------------------------------


@given(
    lead=st.lists(st.integers(0, 3), max_size=2),
    L=SIZES,
    D=st.integers(0, 4),
    dtype=FLOATING,
    share=st.sampled_from([0.0, 0.4, 0.9]),
    seed=SEEDS,
)
def test_pooling_is_the_oracles(lead, L, D, dtype, share, seed):
    rng = np.random.default_rng(seed)
    x = (3 * rng.normal(size=(*lead, L, D))).astype(dtype)
    keep = rng.random((*lead, L)) < share
    before = x.copy()
    mean = masking.masked_mean_pool(x, keep)
    assert mean.dtype == dtype
    expected = oracle.masked_mean_pool(x, keep)
    assert mean.shape == expected.shape
    np.testing.assert_allclose(mean, expected, rtol=0, atol=6 * ATOL[dtype])
    np.testing.assert_array_equal(x, before)


def test_pooling_does_not_look_at_padding():
    x = array(2, 4, 3)
    keep = np.array([[True, True, False, False], [False] * 4])
    expected = oracle.masked_mean_pool(x, keep)
    x[~keep] = [np.nan, np.inf, -np.inf]
    np.testing.assert_allclose(masking.masked_mean_pool(x, keep), expected, rtol=1e-12)


def test_pooling_in_half_precision_adds_many_tokens():
    # 5000 * 20 is beyond half precision, and 2048 + 1 is 2048 there.
    x = np.tile(np.array([[20.0, -0.5]], dtype=np.float16), (5000, 1))
    keep = np.arange(5000) % 3 > 0
    np.testing.assert_array_equal(masking.masked_mean_pool(x, keep), [20.0, -0.5])


@pytest.mark.parametrize(
    ("x", "keep", "message"),
    [
        (array(3), np.full(3, True), r"x: expected at least 2 axes .* \(3,\)"),
        (array(2, 3) * 1j, np.full(2, True), "x: expected real numbers, got dtype complex128"),
        (array(2, 3), np.array([1, 0]), r"keep: expected booleans \(True = real\), got dtype int"),
        (array(4, 2, 3), np.full(2, True), r"keep: expected shape \(4, 2\), got \(2,\)"),
    ],
)
def test_pooling_says_what_is_wrong_with_its_input(x, keep, message):
    with pytest.raises(ValueError, match=message):
        masking.masked_mean_pool(x, keep)


# --- masked attention ------------------------------------------------------------------------


@st.composite
def attention_inputs(draw, dtypes=FLOATING, smallest=0):
    """Draw Q, K, V and a mask or None, with unequal lengths and empty rows."""
    dtype, rng = draw(dtypes), np.random.default_rng(draw(SEEDS))
    lead = tuple(draw(st.lists(st.integers(smallest, 3), max_size=2)))
    L_q, L_k, d_v = (draw(st.integers(smallest, 5)) for _ in range(3))
    d_k = draw(st.integers(1, 4))
    Q, K, V = (
        (2 * rng.normal(size=(*lead, *shape))).astype(dtype)
        for shape in [(L_q, d_k), (L_k, d_k), (L_k, d_v)]
    )
    mask = None
    if draw(st.booleans()):
        full = (*lead, L_q, L_k)
        shape = [draw(st.sampled_from([1, n])) for n in full]
        mask = rng.random(shape[draw(st.integers(0, len(full))) :]) < 0.6
    return Q, K, V, mask


@given(inputs=attention_inputs(), causal=st.booleans())
def test_masked_attention_is_the_oracles(inputs, causal):
    Q, K, V, mask = inputs
    before = [None if a is None else a.copy() for a in inputs]
    output, weights = masking.masked_attention(Q, K, V, mask, causal)
    assert output.dtype == weights.dtype == Q.dtype
    expected_output, expected_weights = oracle.masked_attention(Q, K, V, mask, causal)
    assert output.shape == expected_output.shape
    assert weights.shape == expected_weights.shape
    atol = 20 * ATOL[Q.dtype.type]
    np.testing.assert_allclose(weights, expected_weights, rtol=0, atol=atol)
    np.testing.assert_allclose(output, expected_output, rtol=0, atol=atol)
    for a, copy in zip(inputs, before, strict=True):
        assert a is copy is None or np.array_equal(a, copy)


@pytest.mark.parametrize("dtype", ATOL)
def test_the_mask_outweighs_scores_of_any_size(dtype):
    # The allowed scores are near -6e4, far below -1e4 and -5e4; the forbidden ones are 0 or high.
    Q = np.array([[245.0, 0], [245, 0]], dtype=dtype)
    K = np.array([[-240.0, 0], [0, 1], [240, 0], [-250, 0]], dtype=dtype)
    V = np.array([[1.0], [-3], [5], [2]], dtype=dtype)
    mask = np.array([[True, False, False, True], [False] * 4])
    output, weights = masking.masked_attention(Q, K, V, mask)
    np.testing.assert_array_equal(weights, [[1, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(output, [[1], [0]])


def test_the_mask_of_masked_attention_is_refused_where_it_does_not_fit():
    Q, K, V = array(2, 3), array(4, 3), array(4, 2)
    for causal in (False, True):
        with pytest.raises(ValueError, match=r"mask: expected booleans .* int64"):
            masking.masked_attention(Q, K, V, np.array([[1, 0, 1, 1]]), causal)
        with pytest.raises(ValueError, match=r"mask: .*scores, \(2, 4\), got \(5, 2, 4\)"):
            masking.masked_attention(Q, K, V, array(5, 2, 4) > 0, causal)
        with pytest.raises(ValueError, match=r"Q: expected at least 2 axes"):
            masking.masked_attention(Q[0], K, V, causal=causal)


# --- what a mask promises --------------------------------------------------------------------


@given(inputs=attention_inputs(dtypes=st.just(np.float64), smallest=1), causal=st.booleans())
def test_what_no_query_may_read_has_no_effect(inputs, causal):
    Q, K, V, mask = inputs
    output, weights = masking.masked_attention(Q, K, V, mask, causal)
    unread = weights.reshape(-1, *weights.shape[-2:]).any(axis=(0, 1))
    unread = ~unread  # (L_k,), in no sequence and by no query
    K, V = K.copy(), V.copy()
    K[..., unread, :] = 1e3
    V[..., unread, :] = -1e3
    np.testing.assert_array_equal(masking.masked_attention(Q, K, V, mask, causal)[0], output)


@given(L=st.integers(1, 6), t=st.integers(0, 5), seed=SEEDS)
def test_the_future_has_no_effect_on_the_past(L, t, seed):
    rng = np.random.default_rng(seed)
    Q, K, V = rng.normal(size=(3, 2, L, 4))
    expected, _ = masking.masked_attention(Q, K, V, causal=True)
    for a in (Q, K, V):
        a[:, t + 1 :] += rng.normal(size=a[:, t + 1 :].shape)
    output, _ = masking.masked_attention(Q, K, V, causal=True)
    np.testing.assert_array_equal(output[:, : t + 1], expected[:, : t + 1])


@given(L=st.integers(1, 6), L_q=st.integers(1, 6), seed=SEEDS)
def test_new_queries_on_old_keys_give_what_all_queries_give(L, L_q, seed):
    L_q = min(L, L_q)
    Q, K, V = np.random.default_rng(seed).normal(size=(3, L, 4))
    expected, _ = masking.masked_attention(Q, K, V, causal=True)
    output, _ = masking.masked_attention(Q[-L_q:], K, V, causal=True)
    np.testing.assert_allclose(output, expected[-L_q:], rtol=0, atol=1e-12)


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    extra=st.integers(0, 4),
    causal=st.booleans(),
    seed=SEEDS,
)
def test_padding_of_any_length_on_either_side_gives_the_same_real_rows(
    lengths, extra, causal, seed
):
    rng = np.random.default_rng(seed)
    L = max(lengths) + extra
    W = rng.normal(size=(4, 6, 6))
    for left in (False, True):
        x = rng.normal(size=(len(lengths), L, 6))
        keep = np.zeros((len(lengths), L), dtype=bool)
        for row, n in zip(keep, lengths, strict=True):
            row[L - n :] = left
            row[:n] |= not left
        past = masking.causal_mask(L) if causal else np.full((L, L), True)
        output, _ = multi_head_attention(x, *W, 2, masking.combine_masks(keep, past))
        for b, n in enumerate(lengths):
            mask = masking.causal_mask(n) if causal else None
            alone, _ = multi_head_attention(x[b, keep[b]], *W, 2, mask)
            np.testing.assert_allclose(output[b, keep[b]], alone, rtol=0, atol=1e-10)


def test_an_empty_row_has_gradient_zero_and_gives_none():
    Q, K, V = array(3, 2, seed=1), array(4, 2, seed=2), array(4, 5, seed=3)
    mask = np.array([[False] * 4, [True, False, False, True], [True, True, False, True]])
    _, weights = masking.masked_attention(Q, K, V, mask)
    dQ, dK, dV = attention_backward(array(3, 5, seed=4), Q, K, V, weights)
    assert not dQ[0].any()
    assert not dK[2].any()
    assert not dV[2].any()
    assert dQ[1:].all()
    _, weights = masking.masked_attention(Q[1:], K, V, mask[1:])
    rest = attention_backward(array(3, 5, seed=4)[1:], Q[1:], K, V, weights)
    np.testing.assert_allclose(dQ[1:], rest[0], rtol=1e-12)
    np.testing.assert_allclose(dK, rest[1], rtol=1e-12)
    np.testing.assert_allclose(dV, rest[2], rtol=1e-12)


def test_masks_run_where_there_is_no_pytorch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import attention.in_numpy.masking\n"
        "assert not any(name.startswith('torch.') for name in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
