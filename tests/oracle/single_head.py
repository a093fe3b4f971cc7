"""The definitions, slow and plainly right: loops over single numbers in float64.

Checks and tests compare with these. `test_oracle_single_head.py` proves them against PyTorch.
"""

import math

import numpy as np


def _softmax_of_list(scores):
    """Softmax of a list of floats. An empty list, or -inf alone, gives zeros."""
    peak = max(scores, default=-math.inf)
    if peak == -math.inf:
        return [0.0 for _ in scores]
    exps = [math.exp(score - peak) for score in scores]
    total = math.fsum(exps)
    return [e / total for e in exps]


def softmax(x, axis=-1):
    """Softmax along `axis`, one row at a time.

    A row of -inf alone gives zeros (PyTorch gives NaN there).
    """
    rows = np.moveaxis(np.asarray(x, dtype=np.float64), axis, -1)
    weights = np.zeros(rows.shape)
    for index in np.ndindex(rows.shape[:-1]):
        weights[index] = _softmax_of_list([float(score) for score in rows[index]])
    return np.moveaxis(weights, -1, axis)


def scaled_dot_product_attention(Q, K, V, mask=None):
    """Attention, one query at a time, over its allowed keys only (mask: True = may attend).

    Returns ``(output, weights)`` of shapes ``(..., L_q, d_v)`` and ``(..., L_q, L_k)``. A query
    with no allowed key gets zeros. Leading axes broadcast; a mask that would enlarge the
    scores raises ValueError.
    """
    Q, K, V = (np.asarray(a, dtype=np.float64) for a in (Q, K, V))
    (L_q, d_k), (L_k, d_v) = Q.shape[-2:], V.shape[-2:]

    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    queries = np.broadcast_to(Q, (*lead, L_q, d_k))
    keys = np.broadcast_to(K, (*lead, L_k, d_k))
    allowed = np.broadcast_to(True if mask is None else mask, (*lead, L_q, L_k))
    weights = np.zeros((*lead, L_q, L_k))
    for index in np.ndindex(lead):
        for i in range(L_q):
            js = [j for j in range(L_k) if allowed[index][i, j]]
            scores = []
            for j in js:
                dot = math.fsum(queries[index][i, c] * keys[index][j, c] for c in range(d_k))
                scores.append(dot / math.sqrt(d_k))
            for j, weight in zip(js, _softmax_of_list(scores), strict=True):
                weights[index][i, j] = weight

    lead = np.broadcast_shapes(lead, V.shape[:-2])
    values = np.broadcast_to(V, (*lead, L_k, d_v))
    shares = np.broadcast_to(weights, (*lead, L_q, L_k))
    output = np.zeros((*lead, L_q, d_v))
    for index in np.ndindex(lead):
        for i in range(L_q):
            for c in range(d_v):
                output[index][i, c] = math.fsum(
                    shares[index][i, j] * values[index][j, c] for j in range(L_k)
                )
    return output, weights


def softmax_backward(dweights, weights):
    """Gradient of the scores, by the whole Jacobian of each row (rows along the last axis).

    ``d weights_j / d score_i`` is ``weights_j * ((1 if i == j else 0) - weights_i)``.
    """
    dweights, weights = (np.asarray(a, dtype=np.float64) for a in (dweights, weights))
    n = weights.shape[-1]
    dscores = np.zeros(weights.shape)
    for index in np.ndindex(weights.shape[:-1]):
        w = weights[index]
        for i in range(n):
            dscores[index][i] = math.fsum(
                dweights[index][j] * w[j] * ((1.0 if i == j else 0.0) - w[i]) for j in range(n)
            )
    return dscores


def attention_backward(doutput, Q, K, V, weights):
    """Gradients ``(dQ, dK, dV)``, collected one query and one key at a time.

    `weights` are those of the forward pass; a key that was left out has weight 0. An array
    that broadcasting used several times collects from all of its uses.
    """
    doutput, Q, K, V, weights = (
        np.asarray(a, dtype=np.float64) for a in (doutput, Q, K, V, weights)
    )
    (L_q, d_k), (L_k, d_v) = Q.shape[-2:], V.shape[-2:]
    dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    for index in np.ndindex(doutput.shape[:-2]):
        do = doutput[index]
        q, k, v, w = (array[_own(index, array)] for array in (Q, K, V, weights))
        dq, dk, dv = (array[_own(index, array)] for array in (dQ, dK, dV))  # views
        dw = np.zeros((L_q, L_k))
        for i in range(L_q):
            for j in range(L_k):
                dw[i, j] = math.fsum(do[i, c] * v[j, c] for c in range(d_v))
                for c in range(d_v):
                    dv[j, c] += w[i, j] * do[i, c]
        ds = softmax_backward(dw, w)
        for i in range(L_q):
            for j in range(L_k):
                for c in range(d_k):
                    dq[i, c] += ds[i, j] * k[j, c] / math.sqrt(d_k)
                    dk[j, c] += ds[i, j] * q[i, c] / math.sqrt(d_k)
    return dQ, dK, dV


def _own(index, array):
    """Return which matrix of `array` broadcasting uses at `index` of the leading axes."""
    lead = array.shape[:-2]
    index = index[len(index) - len(lead) :]
    return tuple(0 if n == 1 else i for i, n in zip(index, lead, strict=True))
