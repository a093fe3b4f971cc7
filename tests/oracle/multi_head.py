"""Many heads, slow and plainly right: one number, one head and one sequence at a time, in float64.

Checks and tests compare with these. `test_oracle_multi_head.py` proves them against PyTorch.
"""

import math

import numpy as np

from . import single_head


def split_heads(x, num_heads):
    """(..., L, D) to (..., h, L, D / h): head i has columns ``i * D / h`` and following."""
    x = np.asarray(x)
    *lead, L, D = x.shape
    if D % num_heads:
        raise ValueError(f"num_heads: {num_heads} does not divide {D}")
    d = D // num_heads
    heads = np.zeros((*lead, num_heads, L, d), dtype=x.dtype)
    for index in np.ndindex(*lead):
        for head in range(num_heads):
            for position in range(L):
                for c in range(d):
                    heads[(*index, head, position, c)] = x[(*index, position, head * d + c)]
    return heads


def merge_heads(x):
    """(..., h, L, d) to (..., L, h * d): the heads of a position side by side, in order."""
    x = np.asarray(x)
    *lead, h, L, d = x.shape
    merged = np.zeros((*lead, L, h * d), dtype=x.dtype)
    for index in np.ndindex(*lead):
        for head in range(h):
            for position in range(L):
                for c in range(d):
                    merged[(*index, position, head * d + c)] = x[(*index, head, position, c)]
    return merged


def linear(x, W, b=None):
    """``x @ W + b``, one number at a time."""
    x, W = np.asarray(x, dtype=np.float64), np.asarray(W, dtype=np.float64)
    y = np.zeros((*x.shape[:-1], W.shape[1]))
    for index in np.ndindex(x.shape[:-1]):
        for j in range(W.shape[1]):
            y[(*index, j)] = math.fsum(x[index][i] * W[i, j] for i in range(W.shape[0]))
            y[(*index, j)] += 0.0 if b is None else b[j]
    return y


def mask_of_each_head(mask, lead, num_heads, L):
    """Give every sequence and head its own mask (L, L): shape (..., h, L, L).

    With an axis for the heads a mask has as many axes as the weights. Without, it has at most
    one axis less, and its axes before the last two are those of X. ValueError if it does not fit.
    """
    mask = np.asarray(mask, dtype=bool)
    if mask.ndim == len(lead) + 3:
        return np.broadcast_to(mask, (*lead, num_heads, L, L))
    shared = np.broadcast_to(mask, (*lead, L, L))
    full = np.zeros((*lead, num_heads, L, L), dtype=bool)
    for index in np.ndindex(*lead):
        for head in range(num_heads):
            full[(*index, head)] = shared[index]
    return full


def multi_head_attention(
    X, W_q, W_k, W_v, W_o, num_heads, mask=None, *, b_q=None, b_k=None, b_v=None, b_o=None
):
    """The whole layer: a loop over sequences, and over the heads of each.

    Returns ``(output, weights)`` of shapes ``(..., L, d_out)`` and ``(..., h, L, L)``. A query
    with no allowed key has weights 0 and context 0, so that its output is `b_o` (or 0).
    """
    X = np.asarray(X, dtype=np.float64)
    *lead, L, _ = X.shape
    Q, K, V = linear(X, W_q, b_q), linear(X, W_k, b_k), linear(X, W_v, b_v)
    if Q.shape[-1] % num_heads or V.shape[-1] % num_heads:
        raise ValueError(f"num_heads: {num_heads} does not divide the widths")
    d_k, d_v = Q.shape[-1] // num_heads, V.shape[-1] // num_heads
    masks = mask_of_each_head(True if mask is None else mask, lead, num_heads, L)
    weights = np.zeros((*lead, num_heads, L, L))
    context = np.zeros((*lead, L, num_heads * d_v))
    for index in np.ndindex(*lead):
        for head in range(num_heads):
            k, v = slice(head * d_k, (head + 1) * d_k), slice(head * d_v, (head + 1) * d_v)
            found, shares = single_head.scaled_dot_product_attention(
                Q[index][:, k], K[index][:, k], V[index][:, v], masks[(*index, head)]
            )
            weights[(*index, head)] = shares
            context[index][:, v] = found
    return linear(context, W_o, b_o), weights


def unpack_in_proj(in_proj_weight, out_proj_weight):
    """Cut and transpose the weights of `nn.MultiheadAttention`, one number at a time."""
    in_proj_weight, out_proj_weight = np.asarray(in_proj_weight), np.asarray(out_proj_weight)
    d_model = out_proj_weight.shape[0]
    matrices = [np.zeros((d_model, d_model), dtype=in_proj_weight.dtype) for _ in range(4)]
    for i in range(d_model):
        for j in range(d_model):
            for part in range(3):
                matrices[part][i, j] = in_proj_weight[part * d_model + j, i]
            matrices[3][i, j] = out_proj_weight[j, i]
    return tuple(matrices)


def multi_head_attention_backward(
    doutput, X, W_q, W_k, W_v, W_o, num_heads, weights, *, b_q=None, b_k=None, b_v=None, b_o=None
):
    """Gradients ``(dX, {name: gradient})``: a loop over sequences, and over the heads of each.

    `weights` are those of the forward pass.
    """
    X, doutput = np.asarray(X, dtype=np.float64), np.asarray(doutput, dtype=np.float64)
    matrices = {"W_q": W_q, "W_k": W_k, "W_v": W_v, "W_o": W_o}
    matrices = {name: np.asarray(W, dtype=np.float64) for name, W in matrices.items()}
    gradients = {name: np.zeros(W.shape) for name, W in matrices.items()}
    gradients |= {name.replace("W", "b"): np.zeros(W.shape[1]) for name, W in matrices.items()}
    Q, K, V = linear(X, W_q, b_q), linear(X, W_k, b_k), linear(X, W_v, b_v)
    d_k, d_v = Q.shape[-1] // num_heads, V.shape[-1] // num_heads
    dX = np.zeros(X.shape)
    for index in np.ndindex(*X.shape[:-2]):
        x, do = X[index], doutput[index]
        gradients["b_o"] += do.sum(axis=0)
        for head in range(num_heads):
            k, v = slice(head * d_k, (head + 1) * d_k), slice(head * d_v, (head + 1) * d_v)
            shares = np.asarray(weights[(*index, head)], dtype=np.float64)
            values = V[index][:, v]
            # The output is a sum of what the heads contribute, each through its rows of W_o.
            gradients["W_o"][v] += (shares @ values).T @ do
            dcontext = do @ matrices["W_o"][v].T
            dheads = single_head.attention_backward(
                dcontext, Q[index][:, k], K[index][:, k], values, shares
            )
            for letter, columns, d in zip("qkv", (k, k, v), dheads, strict=True):
                gradients[f"W_{letter}"][:, columns] += x.T @ d
                gradients[f"b_{letter}"][columns] += d.sum(axis=0)
                dX[index] += d @ matrices[f"W_{letter}"][:, columns].T
    return dX, gradients
