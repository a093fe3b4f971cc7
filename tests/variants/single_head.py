"""Right answers to exercise 2, written in unlike ways, and wrong ones that are not in the bank."""

import math

import numpy as np

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

# --- by question ---

RIGHT = {"softmax": RIGHT_SOFTMAX, "scaled_dot_product_attention": RIGHT_ATTENTION}
TRIVIAL = {"softmax": TRIVIAL_SOFTMAX, "scaled_dot_product_attention": TRIVIAL_ATTENTION}
NEW_WRONG = {"softmax": NEW_WRONG_SOFTMAX, "scaled_dot_product_attention": NEW_WRONG_ATTENTION}
