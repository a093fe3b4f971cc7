"""The cheaper attentions in PyTorch, with the meaning of their twins in NumPy."""

import math

import torch
import torch.nn.functional as F

from attention.in_numpy.efficient_attention import chunks, window_spans
from attention.in_numpy.masking import check_length
from attention.in_numpy.single_head import check_qkv

from .masking import causal_mask_rect, check_axes, check_bool
from .single_head import check_tensor_mask, scaled_dot_product_attention


def checked(Q, K, V):
    """Return Q, K, V in at least single precision, and the dtype of the result."""
    for name, tensor in (("Q", Q), ("K", K), ("V", V)):
        if not tensor.is_floating_point():
            raise ValueError(f"{name}: expected floats, got {tensor.dtype}")
    check_qkv(Q, K, V)
    dtype = torch.promote_types(torch.promote_types(Q.dtype, K.dtype), V.dtype)
    work = torch.promote_types(dtype, torch.float32)
    return Q.to(work), K.to(work), V.to(work), dtype


def check_shape(name, tensor, expected):
    """Raise ValueError unless `tensor` has exactly the shape `expected`."""
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name}: expected shape {tuple(expected)}, got {tuple(tensor.shape)}")


def scores_shape(Q, K):
    """Return the shape that the scores of all keys would have."""
    lead = torch.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    return (*lead, Q.shape[-2], K.shape[-2])


# --- chunked attention -----------------------------------------------------------------------


def chunk_scores(Q, K, span, allowed=None):
    """Return the scores of the keys in a span, -inf where they are not allowed."""
    first, end = span
    scores = Q @ K[..., first:end, :].transpose(-2, -1)  # (..., L_q, n)
    scores = scores / math.sqrt(Q.shape[-1])
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def read_spans(Q, K, V, spans, allowed):
    """Attend to some spans of the keys, one after another, by the online softmax."""
    lead = scores_shape(Q, K)[:-2]
    total = Q.new_zeros(*lead, Q.shape[-2], 1)
    peak = torch.full_like(total, -torch.inf)
    lead = torch.broadcast_shapes(lead, V.shape[:-2])
    summed = Q.new_zeros(*lead, Q.shape[-2], V.shape[-1])
    for first, end in spans:
        scores = chunk_scores(Q, K, (first, end), allowed(first, end))
        new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        base = new_peak.masked_fill(torch.isneginf(new_peak), 0)  # no key so far
        rescale, exps = (peak - base).exp(), (scores - base).exp()
        total = total * rescale + exps.sum(dim=-1, keepdim=True)
        summed = summed * rescale + exps @ V[..., first:end, :]
        peak = new_peak
    empty = total == 0
    total = total.masked_fill(empty, 1)
    logsumexp = (peak + total.log()).masked_fill(empty, -torch.inf)
    return summed / total, logsumexp[..., 0]


def mask_slicer(mask, shape):
    """Return a function that gives the part of `mask` for the keys first to end."""
    if mask is None:
        return lambda first, end: None
    check_tensor_mask(mask, shape)

    def part(first, end):
        # an axis of size 1 stands for all keys, and cannot be sliced
        if mask.ndim == 0 or mask.shape[-1] == 1:
            return mask
        return mask[..., first:end]

    return part


class Chunked(torch.autograd.Function):
    """Chunked attention whose gradient is recomputed, not kept."""

    @staticmethod
    def forward(ctx, Q, K, V, chunk_size, mask):
        wide = checked(Q, K, V)
        spans = chunks(K.shape[-2], chunk_size)
        allowed = mask_slicer(mask, scores_shape(Q, K))
        output, logsumexp = read_spans(*wide[:3], spans, allowed)
        output = output.to(wide[3])
        ctx.save_for_backward(Q, K, V, output, logsumexp, mask)
        ctx.chunk_size = chunk_size
        ctx.mark_non_differentiable(logsumexp)
        return output, logsumexp

    @staticmethod
    def backward(ctx, doutput, _):
        *tensors, mask = ctx.saved_tensors
        gradients = chunked_attention_backward(
            *(doutput, *tensors, ctx.chunk_size, mask),
        )
        pairs = zip(gradients, tensors, strict=False)  # Q, K, V only
        return (*(g.to(t.dtype) for g, t in pairs), None, None)


