"""Attention without the L by L matrix: chunks, windows, blocks, a recurrence, and a cache."""

import math

import numpy as np

from .encoder_layer import widened
from .masking import causal_mask_rect, check_boolean, check_length
from .single_head import (
    as_floating,
    check_mask,
    check_qkv,
    check_shape,
    scaled_dot_product_attention,
    sum_to_shape,
)

# --- one pass over the keys ------------------------------------------------------------------


def checked(Q, K, V):
    """Return Q, K, V as floats of at least single precision, and the result's dtype."""
    (Q, K, V), dtype = widened(Q=Q, K=K, V=V)
    check_qkv(Q, K, V)
    return Q, K, V, dtype


def chunks(stop, size, start=0):
    """Return the spans ``(first, end)`` that cut `start` to `stop` into chunks of `size`."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def empty_state(Q, K, V):
    """Return the state of queries that have read no key yet.

    Returns
    -------
    peak : ndarray, shape (..., L_q, 1)
        The largest score so far: -inf.
    total : ndarray, shape (..., L_q, 1)
        The sum of ``exp(score - peak)``: 0.
    summed : ndarray, shape (..., L_q, d_v)
        The sum of ``exp(score - peak) * value``: 0.
    """
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    total = np.zeros((*lead, Q.shape[-2], 1), Q.dtype)
    lead = np.broadcast_shapes(lead, V.shape[:-2])
    summed = np.zeros((*lead, Q.shape[-2], V.shape[-1]), Q.dtype)
    return np.full_like(total, -np.inf), total, summed


def read_chunk(state, scores, values):
    """Take one more chunk of keys into the state of the online softmax.

    Parameters
    ----------
    state : tuple of ndarray
        ``(peak, total, summed)``, see `empty_state`.
    scores : ndarray, shape (..., L_q, n)
        The scores of the chunk's n keys, -inf for a key that is left out.
    values : ndarray, shape (..., n, d_v)

    Returns
    -------
    tuple of ndarray
        The new state. The old one is left as it was.
    """
    peak, total, summed = state
    new_peak = np.maximum(peak, scores.max(axis=-1, keepdims=True))
    base = np.where(np.isneginf(new_peak), 0, new_peak)  # no key so far
    # a gap too wide for the dtype becomes -inf, and its weight 0
    with np.errstate(over="ignore", invalid="ignore"):
        rescale = np.exp(peak - base)  # (..., L_q, 1)
        exps = scores - base  # (..., L_q, n)
        np.exp(exps, out=exps)
    total = total * rescale + exps.sum(axis=-1, keepdims=True)
    return new_peak, total, summed * rescale + exps @ values


def finish(state):
    """Return the output and the log-sum-exp of the scores that a state has read."""
    peak, total, summed = state
    empty = total == 0
    total = np.where(empty, 1, total)
    logsumexp = np.where(empty, -np.inf, peak + np.log(total))
    return summed / total, logsumexp[..., 0]


def chunk_scores(Q, K, span, allowed=None):
    """Return the scores of a span of keys, -inf where not allowed."""
    first, end = span
    scores = Q @ np.swapaxes(K[..., first:end, :], -1, -2)  # (..., L_q, n)
    scores /= math.sqrt(Q.shape[-1])
    if allowed is not None:
        np.copyto(scores, -np.inf, where=~allowed)
    return scores


def read_spans(Q, K, V, spans, allowed):
    """Attend to some spans of the keys, one after another.

    Parameters
    ----------
    Q, K, V : ndarray
        Of one floating dtype, checked.
    spans : list of tuple of int
        ``(first, end)`` of each span.
    allowed : callable
        ``allowed(first, end)`` is the mask of a span, or None for all.

    Returns
    -------
    output : ndarray, shape (..., L_q, d_v)
    logsumexp : ndarray, shape (..., L_q)
    """
    state = empty_state(Q, K, V)
    for first, end in spans:
        scores = chunk_scores(Q, K, (first, end), allowed(first, end))
        state = read_chunk(state, scores, V[..., first:end, :])
    return finish(state)


def mask_slicer(mask, scores_shape):
    """Return a function that gives the part of `mask` for the keys first to end."""
    if mask is None:
        return lambda first, end: None
    mask = check_mask(mask, scores_shape)

    def part(first, end):
        # an axis of size 1 stands for all keys, and cannot be sliced
        if mask.ndim == 0 or mask.shape[-1] == 1:
            return mask
        return mask[..., first:end]

    return part


def scores_shape(Q, K):
    """Return the shape that the scores of all keys would have."""
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    return (*lead, Q.shape[-2], K.shape[-2])


# --- chunked attention -----------------------------------------------------------------------


def chunked_attention(
    Q,
    K,
    V,
    chunk_size,
    mask=None,
    return_logsumexp=False,
):
    """Attend to all keys, a chunk at a time, in one pass.

    Gives what `scaled_dot_product_attention` gives, and never holds more
    than L_q by `chunk_size` scores. The running maximum and sum are those
    of Milakov and Gimelshein (2018), "Online normalizer calculation for
    softmax"; algorithm 1 of Dao et al. (2022), "FlashAttention", has the
    running average of the values as well.

    Parameters
    ----------
    Q : array_like, shape (..., L_q, d_k)
        Queries.
    K : array_like, shape (..., L_k, d_k)
        Keys.
    V : array_like, shape (..., L_k, d_v)
        Values, one for each key.
    chunk_size : int
        Number of keys in a chunk, at least 1. The last may be shorter.
    mask : array_like of bool, optional
        True = may attend. Broadcasts to (..., L_q, L_k), and must not
        enlarge it.
    return_logsumexp : bool
        Also return what `chunked_attention_backward` needs.

    Returns
    -------
    output : ndarray, shape (..., L_q, d_v)
        A query with no allowed key has output 0. In the floating dtype of
        the inputs (float64 for integers).
    logsumexp : ndarray, shape (..., L_q)
        Only where asked for: the logarithm of the sum of all exponentials
        of scores, -inf for a query with no allowed key. At least float32.

    Raises
    ------
    ValueError
        If shapes do not fit together, the mask is not boolean or would
        enlarge the scores, or `chunk_size` is below 1.
    """
    Q, K, V, dtype = checked(Q, K, V)
    chunk_size = check_length("chunk_size", chunk_size, smallest=1)
    allowed = mask_slicer(mask, scores_shape(Q, K))
    spans = chunks(K.shape[-2], chunk_size)
    output, logsumexp = read_spans(Q, K, V, spans, allowed)
    output = output.astype(dtype, copy=False)
    return (output, logsumexp) if return_logsumexp else output


def chunked_attention_backward(
    doutput,
    Q,
    K,
    V,
    output,
    logsumexp,
    chunk_size,
    mask=None,
):
    """Carry a gradient back through `chunked_attention`, a chunk at a time.

    The weights were not kept. They are computed anew from the scores and
    their log-sum-exp, as in algorithm 2 of Dao (2024), "FlashAttention-2".

    Parameters
    ----------
    doutput : array_like, shape (..., L_q, d_v)
        Gradient of a loss with respect to the output.
    Q, K, V, chunk_size, mask
        As in the forward pass. The chunk size may differ.
    output : array_like, shape (..., L_q, d_v)
    logsumexp : array_like, shape (..., L_q)
        What `chunked_attention` returned.

    Returns
    -------
    dQ, dK, dV : ndarray
        Gradients, each with the shape of its array, in the dtype of `Q`,
        `K` and `V` together. A query with no allowed key has gradient 0
        and contributes 0.

    Raises
    ------
    ValueError
        If shapes do not fit together, or an argument is not what it should
        be.
    """
    Q, K, V, dtype = checked(Q, K, V)
    chunk_size = check_length("chunk_size", chunk_size, smallest=1)
    full = scores_shape(Q, K)
    allowed = mask_slicer(mask, full)
    doutput = as_floating("doutput", doutput)
    output = as_floating("output", output)
    logsumexp = as_floating("logsumexp", logsumexp)
    lead = np.broadcast_shapes(full[:-2], V.shape[:-2])
    for name, array in (("doutput", doutput), ("output", output)):
        check_shape(name, array, (*lead, Q.shape[-2], V.shape[-1]))
    check_shape("logsumexp", logsumexp, full[:-1])
    doutput, output = doutput.astype(Q.dtype), output.astype(Q.dtype)

    # sum_j weight_j * dweight_j of each row, without the weights
    mean = (doutput * output).sum(axis=-1, keepdims=True)  # (..., L_q, 1)
    mean = sum_to_shape(mean, (*full[:-1], 1))
    # an empty row has scores of -inf only: any finite number does
    base = np.where(np.isneginf(logsumexp), 0, logsumexp)[..., None]
    dQ = np.zeros((*full[:-1], Q.shape[-1]), Q.dtype)
    dK, dV = np.zeros_like(K), np.zeros_like(V)
    for first, end in chunks(K.shape[-2], chunk_size):
        keys, values = K[..., first:end, :], V[..., first:end, :]
        scores = chunk_scores(Q, K, (first, end), allowed(first, end))
        with np.errstate(over="ignore"):  # as in `read_chunk`
            weights = np.exp(scores - base)  # (..., L_q, n)
        turned = np.swapaxes(weights, -1, -2)
        dV[..., first:end, :] = sum_to_shape(turned @ doutput, values.shape)
        dweights = doutput @ np.swapaxes(values, -1, -2)  # (..., L_q, n)
        dscores = weights * (sum_to_shape(dweights, scores.shape) - mean)
        dscores /= math.sqrt(Q.shape[-1])
        dQ += dscores @ keys
        turned = np.swapaxes(dscores, -1, -2)
        dK[..., first:end, :] = sum_to_shape(turned @ Q, keys.shape)
    gradients = sum_to_shape(dQ, Q.shape), dK, dV
    return tuple(array.astype(dtype, copy=False) for array in gradients)


# --- query chunks: causal, window, blocks ----------------------------------------------------


def attend_by_query_chunks(Q, K, V, size, spans_of):
    """Attend for one chunk of queries after another.

    Parameters
    ----------
    Q, K, V : array_like
    size : int
        Number of queries in a chunk.
    spans_of : callable
        ``spans_of(first, end)`` is, for the queries first to end, a list of
        spans of keys and their ``allowed`` function: see `read_spans`.

    Returns
    -------
    ndarray, shape (..., L_q, d_v)
    """
    Q, K, V, dtype = checked(Q, K, V)
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    output = np.zeros((*lead, Q.shape[-2], V.shape[-1]), dtype)
    for first, end in chunks(Q.shape[-2], size):
        spans, allowed = spans_of(first, end)
        part, _ = read_spans(Q[..., first:end, :], K, V, spans, allowed)
        output[..., first:end, :] = part
    return output


def window_spans(L_q, L_k, window, chunk_size):
    """Return `spans_of` for a causal window: see `attend_by_query_chunks`.

    Parameters
    ----------
    L_q, L_k : int
        The queries stand at the last `L_q` of `L_k` positions.
    window : int
        Keys that a query may read, its own position and those before it.
    chunk_size : int
        Largest number of keys in a span.
    """
    offset = L_k - L_q

    def spans_of(first, end):
        first, end = first + offset, end + offset  # among the keys
        position = np.arange(first, end)[:, None]

        def allowed(start, stop):
            # keys that the chunk's every query may read need no mask
            if stop - 1 <= first and start > end - 1 - window:
                return None
            back = position - np.arange(start, stop)
            return (back >= 0) & (back < window)

        oldest = max(0, first - window + 1)
        return chunks(max(end, 0), chunk_size, oldest), allowed

    return spans_of


def causal_attention_by_query_chunks(Q, K, V, chunk_size):
    """Attend to the keys that are not after the query, by chunks of both.

    A chunk of keys that lies wholly after a chunk of queries is not read.

    Parameters
    ----------
    Q : array_like, shape (..., L_q, d_k)
        Queries, at the last `L_q` of the `L_k` positions.
    K : array_like, shape (..., L_k, d_k)
    V : array_like, shape (..., L_k, d_v)
    chunk_size : int
        Number of queries and of keys in a chunk, at least 1.

    Returns
    -------
    ndarray, shape (..., L_q, d_v)
        In the floating dtype of the inputs (float64 for integers). A query
        before all keys has output 0.

    Raises
    ------
    ValueError
        If shapes do not fit together or `chunk_size` is below 1.
    """
    return sliding_window_attention(Q, K, V, None, chunk_size)


def sliding_window_attention(Q, K, V, window, chunk_size):
    """Attend to the query's own position and the ``window - 1`` before it.

    Chunks of keys that no query of a chunk may read are not read: the work
    grows with L times ``window + chunk_size``.

    Parameters
    ----------
    Q : array_like, shape (..., L_q, d_k)
        Queries, at the last `L_q` of the `L_k` positions.
    K : array_like, shape (..., L_k, d_k)
    V : array_like, shape (..., L_k, d_v)
    window : int or None
        Keys that a query may read at most. None means all up to its own.
    chunk_size : int
        Number of queries and of keys in a chunk, at least 1.

    Returns
    -------
    ndarray, shape (..., L_q, d_v)

    Raises
    ------
    ValueError
        If shapes do not fit together or a number is below 1.
    """
    chunk_size = check_length("chunk_size", chunk_size, smallest=1)
    Q, K, V = as_floating("Q", Q), as_floating("K", K), as_floating("V", V)
    check_qkv(Q, K, V)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    if window is None:
        window = max(L_k, 1)
    window = check_length("window", window, smallest=1)
    spans_of = window_spans(L_q, L_k, window, chunk_size)
    return attend_by_query_chunks(Q, K, V, chunk_size, spans_of)


def check_pattern(pattern, block_size, L_q, L_k):
    """Return a pattern and its block size, or raise ValueError if they do not fit."""
    block_size = check_length("block_size", block_size, smallest=1)
    pattern = check_boolean("pattern", pattern, ("query blocks", "key blocks"))
    check_shape("pattern", pattern, (-(-L_q // block_size), -(-L_k // block_size)))
    return pattern, block_size


def block_sparse_mask(pattern, block_size, L_q, L_k):
    """Return the mask of a pattern of blocks.

    Parameters
    ----------
    pattern : array_like of bool
        Shape (query blocks, key blocks). True = the queries of the block
        may read the keys of the block.
    block_size : int
        Number of queries, and of keys, in a block. The last may be shorter.
    L_q, L_k : int

    Returns
    -------
    ndarray of bool, shape (L_q, L_k)

    Raises
    ------
    ValueError
        If the pattern does not have a row and a column for each block.
    """
    L_q, L_k = check_length("L_q", L_q), check_length("L_k", L_k)
    pattern, block_size = check_pattern(pattern, block_size, L_q, L_k)
    rows, columns = np.arange(L_q) // block_size, np.arange(L_k) // block_size
    return pattern[rows[:, None], columns]


def block_sparse_attention(Q, K, V, pattern, block_size):
    """Attend to the blocks of keys that a pattern names; read no other.

    Parameters
    ----------
    Q : array_like, shape (..., L_q, d_k)
    K : array_like, shape (..., L_k, d_k)
    V : array_like, shape (..., L_k, d_v)
    pattern : array_like of bool
        Shape (query blocks, key blocks): see `block_sparse_mask`.
    block_size : int

    Returns
    -------
    ndarray, shape (..., L_q, d_v)
        Queries whose block may read nothing have output 0.

    Raises
    ------
    ValueError
        If shapes do not fit together.
    """
    Q, K, V = as_floating("Q", Q), as_floating("K", K), as_floating("V", V)
    check_qkv(Q, K, V)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    pattern, block_size = check_pattern(pattern, block_size, L_q, L_k)

    def spans_of(first, end):
        blocks = np.flatnonzero(pattern[first // block_size])
        starts = [block * block_size for block in blocks]
        spans = [(start, min(start + block_size, L_k)) for start in starts]
        return spans, lambda start, stop: None

    return attend_by_query_chunks(Q, K, V, block_size, spans_of)


def local_global_pattern(num_blocks, reach, num_global):
    """Allow each block its neighbors, and the first blocks everything.

    The first `num_global` blocks read all blocks and are read by all: the
    pattern of Longformer (Beltagy et al., 2020) and, with random blocks
    added, of BigBird (Zaheer et al., 2020).

    Parameters
    ----------
    num_blocks : int
    reach : int
        Blocks that a block reads on each side of itself.
    num_global : int

    Returns
    -------
    ndarray of bool, shape (num_blocks, num_blocks)
    """
    place = np.arange(check_length("num_blocks", num_blocks))
    near = np.abs(place[:, None] - place) <= check_length("reach", reach)
    is_global = place < check_length("num_global", num_global)
    return near | is_global[:, None] | is_global


# --- top-k -----------------------------------------------------------------------------------


def topk_attention(Q, K, V, k, causal=True):
    """Attend to the k keys with the largest scores, and to no other.

    Parameters
    ----------
    Q : array_like, shape (..., L_q, d_k)
    K : array_like, shape (..., L_k, d_k)
    V : array_like, shape (..., L_k, d_v)
    k : int
        Keys that a query reads, at least 1. A query that may read fewer
        reads them all.
    causal : bool
        Choose among the keys that are not after the query, where the
        queries stand at the last `L_q` of the `L_k` positions.

    Returns
    -------
    ndarray, shape (..., L_q, d_v)
        In the floating dtype of the inputs (float64 for integers).

    Raises
    ------
    ValueError
        If shapes do not fit together or `k` is below 1.
    """
    Q, K, V, dtype = checked(Q, K, V)
    k = check_length("k", k, smallest=1)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    allowed = causal_mask_rect(L_q, L_k) if causal else np.True_
    if k < L_k:
        scores = chunk_scores(Q, K, (0, L_k), allowed)  # (..., L_q, L_k)
        order = np.argpartition(scores, L_k - k)  # the largest are last
        best = order[..., L_k - k :]  # (..., L_q, k)
        chosen = np.zeros(scores.shape, dtype=bool)
        np.put_along_axis(chosen, best, True, axis=-1)
        allowed = chosen & allowed
    output, _ = scaled_dot_product_attention(Q, K, V, allowed)
    return output.astype(dtype)


# --- linear attention ------------------------------------------------------------------------


def feature_map(x):
    """Return ``elu(x) + 1``: positive, so that it can stand for a weight's factor."""
    # exp only below 0: above, it would overflow and is not used
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def divide(summed, total):
    """Return ``summed / total``, 0 where the total is 0: nothing was read."""
    return summed / np.where(total == 0, 1, total)


