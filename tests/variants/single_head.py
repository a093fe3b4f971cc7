"""Right answers to exercise 2, written in unlike ways, and wrong ones that are not in the bank."""

import math

import numpy as np
import torch
from torch import nn

# --- softmax, right ---


def plain(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def explicit_loops(x, axis=-1):
    moved = np.moveaxis(x, axis, -1)
    result = np.empty(moved.shape)
    for index in np.ndindex(moved.shape[:-1]):
        row = [float(score) for score in moved[index]]
        exps = [math.exp(score - max(row)) for score in row]
        result[index] = [e / sum(exps) for e in exps]
    return np.moveaxis(result, -1, axis)


def log_sum_exp(x, axis=-1):
    peak = np.amax(x, axis=axis, keepdims=True)
    return np.exp(x - (peak + np.log(np.exp(x - peak).sum(axis=axis, keepdims=True))))


def logaddexp_reduced(x, axis=-1):
    x = x.astype(float)
    return np.exp(x - np.expand_dims(np.logaddexp.reduce(x, axis=axis), axis))


def along_axis(x, axis=-1):
    def one_row(row):
        e = np.exp(row - row.max())
        return e / e.sum()

    return np.apply_along_axis(one_row, axis, x * 1.0)


def own_temporaries_in_place(x, axis=-1):
    e = np.array(x, dtype=float)
    e -= e.max(axis=axis, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=axis, keepdims=True)
    return e


def float32_inside(x, axis=-1):
    x = x.astype(np.float32)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def ratios_of_pairs(x, axis=-1):
    # 1 / sum_j exp(x_j - x_i): an overflow gives 1 / inf = 0, the right limit
    moved = np.moveaxis(np.asarray(x, dtype=float), axis, -1)
    with np.errstate(over="ignore"):
        sums = np.exp(moved[..., None, :] - moved[..., :, None]).sum(axis=-1)
    return np.moveaxis(1 / sums, -1, axis)


def tanh_of_differences(x, axis=-1):
    # the second of two weights is (1 + tanh(d / 2)) / 2: add scores one at a time
    moved = np.moveaxis(np.asarray(x, dtype=float), axis, 0)
    weights, level = [np.ones(moved.shape[1:])], moved[0]
    for score in moved[1:]:
        share = 0.5 * (1 + np.tanh((score - level) / 2))
        rest = 0.5 * (1 - np.tanh((score - level) / 2))
        weights = [weight * rest for weight in weights] + [share]
        level = np.logaddexp(level, score)
    return np.moveaxis(np.stack(weights), 0, axis)


def flattened_and_back(x, axis=-1):
    moved = np.moveaxis(x, axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    e = np.exp(rows - np.max(rows, axis=1)[:, None])
    e = e / np.einsum("ij->i", e)[:, None]
    return np.moveaxis(e.reshape(moved.shape), -1, axis)


def recursive(x, axis=-1):
    axis %= x.ndim
    if x.ndim == 1:
        e = np.exp(x - max(x))
        return e / sum(e)
    if axis == 0:
        return np.swapaxes(recursive(np.swapaxes(x, 0, 1), 1), 0, 1)
    return np.stack([recursive(part, axis - 1) for part in x])


def vectorized_by_signature(x, axis=-1):
    rows = np.vectorize(plain, signature="(n)->(n)", otypes=[float])
    return np.moveaxis(rows(np.moveaxis(x, axis, -1)), -1, axis)


class Softmax:
    def __call__(self, x, axis=-1):
        return plain(x, axis)


RIGHT_SOFTMAX = {
    "plain": plain,
    "explicit loops": explicit_loops,
    "log-sum-exp": log_sum_exp,
    "logaddexp": logaddexp_reduced,
    "apply_along_axis": along_axis,
    "in place on its own temporaries": own_temporaries_in_place,
    "float32 inside": float32_inside,
    "ratios of pairs": ratios_of_pairs,
    "tanh of differences": tanh_of_differences,
    "flattened and back": flattened_and_back,
    "recursion over leading axes": recursive,
    "np.vectorize": vectorized_by_signature,
    "callable object": Softmax(),
}

# --- attention, right ---


def safe_rows(scores):
    """Softmax over the last axis; a row of -inf alone gives zeros."""
    peak = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0.0))
    total = e.sum(axis=-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def with_helper(Q, K, V, mask=None):
    scores = Q @ np.swapaxes(K, -1, -2) / math.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = safe_rows(scores)
    return weights @ V, weights


def with_einsum(Q, K, V, mask=None):
    scores = np.einsum("...qd,...kd->...qk", Q, K) * Q.shape[-1] ** -0.5
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = safe_rows(scores)
    return np.einsum("...qk,...kd->...qd", weights, V), weights


def one_query_at_a_time(Q, K, V, mask=None):
    lead, (L_q, d_k), L_k = Q.shape[:-2], Q.shape[-2:], K.shape[-2]
    allowed = np.broadcast_to(True if mask is None else mask, (*lead, L_q, L_k))
    weights = np.zeros((*lead, L_q, L_k))
    output = np.zeros((*lead, L_q, V.shape[-1]))
    for index in np.ndindex(*lead, L_q):
        keys = np.flatnonzero(allowed[index])
        if keys.size == 0:
            continue
        scores = [sum(Q[index] * K[index[:-1]][j]) / d_k**0.5 for j in keys]
        exps = [math.exp(score - max(scores)) for score in scores]
        for j, e in zip(keys, exps, strict=True):
            weights[index][j] = e / sum(exps)
            output[index] += weights[index][j] * V[index[:-1]][j]
    return output, weights


def log_sum_exp_form(Q, K, V, mask=None):
    scores = (Q / np.sqrt(Q.shape[-1])) @ K.swapaxes(-2, -1)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    logs = np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(logs), 0.0, logs))
    return weights @ V, weights


