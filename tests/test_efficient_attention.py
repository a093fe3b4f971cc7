"""The cheaper attentions agree with the dense ones and the oracle, and need the memory they say."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.in_numpy import efficient_attention as ours
from attention.in_numpy.masking import causal_mask_rect, sliding_window_mask
from attention.in_numpy.single_head import attention_backward, scaled_dot_product_attention

from .oracle import efficient_attention as oracle
from .oracle import masking as oracle_masking
from .oracle import single_head as oracle_single

settings.register_profile("course", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("course")

ATOL = {np.float16: 2e-3, np.float32: 4e-6, np.float64: 1e-12}
FLOATING = st.sampled_from(list(ATOL))
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(1, 9)


def array(*shape, seed=8):
    return np.random.default_rng(seed).normal(size=shape)


def close(result, expected, times=10):
    """Assert that values and shapes are equal, up to the rounding of the result's dtype."""
    assert result.shape == expected.shape
    atol = times * ATOL[result.dtype.type]
    np.testing.assert_allclose(result, expected, rtol=0, atol=atol)


@st.composite
def attention_inputs(draw, masked=True, smallest=0):
    """Draw Q, K, V of shapes that broadcast, unlike lengths and widths, and a mask or None."""
    dtype, rng = draw(FLOATING), np.random.default_rng(draw(SEEDS))
    lead = tuple(draw(st.lists(st.integers(smallest, 3), max_size=2)))
    leads = [[draw(st.sampled_from([1, n])) for n in lead] for _ in range(2)]
    L_q, L_k, d_v = (draw(st.integers(smallest, 7)) for _ in range(3))
    d_k = draw(st.integers(1, 4))
    shapes = [(*lead, L_q, d_k), (*leads[0], L_k, d_k), (*leads[1], L_k, d_v)]
    Q, K, V = ((2 * rng.normal(size=shape)).astype(dtype) for shape in shapes)
    if not masked:
        return Q, K, V
    mask = None
    if draw(st.booleans()):
        full = (*lead, L_q, L_k)
        shape = [draw(st.sampled_from([1, n])) for n in full]
        mask = rng.random(shape[draw(st.integers(0, len(full))) :]) < draw(st.floats(0.1, 0.9))
    return Q, K, V, mask


def unchanged(arrays, copies):
    for a, copy in zip(arrays, copies, strict=True):
        assert a is copy is None or np.array_equal(a, copy)


def copies_of(arrays):
    return [None if a is None else np.copy(a) for a in arrays]


# --- chunked attention -----------------------------------------------------------------------


@given(inputs=attention_inputs(), chunk_size=SIZES)
def test_chunks_give_the_dense_output(inputs, chunk_size):
    Q, K, V, mask = inputs
    before = copies_of(inputs)
    output, logsumexp = ours.chunked_attention(*inputs[:3], chunk_size, mask, return_logsumexp=True)
    expected, _ = oracle_single.scaled_dot_product_attention(Q, K, V, mask)
    assert output.dtype == Q.dtype
    close(output, expected)
    assert logsumexp.dtype == np.promote_types(Q.dtype, np.float32)
    expected = oracle.logsumexp(Q, K, mask)
    np.testing.assert_allclose(logsumexp, expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(ours.chunked_attention(*inputs[:3], chunk_size, mask), output)
    unchanged(inputs, before)


@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7])
def test_the_mask_outweighs_scores_of_any_size(dtype, chunk_size):
    # Allowed scores near -6e4, far below -1e4 and -5e4; the forbidden ones are 0 or high.
    Q = np.array([[245.0, 0], [245, 0]], dtype=dtype)
    K = np.array([[0, 1], [240, 0], [-240.0, 0], [-250, 0], [0, 3]], dtype=dtype)
    V = np.array([[-3.0], [5], [1], [2], [9]], dtype=dtype)
    mask = np.array([[False, False, True, True, False], [False] * 5])
    output = ours.chunked_attention(Q, K, V, chunk_size, mask)
    np.testing.assert_array_equal(output, [[1], [0]])


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("chunk_size", [1, 3, 4, 10])
def test_scores_that_rise_or_fall_by_ten_thousand(order, chunk_size):
    Q = np.array([[100.0], [-100], [0.01]])
    K = np.arange(-5, 5)[::order, None] * 40.0
    V = array(10, 3)
    expected, _ = oracle_single.scaled_dot_product_attention(Q, K, V)
    close(ours.chunked_attention(Q, K, V, chunk_size), expected)