def linear_attention_step(state, q, k, v):
    """Let a query read all keys up to its own, from a state of fixed size.

    Parameters
    ----------
    state : tuple of ndarray
        ``(summed, total)``: the sum of ``feature(key) value^T`` over the
        keys so far, shape (..., d_k, d_v), and of ``feature(key)``, shape
        (..., d_k).
    q, k : ndarray, shape (..., d_k)
        Query and key of one position.
    v : ndarray, shape (..., d_v)

    Returns
    -------
    output : ndarray, shape (..., d_v)
    state : tuple of ndarray
        With the new key. The old state is left as it was.
    """
    summed, total = state
    key = feature_map(k)
    summed = summed + key[..., :, None] * v[..., None, :]  # (..., d_k, d_v)
    total = total + key  # (..., d_k)
    return read_state((summed, total), q), (summed, total)


def read_state(state, q):
    """Return what a query (..., d_k) reads from a state."""
    summed, total = state
    query = feature_map(q)
    output = (query[..., None, :] @ summed)[..., 0, :]  # (..., d_v)
    return divide(output, (query * total).sum(axis=-1, keepdims=True))


def linear_attention(Q, K, V, causal=False):
    """Attend with products of features for weights, in time linear in L.

    The weight of a key is ``phi(q) . phi(k)``, divided by the sum of these
    over all keys, with ``phi(x) = elu(x) + 1``: equations 4 to 7 of
    Katharopoulos et al. (2020), "Transformers are RNNs". It is not the
    softmax's weight.

    Parameters
    ----------
    Q : array_like, shape (..., L_q, d_k)
    K : array_like, shape (..., L_k, d_k)
    V : array_like, shape (..., L_k, d_v)
    causal : bool
        Read only keys that are not after the query, where the queries stand
        at the last `L_q` of the `L_k` positions.

    Returns
    -------
    ndarray, shape (..., L_q, d_v)
        In the floating dtype of the inputs (float64 for integers). A query
        with no key before it has output 0.

    Raises
    ------
    ValueError
        If shapes do not fit together.
    """
    Q, K, V, dtype = checked(Q, K, V)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    before = L_k - L_q if causal else L_k  # keys that every query may read
    keys = feature_map(K[..., : max(before, 0), :])
    values = V[..., : max(before, 0), :]
    summed = np.swapaxes(keys, -1, -2) @ values  # (..., d_k, d_v)
    total = keys.sum(axis=-2)  # (..., d_k)
    if not causal:
        queries = feature_map(Q)
        output = divide(queries @ summed, queries @ total[..., None])
        return output.astype(dtype)

    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    output = np.zeros((*lead, L_q, V.shape[-1]), dtype)
    state = summed, total
    for i in range(max(-before, 0), L_q):
        j = i + before
        row, state = linear_attention_step(
            state,
            Q[..., i, :],
            K[..., j, :],
            V[..., j, :],
        )
        output[..., i, :] = row
    return output