def nan_replaced_in_empty_rows(Q, K, V, mask=None):
    scores = np.matmul(Q, np.moveaxis(K, -1, -2)) / np.sqrt(K.shape[-1])
    if mask is not None:
        scores = scores + np.where(mask, 0.0, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = np.nan_to_num(e / e.sum(axis=-1, keepdims=True))
    return weights @ V, weights


def float32_inside_too(Q, K, V, mask=None):
    Q, K, V = (array.astype(np.float32) for array in (Q, K, V))
    return with_helper(Q, K, V, mask)


def flattened_batches(Q, K, V, mask=None):
    lead, L_q, L_k = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    allowed = np.broadcast_to(True if mask is None else mask, (*lead, L_q, L_k))
    parts = [array.reshape(-1, *array.shape[-2:]) for array in (Q, K, V, allowed)]
    results = [with_helper(*problem) for problem in zip(*parts, strict=True)]
    output, weights = (np.stack(result) for result in zip(*results, strict=True))
    return output.reshape(*lead, L_q, V.shape[-1]), weights.reshape(*lead, L_q, L_k)


def masked_arrays(Q, K, V, mask=None):
    scores = np.ma.array(Q @ np.swapaxes(K, -1, -2) / np.sqrt(K.shape[-1]))
    if mask is not None:
        scores = np.ma.array(scores, mask=~np.broadcast_to(mask, scores.shape))
    e = np.ma.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (e / e.sum(axis=-1, keepdims=True)).filled(0.0)
    return weights @ V, weights


def recursion_over_leading_axes(Q, K, V, mask=None):
    if Q.ndim == 2:
        return with_helper(Q, K, V, mask)
    shape = (*Q.shape[:-1], K.shape[-2])
    masks = [None] * len(Q) if mask is None else np.broadcast_to(mask, shape)
    parts = [recursion_over_leading_axes(*part) for part in zip(Q, K, V, masks, strict=True)]
    return tuple(np.stack(part) for part in zip(*parts, strict=True))


def transposed_throughout(Q, K, V, mask=None):
    scores = (K / np.sqrt(K.shape[-1])) @ np.swapaxes(Q, -1, -2)  # (..., L_k, L_q)
    if mask is not None:
        scores = np.where(np.swapaxes(np.atleast_2d(mask), -1, -2), scores, -np.inf)
    weights = np.swapaxes(safe_rows(np.swapaxes(scores, -1, -2)), -1, -2)
    output = np.swapaxes(np.swapaxes(V, -1, -2) @ weights, -1, -2)
    return output, np.swapaxes(weights, -1, -2)


def online_softmax(Q, K, V, mask=None):
    scores = with_einsum_scores(Q, K)
    allowed = np.broadcast_to(True if mask is None else mask, scores.shape)
    peak = np.full((*scores.shape[:-1], 1), -np.inf)
    total, weights = np.zeros(peak.shape), np.zeros(scores.shape)
    for j in range(scores.shape[-1]):
        score = np.where(allowed[..., j : j + 1], scores[..., j : j + 1], -np.inf)
        new = np.maximum(peak, score)
        base = np.where(np.isneginf(new), 0.0, new)
        weights *= np.exp(peak - base)
        total = total * np.exp(peak - base) + np.exp(score - base)
        weights[..., j : j + 1] = np.exp(score - base)
        peak = new
    weights /= np.where(total == 0, 1.0, total)
    return weights @ V, weights


def with_einsum_scores(Q, K):
    return np.sum(Q[..., :, None, :] * K[..., None, :, :], axis=-1) / np.sqrt(Q.shape[-1])


def very_low_fill(Q, K, V, mask=None):
    if mask is None:
        return list(with_helper(Q, K, V))
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(K.shape[-1])
    e = np.where(mask, scores, -1e30)
    e -= e.max(axis=-1, keepdims=True)
    np.exp(e, out=e)
    e *= mask
    weights = e / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300)
    return [weights @ V, weights]