@given(inputs=attention_inputs(), sizes=st.tuples(SIZES, SIZES), seed=SEEDS)
def test_recomputed_gradients_are_the_oracles(inputs, sizes, seed):
    Q, K, V, mask = inputs
    output, logsumexp = ours.chunked_attention(Q, K, V, sizes[0], mask, return_logsumexp=True)
    doutput = np.random.default_rng(seed).normal(size=output.shape).astype(Q.dtype)
    given_arrays = (doutput, Q, K, V, output, logsumexp, mask)
    before = copies_of(given_arrays)
    gradients = ours.chunked_attention_backward(*given_arrays[:-1], sizes[1], mask)
    _, weights = oracle_single.scaled_dot_product_attention(Q, K, V, mask)
    expected = oracle_single.attention_backward(doutput, Q, K, V, weights)
    for gradient, exact, argument in zip(gradients, expected, (Q, K, V), strict=True):
        assert gradient.shape == argument.shape
        assert gradient.dtype == Q.dtype
        bound = 40 * ATOL[Q.dtype.type]
        np.testing.assert_allclose(gradient, exact, rtol=bound, atol=bound)
    unchanged(given_arrays, before)


@pytest.mark.parametrize("chunk_size", [1, 2, 3])
def test_gaps_beyond_the_range_of_the_dtype(chunk_size):
    # The gap between the two scores is 4e38, more than float32 holds.
    Q = np.array([[2.0]], dtype=np.float32)
    K = np.array([[-1e38], [1e38], [-1e38]], dtype=np.float32)
    V = np.array([[3.0], [7.0], [5.0]], dtype=np.float32)
    output, logsumexp = ours.chunked_attention(Q, K, V, chunk_size, return_logsumexp=True)
    assert output.tolist() == [[7]]
    doutput = np.ones_like(output)
    arguments = (doutput, Q, K, V, output, logsumexp, chunk_size)
    dQ, dK, dV = ours.chunked_attention_backward(*arguments)
    assert dV.tolist() == [[0], [1], [0]]
    assert not dQ.any()
    assert not dK.any()


def test_an_empty_row_has_gradient_zero_and_adds_none():
    Q, K, V = array(2, 3), array(5, 3, seed=1), array(5, 4, seed=2)
    mask = np.array([[True] * 5, [False] * 5])
    output, logsumexp = ours.chunked_attention(Q, K, V, 2, mask, return_logsumexp=True)
    doutput = array(2, 4, seed=3)
    dQ, dK, dV = ours.chunked_attention_backward(doutput, Q, K, V, output, logsumexp, 2, mask)
    assert not dQ[1].any()
    alone = scaled_dot_product_attention(Q[:1], K, V)[1]
    expected = attention_backward(doutput[:1], Q[:1], K, V, alone)
    for gradient, exact in zip((dQ[:1], dK, dV), expected, strict=True):
        close(gradient, exact)


# --- query chunks ----------------------------------------------------------------------------


@given(inputs=attention_inputs(masked=False), chunk_size=SIZES, window=SIZES)
def test_causal_and_windows_are_the_masked_dense(inputs, chunk_size, window):
    Q, K, V = inputs
    L_q, L_k = Q.shape[-2], K.shape[-2]
    before = copies_of(inputs)
    output = ours.causal_attention_by_query_chunks(Q, K, V, chunk_size)
    assert output.dtype == Q.dtype
    mask = oracle_masking.causal_mask_rect(L_q, L_k)
    close(output, oracle_single.scaled_dot_product_attention(Q, K, V, mask)[0])
    output = ours.sliding_window_attention(Q, K, V, window, chunk_size)
    assert output.dtype == Q.dtype
    mask = oracle.window_mask(L_q, L_k, window)
    close(output, oracle_single.scaled_dot_product_attention(Q, K, V, mask)[0])
    unchanged(inputs, before)


