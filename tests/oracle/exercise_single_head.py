"""The definitions that exercise 2 adds to the chapter, plainly right, in float64."""

import math

import numpy as np

from .single_head import attention_backward, scaled_dot_product_attention, softmax


def attention_entropy(weights):
    """Entropy of each row of weights, in nats. A weight of 0 adds nothing."""
    weights = np.asarray(weights, dtype=np.float64)
    entropy = np.zeros(weights.shape[:-1])
    for index in np.ndindex(entropy.shape):
        entropy[index] = math.fsum(-w * math.log(w) for w in weights[index] if w > 0)
    return entropy


def additive_attention(Q, K, V, W_q, W_k, w):
    """Attention with the scores ``w . tanh(q W_q + k W_k)``, one pair at a time.

    Returns ``(output, weights)`` of shapes ``(..., L_q, d_v)`` and ``(..., L_q, L_k)``.
    """
    Q, K, V, W_q, W_k, w = (np.asarray(a, dtype=np.float64) for a in (Q, K, V, W_q, W_k, w))
    scores = np.zeros((*Q.shape[:-1], K.shape[-2]))
    for index in np.ndindex(scores.shape):
        *lead, i, j = index
        query, key = Q[(*lead, i)], K[(*lead, j)]
        scores[index] = math.fsum(w * np.tanh(query @ W_q + key @ W_k))
    weights = softmax(scores)
    return weights @ V, weights


def self_attention(x, W_q, W_k, W_v, mask=None):
    """Attention of a sequence to itself; returns ``(output, weights)``."""
    x, W_q, W_k, W_v = (np.asarray(a, dtype=np.float64) for a in (x, W_q, W_k, W_v))
    return scaled_dot_product_attention(x @ W_q, x @ W_k, x @ W_v, mask)


def self_attention_backward(doutput, x, W_q, W_k, W_v, mask=None):
    """Gradients of ``sum(doutput * output)``: ``(dx, dW_q, dW_k, dW_v)``."""
    doutput, x, *matrices = (np.asarray(a, dtype=np.float64) for a in (doutput, x, W_q, W_k, W_v))
    _, weights = self_attention(x, *matrices, mask)
    parts = attention_backward(doutput, *(x @ W for W in matrices), weights)
    rows = x.reshape(-1, x.shape[-1])
    dx = sum(part @ W.T for part, W in zip(parts, matrices, strict=True))
    return dx, *(rows.T @ part.reshape(-1, part.shape[-1]) for part in parts)