class Attention:
    def __call__(self, Q, K, V, mask=None):
        return with_helper(Q, K, V, mask)


RIGHT_ATTENTION = {
    "with a helper": with_helper,
    "einsum": with_einsum,
    "one query at a time": one_query_at_a_time,
    "log-sum-exp": log_sum_exp_form,
    "NaN replaced in empty rows": nan_replaced_in_empty_rows,
    "float32 inside": float32_inside_too,
    "flattened batches": flattened_batches,
    "masked arrays": masked_arrays,
    "recursion over leading axes": recursion_over_leading_axes,
    "transposed throughout": transposed_throughout,
    "online softmax": online_softmax,
    "very low fill, a list": very_low_fill,
    "callable object": Attention(),
}

# --- trivially wrong: no check may pass ---

TRIVIAL_SOFTMAX = {
    "zeros": lambda x, axis=-1: np.zeros(x.shape),
    "the input": lambda x, axis=-1: x,
    "uniform": lambda x, axis=-1: np.full(x.shape, 1 / x.shape[axis]),
    "None": lambda x, axis=-1: None,
    "a tuple": lambda x, axis=-1: (plain(x, axis), x),
    "a list": lambda x, axis=-1: plain(x, axis).tolist(),
    "NaN": lambda x, axis=-1: np.full(x.shape, np.nan),
}


def _weights_shape(Q, K):
    return (*Q.shape[:-1], K.shape[-2])


def zeros_of_the_right_shapes(Q, K, V, mask=None):
    return np.zeros((*Q.shape[:-1], V.shape[-1])), np.zeros(_weights_shape(Q, K))


def uniform_weights(Q, K, V, mask=None):
    weights = np.full(_weights_shape(Q, K), 1 / K.shape[-2])
    return weights @ V, weights


def uniform_over_allowed_keys(Q, K, V, mask=None):
    return with_helper(0.0 * Q, K, V, mask)


TRIVIAL_ATTENTION = {
    "zeros": zeros_of_the_right_shapes,
    "the input": lambda Q, K, V, mask=None: (V, Q),
    "uniform weights": uniform_weights,
    "uniform over allowed keys": uniform_over_allowed_keys,
    "None": lambda Q, K, V, mask=None: None,
    "three results": lambda Q, K, V, mask=None: (*with_helper(Q, K, V, mask), mask),
    "a dict": lambda Q, K, V, mask=None: dict(zip("ow", with_helper(Q, K, V, mask), strict=True)),
}

# --- wrong in ways that the bank does not hold, with a word that the message must show ---


