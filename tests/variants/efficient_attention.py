"""Right answers to exercise 7, written in unlike ways, and wrong ones that are not in the bank."""

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

# --- predictions ---

RIGHT_SCORES = {
    "the numbers": (128, 512, 8),
    "an array": np.array([128, 512, 8]),
    "numbers of NumPy": tuple(np.array([128, 512, 8])),
    "floats": [128.0, 512.0, 8.0],
}
TRIVIAL_NUMBERS = {
    "zeros": (0, 0, 0),
    "one number": 128,
    "words": ("a", "b", "c"),
    "None": None,
    "truth": (True, True, True),
}
NEW_WRONG_SCORES = {"with the width of the heads": ((8192, 32768, 512), "(a) 8192 is not the MiB")}

RIGHT_PAIRS = {
    "the numbers": (66, 12, 30),
    "floats": [66.0, 12.0, 30.0],
    "array": np.array([66, 12, 30]),
}
NEW_WRONG_PAIRS = {"all pairs": ((144, 144, 72), "(a) 144 is not the number of pairs")}

RIGHT_CACHES = {
    "the numbers": (768, 192, 48),
    "array": np.array([768.0, 192, 48]),
    "list": [768, 192, 48],
}
NEW_WRONG_CACHES = {"squares": ((24576, 6144, 384), "(a) 24576 is not the MiB of the cache")}


# --- chunked_attention ---


def _t(x):
    return np.swapaxes(x, -1, -2)


def _full(mask, Q, K):
    return np.broadcast_to(True if mask is None else mask, (*Q.shape[:-1], K.shape[-2]))


def chunked_plain(Q, K, V, chunk_size, mask=None):
    mask = _full(mask, Q, K)
    m = np.full(Q.shape[:-1], -np.inf)
    total, acc = np.zeros(m.shape), np.zeros((*m.shape, V.shape[-1]))
    for start in range(0, K.shape[-2], chunk_size):
        part = slice(start, start + chunk_size)
        s = Q @ _t(K[..., part, :]) / math.sqrt(Q.shape[-1])
        s = np.where(mask[..., part], s, -np.inf)
        new = np.maximum(m, s.max(axis=-1))
        safe = np.where(np.isinf(new), 0, new)
        factor, p = np.exp(m - safe), np.exp(s - safe[..., None])
        total = total * factor + p.sum(axis=-1)
        acc = acc * factor[..., None] + p @ V[..., part, :]
        m = new
    return acc / np.where(total > 0, total, 1)[..., None]


def chunked_two_passes(Q, K, V, chunk_size, mask=None):
    mask = _full(mask, Q, K)
    steps = range(0, K.shape[-2], chunk_size)

    def scores(a):
        s = np.einsum("...id,...jd->...ij", Q, K[..., a : a + chunk_size, :]) / Q.shape[-1] ** 0.5
        return np.where(mask[..., a : a + chunk_size], s, -np.inf)

    top = -np.inf
    for a in steps:
        top = np.maximum(top, scores(a).max(axis=-1, keepdims=True))
    top = np.where(np.isneginf(top), 0.0, top)
    total = sum(np.exp(scores(a) - top).sum(axis=-1, keepdims=True) for a in steps)
    total = np.where(total == 0, 1.0, total)
    return sum((np.exp(scores(a) - top) / total) @ V[..., a : a + chunk_size, :] for a in steps)


def chunked_log_domain(Q, K, V, chunk_size, mask=None):
    mask = _full(mask, Q, K)
    lse = np.full((*Q.shape[:-1], 1), -np.inf)
    out = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, K.shape[-2], chunk_size):
        part = slice(start, start + chunk_size)
        s = Q @ _t(K[..., part, :]) / np.sqrt(Q.shape[-1])
        s = np.where(mask[..., part], s, -np.inf)
        new = np.logaddexp(lse, np.logaddexp.reduce(s, axis=-1, keepdims=True))
        safe = np.where(np.isneginf(new), 0.0, new)
        out = out * np.exp(lse - safe) + np.exp(s - safe) @ V[..., part, :]
        lse = new
    return out


