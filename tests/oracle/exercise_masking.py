"""What exercise 4 asks for, plainly right: one query and one key at a time.

`test_exercises_masking.py` proves these against PyTorch.
"""

import numpy as np

from . import single_head


def _pairs(rule, *shape):
    """Ask a rule for each index whether the query may attend to the key."""
    mask = np.zeros(shape, dtype=bool)
    for index in np.ndindex(shape):
        mask[index] = rule(*index)
    return mask


def padding_mask(lengths, max_len):
    """Keep the first ``lengths[b]`` keys of sequence b: (B,) → (B, 1, 1, L)."""
    return _pairs(lambda b, _, __, j: j < lengths[b], len(lengths), 1, 1, max_len)


def causal_mask(L):
    """Let each query see its own position and those before it: (L, L)."""
    return _pairs(lambda i, j: j <= i, L, L)


def causal_mask_rect(L_q, L_k):
    """Causal, where query i stands at position ``L_k - L_q + i``: (L_q, L_k)."""
    return _pairs(lambda i, j: j <= L_k - L_q + i, L_q, L_k)


def combine_masks(keep, causal):
    """Allow what both allow: (B, L) and (L, L) → (B, 1, L, L)."""
    B, L = np.shape(keep)
    return _pairs(lambda b, _, i, j: keep[b][j] and causal[i][j], B, 1, L, L)


def sliding_window_mask(L, window):
    """Let each query see itself and the ``window - 1`` positions before it: (L, L)."""
    return _pairs(lambda i, j: i - window < j <= i, L, L)


def masked_mean_pool(x, keep):
    """Average the kept tokens of each sequence, 0 where there is none: (B, L, D) → (B, D)."""
    x = np.asarray(x, dtype=np.float64)
    pooled = np.zeros((x.shape[0], x.shape[2]))
    for b in range(len(x)):
        kept = [x[b, i] for i in range(x.shape[1]) if keep[b][i]]
        if kept:
            pooled[b] = sum(kept) / len(kept)
    return pooled


def masked_attention(Q, K, V, mask=None, causal=False):
    """Attention under a mask, a causal mask aligned to the last key, or both."""
    L_q, L_k = np.shape(Q)[-2], np.shape(K)[-2]
    allowed = np.ones((L_q, L_k), dtype=bool) if mask is None else np.asarray(mask)
    if causal:
        allowed = allowed & causal_mask_rect(L_q, L_k)
    return single_head.scaled_dot_product_attention(Q, K, V, allowed)


def packed_causal_mask(segments):
    """Causal inside each document; -1 marks padding: (B, L) → (B, 1, L, L)."""
    B, L = np.shape(segments)

    def rule(b, _, i, j):
        return j <= i and segments[b][i] == segments[b][j] and segments[b][j] >= 0

    return _pairs(rule, B, 1, L, L)


def prefix_lm_mask(prefix_lengths, L):
    """Show the prefix to all queries, the rest causally (Raffel et al., 2020): (B, 1, L, L)."""
    return _pairs(lambda b, _, i, j: j <= i or j < prefix_lengths[b], len(prefix_lengths), 1, L, L)


def mask_for(interface, mask, num_heads=1):
    """Put a mask, ``True`` = may attend, into the form that one PyTorch interface takes."""
    mask = np.asarray(mask)
    B, _, L_q, L_k = mask.shape
    if interface == "sdpa":
        return mask.copy()
    if interface == "float":
        return np.where(mask, 0.0, -np.inf)
    if interface == "key_padding_mask":
        return _pairs(lambda b, j: not mask[b, 0, 0, j], B, L_k)
    if interface == "attn_mask":  # the heads of one sequence stand together
        return _pairs(lambda n, i, j: not mask[n // num_heads, 0, i, j], B * num_heads, L_q, L_k)
    raise ValueError(interface)


def decoder_mask(tokens, pad_id):
    """Let each position see the tokens up to itself that are no padding: (B, 1, L, L)."""
    B, L = np.shape(tokens)
    return _pairs(lambda b, _, i, j: j <= i and tokens[b][j] != pad_id, B, 1, L, L)


def sentence_vectors(x, keep, state, num_heads):
    """Mean over the kept tokens of ``x + self-attention(x)``, with the weights of a state dict.

    The names are those of an ``nn.MultiheadAttention`` called ``attention``.
    """
    (_, L, D), d = x.shape, x.shape[2] // num_heads
    W, b = state["attention.in_proj_weight"], state["attention.in_proj_bias"]
    q, k, v = (x @ W[n * D : (n + 1) * D].T + b[n * D : (n + 1) * D] for n in range(3))
    heads = np.zeros_like(x)
    for h in range(num_heads):
        part = slice(h * d, (h + 1) * d)
        allowed = np.repeat(keep[:, None, :], L, axis=1)
        heads[..., part], _ = single_head.scaled_dot_product_attention(
            q[..., part], k[..., part], v[..., part], allowed
        )
    W_o, b_o = state["attention.out_proj.weight"], state["attention.out_proj.bias"]
    return masked_mean_pool(x + heads @ W_o.T + b_o, keep)