def chunked_attention(Q, K, V, chunk_size, mask=None, return_logsumexp=False):
    """Attend to all keys, a chunk at a time, forward and backward.

    As `attention.in_numpy.efficient_attention.chunked_attention`. Autograd
    keeps the inputs, the output and a number for each query, no weights.

    Parameters
    ----------
    Q : Tensor, shape (..., L_q, d_k)
    K : Tensor, shape (..., L_k, d_k)
    V : Tensor, shape (..., L_k, d_v)
    chunk_size : int
        Number of keys in a chunk, at least 1.
    mask : Tensor of bool, optional
        True = may attend. Broadcasts to (..., L_q, L_k).
    return_logsumexp : bool

    Returns
    -------
    output : Tensor, shape (..., L_q, d_v)
        A query with no allowed key has output and gradient 0.
    logsumexp : Tensor, shape (..., L_q)
        Only where asked for. It carries no gradient.

    Raises
    ------
    ValueError
        If shapes do not fit together, an input is not floating, the mask is
        not boolean or would enlarge the scores, or `chunk_size` is below 1.
    """
    chunk_size = check_length("chunk_size", chunk_size, smallest=1)
    output, logsumexp = Chunked.apply(Q, K, V, chunk_size, mask)
    return (output, logsumexp) if return_logsumexp else output


def chunked_attention_backward(doutput, Q, K, V, output, logsumexp, chunk_size, mask=None):
    """Carry a gradient back through `chunked_attention`, a chunk at a time.

    As `attention.in_numpy.efficient_attention.chunked_attention_backward`;
    `chunked_attention` calls it where autograd needs a gradient.

    Returns
    -------
    dQ, dK, dV : Tensor
    """
    Q, K, V, dtype = checked(Q, K, V)
    full = scores_shape(Q, K)
    allowed = mask_slicer(mask, full)
    lead = torch.broadcast_shapes(full[:-2], V.shape[:-2])
    for name, tensor in (("doutput", doutput), ("output", output)):
        check_shape(name, tensor, (*lead, Q.shape[-2], V.shape[-1]))
    check_shape("logsumexp", logsumexp, full[:-1])
    doutput, output = doutput.to(Q.dtype), output.to(Q.dtype)

    mean = (doutput * output).sum(dim=-1, keepdim=True)  # (..., L_q, 1)
    mean = mean.sum_to_size(*full[:-1], 1)
    base = logsumexp.masked_fill(torch.isneginf(logsumexp), 0)[..., None]
    dQ = Q.new_zeros(*full[:-1], Q.shape[-1])
    dK, dV = torch.zeros_like(K), torch.zeros_like(V)
    for first, end in chunks(K.shape[-2], chunk_size):
        keys, values = K[..., first:end, :], V[..., first:end, :]
        scores = chunk_scores(Q, K, (first, end), allowed(first, end))
        weights = (scores - base).exp()  # (..., L_q, n)
        dvalues = weights.transpose(-2, -1) @ doutput
        dV[..., first:end, :] = dvalues.sum_to_size(values.shape)
        dweights = doutput @ values.transpose(-2, -1)  # (..., L_q, n)
        dscores = weights * (dweights.sum_to_size(scores.shape) - mean)
        dscores = dscores / math.sqrt(Q.shape[-1])
        dQ += dscores @ keys
        dkeys = dscores.transpose(-2, -1) @ Q
        dK[..., first:end, :] = dkeys.sum_to_size(keys.shape)
    return tuple(gradient.to(dtype) for gradient in (dQ.sum_to_size(Q.shape), dK, dV))


# --- query chunks: causal, window, blocks ----------------------------------------------------


def attend_by_query_chunks(Q, K, V, size, spans_of):
    """Attend for one chunk of queries after another: see the twin in NumPy.

    Autograd keeps the weights of every chunk that was read.
    """
    Q, K, V, dtype = checked(Q, K, V)
    lead = torch.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    parts = [Q.new_zeros(*lead, 0, V.shape[-1])]
    for first, end in chunks(Q.shape[-2], size):
        spans, allowed = spans_of(first, end)
        part, _ = read_spans(Q[..., first:end, :], K, V, spans, allowed)
        parts.append(part)
    return torch.cat(parts, dim=-2).to(dtype)


def causal_attention_by_query_chunks(Q, K, V, chunk_size):
    """Attend to the keys that are not after the query, by chunks of both.

    The queries stand at the last L_q of the L_k positions. Chunks of keys
    that lie wholly after a chunk of queries are not read.

    Returns
    -------
    Tensor, shape (..., L_q, d_v)
    """
    return sliding_window_attention(Q, K, V, None, chunk_size)