@given(inputs=attention_inputs(masked=False), block_size=SIZES, seed=SEEDS)
def test_block_sparse_is_the_masked_dense(inputs, block_size, seed):
    Q, K, V = inputs
    L_q, L_k = Q.shape[-2], K.shape[-2]
    blocks = (-(-L_q // block_size), -(-L_k // block_size))
    pattern = np.random.default_rng(seed).random(blocks) < 0.5
    mask = oracle.block_sparse_mask(pattern, block_size, L_q, L_k)
    np.testing.assert_array_equal(
        ours.block_sparse_mask(pattern, block_size, L_q, L_k), mask, strict=True
    )
    output = ours.block_sparse_attention(Q, K, V, pattern, block_size)
    assert output.dtype == Q.dtype
    close(output, oracle_single.scaled_dot_product_attention(Q, K, V, mask)[0])


def test_local_and_global_blocks():
    pattern = ours.local_global_pattern(5, reach=1, num_global=1)
    assert pattern.astype(int).tolist() == [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 0, 1, 1, 1],
        [1, 0, 0, 1, 1],
    ]
    near = oracle_masking.mask_of(7, 7, lambda i, j: abs(i - j) <= 2)
    np.testing.assert_array_equal(ours.local_global_pattern(7, 2, 0), near)


def spoil(array, rows):
    array = array.copy()
    array[rows] = np.nan
    return array


def test_what_may_not_be_read_is_not_touched():
    # NaN in a key or value shows in the output of each chunk of queries that computes with it.
    Q, K, V = (array(12, 4, seed=i) for i in range(3))
    late = slice(8, None)
    output = ours.causal_attention_by_query_chunks(Q, spoil(K, late), spoil(V, late), 4)
    assert np.isfinite(output[:8]).all()
    early = slice(0, 5)
    output = ours.sliding_window_attention(Q, spoil(K, early), spoil(V, early), 4, 4)
    assert np.isfinite(output[8:]).all()
    pattern = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 1]]) == 1
    output = ours.block_sparse_attention(Q, spoil(K, early), spoil(V, early), pattern, 4)
    assert np.isnan(output[:8]).all()
    assert np.isfinite(output[8:]).all()


# --- top-k -----------------------------------------------------------------------------------


@given(inputs=attention_inputs(masked=False), k=SIZES, causal=st.booleans())
def test_topk_is_the_oracles(inputs, k, causal):
    Q, K, V = (a.astype(np.float64) for a in inputs)
    before = copies_of((Q, K, V))
    output = ours.topk_attention(Q, K, V, k, causal)
    close(output, oracle.topk_attention(Q, K, V, k, causal))
    unchanged((Q, K, V), before)


@pytest.mark.parametrize("dtype", ATOL)
def test_topk_keeps_the_dtype_and_is_dense_where_k_is_large(dtype):
    Q, K, V = array(2, 3, 4).astype(dtype), array(2, 5, 4, seed=1), array(2, 5, 6, seed=2)
    K, V = K.astype(dtype), V.astype(dtype)
    output = ours.topk_attention(Q, K, V, 5)
    assert output.dtype == dtype
    mask = causal_mask_rect(3, 5)
    close(output, oracle_single.scaled_dot_product_attention(Q, K, V, mask)[0])


# --- linear attention ------------------------------------------------------------------------


@given(inputs=attention_inputs(masked=False), causal=st.booleans())
def test_linear_attention_is_the_oracles(inputs, causal):
    Q, K, V = inputs
    before = copies_of(inputs)
    output = ours.linear_attention(Q, K, V, causal)
    assert output.dtype == Q.dtype
    close(output, oracle.linear_attention(Q, K, V, causal))
    unchanged(inputs, before)


def test_a_step_leaves_the_old_state_alone():
    Q, K, V = array(4, 3), array(4, 3, seed=1), array(4, 2, seed=2)
    start = np.zeros((3, 2)), np.zeros(3)
    first, state = ours.linear_attention_step(start, Q[0], K[0], V[0])
    kept = copies_of(state)
    np.testing.assert_allclose(first, V[0], rtol=1e-12)  # one key has all the weight
    second, _ = ours.linear_attention_step(state, Q[1], K[1], V[1])
    close(second, oracle.linear_attention(Q[:2], K[:2], V[:2], causal=True)[1])
    assert not start[0].any()
    unchanged(state, kept)


