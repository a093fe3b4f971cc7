"""Right answers to exercise 4, written in unlike ways, and wrong ones that are not in the bank."""

import itertools
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)  # for tensors this small, threads only cost time


# --- predictions ---

RIGHT_COUNTS = {"integers": (11, 15, 13), "a list of floats": [11.0, 15.0, 13.0]}
TRIVIAL_COUNTS = {
    "None": None,
    "zeros": (0, 0, 0),
    "strings": ("11", "15", "13"),
    "two numbers": (11, 15),
    "true": (True, True, True),
}
NEW_WRONG_COUNTS = {
    "one cached key too few": ((10, 15, 13), "There are not 10 pairs"),
    "two documents of three": ((11, 15, 12), "There are not 12 pairs"),
}

RIGHT_WEIGHTS = {
    "decimals": (0.5, 1, 0.155),
    "fractions": [1 / 2, 1.0, 1 / (2 * math.e + 1)],
}
TRIVIAL_WEIGHTS = {
    "None": None,
    "zeros": (0, 0, 0),
    "thirds": (1 / 3, 1 / 3, 1 / 3),
    "strings": ("0.5", "1", "0.155"),
    "one number": 0.5,
    "true": (True, True, True),
}
NEW_WRONG_WEIGHTS = {
    "not divided": ((1.0, 1.0, 0.155), "(a) The weight of cats is not 1"),
    "two decimals": ((0.5, 1.0, 0.16), "(c) 0.16 is near: give three decimals."),
    "cut off": ((0.5, 1.0, 0.15), "(c) 0.15 is near: give three decimals."),
    "powers of two": ((0.5, 1.0, 0.2), "(c) The weight of mice is not 0.2"),
}


# --- padding ---


def padding_compared(lengths, max_len):
    return (np.arange(max_len) < np.asarray(lengths)[:, None])[:, None, None, :]


def padding_sliced(lengths, max_len):
    mask = np.zeros((len(lengths), 1, 1, max_len), dtype=bool)
    for b, length in enumerate(lengths):
        mask[b, 0, 0, :length] = True
    return mask


def padding_from_lists(lengths, max_len):
    return np.array([[[[j < n for j in range(max_len)]]] for n in lengths])


def padding_by_outer(lengths, max_len):
    return np.greater.outer(np.array(lengths), np.arange(max_len)).reshape(-1, 1, 1, max_len)


def padding_from_triangle(lengths, max_len):
    rows = np.tri(max_len + 1, max_len, k=-1, dtype=bool)  # row n has n ones
    return rows[np.array(lengths)][:, np.newaxis, np.newaxis]


def padding_cumulated(lengths, max_len):
    ends = np.zeros((len(lengths), max_len + 1), dtype=int)
    ends[np.arange(len(lengths)), lengths] = 1
    return np.expand_dims(ends.cumsum(axis=1)[:, :-1] == 0, (1, 2))


def padding_repeated(lengths, max_len):
    rows = [np.repeat([True, False], [n, max_len - n]) for n in lengths]
    return np.stack(rows).reshape(len(lengths), 1, 1, max_len)


def padding_by_pad(lengths, max_len):
    rows = [np.pad(np.full(n, True), (0, max_len - n)) for n in lengths]
    return np.array(rows)[:, None, None]


def padding_inverted_twice(lengths, max_len):
    lengths = np.array(lengths).reshape(-1, 1, 1, 1)
    return np.logical_not(np.arange(max_len).reshape(1, 1, 1, -1) >= lengths)


RIGHT_PADDING = {
    "compared": padding_compared,
    "sliced": padding_sliced,
    "lists": padding_from_lists,
    "outer": padding_by_outer,
    "rows of a triangle": padding_from_triangle,
    "cumulated": padding_cumulated,
    "repeated": padding_repeated,
    "padded": padding_by_pad,
    "inverted twice": padding_inverted_twice,
}
TRIVIAL_PADDING = {
    "None": lambda lengths, max_len: None,
    "all true": lambda lengths, max_len: np.ones((len(lengths), 1, 1, max_len), dtype=bool),
    "all false": lambda lengths, max_len: np.zeros((len(lengths), 1, 1, max_len), dtype=bool),
    "the lengths": lambda lengths, max_len: lengths,
}


def padding_every_other(lengths, max_len):
    mask = padding_compared(lengths, max_len)
    mask[..., 1::2] = False
    return mask


def padding_of_the_longest_for_all(lengths, max_len):
    return padding_compared([max(lengths)] * len(lengths), max_len)


NEW_WRONG_PADDING = {
    "every other": (padding_every_other, "mask[0, 0, 0] is"),
    "the longest for all": (padding_of_the_longest_for_all, "rows differ"),
}


# --- causal ---


def causal_by_index(L):
    i = np.arange(L)
    return i[:, None] >= i


def causal_in_loops(L):
    mask = np.zeros((L, L), dtype=bool)
    for i in range(L):
        mask[i, : i + 1] = True
    return mask


def causal_not_above(L):
    return ~np.triu(np.ones((L, L), dtype=bool), k=1)


def causal_by_tri(L):
    return np.tri(L, dtype=bool)


def causal_from_indices(L):
    mask = np.full((L, L), False)
    mask[np.tril_indices(L)] = True
    return mask


def causal_from_function(L):
    return np.fromfunction(lambda i, j: j <= i, (L, L))


def causal_cumulated(L):
    return np.eye(L).cumsum(axis=0) > 0


def causal_from_product(L):
    return np.reshape([i >= j for i, j in itertools.product(range(L), repeat=2)], (L, L))


def causal_from_matrix(L):
    return np.array(np.tril(np.full((L, L), 3.0)) != 0)


