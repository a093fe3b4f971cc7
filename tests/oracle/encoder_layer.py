"""The encoder layer, slow and plainly right: loops over single numbers in float64.

Checks and tests compare with these. `test_oracle_encoder_layer.py` proves them against PyTorch.
"""

import math

import numpy as np

from . import single_head


def layer_norm(x, gamma, beta, eps=1e-5):
    """Normalize each row over its own numbers; the variance divides by their count."""
    x, gamma, beta = (np.asarray(a, dtype=np.float64) for a in (x, gamma, beta))
    n = x.shape[-1]
    y = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        row = [float(number) for number in x[index]]
        mean = math.fsum(row) / n
        variance = math.fsum((number - mean) ** 2 for number in row) / n
        for c in range(n):
            y[index][c] = (row[c] - mean) / math.sqrt(variance + eps) * gamma[c] + beta[c]
    return y


def layer_norm_backward(dy, x, gamma, eps=1e-5):
    """Gradients ``(dx, dgamma, dbeta)``, by the whole Jacobian of each row.

    With ``n_i = (x_i - mean) / s`` and ``s = sqrt(variance + eps)``, the derivative of ``n_i`` with
    respect to ``x_j`` is ``((1 if i == j else 0) - 1 / d - n_i * n_j / d) / s``.
    """
    dy, x, gamma = (np.asarray(a, dtype=np.float64) for a in (dy, x, gamma))
    d = x.shape[-1]
    dx, dgamma, dbeta = np.zeros(x.shape), np.zeros(d), np.zeros(d)
    for index in np.ndindex(x.shape[:-1]):
        row = [float(number) for number in x[index]]
        mean = math.fsum(row) / d
        s = math.sqrt(math.fsum((number - mean) ** 2 for number in row) / d + eps)
        n = [(number - mean) / s for number in row]
        for i in range(d):
            dgamma[i] += dy[index][i] * n[i]
            dbeta[i] += dy[index][i]
            for j in range(d):
                slope = ((1.0 if i == j else 0.0) - 1 / d - n[i] * n[j] / d) / s
                dx[index][j] += dy[index][i] * gamma[i] * slope
    return dx, dgamma, dbeta


def _linear(x, W, b):
    """``x @ W + b`` for a list of numbers."""
    return [math.fsum([*(x[i] * W[i][j] for i in range(len(x))), b[j]]) for j in range(W.shape[1])]


def _project(x, W, b):
    y = np.zeros((*x.shape[:-1], W.shape[1]))
    for index in np.ndindex(x.shape[:-1]):
        y[index] = _linear(x[index], W, b)
    return y


def relu(number):
    return number if number > 0 else 0.0


def gelu(number):
    return number * (1 + math.erf(number / math.sqrt(2))) / 2


def feed_forward(x, W1, b1, W2, b2, activation="relu"):
    """Send each position through two linear maps with an activation between them."""
    x, W1, b1, W2, b2 = (np.asarray(a, dtype=np.float64) for a in (x, W1, b1, W2, b2))
    act = {"relu": relu, "gelu": gelu}[activation]
    hidden = _project(x, W1, b1)
    for index in np.ndindex(hidden.shape):
        hidden[index] = act(float(hidden[index]))
    return _project(hidden, W2, b2)


def positional_encoding(L, d_model):
    """Sines in the even columns, cosines of the same angles in the odd ones."""
    encoding = np.zeros((L, d_model))
    for position in range(L):
        for column in range(d_model):
            angle = position / 10000 ** ((column - column % 2) / d_model)
            encoding[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return encoding


def self_attention(x, weights, num_heads, mask=None):
    """Multi-head self-attention, one head at a time; returns the output alone.

    A mask of three axes holds for sequences (B, L, L); one of four has an axis for the heads.
    """
    Q, K, V = (_project(x, weights[f"W_{c}"], weights[f"b_{c}"]) for c in "qkv")
    d_k, d_v = Q.shape[-1] // num_heads, V.shape[-1] // num_heads
    L = x.shape[-2]
    if mask is not None and np.ndim(mask) <= 3:
        mask = np.asarray(mask)[..., None, :, :] if np.ndim(mask) == 3 else mask
    allowed = np.broadcast_to(True if mask is None else mask, (*x.shape[:-2], num_heads, L, L))
    contexts = []
    for head in range(num_heads):
        q = Q[..., head * d_k : (head + 1) * d_k]
        k = K[..., head * d_k : (head + 1) * d_k]
        v = V[..., head * d_v : (head + 1) * d_v]
        context, _ = single_head.scaled_dot_product_attention(q, k, v, allowed[..., head, :, :])
        contexts.append(context)
    return _project(np.concatenate(contexts, axis=-1), weights["W_o"], weights["b_o"])


def encoder_layer(x, weights, num_heads, mask=None, norm_first=False, activation="relu"):
    """Attention and a feed-forward network, each added to its input; the norms after or before."""
    x = np.asarray(x, dtype=np.float64)
    w = {name: np.asarray(array, dtype=np.float64) for name, array in weights.items()}

    def norm(x, number):
        return layer_norm(x, w[f"gamma{number}"], w[f"beta{number}"])

    def think(x):
        return feed_forward(x, w["W1"], w["b1"], w["W2"], w["b2"], activation)

    if norm_first:
        x = x + self_attention(norm(x, 1), w, num_heads, mask)
        return x + think(norm(x, 2))
    x = norm(x + self_attention(x, w, num_heads, mask), 1)
    return norm(x + think(x), 2)