def sum_without_the_largest(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / (e.sum(axis=axis, keepdims=True) + 1)


def shift_in_float16(x, axis=-1):
    return plain(x.astype(np.float16), axis)


def order_of_rows_lost(x, axis=-1):
    return np.sort(plain(x, axis), axis=axis)


NEW_WRONG_SOFTMAX = {
    "one too much in the sum": (sum_without_the_largest, "softmax(x) differs: got"),
    "float16 inside": (shift_in_float16, "softmax(x) differs: got"),
    "sorted weights": (order_of_rows_lost, "softmax(x) differs: got"),
}


def causal_by_default(Q, K, V, mask=None):
    if mask is None:
        mask = np.tri(Q.shape[-2], K.shape[-2], dtype=bool)
    return with_helper(Q, K, V, mask)


def empty_query_takes_the_first_key(Q, K, V, mask=None):
    _, weights = with_helper(Q, K, V, mask)
    if mask is not None:
        empty = ~np.broadcast_to(mask, weights.shape).any(axis=-1)
        weights[empty, 0] = 1.0
    return weights @ V, weights


def mask_forgotten_in_batches(Q, K, V, mask=None):
    return with_helper(Q, K, V, mask if Q.ndim == 2 else None)


NEW_WRONG_ATTENTION = {
    "causal by default": (causal_by_default, "weights[0] differs"),
    "empty query takes the first key": (empty_query_takes_the_first_key, "has no allowed key"),
    "mask forgotten in batches": (mask_forgotten_in_batches, "The mask has shape"),
}

# --- predictions ---

RIGHT_SHAPES = {"two tuples": ((4, 9), (4, 6)), "two lists": [[4, 9], [4, 6]]}
TRIVIAL_SHAPES = {
    "None": None,
    "one shape": (4, 9),
    "numbers": (4.0, 6.0),
    "empty shapes": ((), ()),
    "a string": "(4, 9), (4, 6)",
}
NEW_WRONG_SHAPES = {
    "a leading axis": (((1, 4, 9), (1, 4, 6)), "(1, 4, 9) is not the shape of the weights"),
    "values as long as the text": (((4, 9), (9, 8)), "(9, 8) is not the shape of the output"),
}

RIGHT_CHANGES = {"decimals": (0.625, 16, 0.2), "fractions": [5 / 8, 16.0, 0.25 / 1.25]}
TRIVIAL_CHANGES = {
    "None": None,
    "zeros": (0, 0, 0),
    "strings": ("5/8", "16", "1/5"),
    "two numbers": (0.625, 16),
    "four numbers": (0.625, 16, 0.2, 0.0),
    "true": (True, True, True),
}
NEW_WRONG_CHANGES = {
    "three times as long": ((0.625, 64, 0.2), "(b) The ratio is not 64"),
    "everything wrong": ((0.4, 5, 0.3), "(a) The weight of cats is not 0.4"),
}

# --- entropy ---


def entropy_where(weights):
    logs = np.log(np.where(weights > 0, weights, 1.0))
    return -(weights * logs).sum(axis=-1)


def entropy_log_out(weights):
    logs = np.zeros(weights.shape)
    np.log(weights, out=logs, where=weights > 0)
    return -np.einsum("...j,...j->...", weights, logs)


def entropy_nansum(weights):
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.nansum(weights * np.log(weights), axis=-1)


def entropy_loops(weights):
    result = np.empty(weights.shape[:-1])
    for index in np.ndindex(result.shape):
        result[index] = sum(-w * math.log(w) for w in weights[index].tolist() if w)
    return result


def entropy_tiny_epsilon(weights):
    return -np.sum(weights * np.log(weights + 1e-12), axis=-1)


def entropy_clipped(weights):
    return np.sum(weights * -np.log(np.clip(weights, 1e-300, None)), axis=-1)


def entropy_along_axis(weights):
    def one(row):
        row = row[row > 0]
        return -np.dot(row, np.log(row))

    return np.apply_along_axis(one, -1, weights)


def entropy_recursive(weights):
    if weights.ndim == 1:
        return float(sum(w * math.log(1 / w) for w in weights if w > 0))
    return np.array([entropy_recursive(part) for part in weights])


def entropy_float32(weights):
    return entropy_where(weights.astype(np.float32))


def entropy_power(weights):
    # 0 ** 0 is 1, and log 1 is 0
    return -np.log(weights**weights).sum(axis=-1)


def entropy_from_bits(weights):
    logs = np.log2(np.where(weights == 0, 1, weights))
    return -math.log(2) * np.matmul(weights[..., None, :], logs[..., None])[..., 0, 0]


RIGHT_ENTROPY = {
    "where": entropy_where,
    "log with out": entropy_log_out,
    "nansum": entropy_nansum,
    "explicit loops": entropy_loops,
    "tiny epsilon": entropy_tiny_epsilon,
    "clipped": entropy_clipped,
    "apply_along_axis": entropy_along_axis,
    "recursion": entropy_recursive,
    "float32 inside": entropy_float32,
    "power": entropy_power,
    "from bits": entropy_from_bits,
}
TRIVIAL_ENTROPY = {
    "zeros": lambda weights: np.zeros(weights.shape[:-1]),
    "the input": lambda weights: weights,
    "NaN": lambda weights: np.full(weights.shape[:-1], np.nan),
    "None": lambda weights: None,
    "a list": lambda weights: [0.0] * len(weights),
}


def entropy_of_the_largest_weight(weights):
    top = weights.max(axis=-1)
    return -top * np.log(np.where(top == 0, 1, top))


def entropy_rounded(weights):
    return np.round(entropy_where(weights), 1)


NEW_WRONG_ENTROPY = {
    "largest weight alone": (entropy_of_the_largest_weight, "attention_entropy(weights) differs"),
    "one decimal": (entropy_rounded, "attention_entropy(weights) differs"),
}

# --- a NumPy attention to mend ---


def mended_as_in_the_solution(Q, K, V, mask=None):
    scores = Q @ K.transpose(0, 2, 1) / np.sqrt(Q.shape[-1])
    some = np.array(True)
    if mask is not None:
        some = mask.any(axis=-1, keepdims=True)
        scores = np.where(mask, scores, -np.inf)
        scores = np.where(some, scores, 0.0)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    weights = np.where(some, weights, 0.0)
    return weights @ V, weights


RIGHT_MENDED = {
    "as in the solution": mended_as_in_the_solution,
    **{
        how: RIGHT_ATTENTION[how]
        for how in (
            "with a helper",
            "einsum",
            "one query at a time",
            "NaN replaced in empty rows",
            "float32 inside",
            "masked arrays",
            "transposed throughout",
            "online softmax",
            "very low fill, a list",
        )
    },
}


def fill_in_integers(Q, K, V, mask=None):
    scores = np.einsum("bqd,bkd->bqk", Q, K).astype(int)
    return with_helper(scores @ np.eye(K.shape[1]), np.tile(np.eye(K.shape[1]), (len(K), 1, 1)), V)


def last_sample_for_all(Q, K, V, mask=None):
    return with_helper(Q, K[-1:].repeat(len(K), 0), V, mask)


def hidden_keys_take_part_in_the_mean(Q, K, V, mask=None):
    output, weights = with_helper(Q, K, V, mask)
    return (output + V.mean(axis=-2, keepdims=True)) / 2, weights


NEW_WRONG_MENDED = {
    "rounded scores": (fill_in_integers, "weights"),
    "last sample for all": (last_sample_for_all, "there is no mask"),
    "plain mean mixed in": (hidden_keys_take_part_in_the_mean, "output"),
}

# --- additive attention ---


def additive_plain(Q, K, V, W_q, W_k, w):
    queries, keys = Q @ W_q, K @ W_k
    weights = plain(np.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w)
    return weights @ V, weights


def additive_einsum(Q, K, V, W_q, W_k, w):
    queries = np.einsum("...qd,da->...qa", Q, W_q)
    keys = np.einsum("...kd,da->...ka", K, W_k)
    hidden = np.tanh(np.expand_dims(queries, -2) + np.expand_dims(keys, -3))
    weights = plain(np.einsum("...qka,a->...qk", hidden, w))
    return np.einsum("...qk,...kv->...qv", weights, V), weights


def additive_loops(Q, K, V, W_q, W_k, w):
    scores = np.empty((*Q.shape[:-1], K.shape[-2]))
    for index in np.ndindex(scores.shape):
        *lead, i, j = index
        query, key = Q[(*lead, i)], K[(*lead, j)]
        scores[index] = np.tanh(query @ W_q + key @ W_k) @ w
    weights = explicit_loops(scores)
    return weights @ V, weights


def additive_one_unit_at_a_time(Q, K, V, W_q, W_k, w):
    queries, keys = Q @ W_q, np.swapaxes(K @ W_k, -1, -2)
    scores = 0.0
    for a in range(len(w)):
        scores = scores + w[a] * np.tanh(queries[..., a : a + 1] + keys[..., a : a + 1, :])
    weights = log_sum_exp(scores)
    return weights @ V, weights


def additive_tanh_of_sum_formula(Q, K, V, W_q, W_k, w):
    t, u = np.tanh(Q @ W_q)[..., :, None, :], np.tanh(K @ W_k)[..., None, :, :]
    weights = plain(((t + u) / (1 + t * u)) @ w)
    return weights @ V, weights


def additive_joined_matrix(Q, K, V, W_q, W_k, w):
    L_q, L_k = Q.shape[-2], K.shape[-2]
    queries = np.repeat(Q[..., :, None, :], L_k, axis=-2)
    keys = np.repeat(K[..., None, :, :], L_q, axis=-3)
    pairs = np.concatenate([queries, keys], axis=-1)
    weights = plain((np.tanh(pairs @ np.concatenate([W_q, W_k])) * w).sum(axis=-1))
    return weights @ V, weights


def additive_recursive(Q, K, V, W_q, W_k, w):
    if Q.ndim == 2:
        return additive_plain(Q, K, V, W_q, W_k, w)
    parts = [additive_recursive(*part, W_q, W_k, w) for part in zip(Q, K, V, strict=True)]
    return [np.stack(part) for part in zip(*parts, strict=True)]


def additive_one_query_at_a_time(Q, K, V, W_q, W_k, w):
    keys, outputs, rows = K @ W_k, [], []
    for i in range(Q.shape[-2]):
        row = plain(np.tanh(Q[..., i : i + 1, :] @ W_q + keys) @ w)
        rows.append(row)
        outputs.append((row[..., None] * V).sum(axis=-2))
    return np.stack(outputs, axis=-2), np.stack(rows, axis=-2)


def additive_float32(Q, K, V, W_q, W_k, w):
    return additive_plain(*(a.astype(np.float32) for a in (Q, K, V, W_q, W_k, w)))


class Additive:
    def __call__(self, Q, K, V, W_q, W_k, w):
        return additive_plain(Q, K, V, W_q, W_k, w)


RIGHT_ADDITIVE = {
    "plain": additive_plain,
    "einsum": additive_einsum,
    "explicit loops": additive_loops,
    "one unit at a time": additive_one_unit_at_a_time,
    "addition formula of tanh": additive_tanh_of_sum_formula,
    "one joined matrix": additive_joined_matrix,
    "recursion": additive_recursive,
    "one query at a time": additive_one_query_at_a_time,
    "float32 inside": additive_float32,
    "callable object": Additive(),
}
TRIVIAL_ADDITIVE = {
    "zeros": lambda Q, K, V, *_: zeros_of_the_right_shapes(Q, K, V),
    "uniform weights": lambda Q, K, V, *_: uniform_weights(Q, K, V),
    "the input": lambda Q, K, V, *_: (V, Q),
    "None": lambda *_: None,
}


def additive_hard_tanh(Q, K, V, W_q, W_k, w):
    hidden = np.clip((Q @ W_q)[..., :, None, :] + (K @ W_k)[..., None, :, :], -1, 1)
    weights = plain(hidden @ w)
    return weights @ V, weights


def additive_sum_of_squares(Q, K, V, W_q, W_k, w):
    hidden = np.tanh((Q @ W_q)[..., :, None, :] + (K @ W_k)[..., None, :, :])
    weights = plain((hidden**2) @ w)
    return weights @ V, weights


NEW_WRONG_ADDITIVE = {
    "hard tanh": (additive_hard_tanh, "weights"),
    "squared": (additive_sum_of_squares, "weights"),
}

# --- the backward pass ---


def backward_plain(doutput, Q, K, V, weights):
    dV = np.swapaxes(weights, -1, -2) @ doutput
    dweights = doutput @ np.swapaxes(V, -1, -2)
    means = (dweights * weights).sum(axis=-1, keepdims=True)
    dscores = weights * (dweights - means) / np.sqrt(Q.shape[-1])
    return dscores @ K, np.swapaxes(dscores, -1, -2) @ Q, dV


def backward_einsum(doutput, Q, K, V, weights):
    dweights = np.einsum("...qv,...kv->...qk", doutput, V)
    inner = np.einsum("...qk,...qk->...q", dweights, weights)
    dscores = (weights * dweights - weights * inner[..., None]) / Q.shape[-1] ** 0.5
    return (
        np.einsum("...qk,...kd->...qd", dscores, K),
        np.einsum("...qk,...qd->...kd", dscores, Q),
        np.einsum("...qk,...qv->...kv", weights, doutput),
    )


def backward_by_jacobians(doutput, Q, K, V, weights):
    n = weights.shape[-1]
    jacobian = weights[..., :, None] * (np.eye(n) - weights[..., None, :])  # of w_i by s_j
    dweights = doutput @ np.swapaxes(V, -1, -2)
    dscores = (dweights[..., None, :] @ jacobian)[..., 0, :] / math.sqrt(K.shape[-1])
    return (
        dscores @ K,
        np.moveaxis(dscores, -1, -2) @ Q,
        np.moveaxis(weights, -1, -2) @ doutput,
    )


def backward_from_the_output(doutput, Q, K, V, weights):
    # the weighted mean of dweights in a row is doutput . output
    output = weights @ V
    dweights = doutput @ np.swapaxes(V, -1, -2)
    dscores = weights * (dweights - np.sum(doutput * output, axis=-1, keepdims=True))
    scale = 1 / np.sqrt(K.shape[-1])
    return (
        scale * dscores @ K,
        scale * np.swapaxes(dscores, -1, -2) @ Q,
        np.swapaxes(weights, -1, -2) @ doutput,
    )


def backward_loops(doutput, Q, K, V, weights):
    dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    for index in np.ndindex(weights.shape):
        *lead, i, j = index
        lead, weight = tuple(lead), weights[index]
        dV[lead][j] += weight * doutput[lead][i]
        mean = weights[lead][i] @ V[lead]
        dscore = weight * (doutput[lead][i] @ (V[lead][j] - mean)) / math.sqrt(Q.shape[-1])
        dQ[lead][i] += dscore * K[lead][j]
        dK[lead][j] += dscore * Q[lead][i]
    return dQ, dK, dV


def backward_recursive(doutput, Q, K, V, weights):
    if Q.ndim == 2:
        return backward_plain(doutput, Q, K, V, weights)
    parts = [backward_recursive(*part) for part in zip(doutput, Q, K, V, weights, strict=True)]
    return [np.stack(part) for part in zip(*parts, strict=True)]


def backward_float32(doutput, Q, K, V, weights):
    arrays = [array.astype(np.float32) for array in (doutput, Q, K, V, weights)]
    return backward_plain(*arrays)


def backward_by_autograd(doutput, Q, K, V, weights):
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (Q, K, V)]
    q, k, v = leaves
    scores = q @ k.mT / math.sqrt(Q.shape[-1])
    scores = scores + torch.from_numpy(np.where(weights > 0, 0.0, -1e30))
    some = torch.from_numpy(weights.any(axis=-1, keepdims=True))
    output = torch.softmax(scores, dim=-1).where(some, 0.0) @ v
    return [g.numpy() for g in torch.autograd.grad(output, leaves, torch.from_numpy(doutput))]