def test_features_of_large_numbers_are_finite():
    x = np.array([-1e4, -1.0, 0.0, 2.0, 1e4])
    np.testing.assert_allclose(ours.feature_map(x), [0, np.exp(-1), 1, 3, 1e4 + 1], rtol=1e-15)


# --- decoding --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize("g", [1, 2, 4])
@pytest.mark.parametrize("steps", [[1] * 6, [3, 1, 2], [6]], ids=str)
def test_decoding_from_a_cache_is_the_full_pass(dtype, g, steps):
    Q, K = array(2, 4, 6, 3).astype(dtype), array(2, g, 6, 3, seed=1).astype(dtype)
    V = array(2, g, 6, 5, seed=2).astype(dtype)
    cache = ours.KeyValueCache(6, (2, g, 3), (2, g, 5), dtype)
    parts, start = [], 0
    for n in steps:
        new = [a[..., start : start + n, :] for a in (Q, K, V)]
        parts.append(ours.decoding_step(cache, *new))
        start += n
    output = np.concatenate(parts, axis=-2)
    assert output.dtype == dtype
    expected = oracle.grouped_query_attention(Q, K, V, oracle_masking.causal_mask(6))
    close(output, expected)
    assert cache.length == 6
    assert cache.nbytes == 2 * g * 6 * (3 + 5) * np.dtype(dtype).itemsize
    np.testing.assert_array_equal(cache.K, K)
    np.testing.assert_array_equal(cache.V, V)


@given(g=st.integers(1, 3), times=st.integers(1, 3), mask=st.booleans(), dtype=FLOATING, seed=SEEDS)
def test_grouped_heads_are_the_oracles(g, times, mask, dtype, seed):
    rng = np.random.default_rng(seed)
    B, L_q, L_k = rng.integers(1, 4, size=3)
    Q = rng.normal(size=(B, g * times, L_q, 3)).astype(dtype)
    K = rng.normal(size=(B, g, L_k, 3)).astype(dtype)
    V = rng.normal(size=(B, g, L_k, 2)).astype(dtype)
    allowed = None
    if mask:
        heads = rng.choice([1, g * times])
        allowed = rng.random((rng.choice([1, B]), heads, L_q, rng.choice([1, L_k]))) < 0.5
    output = ours.grouped_query_attention(Q, K, V, allowed)
    assert output.dtype == dtype
    close(output, oracle.grouped_query_attention(Q, K, V, allowed))


# --- memory ----------------------------------------------------------------------------------