RIGHT_CAUSAL = {
    "index": causal_by_index,
    "loops": causal_in_loops,
    "not above": causal_not_above,
    "tri": causal_by_tri,
    "indices": causal_from_indices,
    "function": causal_from_function,
    "cumulated": causal_cumulated,
    "product": causal_from_product,
    "non-zero": causal_from_matrix,
}
TRIVIAL_CAUSAL = {
    "None": lambda L: None,
    "all true": lambda L: np.ones((L, L), dtype=bool),
    "all false": lambda L: np.zeros((L, L), dtype=bool),
    "the length": lambda L: L,
}


def causal_without_first_key(L):
    mask = causal_by_index(L)
    mask[1:, 0] = False
    return mask


def causal_every_other(L):
    i = np.arange(L)
    return causal_by_index(L) & ((i[:, None] - i) % 2 == 0)


NEW_WRONG_CAUSAL = {
    "first key hidden": (causal_without_first_key, "mask[1] is"),
    "every other": (causal_every_other, "mask[1] is"),
}


# --- causal with a cache ---


def rect_compared(L_q, L_k):
    return np.arange(L_k) <= np.arange(L_k - L_q, L_k)[:, None]


def rect_tril(L_q, L_k):
    return np.tril(np.ones((L_q, L_k), dtype=bool), k=L_k - L_q)


def rect_last_rows(L_q, L_k):
    return causal_by_index(L_k)[L_k - L_q :]


def rect_loops(L_q, L_k):
    mask = np.zeros((L_q, L_k), dtype=bool)
    for i in range(L_q):
        mask[i, : L_k - L_q + i + 1] = True
    return mask


def rect_joined(L_q, L_k):
    cache = np.ones((L_q, L_k - L_q), dtype=bool)
    return np.concatenate([cache, causal_by_index(L_q)], axis=1)


def rect_tri(L_q, L_k):
    return np.tri(L_q, L_k, L_k - L_q, dtype=bool)


def rect_turned_right(L_q, L_k):
    return np.triu(np.full((L_q, L_k), True))[::-1, ::-1]


def rect_lists(L_q, L_k):
    return np.array([[L_k - j >= L_q - i for j in range(L_k)] for i in range(L_q)])


RIGHT_RECT = {
    "compared": rect_compared,
    "tril": rect_tril,
    "last rows": rect_last_rows,
    "loops": rect_loops,
    "joined": rect_joined,
    "tri": rect_tri,
    "turned": rect_turned_right,
    "lists": rect_lists,
}
TRIVIAL_RECT = {
    "None": lambda L_q, L_k: None,
    "all true": lambda L_q, L_k: np.ones((L_q, L_k), dtype=bool),
    "all false": lambda L_q, L_k: np.zeros((L_q, L_k), dtype=bool),
}
NEW_WRONG_RECT = {
    "keys from the end": (lambda L_q, L_k: rect_tri(L_q, L_k)[:, ::-1], "mask[0] is"),
    "cache only": (
        lambda L_q, L_k: np.tile(np.arange(L_k) < max(L_k - L_q, 1), (L_q, 1)),
        "the first query stands at position",
    ),
}


# --- both ---


def combined_indexed(keep, causal):
    return keep[:, None, None, :] & causal[None, None, :, :]


def combined_logical(keep, causal):
    return np.logical_and(np.expand_dims(keep, (1, 2)), causal)


def combined_loops(keep, causal):
    return np.array([[np.where(row, causal, False)] for row in keep])


def combined_product(keep, causal):
    return (keep[:, None, None] * causal).astype(bool)


def combined_einsum(keep, causal):
    return np.einsum("bj,ij->bij", keep, causal)[:, np.newaxis] != 0


def combined_minimum(keep, causal):
    return np.minimum(keep.reshape(keep.shape[0], 1, 1, -1), causal)


def combined_forbidden(keep, causal):
    return ~(~keep[:, None, None, :] | ~causal)


def combined_assigned(keep, causal):
    B, L = keep.shape
    mask = np.broadcast_to(causal, (B, 1, L, L)).copy()
    for b in range(B):
        mask[b, :, :, ~keep[b]] = False
    return mask


def combined_where(keep, causal):
    return np.where(keep[:, None, None, :], causal[None, None], False)


RIGHT_COMBINED = {
    "indexed": combined_indexed,
    "logical_and": combined_logical,
    "loops": combined_loops,
    "product": combined_product,
    "einsum": combined_einsum,
    "minimum": combined_minimum,
    "forbidden": combined_forbidden,
    "assigned": combined_assigned,
    "where": combined_where,
}
TRIVIAL_COMBINED = {
    "None": lambda keep, causal: None,
    "all true": lambda keep, causal: np.ones((len(keep), 1, *causal.shape), dtype=bool),
    "all false": lambda keep, causal: np.zeros((len(keep), 1, *causal.shape), dtype=bool),
    "causal": lambda keep, causal: causal,
}
NEW_WRONG_COMBINED = {
    "neither": (lambda keep, causal: ~keep[:, None, None] & ~causal, "rows differ"),
    "exclusive or": (lambda keep, causal: keep[:, None, None] ^ causal, "rows differ"),
}


# --- sliding window ---


def window_compared(L, window):
    i = np.arange(L)
    distance = i[:, None] - i
    return (distance >= 0) & (distance < window)


def window_two_triangles(L, window):
    ones = np.ones((L, L), dtype=bool)
    return np.tril(ones) & np.triu(ones, k=1 - window)


def window_loops(L, window):
    mask = np.zeros((L, L), dtype=bool)
    for i in range(L):
        mask[i, max(0, i - window + 1) : i + 1] = True
    return mask