def backward_in_place(doutput, Q, K, V, weights):
    grad = doutput @ np.swapaxes(V, -1, -2)
    grad -= np.sum(grad * weights, axis=-1, keepdims=True)
    grad *= weights
    grad /= np.sqrt(Q.shape[-1])
    grads = (grad @ K, grad.swapaxes(-1, -2) @ Q, weights.swapaxes(-1, -2) @ doutput)
    return list(grads)


def backward_transposed(doutput, Q, K, V, weights):
    shares = np.swapaxes(weights, -1, -2)  # (..., L_k, L_q)
    dshares = V @ np.swapaxes(doutput, -1, -2)
    dscores = shares * (dshares - (shares * dshares).sum(axis=-2, keepdims=True))
    dscores /= np.sqrt(K.shape[-1])
    return np.swapaxes(dscores, -1, -2) @ K, dscores @ Q, shares @ doutput


RIGHT_BACKWARD = {
    "plain": backward_plain,
    "einsum": backward_einsum,
    "Jacobians": backward_by_jacobians,
    "from the output": backward_from_the_output,
    "explicit loops": backward_loops,
    "recursion": backward_recursive,
    "float32 inside": backward_float32,
    "autograd": backward_by_autograd,
    "in place on its own temporaries": backward_in_place,
    "transposed throughout": backward_transposed,
}
TRIVIAL_BACKWARD = {
    "zeros": lambda doutput, Q, K, V, weights: (0 * Q, 0 * K, 0 * V),
    "the input": lambda doutput, Q, K, V, weights: (Q, K, V),
    "one array": lambda doutput, Q, K, V, weights: Q,
    "None": lambda doutput, Q, K, V, weights: None,
}


