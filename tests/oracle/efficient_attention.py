"""Cheaper attentions from their definitions: one query at a time, over the keys it may read.

Checks and tests compare with these. `test_oracle_efficient_attention.py` proves them against
PyTorch. What is exact (chunks, caches) has the oracle of chapters 2 and 4 for its definition.
"""

import math

import numpy as np

from . import single_head
from .masking import causal_mask_rect, mask_of


def window_mask(L_q, L_k, window):
    """The query's own position and the ``window - 1`` before it; the last query at the last key."""
    offset = L_k - L_q
    return mask_of(L_q, L_k, lambda i, j: j in range(i + offset - window + 1, i + offset + 1))


def block_sparse_mask(pattern, block_size, L_q, L_k):
    """Key j for query i where the pattern has their blocks."""
    return mask_of(L_q, L_k, lambda i, j: pattern[i // block_size][j // block_size])


def logsumexp(Q, K, mask=None):
    """Logarithm of the sum of exp(score) over the allowed keys, -inf where there is none."""
    Q, K = np.asarray(Q, dtype=np.float64), np.asarray(K, dtype=np.float64)
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    L_q, L_k, d_k = Q.shape[-2], K.shape[-2], Q.shape[-1]
    Q, K = np.broadcast_to(Q, (*lead, L_q, d_k)), np.broadcast_to(K, (*lead, L_k, d_k))
    allowed = np.broadcast_to(True if mask is None else mask, (*lead, L_q, L_k))
    result = np.full((*lead, L_q), -np.inf)
    for index in np.ndindex(result.shape):
        head = index[:-1]
        scores = [
            math.fsum(Q[index] * K[(*head, j)]) / math.sqrt(d_k)
            for j in range(L_k)
            if allowed[(*index, j)]
        ]
        if scores:
            peak = max(scores)
            result[index] = peak + math.log(math.fsum(math.exp(s - peak) for s in scores))
    return result


def topk_attention(Q, K, V, k, causal=True):
    """Softmax over the k largest of the scores that the query may read."""
    Q, K = np.asarray(Q, dtype=np.float64), np.asarray(K, dtype=np.float64)
    L_q, L_k = Q.shape[-2], K.shape[-2]
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    scores = np.broadcast_to(Q @ np.swapaxes(K, -1, -2), (*lead, L_q, L_k))
    visible = causal_mask_rect(L_q, L_k) if causal else np.full((L_q, L_k), True)
    chosen = np.zeros(scores.shape, dtype=bool)
    for index in np.ndindex((*lead, L_q)):
        keys = [j for j in range(L_k) if visible[index[-1], j]]
        for j in sorted(keys, key=lambda j, row=scores[index]: -row[j])[:k]:
            chosen[(*index, j)] = True
    return single_head.scaled_dot_product_attention(Q, K, V, chosen)[0]


def _feature(x):
    return x + 1 if x > 0 else math.exp(x)


def linear_attention(Q, K, V, causal=False):
    """Mean of the values, each with the weight phi(q) . phi(k), phi = elu + 1."""
    Q, K, V = (np.asarray(a, dtype=np.float64) for a in (Q, K, V))
    L_q, L_k = Q.shape[-2], K.shape[-2]
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    Q, K, V = (np.broadcast_to(a, (*lead, *a.shape[-2:])) for a in (Q, K, V))
    visible = causal_mask_rect(L_q, L_k) if causal else np.full((L_q, L_k), True)
    output = np.zeros((*lead, L_q, V.shape[-1]))
    for index in np.ndindex((*lead, L_q)):
        head, i = index[:-1], index[-1]
        keys = [j for j in range(L_k) if visible[i, j]]
        weights = [
            math.fsum(
                _feature(a) * _feature(b) for a, b in zip(Q[index], K[(*head, j)], strict=True)
            )
            for j in keys
        ]
        if keys:
            total = math.fsum(weights)
            for c in range(V.shape[-1]):
                products = [w * V[(*head, j, c)] for w, j in zip(weights, keys, strict=True)]
                output[(*index, c)] = math.fsum(products) / total
    return output


def grouped_query_attention(Q, K, V, mask=None):
    """One head at a time; query head i reads key head ``i // (h / g)``."""
    Q, K, V = (np.asarray(a, dtype=np.float64) for a in (Q, K, V))
    h, g = Q.shape[-3], K.shape[-3]
    lead = np.broadcast_shapes(Q.shape[:-3], K.shape[:-3])
    L_q, L_k = Q.shape[-2], K.shape[-2]
    allowed = np.broadcast_to(True if mask is None else mask, (*lead, h, L_q, L_k))
    heads = [
        single_head.scaled_dot_product_attention(
            Q[..., i, :, :],
            K[..., i * g // h, :, :],
            V[..., i * g // h, :, :],
            allowed[..., i, :, :],
        )[0]
        for i in range(h)
    ]
    return np.stack(heads, axis=-3)