# --- decoding --------------------------------------------------------------------------------


class KeyValueCache:
    """The keys and values of the positions so far.

    Room for all positions is taken at once: an array that grew by one
    position at a time would be copied at each.

    Parameters
    ----------
    capacity : int
        Positions that fit in.
    key_shape, value_shape : tuple of int
        The shapes of one position's keys and values, (..., d_k) and
        (..., d_v), for example (B, num_heads, d_k).
    dtype : dtype
        A floating dtype.
    """

    def __init__(self, capacity, key_shape, value_shape, dtype=np.float32):
        capacity = check_length("capacity", capacity, smallest=1)
        (*key_lead, d_k), (*value_lead, d_v) = key_shape, value_shape
        self._keys = np.zeros((*key_lead, capacity, d_k), dtype)
        self._values = np.zeros((*value_lead, capacity, d_v), dtype)
        self.length = 0

    @property
    def K(self):
        """The keys so far, (..., length, d_k): a view."""
        return self._keys[..., : self.length, :]

    @property
    def V(self):
        """The values so far, (..., length, d_v): a view."""
        return self._values[..., : self.length, :]

    @property
    def nbytes(self):
        """Bytes of the positions so far."""
        return self.K.nbytes + self.V.nbytes

    def append(self, K, V):
        """Add keys (..., n, d_k) and values (..., n, d_v) of n positions.

        Raises
        ------
        ValueError
            If their shapes do not fit, or there is no room for them.
        """
        K, V = as_floating("K", K), as_floating("V", V)
        n = K.shape[-2]
        for name, new, kept in (
            ("K", K, self._keys),
            ("V", V, self._values),
        ):
            check_shape(name, new, (*kept.shape[:-2], n, kept.shape[-1]))
        capacity, end = self._keys.shape[-2], self.length + n
        if end > capacity:
            found = f"{capacity} positions in all, got {end}"
            raise ValueError(f"K: expected at most {found}")
        self._keys[..., self.length : end, :] = K
        self._values[..., self.length : end, :] = V
        self.length = end


