"""What exercise 7 asks for, plainly right: one query, or one token, at a time, in float64.

`test_exercises_efficient_attention.py` proves these against PyTorch.
"""

import math

import numpy as np


def visible(L_q, L_k=None, window=None):
    """Causal mask, aligned to the last key; with a window a token sees itself and those before."""
    L_k = L_q if L_k is None else L_k
    mask = np.zeros((L_q, L_k), dtype=bool)
    for i in range(L_q):
        position = i + L_k - L_q
        for j in range(L_k):
            mask[i, j] = j <= position and (window is None or j > position - window)
    return mask


def _rows(Q, K, V, mask=None):
    """Yield for each query ``(its index, its keys' places, its scores)``; none without a key."""
    allowed = np.broadcast_to(True if mask is None else mask, (*Q.shape[:-1], K.shape[-2]))
    for index in np.ndindex(Q.shape[:-1]):
        places = np.flatnonzero(allowed[index])
        if places.size:
            scores = K[index[:-1]][places] @ Q[index] / math.sqrt(Q.shape[-1])
            yield index, places, scores


def attention(Q, K, V, mask=None, k=None):
    """Softmax attention; a query without a key gives 0. With ``k``, over its k best keys only."""
    output = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for index, places, scores in _rows(Q, K, V, mask):
        if k is not None:
            best = np.argsort(scores)[::-1][:k]
            places, scores = places[best], scores[best]
        powers = np.exp(scores - scores.max())
        output[index] = powers @ V[index[:-1]][places] / powers.sum()
    return output


def logsumexp(Q, K, mask=None):
    """Return the logarithm of each query's normalizer, (..., L_q); minus infinity without a key."""
    result = np.full(Q.shape[:-1], -np.inf)
    for index, _, scores in _rows(Q, K, None, mask):
        result[index] = scores.max() + math.log(np.exp(scores - scores.max()).sum())
    return result


def attention_backward(doutput, Q, K, V):
    """Gradients ``(dQ, dK, dV)`` of softmax attention without a mask."""
    dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    root = math.sqrt(Q.shape[-1])
    for index, _, scores in _rows(Q, K, V):
        lead = index[:-1]
        powers = np.exp(scores - scores.max())
        weights = powers / powers.sum()
        dweights = V[lead] @ doutput[index]
        dscores = weights * (dweights - weights @ dweights)
        dQ[index] += dscores @ K[lead] / root
        dK[lead] += np.outer(dscores, Q[index]) / root
        dV[lead] += np.outer(weights, doutput[index])
    return dQ, dK, dV


def _features(x):
    """``elu(x) + 1`` (Katharopoulos et al., 2020, equation 7)."""
    return np.array([n + 1 if n > 0 else math.exp(n) for n in x.ravel()]).reshape(x.shape)


def linear_attention(Q, K, V, causal=False):
    """Weights proportional to ``phi(q) . phi(k)``, one query at a time."""
    output = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for lead in np.ndindex(Q.shape[:-2]):
        q, k = _features(Q[lead]), _features(K[lead])
        for i in range(len(q)):
            seen = i + 1 if causal else len(k)
            weights = k[:seen] @ q[i]
            output[(*lead, i)] = weights @ V[lead][:seen] / weights.sum()
    return output


def local_global_mask(L, block):
    """Causal; a token sees its own block, the block before it, and the first block."""
    mask = np.zeros((L, L), dtype=bool)
    for i in range(L):
        for j in range(i + 1):
            near = i // block - j // block <= 1
            mask[i, j] = near or j < block
    return mask


def score_mebibytes():
    """Scores of 2 sequences, 8 heads, 2048 tokens, in float16: whole; for 2 L; a chunk of 128."""
    shapes = (2, 8, 2048, 2048), (2, 8, 4096, 4096), (2, 8, 2048, 128)
    return tuple(_bytes(shape, np.float16) / 2**20 for shape in shapes)


def cache_mebibytes():
    """Cache of 24 layers, 4 sequences, 16 heads of 64, 2048 tokens; 4 heads; a window of 512."""
    shapes = (4, 16, 2048, 64), (4, 4, 2048, 64), (4, 4, 512, 64)
    return tuple(24 * 2 * _bytes(shape, np.float16) / 2**20 for shape in shapes)


def _bytes(shape, dtype):
    return np.broadcast_to(dtype(0), shape).nbytes  # as many as the array would have


def chunk_pairs(L=1200, queries=100, keys=200):
    """Count by the mask: pairs of equal chunks without anything visible, those with some and not
    all of it, and pairs without anything where the key chunks are longer.
    """
    mask = np.arange(L)[:, None] >= np.arange(L)

    def counts(size):
        chunks = mask.reshape(L // queries, queries, L // size, size)
        some, whole = chunks.any(axis=(1, 3)), chunks.all(axis=(1, 3))
        return (~some).sum(), (some & ~whole).sum()

    return (*map(int, counts(queries)), int(counts(keys)[0]))