def chunked_normalized_as_it_goes(Q, K, V, chunk_size, mask=None):
    mask = _full(mask, Q, K)
    m = np.full((*Q.shape[:-1], 1), -np.inf)
    total, out = np.zeros(m.shape), np.zeros((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, K.shape[-2], chunk_size):
        part = slice(start, start + chunk_size)
        s = Q @ _t(K[..., part, :]) / np.sqrt(Q.shape[-1])
        s[~mask[..., part]] = -np.inf
        new = np.maximum(m, s.max(axis=-1, keepdims=True))
        factor = np.where(np.isneginf(m), 0.0, np.exp(np.where(np.isneginf(m), 0.0, m - new)))
        p = np.where(np.isneginf(s), 0.0, np.exp(s - np.where(np.isneginf(new), 0.0, new)))
        l_new = factor * total + p.sum(axis=-1, keepdims=True)
        out = (factor * total * out + p @ V[..., part, :]) / np.where(l_new == 0, 1.0, l_new)
        m, total = new, l_new
    return out


def chunked_one_sequence_at_a_time(Q, K, V, chunk_size, mask=None):
    mask = _full(mask, Q, K)
    out = np.empty((*Q.shape[:-1], V.shape[-1]))
    for lead in np.ndindex(Q.shape[:-2]):
        out[lead] = chunked_plain(Q[lead], K[lead], V[lead], chunk_size, mask[lead])
    return out


def chunked_zeroed_by_the_mask(Q, K, V, chunk_size, mask=None):
    """The finite number is fine where hidden powers are set to 0."""
    mask = _full(mask, Q, K)
    m = np.full((*Q.shape[:-1], 1), -1e30)
    total, acc = 0.0, 0.0
    for start in range(0, K.shape[-2], chunk_size):
        part = slice(start, start + chunk_size)
        s = np.where(mask[..., part], Q @ _t(K[..., part, :]) * Q.shape[-1] ** -0.5, -1e30)
        new = np.maximum(m, s.max(axis=-1, keepdims=True))
        p = np.exp(s - new) * mask[..., part]
        acc = acc * np.exp(m - new) + p @ V[..., part, :]
        total = total * np.exp(m - new) + p.sum(axis=-1, keepdims=True)
        m = new
    return acc / np.maximum(total, 1e-300)


def chunked_with_ones(Q, K, V, chunk_size, mask=None):
    """The sum is one more column of the values."""
    wide = np.concatenate([V, np.ones((*V.shape[:-1], 1))], axis=-1)
    mask = _full(mask, Q, K)
    m = np.full((*Q.shape[:-1], 1), -np.inf)
    acc = np.zeros((*Q.shape[:-1], wide.shape[-1]))
    for part in np.array_split(np.arange(K.shape[-2]), -(-K.shape[-2] // chunk_size)):
        s = Q @ _t(np.take(K, part, axis=-2)) / np.sqrt(Q.shape[-1])
        s = np.where(mask[..., part], s, -np.inf)  # np.take would copy the whole mask first
        new = np.maximum(m, s.max(axis=-1, keepdims=True))
        safe = np.nan_to_num(new, neginf=0.0)
        acc = np.exp(m - safe) * acc + np.exp(s - safe) @ np.take(wide, part, axis=-2)
        m = new
    return acc[..., :-1] / np.where(acc[..., -1:] == 0, 1, acc[..., -1:])


def chunked_from_the_right(Q, K, V, chunk_size, mask=None):
    mask = None if mask is None else _full(mask, Q, K)[..., ::-1]
    return chunked_plain(Q, K[..., ::-1, :], V[..., ::-1, :], chunk_size, mask)


def chunked_in_place(Q, K, V, chunk_size, mask=None):
    q = Q / np.sqrt(Q.shape[-1])
    bias = None if mask is None else np.where(mask, 0.0, -np.inf)  # no larger than the mask
    m = np.full((*Q.shape[:-1], 1), -np.inf)
    total, acc = np.zeros_like(m), np.zeros((*Q.shape[:-1], V.shape[-1]))
    for start in range(0, K.shape[-2], chunk_size):
        stop = min(start + chunk_size, K.shape[-2])
        s = q @ _t(K[..., start:stop, :])
        if bias is not None:
            s += bias[..., start:stop] if bias.shape[-1] > 1 else bias
        new = np.maximum(m, s.max(axis=-1, keepdims=True))
        safe = np.where(new == -np.inf, 0, new)
        s -= safe
        np.exp(s, out=s)
        factor = np.exp(m - safe)
        total *= factor
        total += s.sum(axis=-1, keepdims=True)
        acc *= factor
        acc += s @ V[..., start:stop, :]
        m = new
    return np.divide(acc, total, out=acc, where=total > 0)


def chunked_float32(Q, K, V, chunk_size, mask=None):
    return chunked_plain(*(a.astype(np.float32) for a in (Q, K, V)), chunk_size, mask)


RIGHT_CHUNKED = {
    "plain": chunked_plain,
    "two passes": chunked_two_passes,
    "logarithms": chunked_log_domain,
    "normalized as it goes": chunked_normalized_as_it_goes,
    "one sequence at a time": chunked_one_sequence_at_a_time,
    "zeroed by the mask": chunked_zeroed_by_the_mask,
    "a column of ones": chunked_with_ones,
    "from the right": chunked_from_the_right,
    "in place": chunked_in_place,
    "float32 inside": chunked_float32,
}
TRIVIAL_CHUNKED = {
    "None": lambda Q, K, V, chunk_size, mask=None: None,
    "zeros": lambda Q, K, V, chunk_size, mask=None: np.zeros((*Q.shape[:-1], V.shape[-1])),
    "Q": lambda Q, K, V, chunk_size, mask=None: Q,
    "a number": lambda Q, K, V, chunk_size, mask=None: 1.0,
}


def chunked_uniform(Q, K, V, chunk_size, mask=None):
    p = _full(mask, Q, K) * 1.0
    return p @ V / np.maximum(p.sum(axis=-1, keepdims=True), 1)


def chunked_best_chunk(Q, K, V, chunk_size, mask=None):
    """Each query attends to the first chunk only."""
    part = slice(0, chunk_size)
    mask = None if mask is None else _full(mask, Q, K)[..., part]
    return chunked_plain(Q, K[..., part, :], V[..., part, :], chunk_size, mask)


NEW_WRONG_CHUNKED = {
    "uniform": (chunked_uniform, "differs"),
    "the first chunk only": (chunked_best_chunk, "differs"),
}


def mended_from_counts(Q, K, V, chunk_size):
    m = total = acc = None
    for a in range(0, K.shape[-2], chunk_size):
        s = Q @ _t(K[..., a : a + chunk_size, :]) / np.sqrt(Q.shape[-1])
        top = s.max(axis=-1, keepdims=True)
        p = np.exp(s - top)
        part_l, part = p.sum(axis=-1, keepdims=True), p @ V[..., a : a + chunk_size, :]
        if m is None:
            m, total, acc = top, part_l, part
            continue
        new = np.maximum(m, top)
        total = total * np.exp(m - new) + part_l * np.exp(top - new)
        acc = acc * np.exp(m - new) + part * np.exp(top - new)
        m = new
    return acc / total


RIGHT_MENDED_CHUNKED = {**RIGHT_CHUNKED, "merging chunks": mended_from_counts}
TRIVIAL_MENDED_CHUNKED = {
    "None": lambda Q, K, V, chunk_size: None,
    "zeros": lambda Q, K, V, chunk_size: np.zeros((*Q.shape[:-1], V.shape[-1])),
    "Q": lambda Q, K, V, chunk_size: Q,
}
NEW_WRONG_MENDED_CHUNKED = {
    "uniform": (chunked_uniform, "differs"),
    "the first chunk only": (chunked_best_chunk, "differs"),
}


# --- chunked_attention_backward ---


def _sum_of_gradients(doutput, output):
    return np.einsum("...v,...v->...", doutput, output)[..., None]


def backward_plain(doutput, Q, K, V, output, logsumexp, chunk_size):
    r, D = np.sqrt(Q.shape[-1]), _sum_of_gradients(doutput, output)
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for a in range(0, K.shape[-2], chunk_size):
        c = slice(a, a + chunk_size)
        p = np.exp(Q @ _t(K[..., c, :]) / r - logsumexp[..., None])
        ds = p * (doutput @ _t(V[..., c, :]) - D) / r
        dV[..., c, :] = _t(p) @ doutput
        dK[..., c, :] = _t(ds) @ Q
        dQ += ds @ K[..., c, :]
    return dQ, dK, dV


def backward_joined(doutput, Q, K, V, output, logsumexp, chunk_size):
    q, D = Q / np.sqrt(Q.shape[-1]), _sum_of_gradients(doutput, output)
    dq, dks, dvs = 0.0, [], []
    for a in range(0, K.shape[-2], chunk_size):
        k, v = (x[..., a : a + chunk_size, :] for x in (K, V))
        p = np.exp(np.einsum("...id,...jd->...ij", q, k) - logsumexp[..., None])
        ds = p * (np.einsum("...iv,...jv->...ij", doutput, v) - D)
        dvs.append(np.einsum("...ij,...iv->...jv", p, doutput))
        dks.append(np.einsum("...ij,...id->...jd", ds, q))
        dq = dq + np.einsum("...ij,...jd->...id", ds, k)
    dQ = dq / np.sqrt(Q.shape[-1])
    return [dQ, np.concatenate(dks, axis=-2), np.concatenate(dvs, axis=-2)]


def backward_two_passes(doutput, Q, K, V, output, logsumexp, chunk_size):
    """D as a sum over the chunks, without the output."""
    D = 0.0
    for a in range(0, K.shape[-2], chunk_size):
        k, v = (x[..., a : a + chunk_size, :] for x in (K, V))
        p = np.exp(Q @ _t(k) / np.sqrt(Q.shape[-1]) - logsumexp[..., None])
        D = D + (p * (doutput @ _t(v))).sum(axis=-1, keepdims=True)
    return _with_sum(doutput, Q, K, V, D, logsumexp, chunk_size)


def _with_sum(doutput, Q, K, V, D, logsumexp, chunk_size):
    dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    for a in range(0, K.shape[-2], chunk_size):
        c = slice(a, a + chunk_size)
        p = np.exp(Q @ _t(K[..., c, :]) / np.sqrt(Q.shape[-1]) - logsumexp[..., None])
        ds = p * (doutput @ _t(V[..., c, :]) - D)
        dV[..., c, :] += _t(p) @ doutput
        dK[..., c, :] += _t(ds) @ Q / np.sqrt(Q.shape[-1])
        dQ += ds @ K[..., c, :] / np.sqrt(Q.shape[-1])
    return dQ, dK, dV


def backward_own_normalizer(doutput, Q, K, V, output, logsumexp, chunk_size):
    """Recompute what was saved."""
    logs = -np.inf
    for a in range(0, K.shape[-2], chunk_size):
        s = Q @ _t(K[..., a : a + chunk_size, :]) / np.sqrt(Q.shape[-1])
        logs = np.logaddexp(logs, np.logaddexp.reduce(s, axis=-1))
    return backward_plain(doutput, Q, K, V, chunked_plain(Q, K, V, chunk_size), logs, chunk_size)


def backward_by_query_chunks(doutput, Q, K, V, output, logsumexp, chunk_size):
    dQ, dK, dV = np.empty(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    for a in range(0, Q.shape[-2], chunk_size):
        c = slice(a, a + chunk_size)
        q, g = Q[..., c, :], doutput[..., c, :]
        p = np.exp(q @ _t(K) / np.sqrt(Q.shape[-1]) - logsumexp[..., c, None])
        ds = g @ _t(V) - _sum_of_gradients(g, output[..., c, :])
        ds *= p
        ds /= np.sqrt(Q.shape[-1])
        dQ[..., c, :] = ds @ K
        dK += _t(ds) @ q
        dV += _t(p) @ g
    return dQ, dK, dV


def backward_one_sequence_at_a_time(doutput, Q, K, V, output, logsumexp, chunk_size):
    found = [np.empty(x.shape) for x in (Q, K, V)]
    for lead in np.ndindex(Q.shape[:-2]):
        arguments = [x[lead] for x in (doutput, Q, K, V, output, logsumexp)]
        for whole, part in zip(found, backward_plain(*arguments, chunk_size), strict=True):
            whole[lead] = part
    return tuple(found)


def backward_in_place(doutput, Q, K, V, output, logsumexp, chunk_size):
    q = Q / np.sqrt(Q.shape[-1])
    D = np.sum(doutput * output, axis=-1)
    dq, dK, dV = np.zeros_like(q), np.empty_like(K), np.empty_like(V)
    for a in range(0, K.shape[-2], chunk_size):
        c = np.s_[..., a : a + chunk_size, :]
        p = q @ _t(K[c])
        p -= logsumexp[..., None]
        np.exp(p, out=p)
        dV[c] = _t(p) @ doutput
        p *= doutput @ _t(V[c]) - D[..., None]
        dK[c] = _t(p) @ q
        dq += p @ K[c]
    dq /= np.sqrt(Q.shape[-1])
    return dq, dK, dV


def backward_transposed(doutput, Q, K, V, output, logsumexp, chunk_size):
    """Keys as rows."""
    D = _t(_sum_of_gradients(doutput, output))
    dQ, dKs, dVs = np.zeros(Q.shape), [], []
    for a in range(0, K.shape[-2], chunk_size):
        k, v = K[..., a : a + chunk_size, :], V[..., a : a + chunk_size, :]
        p = np.exp(k @ _t(Q) * Q.shape[-1] ** -0.5 - logsumexp[..., None, :])
        ds = p * (v @ _t(doutput) - D) * Q.shape[-1] ** -0.5
        dQ += _t(ds) @ k
        dKs += [ds @ Q]
        dVs += [p @ doutput]
    return dQ, np.concatenate(dKs, -2), np.concatenate(dVs, -2)


def backward_float32(doutput, Q, K, V, output, logsumexp, chunk_size):
    arrays = [a.astype(np.float32) for a in (doutput, Q, K, V, output, logsumexp)]
    return backward_plain(*arrays, chunk_size)


RIGHT_BACKWARD = {
    "plain": backward_plain,
    "joined": backward_joined,
    "two passes": backward_two_passes,
    "own normalizer": backward_own_normalizer,
    "query chunks": backward_by_query_chunks,
    "one sequence at a time": backward_one_sequence_at_a_time,
    "in place": backward_in_place,
    "transposed": backward_transposed,
    "float32 inside": backward_float32,
}
TRIVIAL_BACKWARD = {
    "None": lambda doutput, Q, K, V, *rest: None,
    "zeros": lambda doutput, Q, K, V, *rest: (0 * Q, 0 * K, 0 * V),
    "the arguments": lambda doutput, Q, K, V, *rest: (Q, K, V),
}


def backward_clipped(*arguments):
    return tuple(np.clip(g, -0.1, 0.1) for g in backward_plain(*arguments))


def backward_in_another_order(*arguments):
    return backward_plain(*arguments)[::-1]


NEW_WRONG_BACKWARD = {
    "clipped": (backward_clipped, "differs"),
    "another order": (backward_in_another_order, "shape"),
}


# --- query chunks, windows ---


def _softmax(s):
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def queries_plain(Q, K, V, chunk_size, window=None):
    L = Q.shape[-2]
    out = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for a in range(0, L, chunk_size):
        b = min(a + chunk_size, L)
        old = 0 if window is None else max(0, a - window + 1)
        s = Q[..., a:b, :] @ _t(K[..., old:b, :]) / np.sqrt(Q.shape[-1])
        apart = np.arange(a, b)[:, None] - np.arange(old, b)
        hidden = apart < 0 if window is None else (apart < 0) | (apart >= window)
        s[..., hidden] = -np.inf
        out[..., a:b, :] = _softmax(s) @ V[..., old:b, :]
    return out


def queries_tri(Q, K, V, chunk_size, window=None):
    parts, L = [], Q.shape[-2]
    for a in range(0, L, chunk_size):
        b = min(a + chunk_size, L)
        s = np.einsum("...id,...jd->...ij", Q[..., a:b, :], K[..., :b, :]) / Q.shape[-1] ** 0.5
        allowed = np.tri(b - a, b, a, dtype=bool)
        if window is not None:
            allowed &= ~np.tri(b - a, b, a - window, dtype=bool)
        parts.append(_softmax(np.where(allowed, s, -np.inf)) @ V[..., :b, :])
    return np.concatenate(parts, axis=-2)


def queries_one_by_one(Q, K, V, chunk_size, window=None):
    out = np.empty((*Q.shape[:-1], V.shape[-1]))
    for i in range(Q.shape[-2]):
        old = 0 if window is None else max(0, i + 1 - window)
        k, v = K[..., old : i + 1, :], V[..., old : i + 1, :]
        s = (k @ Q[..., i, :, None])[..., 0] / math.sqrt(Q.shape[-1])
        out[..., i, :] = (_softmax(s)[..., None, :] @ v)[..., 0, :]
    return out


def queries_with_key_chunks(Q, K, V, chunk_size, window=None):
    """Both axes in chunks."""
    L, out = Q.shape[-2], []
    for a in range(0, L, chunk_size):
        q = Q[..., a : a + chunk_size, :]
        i = np.arange(a, min(a + chunk_size, L))[:, None]
        j = np.arange(min(a + chunk_size, L))
        mask = (j <= i) & (j > i - (L + 1 if window is None else window))
        out.append(chunked_plain(q, K[..., : len(j), :], V[..., : len(j), :], chunk_size, mask))
    return np.concatenate(out, axis=-2)


def queries_added_bias(Q, K, V, chunk_size, window=None):
    L, out = Q.shape[-2], np.empty((*Q.shape[:-1], V.shape[-1]))
    for a in range(0, L, chunk_size):
        b = min(L, a + chunk_size)
        bias = np.triu(np.full((b - a, b), -np.inf), a + 1)
        if window is not None:
            bias = bias + np.where(np.arange(b) <= np.arange(a, b)[:, None] - window, -np.inf, 0)
        s = Q[..., a:b, :] / np.sqrt(Q.shape[-1]) @ _t(K[..., :b, :]) + bias
        out[..., a:b, :] = _softmax(s) @ V[..., :b, :]
    return out


def queries_zero_powers(Q, K, V, chunk_size, window=None):
    L, out = Q.shape[-2], []
    for a in range(0, L, chunk_size):
        b = min(L, a + chunk_size)
        s = Q[..., a:b, :] @ _t(K[..., :b, :]) / np.sqrt(Q.shape[-1])
        apart = np.arange(a, b)[:, None] - np.arange(b)
        seen = (apart >= 0) & (apart < (L if window is None else window))
        p = np.exp(s - s.max(axis=-1, keepdims=True)) * seen
        out += [p @ V[..., :b, :] / p.sum(axis=-1, keepdims=True)]
    return np.concatenate(out, axis=-2)


def queries_recursive(Q, K, V, chunk_size, window=None):
    L = Q.shape[-2]
    a = (L - 1) // chunk_size * chunk_size
    earlier = []
    if a > 0:
        earlier = [queries_recursive(*(x[..., :a, :] for x in (Q, K, V)), chunk_size, window)]
    j, i = np.arange(L), np.arange(a, L)[:, None]
    mask = (j <= i) & (j > i - (L + 1 if window is None else window))
    s = Q[..., a:, :] @ _t(K) / np.sqrt(Q.shape[-1])
    last = _softmax(np.where(mask, s, -np.inf)) @ V
    return np.concatenate([*earlier, last], axis=-2)


def queries_float32(Q, K, V, chunk_size, window=None):
    return queries_plain(*(a.astype(np.float32) for a in (Q, K, V)), chunk_size, window)


def queries_by_sequence(Q, K, V, chunk_size, window=None):
    if Q.ndim == 2:
        return queries_plain(Q, K, V, chunk_size, window)
    return np.stack(
        [queries_by_sequence(*x, chunk_size, window) for x in zip(Q, K, V, strict=True)]
    )


ALL_BY_QUERIES = {
    "plain": queries_plain,
    "np.tri": queries_tri,
    "one by one": queries_one_by_one,
    "key chunks too": queries_with_key_chunks,
    "added bias": queries_added_bias,
    "powers set to 0": queries_zero_powers,
    "recursion": queries_recursive,
    "float32 inside": queries_float32,
    "one sequence at a time": queries_by_sequence,
}
RIGHT_QUERIES = ALL_BY_QUERIES
TRIVIAL_QUERIES = TRIVIAL_MENDED_CHUNKED


def queries_average(Q, K, V, chunk_size):
    count = np.arange(1, Q.shape[-2] + 1)[:, None]
    return np.cumsum(V, axis=-2) / count


def queries_values_again(Q, K, V, chunk_size):
    return V


NEW_WRONG_QUERIES = {
    "running mean": (queries_average, "differs"),
    "the values": (queries_values_again, "differs"),
}


def _window(function):
    return lambda Q, K, V, window, chunk_size: function(Q, K, V, chunk_size, window)


def window_torch(Q, K, V, window, chunk_size):
    i = torch.arange(Q.shape[-2])
    apart = i[:, None] - i
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    return F.scaled_dot_product_attention(q, k, v, (apart >= 0) & (apart < window)).numpy()


RIGHT_WINDOW = {how: _window(f) for how, f in ALL_BY_QUERIES.items()} | {"PyTorch": window_torch}
TRIVIAL_WINDOW = {
    "None": lambda Q, K, V, window, chunk_size: None,
    "zeros": lambda Q, K, V, window, chunk_size: 0 * V,
    "Q": lambda Q, K, V, window, chunk_size: Q,
}
NEW_WRONG_WINDOW = {
    "running mean": (
        lambda Q, K, V, window, chunk_size: queries_average(Q, K, V, chunk_size),
        "window is",
    ),
    "twice the window": (
        lambda Q, K, V, window, chunk_size: queries_plain(Q, K, V, chunk_size, 2 * window),
        "window is 3",
    ),
}


# --- local_global_mask ---


def blocks_plain(L, block):
    i, j = np.arange(L)[:, None], np.arange(L)
    near = (i // block == j // block) | (i // block == j // block + 1)
    return (j <= i) & (near | (j < block))


def blocks_by_loops(L, block):
    mask = np.zeros((L, L), bool)
    for i in range(L):
        start = max(i // block - 1, 0) * block
        mask[i, start : i + 1] = True
        mask[i, : min(block, i + 1)] = True
    return mask


def blocks_by_kron(L, block):
    n = -(-L // block)
    pattern = np.eye(n) + np.eye(n, k=-1)
    pattern[:, 0] = 1
    whole = np.kron(pattern, np.ones((block, block))) > 0
    return np.tril(whole[:L, :L])


def blocks_by_repeat(L, block):
    n = L // block + 1
    pattern = np.tri(n, dtype=bool) & ~np.tri(n, k=-2, dtype=bool)
    pattern[:, 0] = True
    return pattern.repeat(block, 0).repeat(block, 1)[:L, :L] & np.tri(L, dtype=bool)


def blocks_from_function(L, block):
    return np.fromfunction(
        lambda i, j: (i >= j) & ((i // block - j // block < 2) | (j // block == 0)), (L, L)
    ).astype(bool)


def blocks_by_lists(L, block):
    return np.array(
        [
            [j <= i and (i // block - j // block in (0, 1) or j < block) for j in range(L)]
            for i in range(L)
        ]
    )


def blocks_by_sets(L, block):
    mask = np.zeros((L, L), dtype=np.bool_)
    for i in range(L):
        home = i // block
        seen = {t for b in {0, home - 1, home} if b >= 0 for t in range(b * block, (b + 1) * block)}
        mask[i, [t for t in seen if t <= i]] = True
    return mask


def blocks_by_bounds(L, block):
    i, j = np.indices((L, L))
    start = np.maximum(i - i % block - block, 0)
    return ((j >= start) | (j < block)) & (j <= i)


def blocks_block_by_block(L, block):
    mask = np.zeros((L, L), dtype=bool)
    for a in range(0, L, block):
        rows = slice(a, a + block)
        mask[rows, a : a + block] = mask[rows, max(a - block, 0) : a] = mask[rows, :block] = True
    return np.logical_and(mask, np.tri(L))


RIGHT_BLOCKS = {
    "plain": blocks_plain,
    "loops": blocks_by_loops,
    "kron": blocks_by_kron,
    "repeat": blocks_by_repeat,
    "fromfunction": blocks_from_function,
    "lists": blocks_by_lists,
    "sets": blocks_by_sets,
    "bounds": blocks_by_bounds,
    "block by block": blocks_block_by_block,
}
TRIVIAL_BLOCKS = {
    "None": lambda L, block: None,
    "nothing": lambda L, block: np.zeros((L, L), dtype=bool),
    "a number": lambda L, block: 1,
    "too small": lambda L, block: np.ones((1, 1), dtype=bool),
}
NEW_WRONG_BLOCKS = {
    "causal only": (lambda L, block: np.tri(L, dtype=bool), "may not see token"),
    "all blocks but the first": (
        lambda L, block: blocks_plain(L, block) & (np.arange(L) >= block),
        "may see token",
    ),
}


# --- topk_attention ---


def _scores(Q, K, causal):
    s = Q @ _t(K) / np.sqrt(Q.shape[-1])
    return np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s


def topk_sort(Q, K, V, k, causal=True):
    s = _scores(Q, K, causal)
    bound = np.sort(s, axis=-1)[..., -min(k, s.shape[-1])][..., None]
    return _softmax(np.where(s < bound, -np.inf, s)) @ V


def topk_partition(Q, K, V, k, causal=True):
    s = _scores(Q, K, causal)
    n = s.shape[-1]
    if k < n:
        s = np.where(s >= np.partition(s, n - k, axis=-1)[..., n - k, None], s, -np.inf)
    return _softmax(s) @ V


def topk_argsort(Q, K, V, k, causal=True):
    s = _scores(Q, K, causal)
    rank = np.argsort(np.argsort(-s, axis=-1), axis=-1)
    p = np.exp(s - s.max(axis=-1, keepdims=True)) * (rank < k)
    return p @ V / p.sum(axis=-1, keepdims=True)


def topk_gathered(Q, K, V, k, causal=True):
    s = _scores(Q, K, causal)
    best = np.argsort(s, axis=-1)[..., ::-1][..., :k]
    p = _softmax(np.take_along_axis(s, best, axis=-1))
    values = np.take_along_axis(V[..., None, :, :], best[..., None], axis=-2)
    return (p[..., None] * values).sum(axis=-2)


def topk_renormalized(Q, K, V, k, causal=True):
    p = _softmax(_scores(Q, K, causal))
    bound = np.sort(p, axis=-1)[..., ::-1][..., min(k, p.shape[-1]) - 1, None]
    p = np.where(p >= bound, p, 0.0)
    return p / p.sum(axis=-1, keepdims=True) @ V


def topk_loops(Q, K, V, k, causal=True):
    out = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for index in np.ndindex(Q.shape[:-1]):
        seen = index[-1] + 1 if causal else K.shape[-2]
        s = K[index[:-1]][:seen] @ Q[index] / math.sqrt(Q.shape[-1])
        best = sorted(range(seen), key=lambda j, s=s: -s[j])[:k]
        out[index] = _softmax(s[best]) @ V[index[:-1]][best]
    return out


def topk_torch(Q, K, V, k, causal=True):
    s = torch.tensor(_scores(Q, K, causal))
    values, places = s.topk(min(k, s.shape[-1]), dim=-1)
    p = torch.zeros_like(s).scatter(-1, places, values.softmax(dim=-1))
    return (p @ torch.tensor(V)).numpy()


def topk_marked(Q, K, V, k, causal=True):
    s = _scores(Q, K, causal)
    keep = np.zeros(s.shape, dtype=bool)
    np.put_along_axis(keep, np.argpartition(-s, min(k, s.shape[-1]) - 1)[..., :k], True, axis=-1)
    return np.einsum("...ij,...jv->...iv", _softmax(np.where(keep, s, -np.inf)), V)


def topk_one_after_another(Q, K, V, k, causal=True):
    s = _scores(Q, K, causal)
    left, kept = s.copy(), np.full(s.shape, -np.inf)
    for _ in range(min(k, s.shape[-1])):
        best = left.argmax(axis=-1)[..., None]
        np.put_along_axis(kept, best, np.take_along_axis(s, best, axis=-1), axis=-1)
        np.put_along_axis(left, best, -np.inf, axis=-1)
    return _softmax(kept) @ V


def topk_float32(Q, K, V, k, causal=True):
    return topk_sort(*(a.astype(np.float32) for a in (Q, K, V)), k, causal)


RIGHT_TOPK = {
    "sort": topk_sort,
    "partition": topk_partition,
    "ranks": topk_argsort,
    "gathered": topk_gathered,
    "renormalized": topk_renormalized,
    "loops": topk_loops,
    "PyTorch": topk_torch,
    "marked": topk_marked,
    "one after another": topk_one_after_another,
    "float32 inside": topk_float32,
}
TRIVIAL_TOPK = {
    "None": lambda Q, K, V, k, causal=True: None,
    "zeros": lambda Q, K, V, k, causal=True: np.zeros((*Q.shape[:-1], V.shape[-1])),
    "Q": lambda Q, K, V, k, causal=True: Q,
}


def topk_of_the_values(Q, K, V, k, causal=True):
    s = _scores(Q, K, causal)
    size = np.broadcast_to((V**2).sum(axis=-1)[..., None, :], s.shape)
    bound = np.sort(size, axis=-1)[..., -min(k, s.shape[-1]), None]
    return np.nan_to_num(_softmax(np.where(size >= bound, s, -np.inf)) @ V)


NEW_WRONG_TOPK = {
    "all keys": (lambda Q, K, V, k, causal=True: topk_sort(Q, K, V, 99, causal), "k is 1"),
    "the largest values": (topk_of_the_values, "k is 1"),
    "one key": (lambda Q, K, V, k, causal=True: topk_sort(Q, K, V, 1, causal), "k is 3"),
}


# --- linear_attention ---


def _phi(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def _phi_in_place(x):
    y = x + 1
    low = x <= 0
    y[low] = np.exp(x[low])
    return y


def _phi_expm1(x):
    return 1 + np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _phi_max(x):
    return np.maximum(x, 0) + np.exp(np.minimum(x, 0))


def linear_cumsum(Q, K, V, causal=False):
    q, k = _phi(Q), _phi(K)
    if not causal:
        return q @ (_t(k) @ V) / (q @ k.sum(axis=-2)[..., None])
    state = np.cumsum(k[..., None] * V[..., None, :], axis=-3)
    up = (q[..., None] * state).sum(axis=-2)
    return up / (q * np.cumsum(k, axis=-2)).sum(axis=-1, keepdims=True)


def linear_recurrence(Q, K, V, causal=False):
    q, k = _phi_expm1(Q), _phi_expm1(K)
    if not causal:
        return linear_cumsum(Q, K, V)
    state, total, out = 0.0, 0.0, []
    for i in range(Q.shape[-2]):
        state = state + k[..., i, :, None] * V[..., i, None, :]
        total = total + k[..., i, :]
        row = q[..., i, None, :]
        out.append(row @ state / (row @ total[..., None]))
    return np.concatenate(out, axis=-2)


def linear_column_of_ones(Q, K, V, causal=False):
    q, k = _phi_in_place(Q), _phi_in_place(K)
    wide = np.concatenate([V, np.ones((*V.shape[:-1], 1))], axis=-1)
    if causal:
        both = np.einsum(
            "...lk,...lkv->...lv", q, np.einsum("...lk,...lv->...lkv", k, wide).cumsum(-3)
        )
    else:
        both = np.einsum("...lk,...kv->...lv", q, np.einsum("...lk,...lv->...kv", k, wide))
    return both[..., :-1] / both[..., -1:]


def linear_in_chunks(Q, K, V, causal=False):
    """Pairs within a chunk of 16 tokens, a state for what came before."""
    if not causal:
        return linear_column_of_ones(Q, K, V)
    q, k = _phi_max(Q), _phi_max(K)
    state = np.zeros((*K.shape[:-2], K.shape[-1], V.shape[-1]))
    total = np.zeros((*K.shape[:-2], K.shape[-1], 1))
    out = np.empty((*Q.shape[:-1], V.shape[-1]))
    for a in range(0, Q.shape[-2], 16):
        c = slice(a, a + 16)
        pairs = np.tril(q[..., c, :] @ _t(k[..., c, :]))
        up = pairs @ V[..., c, :] + q[..., c, :] @ state
        out[..., c, :] = up / (pairs.sum(axis=-1, keepdims=True) + q[..., c, :] @ total)
        state = state + _t(k[..., c, :]) @ V[..., c, :]
        total = total + k[..., c, :].sum(axis=-2)[..., None]
    return out


def linear_feature_by_feature(Q, K, V, causal=False):
    q, k = _phi(Q), _phi(K)
    up, down = 0.0, 0.0
    for f in range(Q.shape[-1]):
        kv, kf = k[..., f, None] * V, k[..., f, None]
        if causal:
            kv, kf = kv.cumsum(axis=-2), kf.cumsum(axis=-2)
        else:
            kv, kf = kv.sum(axis=-2, keepdims=True), kf.sum(axis=-2, keepdims=True)
        up, down = up + q[..., f, None] * kv, down + q[..., f, None] * kf
    return up / down


def linear_query_rows(Q, K, V, causal=False):
    """One row of pairs at a time."""
    q, k = _phi(Q), _phi(K)
    out = np.empty((*Q.shape[:-1], V.shape[-1]))
    for i in range(Q.shape[-2]):
        seen = i + 1 if causal else K.shape[-2]
        w = (k[..., :seen, :] @ q[..., i, :, None])[..., 0]
        w /= w.sum(axis=-1, keepdims=True)
        out[..., i, :] = (w[..., None, :] @ V[..., :seen, :])[..., 0, :]
    return out


def linear_accumulate(Q, K, V, causal=False):
    q, k = _phi_expm1(Q), _phi_expm1(K)
    run = np.add.accumulate if causal else lambda x, axis: x.sum(axis=axis, keepdims=True)
    state = run(k[..., :, None] * V[..., None, :], axis=k.ndim - 2)
    total = run(k, axis=k.ndim - 2)
    up = (q[..., None, :] @ state)[..., 0, :]
    return up / (q * total).sum(axis=-1)[..., None]


def linear_normalized_first(Q, K, V, causal=False):
    q, k = _phi(Q), _phi(K)
    total = k.cumsum(axis=-2) if causal else k.sum(axis=-2, keepdims=True)
    q = q / (q * total).sum(axis=-1, keepdims=True)
    if not causal:
        return q @ (_t(k) @ V)
    return np.einsum("...lk,...lkv->...lv", q, np.cumsum(k[..., None] * V[..., None, :], axis=-3))


def linear_float32(Q, K, V, causal=False):
    return linear_cumsum(*(a.astype(np.float32) for a in (Q, K, V)), causal)


RIGHT_LINEAR = {
    "cumsum": linear_cumsum,
    "recurrence": linear_recurrence,
    "a column of ones": linear_column_of_ones,
    "chunks": linear_in_chunks,
    "feature by feature": linear_feature_by_feature,
    "row by row": linear_query_rows,
    "accumulate": linear_accumulate,
    "normalized first": linear_normalized_first,
    "float32 inside": linear_float32,
}
TRIVIAL_LINEAR = {
    "None": lambda Q, K, V, causal=False: None,
    "zeros": lambda Q, K, V, causal=False: np.zeros((*Q.shape[:-1], V.shape[-1])),
    "Q": lambda Q, K, V, causal=False: Q,
}


def linear_mean(Q, K, V, causal=False):
    count = np.arange(1, V.shape[-2] + 1)[:, None]
    mean = np.cumsum(V, axis=-2) / count if causal else V.mean(axis=-2, keepdims=True)
    return mean + np.zeros((*Q.shape[:-1], 1))


def linear_ordinary(Q, K, V, causal=False):
    return _softmax(_scores(Q, K, causal)) @ V


NEW_WRONG_LINEAR = {
    "plain mean": (linear_mean, "differs"),
    "ordinary attention": (linear_ordinary, "phi(x) is x + 1"),
}
RIGHT_MENDED_LINEAR = {how: partial(f, causal=True) for how, f in RIGHT_LINEAR.items()}
TRIVIAL_MENDED_LINEAR = {
    "None": lambda Q, K, V: None,
    "zeros": lambda Q, K, V: 0 * V,
    "Q": lambda Q, K, V: Q,
}
NEW_WRONG_MENDED_LINEAR = {
    "strictly causal state": (
        lambda Q, K, V: linear_cumsum(Q, np.roll(K, 1, axis=-2), V, True),
        "the last token",
    ),
    "not causal": (lambda Q, K, V: linear_cumsum(Q, K, V), "causal is True"),
}


# --- cached_attention ---


def cached_plain(Q, K, V, cache=None, window=None):
    if cache is not None:
        K, V = (np.concatenate(pair, axis=-2) for pair in zip(cache, (K, V), strict=True))
    n, m = Q.shape[-2], K.shape[-2]
    apart = np.arange(m - n, m)[:, None] - np.arange(m)
    seen = (apart >= 0) & (apart < (m if window is None else window))
    s = np.where(seen, Q @ _t(K) / np.sqrt(Q.shape[-1]), -np.inf)
    start = 0 if window is None else max(0, m - window)
    return _softmax(s) @ V, (K[..., start:, :], V[..., start:, :])


def cached_one_by_one(Q, K, V, cache=None, window=None):
    keys, values = ([], []) if cache is None else (list(np.moveaxis(x, -2, 0)) for x in cache)
    out = []
    for i in range(Q.shape[-2]):
        keys.append(K[..., i, :])
        values.append(V[..., i, :])
        if window is not None:
            keys, values = keys[-window:], values[-window:]
        k, v = np.stack(keys, axis=-2), np.stack(values, axis=-2)
        s = np.einsum("...d,...jd->...j", Q[..., i, :], k) / np.sqrt(Q.shape[-1])
        out.append(np.einsum("...j,...jv->...v", _softmax(s), v))
    return np.stack(out, axis=-2), (k, v)


def cached_lean(Q, K, V, cache=None, window=None):
    """Keep one token less: the next one sees itself and window - 1 others."""
    output, (k, v) = cached_plain(Q, K, V, cache, window)
    if window is None:
        return output, (k, v)
    keep = np.arange(k.shape[-2])[-(window - 1) :] if window > 1 else []
    return output, tuple(np.take(x, np.array(keep, dtype=int), axis=-2) for x in (k, v))


def cached_as_a_list(Q, K, V, cache=None, window=None):
    output, cache = cached_plain(Q, K, V, cache, window)
    return [output, [part.copy() for part in cache]]


def cached_tri(Q, K, V, cache=None, window=None):
    k, v = (K, V) if cache is None else (np.append(cache[0], K, -2), np.append(cache[1], V, -2))
    old = k.shape[-2] - Q.shape[-2]
    hidden = ~np.tri(Q.shape[-2], k.shape[-2], old, dtype=bool)
    if window:
        hidden |= np.tri(Q.shape[-2], k.shape[-2], old - window, dtype=bool)
    s = Q @ _t(k) / np.sqrt(Q.shape[-1])
    s[..., hidden] = -np.inf
    return _softmax(s) @ v, ((k, v) if not window else (k[..., -window:, :], v[..., -window:, :]))


def cached_preallocated(Q, K, V, cache=None, window=None):
    old = 0 if cache is None else cache[0].shape[-2]
    n = Q.shape[-2]
    k = np.empty((*K.shape[:-2], old + n, K.shape[-1]))
    v = np.empty((*V.shape[:-2], old + n, V.shape[-1]))
    if old:
        k[..., :old, :], v[..., :old, :] = cache
    k[..., old:, :], v[..., old:, :] = K, V
    output = np.empty((*Q.shape[:-1], V.shape[-1]))
    for i in range(n):
        stop = old + i + 1
        start = 0 if window is None else max(0, stop - window)
        s = Q[..., i : i + 1, :] @ _t(k[..., start:stop, :]) / np.sqrt(Q.shape[-1])
        output[..., i : i + 1, :] = _softmax(s) @ v[..., start:stop, :]
    keep = slice(None if window is None else max(0, old + n - window), None)
    return output, (k[..., keep, :], v[..., keep, :])


def cached_chunks(Q, K, V, cache=None, window=None):
    _, (k, v) = cached_plain(K, K, V, cache, None)
    i = np.arange(k.shape[-2])
    apart = i[-Q.shape[-2] :, None] - i
    seen = (apart >= 0) & (apart < (window or len(i)))
    cut = slice(-window if window else None, None)
    return chunked_plain(Q, k, v, 3, seen), (k[..., cut, :], v[..., cut, :])


def cached_torch(Q, K, V, cache=None, window=None):
    if cache is not None:
        K, V = np.concatenate([cache[0], K], -2), np.concatenate([cache[1], V], -2)
    i = torch.arange(K.shape[-2])
    apart = i[-Q.shape[-2] :, None] - i
    seen = (apart >= 0) & (apart < (window or len(i)))
    q, k, v = (torch.tensor(x) for x in (Q, K, V))
    output = F.scaled_dot_product_attention(q, k, v, seen).numpy()
    return output, tuple(x if window is None else x[..., -window:, :] for x in (K, V))


def cached_last_rows(Q, K, V, cache=None, window=None):
    """Pad the queries, take the square pass, and keep the last rows."""
    if cache is not None:
        K, V = np.concatenate([cache[0], K], -2), np.concatenate([cache[1], V], -2)
    old = K.shape[-2] - Q.shape[-2]
    q = np.concatenate([np.zeros((*Q.shape[:-2], old, Q.shape[-1])), Q], axis=-2)
    output = queries_plain(q, K, V, 4, window)[..., old:, :]
    return output, (K, V) if window is None else (K[..., -window:, :], V[..., -window:, :])


RIGHT_CACHED = {
    "plain": cached_plain,
    "one by one": cached_one_by_one,
    "as few as possible": cached_lean,
    "a list": cached_as_a_list,
    "np.tri": cached_tri,
    "preallocated": cached_preallocated,
    "chunks": cached_chunks,
    "PyTorch": cached_torch,
    "the last rows": cached_last_rows,
}
TRIVIAL_CACHED = {
    "None": lambda Q, K, V, cache=None, window=None: None,
    "zeros": lambda Q, K, V, cache=None, window=None: (0 * V, None),
    "the values": lambda Q, K, V, cache=None, window=None: (Q, None),
}


def cached_uniform(Q, K, V, cache=None, window=None):
    output, cache = cached_plain(0 * Q, K, V, cache, window)
    return output, cache


def cached_without_memory(Q, K, V, cache=None, window=None):
    return cached_plain(Q, K, V, None, window)


NEW_WRONG_CACHED = {
    "uniform": (cached_uniform, "differs"),
    "without memory": (cached_without_memory, "new token after 1 others"),
}


RIGHT = {
    "predicted_score_memory": RIGHT_SCORES,
    "chunked_attention": RIGHT_CHUNKED,
    "mended_chunked_attention": RIGHT_MENDED_CHUNKED,
    "chunked_attention_backward": RIGHT_BACKWARD,
    "causal_attention_by_query_chunks": RIGHT_QUERIES,
    "predicted_chunks": RIGHT_PAIRS,
    "mended_window_attention": RIGHT_WINDOW,
    "local_global_mask": RIGHT_BLOCKS,
    "topk_attention": RIGHT_TOPK,
    "linear_attention": RIGHT_LINEAR,
    "mended_linear_attention": RIGHT_MENDED_LINEAR,
    "cached_attention": RIGHT_CACHED,
    "predicted_cache_memory": RIGHT_CACHES,
}
TRIVIAL = {
    "predicted_score_memory": TRIVIAL_NUMBERS,
    "chunked_attention": TRIVIAL_CHUNKED,
    "mended_chunked_attention": TRIVIAL_MENDED_CHUNKED,
    "chunked_attention_backward": TRIVIAL_BACKWARD,
    "causal_attention_by_query_chunks": TRIVIAL_QUERIES,
    "predicted_chunks": TRIVIAL_NUMBERS,
    "mended_window_attention": TRIVIAL_WINDOW,
    "local_global_mask": TRIVIAL_BLOCKS,
    "topk_attention": TRIVIAL_TOPK,
    "linear_attention": TRIVIAL_LINEAR,
    "mended_linear_attention": TRIVIAL_MENDED_LINEAR,
    "cached_attention": TRIVIAL_CACHED,
    "predicted_cache_memory": TRIVIAL_NUMBERS,
}
NEW_WRONG = {
    "predicted_score_memory": NEW_WRONG_SCORES,
    "chunked_attention": NEW_WRONG_CHUNKED,
    "mended_chunked_attention": NEW_WRONG_MENDED_CHUNKED,
    "chunked_attention_backward": NEW_WRONG_BACKWARD,
    "causal_attention_by_query_chunks": NEW_WRONG_QUERIES,
    "predicted_chunks": NEW_WRONG_PAIRS,
    "mended_window_attention": NEW_WRONG_WINDOW,
    "local_global_mask": NEW_WRONG_BLOCKS,
    "topk_attention": NEW_WRONG_TOPK,
    "linear_attention": NEW_WRONG_LINEAR,
    "mended_linear_attention": NEW_WRONG_MENDED_LINEAR,
    "cached_attention": NEW_WRONG_CACHED,
    "predicted_cache_memory": NEW_WRONG_CACHES,
}