def backward_key_gradient_summed_twice(doutput, Q, K, V, weights):
    dQ, dK, dV = backward_plain(doutput, Q, K, V, weights)
    return dQ, 2 * dK, dV


def backward_clipped(doutput, Q, K, V, weights):
    return tuple(np.clip(g, -0.1, 0.1) for g in backward_plain(doutput, Q, K, V, weights))


NEW_WRONG_BACKWARD = {
    "dK twice": (backward_key_gradient_summed_twice, "dK[0] differs"),
    "clipped": (backward_clipped, "dV"),
}

# --- PyTorch modules (each function builds one, as the class would) ---


def _module(forward, base=None):
    """Return what ``class(d_model, d_k, d_v)`` is, for a class with this forward pass."""

    def build(d_model, d_k, d_v):
        class SelfAttention(nn.Module):
            def __init__(self):
                super().__init__()
                self.W_q = nn.Linear(d_model, d_k, bias=False)
                self.W_k = nn.Linear(d_model, d_k, bias=False)
                self.W_v = nn.Linear(d_model, d_v, bias=False)

            def forward(self, x, mask=None):
                return forward(self.W_q(x), self.W_k(x), self.W_v(x), mask)

        return SelfAttention()

    return build


def torch_plain(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        some = mask.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~mask, -math.inf).masked_fill(~some, 0.0)
        weights = scores.softmax(dim=-1).masked_fill(~some, 0.0)
    return weights @ v, weights


