"""What exercise 3 asks for, plainly right, in float64: one sequence and one head at a time.

`test_exercises_multi_head.py` proves these against PyTorch.
"""

import math

import numpy as np


def split_heads(x, num_heads):
    """Give head i the features ``i * d`` to ``(i + 1) * d``: (B, L, D) → (B, h, L, d)."""
    x = np.asarray(x)
    B, L, D = x.shape
    d = D // num_heads
    heads = np.zeros((B, num_heads, L, d))
    for b, i, t, c in np.ndindex(heads.shape):
        heads[b, i, t, c] = x[b, t, i * d + c]
    return heads


def merge_heads(x):
    """Put the heads of each token side by side: (B, h, L, d) → (B, L, h·d)."""
    B, h, L, d = x.shape
    merged = np.zeros((B, L, h * d))
    for b, i, t, c in np.ndindex(B, h, L, d):
        merged[b, t, i * d + c] = x[b, i, t, c]
    return merged


def _attend(Q, K, V, allowed):
    """Attention of one head in one sequence: the softmax runs over the allowed keys alone."""
    weights = np.zeros((len(Q), len(K)))
    for i, query in enumerate(Q):
        js = np.flatnonzero(allowed[i])
        if len(js):
            scores = K[js] @ query / math.sqrt(Q.shape[1])
            powers = np.exp(scores - scores.max())
            weights[i, js] = powers / powers.sum()
    return weights @ V, weights


def multi_head_attention(X, W_q, W_k, W_v, W_o, num_heads, mask=None, **biases):
    """Multi-head self-attention (Vaswani et al., 2017, section 3.2.2), biases b_q … b_o optional.

    A mask with three axes is ``(B, L, L)``. Returns ``(output, weights)`` of shapes
    ``(B, L, d_model)`` and ``(B, h, L, L)``.
    """
    return grouped_query_attention(X, W_q, W_k, W_v, W_o, num_heads, num_heads, mask, **biases)


def grouped_query_attention(
    X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None, *, b_q=0, b_k=0, b_v=0, b_o=0
):
    """Attention in which ``h / g`` heads in a row share keys and values (Ainslie et al., 2023)."""
    X, W_q, W_k, W_v, W_o = (np.asarray(a, dtype=np.float64) for a in (X, W_q, W_k, W_v, W_o))
    (B, L, _), d = X.shape, W_q.shape[1] // num_heads
    allowed = np.ones((B, num_heads, L, L), dtype=bool)
    if mask is not None:
        mask = np.asarray(mask)
        allowed &= mask[:, None] if mask.ndim == 3 else mask
    weights = np.zeros((B, num_heads, L, L))
    joined = np.zeros((B, L, num_heads * d))
    for b in range(B):
        Q, K, V = X[b] @ W_q + b_q, X[b] @ W_k + b_k, X[b] @ W_v + b_v
        for i in range(num_heads):
            shared = i // (num_heads // num_kv_heads)
            mine, theirs = slice(i * d, (i + 1) * d), slice(shared * d, (shared + 1) * d)
            joined[b, :, mine], weights[b, i] = _attend(
                Q[:, mine], K[:, theirs], V[:, theirs], allowed[b, i]
            )
    return joined @ W_o + b_o, weights


def attention_with_head_mask(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    """Add up what the heads with True contribute, each through its own rows of W_o."""
    X, W_q, W_k, W_v, W_o = (np.asarray(a, dtype=np.float64) for a in (X, W_q, W_k, W_v, W_o))
    (B, L, _), d = X.shape, W_q.shape[1] // num_heads
    output = np.zeros((B, L, W_o.shape[1]))
    for b in range(B):
        for i in np.flatnonzero(head_mask):
            mine = slice(i * d, (i + 1) * d)
            parts = (X[b] @ W[:, mine] for W in (W_q, W_k, W_v))
            context, _ = _attend(*parts, np.ones((L, L), dtype=bool))
            output[b] += context @ W_o[mine]
    return output


def grouped_query_costs(L, d_model, num_heads, num_kv_heads):
    """Count the entries of real arrays: of the four weight matrices, and of K and V."""
    d = d_model // num_heads
    X, W_q, W_o = (np.zeros(shape) for shape in ((L, d_model), *[(d_model, d_model)] * 2))
    W_k, W_v = (np.zeros((d_model, num_kv_heads * d)) for _ in range(2))
    return sum(W.size for W in (W_q, W_k, W_v, W_o)), (X @ W_k).size + (X @ W_v).size


def unpack_in_proj(in_proj_weight, out_proj_weight):
    """Return the matrices of ``x @ W`` that do what the packed ones do to one unit vector each."""
    packed, out = (np.asarray(a, dtype=np.float64) for a in (in_proj_weight, out_proj_weight))
    D = packed.shape[1]
    parts = [np.zeros((D, D)) for _ in range(4)]
    for i in range(D):  # feature i of the input
        for j in range(D):  # feature j of the projection
            for part in range(3):
                parts[part][i, j] = packed[part * D + j, i]
            parts[3][i, j] = out[j, i]
    return tuple(parts)


def multi_head_gradients(doutput, x, matrices, biases, num_heads, mask=None):
    """Gradients of ``sum(doutput * output)`` by PyTorch, in float64, through no ready-made layer.

    `matrices` are W_q, W_k, W_v, W_o of ``x @ W``, `biases` belong to them. Returns a dict:
    ``"x"``, and ``"W_q.weight"``, ``"W_q.bias"``, … in the layout of ``nn.Linear``. A query with
    no allowed key gives nothing on.
    """
    import torch

    names = ("W_q", "W_k", "W_v", "W_o")
    leaves = {"x": torch.tensor(x, dtype=torch.float64, requires_grad=True)}
    for name, W, b in zip(names, matrices, biases, strict=True):
        leaves[f"{name}.weight"] = torch.tensor(W.T, dtype=torch.float64, requires_grad=True)
        leaves[f"{name}.bias"] = torch.tensor(b, dtype=torch.float64, requires_grad=True)

    def project(tensor, name):
        return tensor @ leaves[f"{name}.weight"].T + leaves[f"{name}.bias"]

    q, k, v = (project(leaves["x"], name) for name in names[:3])
    L, d = q.shape[1], q.shape[2] // num_heads
    allowed = torch.ones(len(x), L, L, dtype=torch.bool)
    if mask is not None:
        allowed = allowed & torch.tensor(mask)
    some = allowed.any(dim=-1, keepdim=True)
    contexts = []
    for i in range(num_heads):
        mine = slice(i * d, (i + 1) * d)
        scores = q[..., mine] @ k[..., mine].transpose(1, 2) / math.sqrt(d)
        scores = torch.where(allowed | ~some, scores, -torch.inf)  # an empty row stays finite
        weights = torch.where(some, torch.softmax(scores, dim=-1), 0.0)
        contexts.append(weights @ v[..., mine])
    output = project(torch.cat(contexts, dim=-1), "W_o")
    found = torch.autograd.grad((output * torch.tensor(doutput)).sum(), list(leaves.values()))
    return {name: gradient.numpy() for name, gradient in zip(leaves, found, strict=True)}