def sliding_window_attention(Q, K, V, window, chunk_size):
    """Attend to the query's own position and the ``window - 1`` before it.

    Parameters
    ----------
    Q, K, V : Tensor
    window : int or None
        None means all positions up to the query's own.
    chunk_size : int

    Returns
    -------
    Tensor, shape (..., L_q, d_v)
    """
    chunk_size = check_length("chunk_size", chunk_size, smallest=1)
    check_qkv(Q, K, V)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    window = max(L_k, 1) if window is None else check_length("window", window, smallest=1)
    positions = window_spans(L_q, L_k, window, chunk_size)

    def spans_of(first, end):
        spans, allowed = positions(first, end)

        def part(start, stop):
            mask = allowed(start, stop)
            return None if mask is None else torch.from_numpy(mask).to(Q.device)

        return spans, part

    return attend_by_query_chunks(Q, K, V, chunk_size, spans_of)


def check_pattern(pattern, block_size, L_q, L_k):
    """Return the block size, or raise ValueError if the pattern does not fit it."""
    block_size = check_length("block_size", block_size, smallest=1)
    check_bool("pattern", pattern)
    check_axes("pattern", pattern, ("query blocks", "key blocks"))
    check_shape("pattern", pattern, (-(-L_q // block_size), -(-L_k // block_size)))
    return block_size


def block_sparse_mask(pattern, block_size, L_q, L_k):
    """Return the mask (L_q, L_k) of a pattern (query blocks, key blocks)."""
    block_size = check_pattern(pattern, block_size, L_q, L_k)
    rows = torch.arange(L_q, device=pattern.device) // block_size
    columns = torch.arange(L_k, device=pattern.device) // block_size
    return pattern[rows[:, None], columns]


def block_sparse_attention(Q, K, V, pattern, block_size):
    """Attend to the blocks of keys that a pattern names; read no other.

    Returns
    -------
    Tensor, shape (..., L_q, d_v)
    """
    check_qkv(Q, K, V)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    block_size = check_pattern(pattern, block_size, L_q, L_k)
    rows = pattern.tolist()  # one transfer, not one for each block

    def spans_of(first, end):
        row = rows[first // block_size]
        starts = [n * block_size for n, reads in enumerate(row) if reads]
        spans = [(start, min(start + block_size, L_k)) for start in starts]
        return spans, lambda start, stop: None

    return attend_by_query_chunks(Q, K, V, block_size, spans_of)


def local_global_pattern(num_blocks, reach, num_global, device=None):
    """Allow each block its neighbors, and the first blocks everything: bool."""
    num_blocks = check_length("num_blocks", num_blocks)
    reach, num_global = check_length("reach", reach), check_length("num_global", num_global)
    place = torch.arange(num_blocks, device=device)
    near = (place[:, None] - place).abs() <= reach
    is_global = place < num_global
    return near | is_global[:, None] | is_global


# --- top-k -----------------------------------------------------------------------------------


def topk_attention(Q, K, V, k, causal=True):
    """Attend to the k keys with the largest scores, and to no other.

    Returns
    -------
    Tensor, shape (..., L_q, d_v)
    """
    Q, K, V, dtype = checked(Q, K, V)
    k = check_length("k", k, smallest=1)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    if causal:
        allowed = causal_mask_rect(L_q, L_k, Q.device)
    else:
        allowed = torch.ones(L_q, L_k, dtype=torch.bool, device=Q.device)
    if k < L_k:
        scores = chunk_scores(Q, K, (0, L_k), allowed)  # (..., L_q, L_k)
        best = scores.topk(k, dim=-1).indices  # (..., L_q, k)
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
        allowed = chosen & allowed
    return scaled_dot_product_attention(Q, K, V, allowed)[0].to(dtype)


# --- linear attention ------------------------------------------------------------------------


def feature_map(x):
    """Return ``elu(x) + 1``."""
    return F.elu(x) + 1


def divide(summed, total):
    """Return ``summed / total``, 0 where the total is 0: nothing was read."""
    return summed / total.masked_fill(total == 0, 1)


def linear_attention_step(state, q, k, v):
    """Let a query read everything up to its own key, from a state of fixed size.

    Parameters
    ----------
    state : tuple of Tensor
        Shapes (..., d_k, d_v) and (..., d_k).
    q, k : Tensor, shape (..., d_k)
    v : Tensor, shape (..., d_v)

    Returns
    -------
    output : Tensor, shape (..., d_v)
    state : tuple of Tensor
    """
    summed, total = state
    key, query = feature_map(k), feature_map(q)
    summed = summed + key[..., :, None] * v[..., None, :]  # (..., d_k, d_v)
    total = total + key  # (..., d_k)
    output = (query[..., None, :] @ summed)[..., 0, :]  # (..., d_v)
    return divide(output, (query * total).sum(dim=-1, keepdim=True)), (summed, total)


def linear_attention(Q, K, V, causal=False):
    """Attend with weights ``phi(q) . phi(k)``, in time linear in L.

    Returns
    -------
    Tensor, shape (..., L_q, d_v)
    """
    Q, K, V, dtype = checked(Q, K, V)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    before = L_k - L_q if causal else L_k  # keys that every query may read
    keys = feature_map(K[..., : max(before, 0), :])
    summed = keys.transpose(-2, -1) @ V[..., : max(before, 0), :]  # (..., d_k, d_v)
    total = keys.sum(dim=-2)  # (..., d_k)
    if not causal:
        queries = feature_map(Q)
        return divide(queries @ summed, queries @ total[..., None]).to(dtype)

    lead = torch.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    nothing = Q.new_zeros(*lead, V.shape[-1])
    rows = [nothing] * min(max(-before, 0), L_q)
    state = summed, total
    for i in range(len(rows), L_q):
        j = i + before
        row, state = linear_attention_step(state, Q[..., i, :], K[..., j, :], V[..., j, :])
        rows.append(row)
    if not rows:
        return nothing[..., None, :][..., :0, :].to(dtype)
    return torch.stack(rows, dim=-2).to(dtype)


# --- decoding --------------------------------------------------------------------------------


class KeyValueCache:
    """The keys and values of the positions so far, for use without gradients.

    Parameters
    ----------
    capacity : int
        Positions that fit in.
    key_shape, value_shape : tuple of int
        The shapes of one position's keys and values, (..., d_k) and
        (..., d_v).
    dtype : torch.dtype
    device : torch.device, optional
    """

    def __init__(self, capacity, key_shape, value_shape, dtype=torch.float32, device=None):
        capacity = check_length("capacity", capacity, smallest=1)
        (*key_lead, d_k), (*value_lead, d_v) = key_shape, value_shape
        self._keys = torch.zeros(*key_lead, capacity, d_k, dtype=dtype, device=device)
        self._values = torch.zeros(*value_lead, capacity, d_v, dtype=dtype, device=device)
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

    @torch.no_grad()
    def append(self, K, V):
        """Add the keys (..., n, d_k) and values (..., n, d_v) of n positions."""
        capacity, n = self._keys.shape[-2], K.shape[-2]
        check_shape("K", K, (*self._keys.shape[:-2], n, self._keys.shape[-1]))
        check_shape("V", V, (*self._values.shape[:-2], n, self._values.shape[-1]))
        end = self.length + n
        if end > capacity:
            raise ValueError(f"K: expected at most {capacity} positions in all, got {end}")
        self._keys[..., self.length : end, :] = K
        self._values[..., self.length : end, :] = V
        self.length = end


def decoding_step(cache, Q, K, V):
    """Add new positions to a cache, and let their queries read all of it.

    Returns
    -------
    Tensor, shape (..., h, n, d_v)
        Causal: no query reads a position after its own.
    """
    cache.append(K, V)
    mask = causal_mask_rect(Q.shape[-2], cache.length, Q.device)
    return grouped_query_attention(Q, cache.K, cache.V, mask)


def grouped_query_attention(Q, K, V, mask=None):
    """Attend with several query heads for each head of keys and values.

    `F.scaled_dot_product_attention` does the same with `enable_gqa=True`.

    Parameters
    ----------
    Q : Tensor, shape (..., h, L_q, d_k)
    K : Tensor, shape (..., g, L_k, d_k)
    V : Tensor, shape (..., g, L_k, d_v)
    mask : Tensor of bool, optional
        True = may attend. Broadcasts to (..., h, L_q, L_k).

    Returns
    -------
    Tensor, shape (..., h, L_q, d_v)

    Raises
    ------
    ValueError
        If `h` is not a multiple of `g`, or shapes do not fit together.
    """
    for name, tensor in (("Q", Q), ("K", K), ("V", V)):
        if tensor.ndim < 3:
            raise ValueError(
                f"{name}: expected at least 3 axes (..., heads, length, width), "
                f"got shape {tuple(tensor.shape)}"
            )
    h, g = Q.shape[-3], K.shape[-3]
    if g == 0 or h % g:
        raise ValueError(f"Q: expected a multiple of the {g} key heads, got {h} heads")
    if V.shape[-3] != g:
        raise ValueError(f"V: expected the {g} heads of K, got {V.shape[-3]}")
    queries = Q.unflatten(-3, (g, h // g))
    if mask is not None:
        lead = torch.broadcast_shapes(Q.shape[:-3], K.shape[:-3])
        full = (*lead, h, Q.shape[-2], K.shape[-2])
        check_tensor_mask(mask, full)
        mask = mask.expand(full).unflatten(-3, (g, h // g))
    output, _ = scaled_dot_product_attention(queries, K[..., None, :, :], V[..., None, :, :], mask)
    return output.flatten(-4, -3)
