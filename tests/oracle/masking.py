"""Masks one query and one key at a time, from their definitions in words.

Checks and tests compare with these. `test_oracle_masking.py` proves them against PyTorch.
"""

import math

import numpy as np

from . import single_head


def mask_of(L_q, L_k, allowed):
    """Return the mask ``(L_q, L_k)`` in which `allowed(i, j)` says if query i may read key j."""
    mask = np.zeros((L_q, L_k), dtype=bool)
    for i in range(L_q):
        for j in range(L_k):
            mask[i, j] = bool(allowed(i, j))
    return mask


def padding_mask(lengths, max_len):
    """Keys below the sequence's length, in shape ``(B, 1, 1, L)``."""
    rows = [mask_of(1, max_len, lambda i, j, n=n: j < n) for n in lengths]
    return np.array(rows, dtype=bool).reshape(len(rows), 1, 1, max_len)


def causal_mask(L):
    """Keys up to the query."""
    return mask_of(L, L, lambda i, j: j <= i)


def causal_mask_rect(L_q, L_k):
    """Keys up to the query, where the last query stands at the last key."""
    # counted from the end, query and key of one position have the same number
    return mask_of(L_q, L_k, lambda i, j: (L_k - 1 - j) >= (L_q - 1 - i))


def combine_masks(keep, causal):
    """Keys that are real and not in the future, in shape ``(B, 1, L_q, L_k)``."""
    L_q, L_k = np.shape(causal)
    rows = [mask_of(L_q, L_k, lambda i, j, real=real: real[j] and causal[i][j]) for real in keep]
    return np.array(rows, dtype=bool).reshape(len(rows), 1, L_q, L_k)


def sliding_window_mask(L, window):
    """The query itself and the ``window - 1`` keys before it."""
    return mask_of(L, L, lambda i, j: j in range(i - window + 1, i + 1))


def packed_mask(segments):
    """Keys of the query's own sequence, none for padding; shape ``(B, 1, L, L)``."""
    segments = np.asarray(segments)
    B, L = segments.shape
    rows = [mask_of(L, L, lambda i, j, row=row: row[i] == row[j] >= 0) for row in segments]
    return np.array(rows, dtype=bool).reshape(B, 1, L, L)


def prefix_lm_mask(prefix_lengths, L):
    """Keys of the prefix, and keys up to the query; shape ``(B, 1, L, L)``."""
    rows = [mask_of(L, L, lambda i, j, n=n: j < n or j <= i) for n in prefix_lengths]
    return np.array(rows, dtype=bool).reshape(len(rows), 1, L, L)


def masked_mean_pool(x, keep):
    """Mean of the kept rows of each sequence, 0 where there is none: ``(..., D)``."""
    x, keep = np.asarray(x, dtype=np.float64), np.asarray(keep)
    mean = np.zeros((*x.shape[:-2], x.shape[-1]))
    for index in np.ndindex(mean.shape):
        lead, c = index[:-1], index[-1]
        kept = [x[(*lead, t, c)] for t in range(x.shape[-2]) if keep[(*lead, t)]]
        if kept:
            mean[index] = math.fsum(kept) / len(kept)
    return mean


def masked_attention(Q, K, V, mask=None, causal=False):
    """Attention over the keys that the mask allows and, if causal, that are not after."""
    if causal:
        L_q, L_k = np.shape(Q)[-2], np.shape(K)[-2]
        not_after = causal_mask_rect(L_q, L_k)
        mask = not_after if mask is None else np.logical_and(mask, not_after)
    return single_head.scaled_dot_product_attention(Q, K, V, mask)