def peak_mib(function, *args, **kwargs):
    tracemalloc.start()
    function(*args, **kwargs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def test_no_function_but_the_dense_ones_holds_all_scores():
    L, d = 2048, 16
    Q, K, V = (array(L, d, seed=i).astype(np.float32) for i in range(3))
    matrix = 4 * L * L / 2**20  # MiB
    assert peak_mib(scaled_dot_product_attention, Q, K, V) > 2 * matrix
    assert peak_mib(ours.chunked_attention, Q, K, V, 32) < matrix / 4
    output, logsumexp = ours.chunked_attention(Q, K, V, 32, return_logsumexp=True)
    arguments = (V, Q, K, V, output, logsumexp, 32)
    assert peak_mib(ours.chunked_attention_backward, *arguments) < matrix / 4
    assert peak_mib(ours.causal_attention_by_query_chunks, Q, K, V, 32) < matrix / 10
    assert peak_mib(ours.sliding_window_attention, Q, K, V, 64, 32) < matrix / 10
    pattern = ours.local_global_pattern(L // 32, 1, 1)
    assert peak_mib(ours.block_sparse_attention, Q, K, V, pattern, 32) < matrix / 10
    for causal in (False, True):
        assert peak_mib(ours.linear_attention, Q, K, V, causal=causal) < matrix / 10


# --- what is refused -------------------------------------------------------------------------


def cache():
    return ours.KeyValueCache(3, (2, 4), (2, 5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda Q: ours.chunked_attention(Q, Q, Q, 0), "chunk_size: .* at least 1, got 0"),
        (lambda Q: ours.chunked_attention(Q, Q, Q, 1.5), "chunk_size: expected an integer"),
        (lambda Q: ours.chunked_attention(Q[0], Q, Q, 2), "Q: expected at least 2 axes"),
        (
            lambda Q: ours.chunked_attention(Q, Q, Q, 2, np.ones((4, 4))),
            "mask: expected booleans .* float64",
        ),
        (
            lambda Q: ours.chunked_attention(Q, Q, Q, 2, np.ones((2, 4, 4), bool)),
            r"mask: .*scores, \(4, 4\), got \(2, 4, 4\)",
        ),
        (
            lambda Q: ours.chunked_attention_backward(Q[:3], Q, Q, Q, Q, Q[:, 0], 2),
            r"doutput: expected shape \(4, 3\), got \(3, 3\)",
        ),
        (
            lambda Q: ours.chunked_attention_backward(Q, Q, Q, Q, Q, Q, 2),
            r"logsumexp: expected shape \(4,\), got \(4, 3\)",
        ),
        (
            lambda Q: ours.causal_attention_by_query_chunks(Q, Q, Q, 0),
            "chunk_size: .* at least 1, got 0",
        ),
        (
            lambda Q: ours.sliding_window_attention(Q, Q, Q, 0, 2),
            "window: .* at least 1, got 0",
        ),
        (
            lambda Q: ours.sliding_window_attention(Q, Q, Q[1:], 2, 2),
            "V: expected one row for each key",
        ),
        (
            lambda Q: ours.block_sparse_attention(Q, Q, Q, np.full((2, 3), True), 2),
            r"pattern: expected shape \(2, 2\), got \(2, 3\)",
        ),
        (
            lambda Q: ours.block_sparse_mask(np.ones((2, 2)), 2, 4, 4),
            "pattern: expected booleans, got dtype float64",
        ),
        (
            lambda Q: ours.block_sparse_mask(np.full((2, 2), True), 0, 4, 4),
            "block_size: .* at least 1, got 0",
        ),
        (lambda Q: ours.topk_attention(Q, Q, Q, 0), "k: .* at least 1, got 0"),
        (lambda Q: ours.linear_attention(Q, Q[:, :2], Q), "K: expected the width of Q"),
        (
            lambda Q: ours.grouped_query_attention(Q[None], Q, Q),
            r"K: expected at least 3 axes .*, got shape \(4, 3\)",
        ),
        (
            lambda Q: ours.grouped_query_attention(*(array(n, 4, 3) for n in (3, 2, 2))),
            "Q: expected a multiple of the 2 key heads, got 3 heads",
        ),
        (
            lambda Q: ours.grouped_query_attention(*(array(n, 4, 3) for n in (4, 2, 1))),
            "V: expected the 2 heads of K, got 1",
        ),
        (
            lambda Q: cache().append(array(2, 4, 4), array(2, 4, 5)),
            "K: expected at most 3 positions in all, got 4",
        ),
        (
            lambda Q: cache().append(array(2, 1, 3), array(2, 1, 5)),
            r"K: expected shape \(2, 1, 4\), got \(2, 1, 3\)",
        ),
        (
            lambda Q: cache().append(array(2, 1, 4), array(2, 2, 5)),
            r"V: expected shape \(2, 1, 5\), got \(2, 2, 5\)",
        ),
        (lambda Q: ours.KeyValueCache(0, (2, 4), (2, 5)), "capacity: .* at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(array(4, 3))


def test_a_full_cache_is_left_as_it_was():
    kept = cache()
    kept.append(array(2, 2, 4), array(2, 2, 5))
    with pytest.raises(ValueError, match="at most 3 positions"):
        kept.append(array(2, 2, 4), array(2, 2, 5))
    assert kept.length == 2
    assert kept.K.shape == (2, 2, 4)


def test_windows_are_those_of_chapter_4():
    Q, K, V = (array(9, 4, seed=i) for i in range(3))
    expected, _ = scaled_dot_product_attention(Q, K, V, sliding_window_mask(9, 3))
    close(ours.sliding_window_attention(Q, K, V, 3, 4), expected)


def test_the_numpy_module_imports_no_torch():
    code = "import sys, attention.in_numpy.efficient_attention; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
