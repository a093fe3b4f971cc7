"""Right answers to exercise 3, written in unlike ways, and wrong ones that are not in the bank.

PyTorch is imported where it is used, so that the module can be read without it.
"""

import functools
import math

import numpy as np

# --- split_heads, right ---


def split(x, num_heads):
    B, L, D = x.shape
    return x.reshape(B, L, num_heads, D // num_heads).transpose(0, 2, 1, 3)


def split_with_swapaxes(x, num_heads):
    return np.swapaxes(x.reshape(*x.shape[:-1], num_heads, -1), -2, -3)


def split_with_moveaxis(x, num_heads):
    return np.moveaxis(x.reshape(len(x), x.shape[1], num_heads, -1), 2, 1).copy()


def split_and_stack(x, num_heads):
    return np.stack(np.split(x, num_heads, axis=-1), axis=1)


def split_with_einsum(x, num_heads):
    return np.einsum("blhd->bhld", x.reshape(*x.shape[:2], num_heads, -1))


def split_by_slices(x, num_heads):
    B, L, D = x.shape
    d = D // num_heads
    heads = np.empty((B, num_heads, L, d))
    for i in range(num_heads):
        heads[:, i] = x[:, :, i * d : (i + 1) * d]
    return heads


def split_by_index(x, num_heads):
    columns = np.arange(x.shape[-1]).reshape(num_heads, 1, -1)
    return x[:, np.arange(x.shape[1])[:, None], columns]


def split_by_selection_matrices(x, num_heads):
    chosen = np.split(np.eye(x.shape[-1]), num_heads, axis=1)
    return np.array([[sequence @ S for S in chosen] for sequence in x])


def split_by_list_comprehension(x, num_heads):
    d = x.shape[-1] // num_heads
    return np.array(
        [
            [[t[i * d : i * d + d] for t in sequence] for i in range(num_heads)]
            for sequence in x.tolist()
        ]
    )


RIGHT_SPLIT = {
    "reshape and transpose": split,
    "swapaxes": split_with_swapaxes,
    "moveaxis": split_with_moveaxis,
    "split and stack": split_and_stack,
    "einsum": split_with_einsum,
    "slices": split_by_slices,
    "index arrays": split_by_index,
    "selection matrices": split_by_selection_matrices,
    "list comprehension": split_by_list_comprehension,
}

# --- merge_heads, right ---


def merge(x):
    B, h, L, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, L, h * d)


def merge_with_swapaxes(x):
    x = np.swapaxes(x, 1, 2)
    return x.reshape(*x.shape[:2], -1)


def merge_with_einsum(x):
    return np.einsum("bhld->blhd", x).reshape(len(x), x.shape[2], -1)


def merge_with_concatenate(x):
    return np.concatenate([x[:, i] for i in range(x.shape[1])], axis=-1)


def merge_with_hstack(x):
    return np.array([np.hstack(list(sequence)) for sequence in x])


def merge_with_dstack(x):
    return np.dstack(tuple(np.moveaxis(x, 1, 0)))


def merge_by_slices(x):
    B, h, L, d = x.shape
    merged = np.empty((B, L, h * d))
    for i in range(h):
        merged[..., i * d : (i + 1) * d] = x[:, i]
    return merged


def merge_by_sum_of_blocks(x):
    h, d = x.shape[1], x.shape[3]
    places = np.eye(h * d).reshape(h, d, h * d)
    return sum(x[:, i] @ places[i] for i in range(h))


def merge_with_tensordot(x):
    h, d = x.shape[1], x.shape[3]
    return np.tensordot(x, np.eye(h * d).reshape(h, d, h * d), axes=((1, 3), (0, 1)))


RIGHT_MERGE = {
    "transpose and reshape": merge,
    "swapaxes": merge_with_swapaxes,
    "einsum": merge_with_einsum,
    "concatenate": merge_with_concatenate,
    "hstack": merge_with_hstack,
    "dstack": merge_with_dstack,
    "slices": merge_by_slices,
    "sum of blocks": merge_by_sum_of_blocks,
    "tensordot": merge_with_tensordot,
}

# --- multi_head_attention, right ---