def decoding_step(cache, Q, K, V):
    """Add new positions to a cache, and let their queries read all of it.

    Parameters
    ----------
    cache : KeyValueCache
        Changed: the new keys and values are added.
    Q : array_like, shape (..., h, n, d_k)
        Queries of the n new positions, often 1.
    K : array_like, shape (..., g, n, d_k)
        Their keys. `h` is a multiple of `g`: see `grouped_query_attention`.
    V : array_like, shape (..., g, n, d_v)

    Returns
    -------
    ndarray, shape (..., h, n, d_v)
        Causal: no query reads a position after its own.
    """
    cache.append(K, V)
    # One query may read the whole cache. Of several, the first may not
    # read the last one's key: the queries stand at the last n positions.
    mask = causal_mask_rect(np.shape(Q)[-2], cache.length)
    return grouped_query_attention(Q, cache.K, cache.V, mask)


def grouped_query_attention(Q, K, V, mask=None):
    """Attend with several query heads for each head of keys and values.

    Query head i reads key head ``i // (h // g)``: Ainslie et al. (2023),
    "GQA". With g = h it is multi-head attention, with g = 1 multi-query
    attention (Shazeer, 2019). No key or value is copied.

    Parameters
    ----------
    Q : array_like, shape (..., h, L_q, d_k)
    K : array_like, shape (..., g, L_k, d_k)
    V : array_like, shape (..., g, L_k, d_v)
    mask : array_like of bool, optional
        True = may attend. Broadcasts to (..., h, L_q, L_k).

    Returns
    -------
    ndarray, shape (..., h, L_q, d_v)

    Raises
    ------
    ValueError
        If `h` is not a multiple of `g`, or shapes do not fit together.
    """
    Q, K, V = as_floating("Q", Q), as_floating("K", K), as_floating("V", V)
    for name, array in (("Q", Q), ("K", K), ("V", V)):
        if array.ndim < 3:
            raise ValueError(
                f"{name}: expected at least 3 axes (..., heads, length, width), "
                f"got shape {array.shape}"
            )
    h, g = Q.shape[-3], K.shape[-3]
    if g == 0 or h % g:
        raise ValueError(f"Q: expected a multiple of the {g} key heads, got {h} heads")
    if V.shape[-3] != g:
        raise ValueError(f"V: expected the {g} heads of K, got {V.shape[-3]}")
    lead, (L_q, d_k) = Q.shape[:-3], Q.shape[-2:]
    queries = Q.reshape(*lead, g, h // g, L_q, d_k)
    if mask is not None:
        lead = np.broadcast_shapes(lead, K.shape[:-3])
        full = (*lead, h, L_q, K.shape[-2])
        mask = np.broadcast_to(check_mask(mask, full), full)
        mask = mask.reshape(*lead, g, h // g, *full[-2:])
    output, _ = scaled_dot_product_attention(
        queries,
        K[..., None, :, :],
        V[..., None, :, :],
        mask,
    )
    return output.reshape(*output.shape[:-4], h, L_q, V.shape[-1])