def window_diagonals(L, window):
    return sum(np.eye(L, k=-n) for n in range(min(window, L))) > 0


def window_exclusive(L, window):
    return np.tri(L, dtype=bool) ^ np.tri(L, k=-window, dtype=bool)


def window_lists(L, window):
    return np.array([[j in range(i - window + 1, i + 1) for j in range(L)] for i in range(L)])


def window_difference(L, window):
    return (np.tri(L) - np.tri(L, k=-window)).astype(bool)


def window_from_function(L, window):
    return np.fromfunction(lambda i, j: (j <= i) * (j > i - window) == 1, (L, L))


def window_convolved(L, window):
    rows = [np.convolve(row, np.ones(window))[:L] for row in np.eye(L)]
    return np.array(rows).T > 0.5


RIGHT_WINDOW = {
    "compared": window_compared,
    "two triangles": window_two_triangles,
    "loops": window_loops,
    "diagonals": window_diagonals,
    "exclusive or": window_exclusive,
    "lists": window_lists,
    "difference": window_difference,
    "function": window_from_function,
    "convolved": window_convolved,
}
TRIVIAL_WINDOW = {
    "None": lambda L, window: None,
    "all true": lambda L, window: np.ones((L, L), dtype=bool),
    "all false": lambda L, window: np.zeros((L, L), dtype=bool),
}


def window_dilated(L, window):
    i = np.arange(L)
    distance = i[:, None] - i
    return (distance >= 0) & (distance < 2 * window) & (distance % 2 == 0)


def window_the_far_past(L, window):
    i = np.arange(L)
    return i[:, None] - i >= window


NEW_WRONG_WINDOW = {
    "dilated": (window_dilated, "mask["),
    "all but the window": (window_the_far_past, "mask[0] is"),
}


# --- pooling ---


def pooled_where(x, keep):
    total = np.where(keep[..., None], x, 0.0).sum(axis=1)
    return total / np.maximum(keep.sum(axis=1), 1)[:, None]


def pooled_loops(x, keep):
    pooled = np.zeros((x.shape[0], x.shape[2]))
    for b in range(x.shape[0]):
        if keep[b].any():
            pooled[b] = x[b][keep[b]].mean(axis=0)
    return pooled


def pooled_reduction(x, keep):
    total = np.sum(x, axis=1, where=keep[:, :, None])
    count = keep.sum(axis=1, keepdims=True)
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def pooled_copy(x, keep):
    x = x.copy()
    x[~keep] = 0
    return np.einsum("bld->bd", x) / np.clip(keep.sum(1), 1, None)[:, np.newaxis]


def pooled_masked_array(x, keep):
    hidden = np.broadcast_to(~keep[..., None], x.shape)
    return np.ma.array(x, mask=hidden).mean(axis=1).filled(0.0)


def pooled_as_weights(x, keep):
    shares = keep / np.maximum(keep.sum(axis=-1, keepdims=True), 1)
    clean = np.where(keep[..., None], x, 0.0)
    return (shares[:, None, :] @ clean)[:, 0]


def pooled_float32(x, keep):
    return pooled_where(np.where(keep[..., None], x, 0).astype(np.float32), keep)


def pooled_cumulated(x, keep):
    mean, count = np.zeros((x.shape[0], x.shape[2])), np.zeros((x.shape[0], 1))
    for i in range(x.shape[1]):
        count += keep[:, i, None]
        mean = np.where(keep[:, i, None], mean + (x[:, i] - mean) / np.maximum(count, 1), mean)
    return mean


def pooled_plain_python(x, keep):
    rows = []
    for tokens, kept in zip(x.tolist(), keep.tolist(), strict=True):
        chosen = [token for token, k in zip(tokens, kept, strict=True) if k]
        rows.append([sum(c) / len(c) for c in zip(*chosen, strict=True)] or [0.0] * x.shape[2])
    return np.array(rows)


def pooled_tiny_denominator(x, keep):
    total = np.where(keep[..., None], x, 0.0).sum(axis=1)
    return total / (keep.sum(axis=1)[:, None] + 1e-9)


RIGHT_POOLED = {
    "where": pooled_where,
    "loops": pooled_loops,
    "reduction with where": pooled_reduction,
    "copy": pooled_copy,
    "masked array": pooled_masked_array,
    "as weights": pooled_as_weights,
    "float32 inside": pooled_float32,
    "running mean": pooled_cumulated,
    "plain Python": pooled_plain_python,
    "tiny denominator": pooled_tiny_denominator,
}
TRIVIAL_POOLED = {
    "None": lambda x, keep: None,
    "zeros": lambda x, keep: np.zeros((x.shape[0], x.shape[2])),
    "the input": lambda x, keep: x,
    "keep": lambda x, keep: keep,
}


def pooled_squared(x, keep):
    return pooled_where(x, keep) ** 2


def pooled_halves(x, keep):
    return pooled_where(x, keep) / 2


NEW_WRONG_POOLED = {
    "squared": (pooled_squared, "result[0] differs"),
    "halved": (pooled_halves, "result[0] differs"),
}


# --- attention under a mask ---