def safe_rows(scores):
    """Softmax over the last axis; a row of -inf alone gives zeros."""
    peak = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0.0))
    total = e.sum(axis=-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def for_heads(mask):
    return mask[:, None] if mask is not None and mask.ndim == 3 else mask


def attend(q, k, v, mask=None):
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = safe_rows(scores)
    return weights @ v, weights


def mha(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = (split(X @ W, num_heads) for W in (W_q, W_k, W_v))
    context, weights = attend(q, k, v, for_heads(mask))
    return merge(context) @ W_o, weights


def mha_fused(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, D = X.shape
    qkv = (X @ np.concatenate([W_q, W_k, W_v], axis=1)).reshape(B, L, 3, num_heads, -1)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    context, weights = attend(q, k, v, for_heads(mask))
    return context.transpose(0, 2, 1, 3).reshape(B, L, D) @ W_o, weights


def mha_einsum(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    D = X.shape[-1]
    W_q, W_k, W_v = (W.reshape(D, num_heads, -1) for W in (W_q, W_k, W_v))
    scores = np.einsum("bid,dhc,bje,ehc->bhij", X, W_q, X, W_k, optimize=True)
    scores = scores / W_q.shape[-1] ** 0.5
    if mask is not None:
        scores = np.where(for_heads(mask), scores, -np.inf)
    weights = safe_rows(scores)
    W_o = W_o.reshape(num_heads, -1, D)
    output = np.einsum("bhij,bjd,dhc,hce->bie", weights, X, W_v, W_o, optimize=True)
    return output, weights


def mha_loop_over_heads(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, D = X.shape
    d = D // num_heads
    if mask is not None:
        mask = np.broadcast_to(for_heads(mask), (B, num_heads, L, L))
    contexts, all_weights = [], []
    for i in range(num_heads):
        mine = slice(i * d, (i + 1) * d)
        parts = (X @ W[:, mine] for W in (W_q, W_k, W_v))
        context, weights = attend(*parts, None if mask is None else mask[:, i])
        contexts.append(context)
        all_weights.append(weights)
    return np.concatenate(contexts, axis=-1) @ W_o, np.stack(all_weights, axis=1)


def mha_sum_over_heads(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    d = X.shape[-1] // num_heads
    output, all_weights = 0.0, []
    for i in range(num_heads):
        mine = slice(i * d, (i + 1) * d)
        q, k, v = (X @ W[:, mine] for W in (W_q, W_k, W_v))
        own = mask if mask is None or mask.ndim < 4 else mask[:, i if mask.shape[1] > 1 else 0]
        context, weights = attend(q, k, v, own)
        output = output + context @ W_o[mine]
        all_weights.append(weights)
    return output, np.stack(all_weights, axis=1)


def mha_folded_into_the_batch(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, _D = X.shape
    q, k, v = (split(X @ W, num_heads).reshape(B * num_heads, L, -1) for W in (W_q, W_k, W_v))
    if mask is not None:
        mask = np.broadcast_to(for_heads(mask), (B, num_heads, L, L)).reshape(-1, L, L)
    context, weights = attend(q, k, v, mask)
    context = context.reshape(B, num_heads, L, -1)
    return merge(context) @ W_o, weights.reshape(B, num_heads, L, L)


def mha_loops_everywhere(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, D = X.shape
    d = D // num_heads
    output, weights = np.zeros((B, L, D)), np.zeros((B, num_heads, L, L))
    full = np.ones((B, num_heads, L, L), dtype=bool)
    if mask is not None:
        full = np.broadcast_to(for_heads(mask), full.shape)
    for b in range(B):
        Q, K, V = X[b] @ W_q, X[b] @ W_k, X[b] @ W_v
        for t in range(L):
            joined = np.zeros(D)
            for i in range(num_heads):
                mine = slice(i * d, (i + 1) * d)
                keys = np.flatnonzero(full[b, i, t])
                if len(keys):
                    scores = K[keys, mine] @ Q[t, mine] / math.sqrt(d)
                    e = np.exp(scores - scores.max())
                    weights[b, i, t, keys] = e / e.sum()
                joined[mine] = weights[b, i, t] @ V[:, mine]
            output[b, t] = joined @ W_o
    return output, weights


def mha_float32_inside(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    arrays = (array.astype(np.float32) for array in (X, W_q, W_k, W_v, W_o))
    return mha(*arrays, num_heads, mask)


def mha_low_finite_fill(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = (split(X @ W, num_heads) for W in (W_q, W_k, W_v))
    scores = np.matmul(q, k.transpose(0, 1, 3, 2))
    scores *= q.shape[-1] ** -0.5  # in place on its own temporary
    if mask is not None:
        allowed = np.broadcast_to(for_heads(mask), scores.shape)
        scores[~allowed] = -1e9
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    if mask is not None:
        weights[~allowed] = 0
    return merge(weights @ v) @ W_o, weights


def mha_heads_in_front(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = (np.stack(np.split(X @ W, num_heads, axis=-1)) for W in (W_q, W_k, W_v))
    if mask is not None and mask.ndim == 4:
        mask = mask.swapaxes(0, 1)  # (h or 1, B, ., L)
    context, weights = attend(q, k, v, mask)
    return np.concatenate(list(context), axis=-1) @ W_o, weights.swapaxes(0, 1)


def mha_one_sequence_at_a_time(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    def of(b):
        if mask is None or mask.ndim == 2:
            return mask
        return mask[b] if mask.ndim == 3 else mask[b : b + 1]

    results = [
        mha_einsum(X[b : b + 1], W_q, W_k, W_v, W_o, num_heads, of(b)) for b in range(len(X))
    ]
    return tuple(np.concatenate(parts) for parts in zip(*results, strict=True))


class Layer:
    def __call__(self, X, W_q, W_k, W_v, W_o, num_heads, mask=None):
        return list(mha(X, W_q, W_k, W_v, W_o, num_heads, mask))


RIGHT_MHA = {
    "split, attend, merge": mha,
    "fused projections": mha_fused,
    "einsum": mha_einsum,
    "loop over heads": mha_loop_over_heads,
    "sum over heads": mha_sum_over_heads,
    "folded into the batch": mha_folded_into_the_batch,
    "loops everywhere": mha_loops_everywhere,
    "float32 inside": mha_float32_inside,
    "low fill, in place on its own temporaries": mha_low_finite_fill,
    "heads in front": mha_heads_in_front,
    "one sequence at a time": mha_one_sequence_at_a_time,
    "callable object": Layer(),
}

# --- unpack_in_proj, right ---


def unpack(in_proj_weight, out_proj_weight):
    q, k, v = np.split(in_proj_weight, 3)
    return q.T, k.T, v.T, out_proj_weight.T


def unpack_by_slices(in_proj_weight, out_proj_weight):
    D = len(out_proj_weight)
    parts = [in_proj_weight[i * D : (i + 1) * D].T for i in range(3)]
    return [*parts, out_proj_weight.T]


def unpack_by_reshape(in_proj_weight, out_proj_weight):
    D = in_proj_weight.shape[1]
    return (*in_proj_weight.reshape(3, D, D).transpose(0, 2, 1), out_proj_weight.T)


def unpack_columns_of_the_transposed(in_proj_weight, out_proj_weight):
    return (*np.hsplit(in_proj_weight.T, 3), out_proj_weight.T.copy())


def unpack_with_vsplit(in_proj_weight, out_proj_weight):
    return tuple(np.transpose(W) for W in [*np.vsplit(in_proj_weight, 3), out_proj_weight])


def unpack_with_einsum(in_proj_weight, out_proj_weight):
    D = in_proj_weight.shape[1]
    packed = np.einsum("pji->pij", in_proj_weight.reshape(3, D, D))
    return packed[0], packed[1], packed[2], np.einsum("ji->ij", out_proj_weight)


def unpack_everything_at_once(in_proj_weight, out_proj_weight):
    D = in_proj_weight.shape[1]
    return tuple(np.concatenate([in_proj_weight, out_proj_weight]).reshape(4, D, D).swapaxes(1, 2))


def unpack_number_by_number(in_proj_weight, out_proj_weight):
    D = in_proj_weight.shape[1]
    parts = np.empty((4, D, D))
    for i, j in np.ndindex(D, D):
        for part in range(3):
            parts[part, i, j] = in_proj_weight[part * D + j, i]
        parts[3, i, j] = out_proj_weight[j, i]
    return tuple(parts)


def unpack_with_unit_vectors(in_proj_weight, out_proj_weight):
    D = in_proj_weight.shape[1]
    return (*np.array_split(np.eye(D) @ in_proj_weight.T, 3, axis=1), np.eye(D) @ out_proj_weight.T)


RIGHT_UNPACK = {
    "split": unpack,
    "slices, a list": unpack_by_slices,
    "reshape": unpack_by_reshape,
    "columns of the transposed": unpack_columns_of_the_transposed,
    "vsplit": unpack_with_vsplit,
    "einsum": unpack_with_einsum,
    "everything at once": unpack_everything_at_once,
    "number by number": unpack_number_by_number,
    "unit vectors": unpack_with_unit_vectors,
}

# --- MultiHeadAttention, right: constructors of unlike modules ---


@functools.cache
def modules():
    """Define the modules, once PyTorch is wanted."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Plain(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d = num_heads, d_model // num_heads
            self.W_q = nn.Linear(d_model, d_model)
            self.W_k = nn.Linear(d_model, d_model)
            self.W_v = nn.Linear(d_model, d_model)
            self.W_o = nn.Linear(d_model, d_model)

        def project(self, x):
            return self.W_q(x), self.W_k(x), self.W_v(x)

        def split(self, t):
            return t.view(*t.shape[:2], self.num_heads, self.d).transpose(1, 2)

        def merge(self, t):
            return t.transpose(1, 2).reshape(len(t), -1, self.num_heads * self.d)

        def forward(self, x, mask=None):
            context, weights = self.attend(*map(self.split, self.project(x)), mask)
            return self.W_o(self.merge(context)), weights

        def attend(self, q, k, v, mask):
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.d)
            weights = self.weights(
                scores, mask[:, None] if mask is not None and mask.dim() == 3 else mask
            )
            return weights @ v, weights

        def weights(self, scores, mask):
            if mask is None:
                return scores.softmax(dim=-1)
            some = mask.any(dim=-1, keepdim=True)
            scores = torch.where(mask | ~some, scores, -torch.inf)
            return torch.where(some, scores.softmax(dim=-1), 0.0)

    class Fused(Plain):
        def project(self, x):
            layers = (self.W_q, self.W_k, self.W_v)
            weight = torch.cat([layer.weight for layer in layers])
            return F.linear(x, weight, torch.cat([layer.bias for layer in layers])).chunk(3, -1)

    class Einsum(Plain):
        def forward(self, x, mask=None):
            q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in self.project(x))
            scores = torch.einsum("bihc,bjhc->bhij", q, k) * self.d**-0.5
            weights = self.weights(
                scores, mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask
            )
            return self.W_o(torch.einsum("bhij,bjhc->bihc", weights, v).flatten(2)), weights

    class LoopOverHeads(Plain):
        def forward(self, x, mask=None):
            contexts, weights = [], []
            heads = zip(*(t.split(self.d, -1) for t in self.project(x)), strict=True)
            for i, (q, k, v) in enumerate(heads):
                own = mask
                if mask is not None and mask.dim() == 4:
                    own = mask.expand(-1, self.num_heads, -1, -1)[:, i]
                weights.append(self.weights(q @ k.mT / math.sqrt(self.d), own))
                contexts.append(weights[-1] @ v)
            return self.W_o(torch.cat(contexts, dim=-1)), torch.stack(weights, dim=1)

    class Folded(Plain):
        def forward(self, x, mask=None):
            B, L, _D = x.shape
            q, k, v = (self.split(t).flatten(0, 1) for t in self.project(x))
            if mask is not None:
                mask = mask[:, None] if mask.dim() == 3 else mask
                mask = mask.expand(B, self.num_heads, L, L).flatten(0, 1)
            scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.d)
            weights = self.weights(scores, mask)
            context = torch.bmm(weights, v).unflatten(0, (B, self.num_heads))
            return self.W_o(self.merge(context)), weights.unflatten(0, (B, self.num_heads))

    class LowFill(Plain):
        def weights(self, scores, mask):
            if mask is None:
                return F.softmax(scores, dim=-1)
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            return F.softmax(scores, dim=-1) * mask

    class Float32Inside(Plain):
        def weights(self, scores, mask):
            wide = scores if scores.dtype == torch.float64 else scores.float()
            return super().weights(wide, mask).to(scores.dtype)

    class ScaledFirst(Plain):
        def project(self, x):
            return self.W_q(x) / self.d**0.5, self.W_k(x), self.W_v(x)

        def attend(self, q, k, v, mask):
            scores = q.matmul(k.permute(0, 1, 3, 2))
            weights = self.weights(
                scores, mask.unsqueeze(-3) if mask is not None and mask.dim() == 3 else mask
            )
            return weights.matmul(v), weights

    class SoftmaxByHand(Plain):
        def weights(self, scores, mask):
            if mask is None:
                return torch.softmax(scores, -1)
            scores = scores.masked_fill(~mask, -torch.inf)
            peak = scores.detach().amax(-1, keepdim=True).nan_to_num(neginf=0.0)
            e = torch.exp(scores - peak)
            return e / e.sum(-1, keepdim=True).clamp_min(torch.finfo(e.dtype).tiny)

    class NanToNum(Plain):
        def weights(self, scores, mask):
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            return scores.softmax(dim=-1).nan_to_num()

    class SumOverHeads(Plain):
        def forward(self, x, mask=None):
            context, weights = self.attend(*map(self.split, self.project(x)), mask)
            parts = self.W_o.weight.split(self.d, dim=1)
            output = sum(context[:, i] @ W.T for i, W in enumerate(parts))
            return output + self.W_o.bias, weights

    return {
        "plain": Plain,
        "fused projections": Fused,
        "einsum": Einsum,
        "loop over heads": LoopOverHeads,
        "folded into the batch": Folded,
        "lowest finite fill": LowFill,
        "float32 inside": Float32Inside,
        "queries scaled first": ScaledFirst,
        "softmax by hand": SoftmaxByHand,
        "nan_to_num": NanToNum,
        "sum over heads": SumOverHeads,
    }


RIGHT_MODULES = (
    "plain",
    "fused projections",
    "einsum",
    "loop over heads",
    "folded into the batch",
    "lowest finite fill",
    "float32 inside",
    "queries scaled first",
    "softmax by hand",
    "nan_to_num",
    "sum over heads",
)


def module(name):
    """Return the constructor of a module, which is looked up when it is called."""
    return lambda d_model, num_heads: modules()[name](d_model, num_heads)


# --- grouped_query_attention, right ---


def gqa(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    group = num_heads // num_kv_heads
    q = split(X @ W_q, num_heads)
    k, v = (np.repeat(split(X @ W, num_kv_heads), group, axis=1) for W in (W_k, W_v))
    context, weights = attend(q, k, v, for_heads(mask))
    return merge(context) @ W_o, weights


def gqa_with_an_axis_of_groups(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    B, L, _D = X.shape
    g, r = num_kv_heads, num_heads // num_kv_heads
    q = split(X @ W_q, num_heads).reshape(B, g, r, L, -1)
    k, v = (split(X @ W, g)[:, :, None] for W in (W_k, W_v))
    if mask is not None:
        mask = np.broadcast_to(for_heads(mask), (B, num_heads, L, L)).reshape(B, g, r, L, L)
    context, weights = attend(q, k, v, mask)
    context = context.reshape(B, num_heads, L, -1)
    return merge(context) @ W_o, weights.reshape(B, num_heads, L, L)


def gqa_with_wide_matrices(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    D, d = len(W_q), W_q.shape[1] // num_heads

    def wide(W):
        blocks = W.reshape(D, num_kv_heads, d)
        return np.repeat(blocks, num_heads // num_kv_heads, axis=1).reshape(D, -1)

    return mha(X, W_q, wide(W_k), wide(W_v), W_o, num_heads, mask)


def gqa_loop_over_heads(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    Q, K, V = X @ W_q, X @ W_k, X @ W_v
    d = Q.shape[-1] // num_heads
    contexts, all_weights = [], []
    for i in range(num_heads):
        j = i * num_kv_heads // num_heads
        k, v = (part[..., j * d : (j + 1) * d] for part in (K, V))
        own = mask if mask is None or mask.ndim < 4 else mask[:, i if mask.shape[1] > 1 else 0]
        context, weights = attend(Q[..., i * d : (i + 1) * d], k, v, own)
        contexts.append(context)
        all_weights.append(weights)
    return np.concatenate(contexts, axis=-1) @ W_o, np.stack(all_weights, axis=1)


def gqa_loop_over_groups(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    Q, K, V = (
        split(X @ W, n) for W, n in ((W_q, num_heads), (W_k, num_kv_heads), (W_v, num_kv_heads))
    )
    group, results = num_heads // num_kv_heads, []
    for j in range(num_kv_heads):
        mine = slice(j * group, (j + 1) * group)
        own = for_heads(mask)
        if own is not None and own.ndim == 4 and own.shape[1] > 1:
            own = own[:, mine]
        results.append(attend(Q[:, mine], K[:, j, None], V[:, j, None], own))
    context, weights = (np.concatenate(parts, axis=1) for parts in zip(*results, strict=True))
    return merge(context) @ W_o, weights


def gqa_einsum(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    B, L, D = X.shape
    q = (X @ W_q).reshape(B, L, num_kv_heads, num_heads // num_kv_heads, -1)
    k, v = ((X @ W).reshape(B, L, num_kv_heads, -1) for W in (W_k, W_v))
    scores = np.einsum("bigrc,bjgc->bgrij", q, k).reshape(B, num_heads, L, L)
    scores = scores / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(for_heads(mask), scores, -np.inf)
    weights = safe_rows(scores)
    grouped = weights.reshape(B, num_kv_heads, -1, L, L)
    context = np.einsum("bgrij,bjgc->bigrc", grouped, v).reshape(B, L, D)
    return context @ W_o, weights


def gqa_by_index(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    shared = np.arange(num_heads) // (num_heads // num_kv_heads)
    q = split(X @ W_q, num_heads)
    k, v = (split(X @ W, num_kv_heads)[:, shared] for W in (W_k, W_v))
    context, weights = attend(q, k, v, for_heads(mask))
    return merge(context) @ W_o, weights


def gqa_float32_inside(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    arrays = (array.astype(np.float32) for array in (X, W_q, W_k, W_v, W_o))
    return gqa(*arrays, num_heads, num_kv_heads, mask)


def gqa_broadcast(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    B, L, _ = X.shape

    def shared(t):
        group, d = num_heads // num_kv_heads, t.shape[-1] // num_kv_heads
        t = split(t, num_kv_heads)[:, :, None]
        return np.broadcast_to(t, (B, num_kv_heads, group, L, d)).reshape(B, num_heads, L, d)

    q = split(X @ W_q, num_heads)
    context, weights = attend(q, shared(X @ W_k), shared(X @ W_v), for_heads(mask))
    return merge(context) @ W_o, weights


RIGHT_GQA = {
    "repeat": gqa,
    "an axis of groups": gqa_with_an_axis_of_groups,
    "wide matrices": gqa_with_wide_matrices,
    "loop over heads": gqa_loop_over_heads,
    "loop over groups": gqa_loop_over_groups,
    "einsum": gqa_einsum,
    "index": gqa_by_index,
    "float32 inside": gqa_float32_inside,
    "broadcast": gqa_broadcast,
}

# --- grouped_query_costs, right ---


def costs(L, d_model, num_heads, num_kv_heads):
    kept = num_kv_heads * (d_model // num_heads)
    return 2 * d_model * d_model + 2 * d_model * kept, 2 * L * kept


def costs_by_ratio(L, d_model, num_heads, num_kv_heads):
    ratio = num_kv_heads / num_heads
    return 2 * d_model**2 * (1 + ratio), 2 * L * d_model * ratio


def costs_from_arrays(L, d_model, num_heads, num_kv_heads):
    d = d_model // num_heads
    W_q, W_k = np.empty((d_model, d_model)), np.empty((d_model, num_kv_heads * d))
    return 2 * (W_q.size + W_k.size), 2 * (np.empty((L, d_model)) @ W_k).size


def costs_by_loops(L, d_model, num_heads, num_kv_heads):
    d, parameters, kept = d_model // num_heads, 0, 0
    for _ in range(num_heads):
        parameters += 2 * d_model * d
    for _ in range(num_kv_heads):
        parameters += 2 * d_model * d
        kept += 2 * L * d
    return parameters, kept


def costs_with_fractions(L, d_model, num_heads, num_kv_heads):
    from fractions import Fraction

    ratio = Fraction(num_kv_heads, num_heads)
    return int(2 * d_model**2 * (1 + ratio)), int(2 * L * d_model * ratio)


def costs_as_a_list(L, d_model, num_heads, num_kv_heads):
    return list(costs(L, d_model, num_heads, num_kv_heads))


def costs_as_numpy_integers(L, d_model, num_heads, num_kv_heads):
    widths = np.array([num_heads, num_kv_heads]) * (d_model // num_heads)
    return 2 * d_model * widths.sum(), 2 * L * widths[1]


def costs_of_shapes(L, d_model, num_heads, num_kv_heads):
    kept = d_model * num_kv_heads // num_heads
    shapes = [(d_model, d_model)] * 2 + [(d_model, kept)] * 2
    return sum(math.prod(shape) for shape in shapes), math.prod((2, L, kept))


RIGHT_COSTS = {
    "formula": costs,
    "ratio, floats": costs_by_ratio,
    "from arrays": costs_from_arrays,
    "loops": costs_by_loops,
    "fractions": costs_with_fractions,
    "a list": costs_as_a_list,
    "NumPy integers": costs_as_numpy_integers,
    "shapes": costs_of_shapes,
}

# --- attention_with_head_mask, right ---


def contexts(X, W_q, W_k, W_v, num_heads, mask=None):
    return attend(*(split(X @ W, num_heads) for W in (W_q, W_k, W_v)), mask)[0]


def head_mask_multiplied(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    return merge(contexts(X, W_q, W_k, W_v, num_heads) * head_mask[:, None, None]) @ W_o


def head_mask_where(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    all_contexts = contexts(X, W_q, W_k, W_v, num_heads)
    return merge(np.where(head_mask[None, :, None, None], all_contexts, 0)) @ W_o


def head_mask_on_features(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    merged = merge(contexts(X, W_q, W_k, W_v, num_heads))
    return merged * np.repeat(head_mask, merged.shape[-1] // num_heads) @ W_o


def head_mask_on_rows_of_W_o(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    rows = np.repeat(head_mask, len(W_o) // num_heads)[:, None]
    return merge(contexts(X, W_q, W_k, W_v, num_heads)) @ (W_o * rows)


def head_mask_sum(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    all_contexts = contexts(X, W_q, W_k, W_v, num_heads)
    blocks = np.split(W_o, num_heads)
    output = np.zeros_like(X)
    for i in range(num_heads):
        if head_mask[i]:
            output += all_contexts[:, i] @ blocks[i]
    return output


def head_mask_smaller_layer(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    if not any(head_mask):
        return np.zeros(X.shape)
    stay = np.repeat(head_mask, len(W_o) // num_heads)
    smaller = (W[:, stay] for W in (W_q, W_k, W_v))
    return mha(X, *smaller, W_o[stay], int(head_mask.sum()))[0]


def head_mask_assigned(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    all_contexts = contexts(X, W_q, W_k, W_v, num_heads)
    all_contexts[:, ~head_mask] = 0
    return merge(all_contexts) @ W_o


def head_mask_einsum(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    all_contexts = contexts(X, W_q, W_k, W_v, num_heads)
    blocks = W_o.reshape(num_heads, -1, W_o.shape[1])
    return np.einsum("bhlc,hce,h->ble", all_contexts, blocks, head_mask.astype(float))


def head_mask_on_values(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    columns = np.repeat(head_mask, W_v.shape[1] // num_heads)
    return mha(X, W_q, W_k, W_v * columns, W_o, num_heads)[0]


def head_mask_masks_all_keys(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    return mha(X, W_q, W_k, W_v, W_o, num_heads, head_mask[None, :, None, None])[0]


RIGHT_HEAD_MASK = {
    "multiplied": head_mask_multiplied,
    "where": head_mask_where,
    "features": head_mask_on_features,
    "rows of W_o": head_mask_on_rows_of_W_o,
    "sum over heads": head_mask_sum,
    "a smaller layer": head_mask_smaller_layer,
    "assigned": head_mask_assigned,
    "einsum": head_mask_einsum,
    "values": head_mask_on_values,
    "all keys masked": head_mask_masks_all_keys,
}

# --- trivially wrong: no check may pass ---

TRIVIAL_SPLIT = {
    "zeros": lambda x, num_heads: np.zeros(
        (len(x), num_heads, x.shape[1], x.shape[2] // num_heads)
    ),
    "the input": lambda x, num_heads: x,
    "None": lambda x, num_heads: None,
    "a list": lambda x, num_heads: split(x, num_heads).tolist(),
}
TRIVIAL_MERGE = {
    "zeros": lambda x: np.zeros((len(x), x.shape[2], x.shape[1] * x.shape[3])),
    "the input": lambda x: x,
    "None": lambda x: None,
    "a list": lambda x: merge(x).tolist(),
}


def zeros_of_the_right_shapes(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, _ = X.shape
    return np.zeros(X.shape), np.zeros((B, num_heads, L, L))


def uniform_weights(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    B, L, _ = X.shape
    weights = np.full((B, num_heads, L, L), 1 / L)
    return merge(weights @ split(X @ W_v, num_heads)) @ W_o, weights


TRIVIAL_MHA = {
    "zeros": zeros_of_the_right_shapes,
    "the input": lambda X, W_q, W_k, W_v, W_o, num_heads, mask=None: (X, X),
    "uniform weights": uniform_weights,
    "None": lambda X, W_q, W_k, W_v, W_o, num_heads, mask=None: None,
    "three results": lambda X, W_q, W_k, W_v, W_o, num_heads, mask=None: (
        *mha(X, W_q, W_k, W_v, W_o, num_heads, mask),
        mask,
    ),
}
TRIVIAL_UNPACK = {
    "zeros": lambda in_proj_weight, out_proj_weight: (np.zeros_like(out_proj_weight),) * 4,
    "the input": lambda in_proj_weight, out_proj_weight: (in_proj_weight, out_proj_weight),
    "None": lambda in_proj_weight, out_proj_weight: None,
    "one array": lambda in_proj_weight, out_proj_weight: in_proj_weight.T,
}


def module_of_zeros(d_model, num_heads):
    import torch

    class Zeros(torch.nn.Module):
        def forward(self, x, mask=None):
            return 0 * x, x.new_zeros(len(x), num_heads, x.shape[1], x.shape[1])

    return Zeros()


def module_that_returns_its_input(d_model, num_heads):
    import torch

    return torch.nn.Identity()


TRIVIAL_MODULES = {
    "zeros": module_of_zeros,
    "the input": module_that_returns_its_input,
    "None": lambda d_model, num_heads: None,
    "an array": lambda d_model, num_heads: np.zeros((d_model, num_heads)),
}
TRIVIAL_GQA = {
    "zeros": lambda X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None: (
        zeros_of_the_right_shapes(X, W_q, W_k, W_v, W_o, num_heads)
    ),
    "the input": lambda X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None: (X, X),
    "None": lambda X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None: None,
}
TRIVIAL_COSTS = {
    "zeros": lambda L, d_model, num_heads, num_kv_heads: (0, 0),
    "d_model": lambda L, d_model, num_heads, num_kv_heads: (d_model, d_model),
    "None": lambda L, d_model, num_heads, num_kv_heads: None,
}
TRIVIAL_HEAD_MASK = {
    "zeros": lambda X, W_q, W_k, W_v, W_o, num_heads, head_mask: np.zeros(X.shape),
    "the input": lambda X, W_q, W_k, W_v, W_o, num_heads, head_mask: X,
    "None": lambda X, W_q, W_k, W_v, W_o, num_heads, head_mask: None,
}

# --- wrong in ways that the bank does not hold, with a word that the message must show ---


def split_in_reversed_order(x, num_heads):
    return split(x, num_heads)[:, ::-1]


def split_with_tokens_reversed(x, num_heads):
    return split(x, num_heads)[:, :, ::-1]


def merge_with_sorted_features(x):
    return np.sort(merge(x), axis=-1)


def merge_the_first_sequence_only(x):
    return np.repeat(merge(x)[:1], len(x), axis=0)


def mha_causal_by_default(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    if mask is None:
        mask = np.tri(X.shape[1], dtype=bool)
    return mha(X, W_q, W_k, W_v, W_o, num_heads, mask)


def mha_heads_swapped_in_output(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = (split(X @ W, num_heads) for W in (W_q, W_k, W_v))
    context, weights = attend(q, k, v, for_heads(mask))
    return merge(context[:, ::-1]) @ W_o, weights


def mha_empty_query_attends_to_itself(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    if mask is not None:
        empty = ~mask.any(axis=-1, keepdims=True)
        mask = mask | (empty & np.eye(X.shape[1], dtype=bool))
    return mha(X, W_q, W_k, W_v, W_o, num_heads, mask)


def mended_with_cosine_scores(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    q, k, v = (split(X @ W, num_heads) for W in (W_q, W_k, W_v))
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    context, weights = attend(q, k, v, for_heads(mask))
    return merge(context) @ W_o, weights


def mended_without_W_o(X, W_q, W_k, W_v, W_o, num_heads, mask=None):
    return mha(X, W_q, W_k, W_v, np.eye(len(W_o)), num_heads, mask)


def unpack_with_negative_values(in_proj_weight, out_proj_weight):
    q, k, v, o = unpack(in_proj_weight, out_proj_weight)
    return q, k, -v, o


def unpack_turned_by_rot90(in_proj_weight, out_proj_weight):
    return (*(np.rot90(W) for W in np.split(in_proj_weight, 3)), np.rot90(out_proj_weight))


def module_with_dropout(d_model, num_heads):
    layer = modules()["plain"](d_model, num_heads)
    attend = layer.attend
    layer.attend = lambda *arguments: (0.9 * attend(*arguments)[0], attend(*arguments)[1])
    return layer


def module_that_adds_its_input(d_model, num_heads):
    class Residual(modules()["plain"]):
        def forward(self, x, mask=None):
            output, weights = super().forward(x, mask)
            return x + output, weights

    return Residual(d_model, num_heads)


def module_with_reversed_values(d_model, num_heads):
    class Reversed(modules()["plain"]):
        def project(self, x):
            q, k, v = super().project(x)
            return q, k, v.flip(1)

    return Reversed(d_model, num_heads)


def gqa_groups_in_reversed_order(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    q = split(X @ W_q, num_heads)
    shared = np.arange(num_heads)[::-1] // (num_heads // num_kv_heads)
    k, v = (split(X @ W, num_kv_heads)[:, shared] for W in (W_k, W_v))
    context, weights = attend(q, k, v, for_heads(mask))
    return merge(context) @ W_o, weights


def gqa_values_of_the_first_group(X, W_q, W_k, W_v, W_o, num_heads, num_kv_heads, mask=None):
    d = W_q.shape[1] // num_heads
    return gqa(X, W_q, W_k, np.tile(W_v[:, :d], num_kv_heads), W_o, num_heads, num_kv_heads, mask)


def costs_squared_length(L, d_model, num_heads, num_kv_heads):
    return costs(L, d_model, num_heads, num_kv_heads)[0], num_heads * L * L


def costs_one_projection_too_many(L, d_model, num_heads, num_kv_heads):
    parameters, kept = costs(L, d_model, num_heads, num_kv_heads)
    return parameters + d_model * d_model, kept


def head_mask_on_queries(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    columns = np.repeat(head_mask, W_q.shape[1] // num_heads)
    return mha(X, W_q * columns, W_k, W_v, W_o, num_heads)[0] * head_mask.mean()


def head_mask_shifted(X, W_q, W_k, W_v, W_o, num_heads, head_mask):
    return head_mask_multiplied(X, W_q, W_k, W_v, W_o, num_heads, np.roll(head_mask, 1))


# --- by question ---

RIGHT = {
    "predicted_vectors": {"the vectors": ((12, 13), (10, 11))},
    "split_heads": RIGHT_SPLIT,
    "merge_heads": RIGHT_MERGE,
    "predicted_factors": {"the factors": (1, 2, 1)},
    "multi_head_attention": RIGHT_MHA,
    "mended_multi_head": RIGHT_MHA,
    "unpack_in_proj": RIGHT_UNPACK,
    "MultiHeadAttention": {name: module(name) for name in RIGHT_MODULES},
    "MendedMultiHeadAttention": {name: module(name) for name in RIGHT_MODULES},
    "grouped_query_attention": RIGHT_GQA,
    "grouped_query_costs": RIGHT_COSTS,
    "attention_with_head_mask": RIGHT_HEAD_MASK,
}
TRIVIAL = {
    "predicted_vectors": {"zeros": ((0, 0), (0, 0)), "None": None, "one pair": (12, 13)},
    "split_heads": TRIVIAL_SPLIT,
    "merge_heads": TRIVIAL_MERGE,
    "predicted_factors": {"zeros": (0, 0, 0), "None": None, "one number": 2},
    "multi_head_attention": TRIVIAL_MHA,
    "mended_multi_head": TRIVIAL_MHA,
    "unpack_in_proj": TRIVIAL_UNPACK,
    "MultiHeadAttention": TRIVIAL_MODULES,
    "MendedMultiHeadAttention": TRIVIAL_MODULES,
    "grouped_query_attention": TRIVIAL_GQA,
    "grouped_query_costs": TRIVIAL_COSTS,
    "attention_with_head_mask": TRIVIAL_HEAD_MASK,
}
NEW_WRONG = {
    "predicted_vectors": {"first numbers": (((2, 3), (10, 11)), "(a) (2, 3) is not")},
    "split_heads": {
        "reversed heads": (split_in_reversed_order, "one token, whose"),
        "reversed tokens": (split_with_tokens_reversed, "num_heads is 1"),
    },
    "merge_heads": {
        "sorted features": (merge_with_sorted_features, "there is one head"),
        "first sequence only": (merge_the_first_sequence_only, "there is one head"),
    },
    "predicted_factors": {"halved": ((1, 0.5, 1), "(b) The number of attention weights")},
    "multi_head_attention": {
        "causal by default": (mha_causal_by_default, "There is one head"),
        "heads swapped": (mha_heads_swapped_in_output, "output[0, 0] differs"),
        "empty query attends to itself": (mha_empty_query_attends_to_itself, "has no allowed key"),
    },
    "mended_multi_head": {
        "cosine scores": (mended_with_cosine_scores, "only the scale matters"),
        "no W_o": (mended_without_W_o, "in each, query 0 may attend to token"),
    },
    "unpack_in_proj": {
        "negative values": (unpack_with_negative_values, "W_v[0] differs"),
        "turned": (unpack_turned_by_rot90, "W_q[0] differs"),
    },
    "MultiHeadAttention": {
        "a factor": (module_with_dropout, "output[0, 0] differs"),
        "values reversed": (module_with_reversed_values, "output[0, 0] differs"),
    },
    "MendedMultiHeadAttention": {
        "a factor": (module_with_dropout, "output[0, 0] differs"),
        "adds its input": (module_that_adds_its_input, "output[0, 0] differs"),
    },
    "grouped_query_attention": {
        "reversed groups": (gqa_groups_in_reversed_order, "weights[0, 0, 0] differs"),
        "values of the first group": (gqa_values_of_the_first_group, "output[0, 0] differs"),
    },
    "grouped_query_costs": {
        "squared length": (costs_squared_length, "The count of numbers that are kept"),
        "one projection too many": (costs_one_projection_too_many, "The number of parameters is"),
    },
    "attention_with_head_mask": {
        "on queries": (head_mask_on_queries, "head_mask is"),
        "shifted": (head_mask_shifted, "head_mask is"),
    },
}