def torch_nan_to_num(q, k, v, mask):
    scores = q @ k.mT * k.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    return torch.matmul(weights, v), weights


def torch_einsum(q, k, v, mask):
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    weights = weights if mask is None else weights * mask
    return torch.einsum("...qk,...kv->...qv", weights, v), weights


def torch_exponentials(q, k, v, mask):
    scores = q @ k.mT / math.sqrt(k.shape[-1])
    exps = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    if mask is not None:
        exps = exps * mask
    total = exps.sum(dim=-1, keepdim=True)
    weights = exps / total.masked_fill(total == 0, 1)
    return weights @ v, weights


def torch_one_query_at_a_time(q, k, v, mask):
    rows = []
    for i in range(q.shape[-2]):
        row = (k @ q[..., i, :, None])[..., 0] / math.sqrt(q.shape[-1])
        if mask is not None:
            keep = mask[..., min(i, mask.shape[-2] - 1), :]
            row = torch.where(keep, row, torch.finfo(row.dtype).min).softmax(-1) * keep
        else:
            row = row.softmax(-1)
        rows.append(row)
    weights = torch.stack(rows, dim=-2)
    return weights @ v, weights


def torch_log_softmax(q, k, v, mask):
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
        scores = scores.masked_fill(~mask.any(-1, keepdim=True), 0)
    weights = scores.log_softmax(dim=-1).exp()
    if mask is not None:
        weights = weights.where(mask, 0)
    return [weights @ v, weights]