def _rows(scores):
    """Softmax over the last axis; a row of -inf alone gives zeros."""
    peak = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0.0))
    total = e.sum(axis=-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def attend_joined(Q, K, V, mask=None, causal=False):
    scores = Q @ np.swapaxes(K, -1, -2) / math.sqrt(K.shape[-1])
    allowed = np.ones(scores.shape, dtype=bool)
    if mask is not None:
        allowed &= np.broadcast_to(mask, scores.shape)
    if causal:
        allowed &= rect_compared(*scores.shape[-2:])
    weights = _rows(np.where(allowed, scores, -np.inf))
    return weights @ V, weights


def attend_filled_in_turn(Q, K, V, mask=None, causal=False):
    scores = np.einsum("...qd,...kd->...qk", Q, K) * K.shape[-1] ** -0.5
    if mask is not None:
        scores = np.where(np.broadcast_to(mask, scores.shape), scores, -np.inf)
    if causal:
        scores = np.where(rect_tril(*scores.shape[-2:]), scores, -np.inf)
    weights = _rows(scores)
    return np.einsum("...qk,...kv->...qv", weights, V), weights


def attend_query_by_query(Q, K, V, mask=None, causal=False):
    (*lead, L_q, d_k), L_k = Q.shape, K.shape[-2]
    allowed = np.broadcast_to(True if mask is None else mask, (*lead, L_q, L_k))
    weights = np.zeros((*lead, L_q, L_k))
    output = np.zeros((*lead, L_q, V.shape[-1]))
    for index in np.ndindex(*lead, L_q):
        last = L_k - L_q + index[-1] if causal else L_k
        keys = [j for j in np.flatnonzero(allowed[index]) if j <= last]
        if keys:
            scores = [float(Q[index] @ K[index[:-1]][j]) / d_k**0.5 for j in keys]
            exps = [math.exp(score - max(scores)) for score in scores]
            for j, e in zip(keys, exps, strict=True):
                weights[index][j] = e / sum(exps)
                output[index] += weights[index][j] * V[index[:-1]][j]
    return output, weights


def attend_added(Q, K, V, mask=None, causal=False):
    scores = Q @ np.swapaxes(K, -1, -2) / math.sqrt(K.shape[-1])
    shape = scores.shape
    if mask is not None:
        scores = scores + np.log(np.broadcast_to(mask, shape).astype(float))
    if causal:
        scores = scores + np.where(rect_loops(*shape[-2:]), 0.0, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = np.nan_to_num(e / e.sum(axis=-1, keepdims=True))
    return weights @ V, weights


def attend_exponentials_masked(Q, K, V, mask=None, causal=False):
    scores = Q @ np.swapaxes(K, -1, -2) / math.sqrt(K.shape[-1])
    allowed = True if mask is None else mask
    if causal:
        allowed = allowed & rect_joined(*scores.shape[-2:])
    allowed = np.broadcast_to(allowed, scores.shape)
    peak = np.max(scores, axis=-1, keepdims=True, where=allowed, initial=-np.inf)
    exps = np.where(allowed, np.exp(np.minimum(scores - peak, 0)), 0)
    weights = exps / np.maximum(exps.sum(axis=-1, keepdims=True), 1e-6)
    return weights @ V, weights


def attend_checked(Q, K, V, mask=None, causal=False):
    scores = np.matmul(Q, K.swapaxes(-1, -2)) / np.sqrt(Q.shape[-1])
    if mask is not None:
        if np.broadcast_shapes(mask.shape, scores.shape) != scores.shape:
            raise ValueError("the mask enlarges the scores")
        scores = np.where(mask, scores, -np.inf)
    if causal:
        L_q, L_k = scores.shape[-2:]
        scores = np.where(np.tri(L_q, L_k, L_k - L_q, dtype=bool), scores, -np.inf)
    weights = _rows(scores.astype(float))
    return [weights @ V, weights]


def attend_float32(Q, K, V, mask=None, causal=False):
    return attend_joined(*(a.astype(np.float32) for a in (Q, K, V)), mask, causal)


def attend_lowest_number(Q, K, V, mask=None, causal=False):
    scores = Q @ np.swapaxes(K, -1, -2) / math.sqrt(K.shape[-1])
    allowed = np.broadcast_to(True if mask is None else mask, scores.shape)
    if causal:
        allowed = allowed & rect_last_rows(*scores.shape[-2:])
    scores = np.where(allowed, scores, np.finfo(scores.dtype).min)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = e / e.sum(axis=-1, keepdims=True) * allowed
    return weights @ V, weights


def attend_flattened(Q, K, V, mask=None, causal=False):
    lead, L_q, L_k = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    allowed = np.broadcast_to(True if mask is None else mask, (*lead, L_q, L_k))
    parts = [array.reshape(-1, *array.shape[-2:]) for array in (Q, K, V, allowed)]
    results = [attend_joined(*problem, causal) for problem in zip(*parts, strict=True)]
    output, weights = (np.stack(result) for result in zip(*results, strict=True))
    return output.reshape(*lead, L_q, V.shape[-1]), weights.reshape(*lead, L_q, L_k)


RIGHT_ATTENTION = {
    "joined": attend_joined,
    "filled in turn": attend_filled_in_turn,
    "query by query": attend_query_by_query,
    "added": attend_added,
    "exponentials masked": attend_exponentials_masked,
    "checked": attend_checked,
    "float32 inside": attend_float32,
    "lowest number": attend_lowest_number,
    "flattened": attend_flattened,
}
TRIVIAL_ATTENTION = {
    "None": lambda Q, K, V, mask=None, causal=False: None,
    "zeros": lambda Q, K, V, mask=None, causal=False: (
        np.zeros((*Q.shape[:-1], V.shape[-1])),
        np.zeros((*Q.shape[:-1], K.shape[-2])),
    ),
    "uniform": lambda Q, K, V, mask=None, causal=False: (
        np.full((*Q.shape[:-1], V.shape[-1]), V.mean()),
        np.full((*Q.shape[:-1], K.shape[-2]), 1 / K.shape[-2]),
    ),
}


def attend_hidden_values_zeroed(Q, K, V, mask=None, causal=False):
    output, weights = attend_joined(Q, K, V, mask, causal)
    return output * 0.9, weights


def attend_first_key_always(Q, K, V, mask=None, causal=False):
    if mask is not None:
        mask = np.array(mask)
        mask[..., 0] = True
    return attend_joined(Q, K, V, mask, causal)


NEW_WRONG_ATTENTION = {
    "output a little smaller": (attend_hidden_values_zeroed, "output[0] differs"),
    "first key always": (attend_first_key_always, "weights["),
}


# --- packed sequences ---


def packed_compared(segments):
    same = segments[:, :, None] == segments[:, None, :]
    real = (segments >= 0)[:, None, :]
    return (same & real & np.tri(segments.shape[1], dtype=bool))[:, None]


def packed_loops(segments):
    B, L = segments.shape
    mask = np.zeros((B, 1, L, L), dtype=bool)
    for b in range(B):
        for i in range(L):
            for j in range(i + 1):
                mask[b, 0, i, j] = segments[b, i] == segments[b, j] >= 0
    return mask


def packed_one_number_at_a_time(segments):
    B, L = segments.shape
    mask = np.zeros((B, L, L), dtype=bool)
    for number in np.unique(segments[segments >= 0]):
        member = segments == number
        mask |= member[:, :, None] & member[:, None, :]
    return np.tril(mask).reshape(B, 1, L, L)


def packed_one_hot(segments):
    numbers = np.unique(segments)
    hot = (segments[..., None] == numbers) & (numbers >= 0)  # (B, L, N)
    return np.tril(np.einsum("bin,bjn->bij", hot, hot, dtype=int) > 0)[:, None]


def packed_difference(segments):
    renamed = segments.astype(float)
    renamed[segments < 0] = np.nan  # equal to nothing
    gap = renamed[:, None, :, None] - renamed[:, None, None, :]
    return (gap == 0) & causal_by_index(segments.shape[1])


def packed_by_block(segments):
    B, L = segments.shape
    mask = np.zeros((B, 1, L, L), dtype=bool)
    for b in range(B):
        edges = [0, *(np.flatnonzero(np.diff(segments[b])) + 1), L]
        for start, stop in itertools.pairwise(edges):
            if segments[b, start] >= 0:
                mask[b, 0, start:stop, start:stop] = causal_by_tri(stop - start)
    return mask


def packed_product(segments):
    i, j = segments[:, :, None] + 1, segments[:, None, :] + 1
    return np.tril((i * j == i * i) * (i > 0)).astype(bool)[:, None, :, :]


def packed_own_number_for_padding(segments):
    L = segments.shape[1]
    query = np.where(segments < 0, -2, segments)[:, None, :, None]
    return (query == segments[:, None, None, :]) & ~np.triu(np.ones((L, L), dtype=bool), k=1)


RIGHT_PACKED = {
    "compared": packed_compared,
    "loops": packed_loops,
    "one number at a time": packed_one_number_at_a_time,
    "one-hot": packed_one_hot,
    "difference": packed_difference,
    "block by block": packed_by_block,
    "product": packed_product,
    "own number for padding": packed_own_number_for_padding,
}


def _square(segments):
    B, L = segments.shape
    return (B, 1, L, L)


TRIVIAL_PACKED = {
    "None": lambda segments: None,
    "all true": lambda segments: np.ones(_square(segments), dtype=bool),
    "all false": lambda segments: np.zeros(_square(segments), dtype=bool),
    "the input": lambda segments: segments,
}
NEW_WRONG_PACKED = {
    "other segments only": (
        lambda segments: packed_compared(segments) ^ causal_by_index(segments.shape[1]),
        "mask[0, 0, 0] is",
    ),
    "first document only": (
        lambda segments: packed_compared(np.where(segments == segments[:, :1], segments, -1)),
        "rows differ",
    ),
}


# --- prefix ---


def prefix_or(prefix_lengths, L):
    key = np.arange(L)
    return (key < prefix_lengths[:, None])[:, None, None, :] | np.tri(L, dtype=bool)


def prefix_sliced(prefix_lengths, L):
    mask = np.tile(causal_by_index(L), (len(prefix_lengths), 1, 1, 1))
    for b, length in enumerate(prefix_lengths):
        mask[b, :, :, :length] = True
    return mask


def prefix_maximum(prefix_lengths, L):
    first_hidden = np.maximum(prefix_lengths[:, None], np.arange(1, L + 1))  # (B, L)
    return np.arange(L) < first_hidden[:, None, :, None]


def prefix_lists(prefix_lengths, L):
    return np.array(
        [[[[j < p or j <= i for j in range(L)] for i in range(L)]] for p in prefix_lengths]
    )


def prefix_forbidden(prefix_lengths, L):
    later = np.triu(np.ones((L, L), dtype=bool), k=1)
    rest = np.arange(L) >= np.asarray(prefix_lengths).reshape(-1, 1, 1, 1)
    return ~(later & rest)


def prefix_where(prefix_lengths, L):
    in_prefix = np.less.outer(np.arange(L), prefix_lengths).T[:, None, None]
    return np.where(in_prefix, True, causal_by_tri(L))


def prefix_stacked(prefix_lengths, L):
    masks = []
    for length in prefix_lengths:
        left = np.ones((L, length), dtype=bool)
        masks.append([np.hstack([left, causal_by_tri(L)[:, length:]])])
    return np.array(masks)


def prefix_added(prefix_lengths, L):
    columns = np.arange(L)[None, None, None] < prefix_lengths[:, None, None, None]
    return np.tri(L) + columns > 0


RIGHT_PREFIX = {
    "or": prefix_or,
    "sliced": prefix_sliced,
    "maximum": prefix_maximum,
    "lists": prefix_lists,
    "forbidden": prefix_forbidden,
    "where": prefix_where,
    "stacked": prefix_stacked,
    "added": prefix_added,
}
TRIVIAL_PREFIX = {
    "None": lambda prefix_lengths, L: None,
    "all true": lambda prefix_lengths, L: np.ones((len(prefix_lengths), 1, L, L), dtype=bool),
    "all false": lambda prefix_lengths, L: np.zeros((len(prefix_lengths), 1, L, L), dtype=bool),
}
NEW_WRONG_PREFIX = {
    "prefix from the end": (
        lambda prefix_lengths, L: prefix_or(prefix_lengths, L)[..., ::-1],
        "rows differ",
    ),
    "twice as long": (lambda prefix_lengths, L: prefix_or(2 * prefix_lengths, L), "rows differ"),
}


# --- converters ---


def convert_by_cases(interface, mask, num_heads=1):
    if interface == "sdpa":
        return mask
    if interface == "float":
        return torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    if interface == "key_padding_mask":
        return ~mask[:, 0, 0, :]
    B, _, L_q, L_k = mask.shape
    return ~mask.expand(B, num_heads, L_q, L_k).reshape(B * num_heads, L_q, L_k)


def convert_repeat_interleave(interface, mask, num_heads=1):
    match interface:
        case "sdpa":
            return mask.clone()
        case "float":
            return mask.float().log()
        case "key_padding_mask":
            return mask.squeeze(2).squeeze(1).logical_not()
        case _:
            return mask.squeeze(1).repeat_interleave(num_heads, dim=0).logical_not()


def convert_from_table(interface, mask, num_heads=1):
    table = {
        "sdpa": lambda: mask.bool(),
        "float": lambda: torch.where(mask, 0.0, float("-inf")),
        "key_padding_mask": lambda: mask.logical_not().flatten(1),
        "attn_mask": lambda: torch.cat(
            [one.expand(num_heads, *one.shape[1:]) for one in mask.logical_not()]
        ),
    }
    return table[interface]()


def convert_numpy(interface, mask, num_heads=1):
    array = mask.numpy()
    if interface == "sdpa":
        made = array.copy()
    elif interface == "float":
        made = np.where(array, 0, -np.inf).astype(np.float32)
    elif interface == "key_padding_mask":
        made = ~array[:, 0, 0]
    else:
        made = ~np.repeat(array[:, 0], num_heads, axis=0)
    return torch.from_numpy(made)


def convert_loops(interface, mask, num_heads=1):
    if interface == "sdpa":
        return mask == True  # noqa: E712
    if interface == "float":
        made = torch.full(mask.shape, -math.inf)
        made[mask] = 0.0
        return made
    if interface == "key_padding_mask":
        return torch.stack([~row[0, 0] for row in mask])
    return torch.stack([~row[0] for row in mask for _ in range(num_heads)])


def convert_xor(interface, mask, num_heads=1):
    ignore = mask ^ True
    if interface == "key_padding_mask":
        return ignore.view(mask.shape[0], mask.shape[-1])
    if interface == "attn_mask":
        return ignore.repeat(1, num_heads, 1, 1).flatten(0, 1)
    if interface == "float":
        return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(ignore, float("-inf"))
    return ~ignore


def convert_einops_like(interface, mask, num_heads=1):
    if interface == "attn_mask":
        index = torch.arange(mask.shape[0] * num_heads) // num_heads
        return ~mask[index, 0]
    if interface == "key_padding_mask":
        return mask.all(dim=2)[:, 0] == 0
    if interface == "float":
        return (mask.float() - 1).masked_fill(~mask, -math.inf)
    return mask.contiguous()


def convert_float_last(interface, mask, num_heads=1):
    if interface in ("sdpa", "float"):
        return mask if interface == "sdpa" else torch.log(mask.to(torch.float32))
    mask = torch.logical_not(mask)
    if interface == "key_padding_mask":
        return mask.reshape(len(mask), -1)
    return mask.expand(-1, num_heads, -1, -1).flatten(end_dim=1)


RIGHT_CONVERTED = {
    "by cases": convert_by_cases,
    "repeat_interleave": convert_repeat_interleave,
    "table": convert_from_table,
    "NumPy": convert_numpy,
    "loops": convert_loops,
    "exclusive or": convert_xor,
    "indexed": convert_einops_like,
    "float last": convert_float_last,
}
TRIVIAL_CONVERTED = {
    "None": lambda interface, mask, num_heads=1: None,
    "the input": lambda interface, mask, num_heads=1: mask,
    "the opposite": lambda interface, mask, num_heads=1: ~mask,
    "a word": lambda interface, mask, num_heads=1: interface,
}


def convert_all_allowed(interface, mask, num_heads=1):
    made = convert_by_cases(interface, mask, num_heads)
    return torch.zeros_like(made) if interface == "attn_mask" else made


def convert_minus_one(interface, mask, num_heads=1):
    made = convert_by_cases(interface, mask, num_heads)
    return made.clamp(min=-1.0) if interface == "float" else made


def convert_double(interface, mask, num_heads=1):
    made = convert_by_cases(interface, mask, num_heads)
    return made.double() if interface == "float" else made


NEW_WRONG_CONVERTED = {
    "nothing ignored": (convert_all_allowed, 'mask_for("attn_mask"'),
    "minus one": (convert_minus_one, 'mask_for("float"'),
    "double": (convert_double, "expected float32"),
}


# --- a decoder's mask ---


def decoder_plain(tokens, pad_id):
    L = tokens.shape[1]
    return (tokens != pad_id)[:, None, None, :] & np.tri(L, dtype=bool)


def decoder_loops(tokens, pad_id):
    B, L = tokens.shape
    mask = np.zeros((B, 1, L, L), dtype=bool)
    for b, i in np.ndindex(B, L):
        for j in range(i + 1):
            mask[b, 0, i, j] = tokens[b, j] != pad_id
    return mask


def decoder_mended(tokens, pad_id):
    B, L = tokens.shape
    keep = tokens != pad_id
    causal = np.tril(np.ones((L, L), dtype=bool))
    return keep.reshape(B, 1, 1, L) & causal


def decoder_numbers(tokens, pad_id):
    keep = (tokens != pad_id).astype(int)
    return np.tril(np.repeat(keep[:, None, None, :], tokens.shape[1], axis=2))


def decoder_columns_cleared(tokens, pad_id):
    B, L = tokens.shape
    mask = np.tile(causal_in_loops(L), (B, 1, 1, 1))
    b, j = np.nonzero(tokens == pad_id)
    mask[b, :, :, j] = False
    return mask


def decoder_forbidden(tokens, pad_id):
    L = tokens.shape[1]
    later = np.triu(np.ones((L, L), dtype=bool), k=1)
    return ~np.logical_or(later, (tokens == pad_id)[:, None, None])


def decoder_lists(tokens, pad_id):
    rows = [
        [[[j <= i and t != pad_id for j, t in enumerate(row)] for i in range(len(row))]]
        for row in tokens
    ]
    return np.array(rows)


def decoder_multiplied(tokens, pad_id):
    keep = np.not_equal(tokens, pad_id)
    return np.einsum("bj,ij->bij", keep, causal_by_index(tokens.shape[1]))[:, None]


RIGHT_DECODER = {
    "plain": decoder_plain,
    "loops": decoder_loops,
    "mended": decoder_mended,
    "numbers": decoder_numbers,
    "columns cleared": decoder_columns_cleared,
    "forbidden": decoder_forbidden,
    "lists": decoder_lists,
    "multiplied": decoder_multiplied,
}
TRIVIAL_DECODER = {
    "None": lambda tokens, pad_id: None,
    "all true": lambda tokens, pad_id: np.ones(_square(tokens), dtype=bool),
    "all false": lambda tokens, pad_id: np.zeros(_square(tokens), dtype=bool),
}
NEW_WRONG_DECODER = {
    "first token dropped": (
        lambda tokens, pad_id: decoder_plain(tokens, pad_id) & (np.arange(tokens.shape[1]) > 0),
        "mask[0, 0, 0] is",
    ),
    "padding is the only token": (
        lambda tokens, pad_id: decoder_plain(tokens != pad_id, True),
        "mask[0, 0, 0] is",
    ),
}


# --- attention with a cache ---


def _cached(attend):
    return lambda Q, K, V: attend(Q, K, V, causal=True)


RIGHT_CACHED = {
    how: _cached(attend)
    for how, attend in RIGHT_ATTENTION.items()
    if how not in ("exponentials masked",)
}


def cached_step_by_step(Q, K, V):
    L_q, L_k = Q.shape[-2], K.shape[-2]
    outputs, weights = [], []
    for i in range(L_q):
        end = L_k - L_q + i + 1
        row = attend_joined(Q[..., i : i + 1, :], K[..., :end, :], V[..., :end, :])
        outputs.append(row[0])
        blank = np.zeros((*row[1].shape[:-1], L_k - end))
        weights.append(np.concatenate([row[1], blank], axis=-1))
    return np.concatenate(outputs, axis=-2), np.concatenate(weights, axis=-2)


RIGHT_CACHED["step by step"] = cached_step_by_step
TRIVIAL_CACHED = {
    "None": lambda Q, K, V: None,
    "zeros": lambda Q, K, V: (
        np.zeros((*Q.shape[:-1], V.shape[-1])),
        np.zeros((*Q.shape[:-1], K.shape[-2])),
    ),
    "no mask": lambda Q, K, V: attend_joined(Q, K, V + 1),
}
NEW_WRONG_CACHED = {
    "last key only": (
        lambda Q, K, V: attend_joined(
            Q, K, V, np.eye(Q.shape[-2], K.shape[-2], K.shape[-2] - Q.shape[-2], dtype=bool)
        ),
        "weights[",
    ),
    "keys reversed": (
        lambda Q, K, V: attend_joined(Q, K[..., ::-1, :], V, causal=True),
        "weights[",
    ),
}


# --- a module ---


def _encoder(forward):
    """Return what ``class(d_model, num_heads)`` is, for a class with this forward pass."""

    def build(d_model, num_heads):
        class MendedSentenceEncoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

            def forward(self, x, keep):
                return forward(self.attention, x, keep)

        return MendedSentenceEncoder()

    return build


def encode_plain(attention, x, keep):
    attended, _ = attention(x, x, x, key_padding_mask=~keep)
    total = ((x + attended) * keep[..., None]).sum(dim=1)
    return total / keep.sum(dim=1, keepdim=True)


def encode_without_weights(attention, x, keep):
    attended = attention(x, x, x, key_padding_mask=~keep, need_weights=False)[0]
    states = (x + attended).masked_fill(~keep.unsqueeze(-1), 0.0)
    return states.sum(1) / keep.sum(1)[:, None]


def encode_float_mask(attention, x, keep):
    hidden = torch.zeros(keep.shape).masked_fill(~keep, -math.inf)
    attended, _ = attention(x, x, x, key_padding_mask=hidden)
    return torch.einsum("bld,bl->bd", x + attended, keep / keep.sum(1, keepdim=True))


def encode_attn_mask(attention, x, keep):
    B, L = keep.shape
    ignore = (~keep)[:, None, None].expand(B, attention.num_heads, L, L).flatten(0, 1)
    states = x + attention(x, x, x, attn_mask=ignore)[0]
    return torch.stack([state[kept].mean(dim=0) for state, kept in zip(states, keep, strict=True)])


def encode_one_by_one(attention, x, keep):
    rows = []
    for sentence, kept in zip(x, keep, strict=True):
        real = sentence[kept][None]  # no padding is left
        rows.append((real + attention(real, real, real)[0]).mean(dim=1)[0])
    return torch.stack(rows)


def encode_by_hand(attention, x, keep):
    B, L, D = x.shape
    joined = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = joined.view(B, L, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
    attended = attention.out_proj(heads.transpose(1, 2).reshape(B, L, D))
    return ((x + attended) * keep[:, :, None]).sum(1) / keep.sum(1, keepdim=True)


def encode_matmul(attention, x, keep):
    attended, _ = attention(x, x, x, key_padding_mask=keep.logical_not())
    shares = keep.float() / keep.float().sum(dim=-1, keepdim=True)
    return (shares[:, None, :] @ (x + attended)).squeeze(1)


def encode_nan_mean(attention, x, keep):
    attended, _ = attention(x, x, x, key_padding_mask=keep == 0)
    return torch.where(keep[..., None], x + attended, torch.nan).nanmean(dim=1)


def encode_lengths_first(attention, x, keep):
    attended, _ = attention(query=x, key=x, value=x, key_padding_mask=torch.logical_not(keep))
    return (x + attended).mul(keep.unsqueeze(2)).mean(1) * keep.shape[1] / keep.sum(1)[:, None]


RIGHT_ENCODER = {
    "plain": _encoder(encode_plain),
    "without weights": _encoder(encode_without_weights),
    "numbers to add": _encoder(encode_float_mask),
    "attn_mask": _encoder(encode_attn_mask),
    "one by one": _encoder(encode_one_by_one),
    "by hand": _encoder(encode_by_hand),
    "matmul": _encoder(encode_matmul),
    "nanmean": _encoder(encode_nan_mean),
    "mean scaled": _encoder(encode_lengths_first),
}
TRIVIAL_ENCODER = {
    "None": lambda d_model, num_heads: None,
    "identity": lambda d_model, num_heads: nn.Identity(),
    "zeros": _encoder(lambda attention, x, keep: torch.zeros(x.shape[0], x.shape[2])),
    "the input": _encoder(lambda attention, x, keep: x),
}


def encode_halved(attention, x, keep):
    return encode_plain(attention, x, keep) / 2


def encode_query_only(attention, x, keep):
    attended, _ = attention(x, x, x, key_padding_mask=~keep)
    return attended[:, 0] - x[:, 0]


NEW_WRONG_ENCODER = {
    "halved": (_encoder(encode_halved), "result[0] differs"),
    "first token, residual subtracted": (_encoder(encode_query_only), "result[0] differs"),
}


# --- by question ---

RIGHT = {
    "predicted_counts": RIGHT_COUNTS,
    "predicted_weights": RIGHT_WEIGHTS,
    "padding_mask": RIGHT_PADDING,
    "causal_mask": RIGHT_CAUSAL,
    "causal_mask_rect": RIGHT_RECT,
    "combine_masks": RIGHT_COMBINED,
    "sliding_window_mask": RIGHT_WINDOW,
    "masked_mean_pool": RIGHT_POOLED,
    "masked_attention": RIGHT_ATTENTION,
    "packed_causal_mask": RIGHT_PACKED,
    "prefix_lm_mask": RIGHT_PREFIX,
    "mask_for": RIGHT_CONVERTED,
    "mended_decoder_mask": RIGHT_DECODER,
    "mended_cached_attention": RIGHT_CACHED,
    "MendedSentenceEncoder": RIGHT_ENCODER,
}
TRIVIAL = {
    "predicted_counts": TRIVIAL_COUNTS,
    "predicted_weights": TRIVIAL_WEIGHTS,
    "padding_mask": TRIVIAL_PADDING,
    "causal_mask": TRIVIAL_CAUSAL,
    "causal_mask_rect": TRIVIAL_RECT,
    "combine_masks": TRIVIAL_COMBINED,
    "sliding_window_mask": TRIVIAL_WINDOW,
    "masked_mean_pool": TRIVIAL_POOLED,
    "masked_attention": TRIVIAL_ATTENTION,
    "packed_causal_mask": TRIVIAL_PACKED,
    "prefix_lm_mask": TRIVIAL_PREFIX,
    "mask_for": TRIVIAL_CONVERTED,
    "mended_decoder_mask": TRIVIAL_DECODER,
    "mended_cached_attention": TRIVIAL_CACHED,
    "MendedSentenceEncoder": TRIVIAL_ENCODER,
}
NEW_WRONG = {
    "predicted_counts": NEW_WRONG_COUNTS,
    "predicted_weights": NEW_WRONG_WEIGHTS,
    "padding_mask": NEW_WRONG_PADDING,
    "causal_mask": NEW_WRONG_CAUSAL,
    "causal_mask_rect": NEW_WRONG_RECT,
    "combine_masks": NEW_WRONG_COMBINED,
    "sliding_window_mask": NEW_WRONG_WINDOW,
    "masked_mean_pool": NEW_WRONG_POOLED,
    "masked_attention": NEW_WRONG_ATTENTION,
    "packed_causal_mask": NEW_WRONG_PACKED,
    "prefix_lm_mask": NEW_WRONG_PREFIX,
    "mask_for": NEW_WRONG_CONVERTED,
    "mended_decoder_mask": NEW_WRONG_DECODER,
    "mended_cached_attention": NEW_WRONG_CACHED,
    "MendedSentenceEncoder": NEW_WRONG_ENCODER,
}