def torch_masked_in_place(q, k, v, mask):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores.masked_fill_(~mask, -6e4)
    weights = scores.softmax(dim=-1)
    return (weights if mask is None else weights * mask) @ v, (
        weights if mask is None else weights * mask
    )


def own_projections(d_model, d_k, d_v):
    class Projection(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, d_model))

        def forward(self, x):
            return x @ self.weight.t()

    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.W_q, self.W_k, self.W_v = Projection(d_k), Projection(d_k), Projection(d_v)

    class SelfAttention(Base):
        def forward(self, x, mask=None):
            return torch_plain(self.W_q(x), self.W_k(x), self.W_v(x), mask)

    return SelfAttention()


def joined_projection(d_model, d_k, d_v):
    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            for name, width in (("W_q", d_k), ("W_k", d_k), ("W_v", d_v)):
                self.add_module(name, nn.Linear(d_model, width, bias=False))

        def forward(self, x, mask=None):
            weight = torch.cat([self.W_q.weight, self.W_k.weight, self.W_v.weight])
            return torch_nan_to_num(*(x @ weight.mT).split([d_k, d_k, d_v], dim=-1), mask)

    return SelfAttention()


RIGHT_MODULE = {
    "plain": _module(torch_plain),
    "nan_to_num": _module(torch_nan_to_num),
    "einsum": _module(torch_einsum),
    "exponentials": _module(torch_exponentials),
    "one query at a time": _module(torch_one_query_at_a_time),
    "log_softmax": _module(torch_log_softmax),
    "masked in place": _module(torch_masked_in_place),
    "own projections": own_projections,
    "joined projection": joined_projection,
}
TRIVIAL_MODULE = {
    "None": lambda d_model, d_k, d_v: None,
    "identity": lambda d_model, d_k, d_v: nn.Identity(),
    "one linear layer": lambda d_model, d_k, d_v: nn.Linear(d_model, d_v),
}


def torch_sigmoid(q, k, v, mask):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).sigmoid()
    weights = weights if mask is None else weights * mask
    return weights @ v, weights


def torch_causal(q, k, v, mask):
    causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch_plain(q, k, v, causal if mask is None else mask)


def torch_values_averaged_without_gradient(q, k, v, mask):
    output, weights = torch_plain(q, k, v.detach(), mask)
    return output, weights


NEW_WRONG_MODULE = {
    "sigmoid": (_module(torch_sigmoid), "weights"),
    "causal by default": (_module(torch_causal), "weights"),
    "values detached": (_module(torch_values_averaged_without_gradient), "gradient"),
}

# --- by question ---

RIGHT = {
    "predicted_shapes": RIGHT_SHAPES,
    "predicted_changes": RIGHT_CHANGES,
    "softmax": RIGHT_SOFTMAX,
    "attention_entropy": RIGHT_ENTROPY,
    "scaled_dot_product_attention": RIGHT_ATTENTION,
    "mended_attention": RIGHT_MENDED,
    "additive_attention": RIGHT_ADDITIVE,
    "attention_backward": RIGHT_BACKWARD,
    "SelfAttention": RIGHT_MODULE,
    "MendedSelfAttention": RIGHT_MODULE,
}
TRIVIAL = {
    "predicted_shapes": TRIVIAL_SHAPES,
    "predicted_changes": TRIVIAL_CHANGES,
    "softmax": TRIVIAL_SOFTMAX,
    "attention_entropy": TRIVIAL_ENTROPY,
    "scaled_dot_product_attention": TRIVIAL_ATTENTION,
    "mended_attention": TRIVIAL_ATTENTION,
    "additive_attention": TRIVIAL_ADDITIVE,
    "attention_backward": TRIVIAL_BACKWARD,
    "SelfAttention": TRIVIAL_MODULE,
    "MendedSelfAttention": TRIVIAL_MODULE,
}
NEW_WRONG = {
    "predicted_shapes": NEW_WRONG_SHAPES,
    "predicted_changes": NEW_WRONG_CHANGES,
    "softmax": NEW_WRONG_SOFTMAX,
    "attention_entropy": NEW_WRONG_ENTROPY,
    "scaled_dot_product_attention": NEW_WRONG_ATTENTION,
    "mended_attention": NEW_WRONG_MENDED,
    "additive_attention": NEW_WRONG_ADDITIVE,
    "attention_backward": NEW_WRONG_BACKWARD,
    "SelfAttention": NEW_WRONG_MODULE,
    "MendedSelfAttention": NEW_WRONG_MODULE,
}
