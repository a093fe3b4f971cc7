"""One attention head in PyTorch, with the meaning of its twin in NumPy."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from attention.in_numpy.single_head import check_qkv


def check_tensor_mask(mask, scores_shape):
    """Raise ValueError unless `mask` is boolean and broadcasts to `scores_shape`."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask: expected booleans (True = may attend), got dtype {mask.dtype}; "
            "convert it first, for example with mask != 0 where 1 means may attend"
        )
    try:
        mask.expand(scores_shape)
    except RuntimeError:
        raise ValueError(
            "mask: expected a shape that broadcasts to that of the scores, "
            f"{tuple(scores_shape)}, got {tuple(mask.shape)}"
        ) from None


def softmax(x, dim=-1):
    """Turn scores into weights, not negative, that sum to 1 along `dim`.

    Differs from `F.softmax` only in rows of -inf alone: their weights and
    gradients are 0, where PyTorch has NaN.

    Parameters
    ----------
    x : Tensor
        Floating scores of any shape. A score of -inf stands for "left out".
    dim : int
        The dimension along which the weights sum to 1.

    Returns
    -------
    Tensor
        Same shape, dtype and device as `x`.
    """
    empty = torch.isneginf(x).all(dim=dim, keepdim=True)
    # The row is changed before the softmax too: a NaN inside it would come
    # back as a NaN gradient, even where its weight is replaced afterwards.
    return F.softmax(x.masked_fill(empty, 0), dim=dim).masked_fill(empty, 0)


def scaled_dot_product_attention(Q, K, V, mask=None):
    """Average the values, weighted by how well each key answers the query.

    Computes ``softmax(Q K^T / sqrt(d_k)) V``: equation 1 of Vaswani et al.
    (2017). `F.scaled_dot_product_attention` gives the same output; this one
    also returns the weights.

    Parameters
    ----------
    Q : Tensor, shape (..., L_q, d_k)
        Queries.
    K : Tensor, shape (..., L_k, d_k)
        Keys.
    V : Tensor, shape (..., L_k, d_v)
        Values, one for each key.
    mask : Tensor of bool, optional
        True = may attend. Broadcasts to the shape of the scores,
        (..., L_q, L_k), and must not enlarge it.

    Returns
    -------
    output : Tensor, shape (..., L_q, d_v)
    weights : Tensor, shape (..., L_q, L_k)
        A query with no allowed key has weights 0, output 0 and gradient 0.
        Both keep the floating dtype of the inputs.

    Raises
    ------
    ValueError
        If shapes do not fit together, an input is not floating, or the mask
        is not boolean or would enlarge the scores.
    """
    for name, tensor in (("Q", Q), ("K", K), ("V", V)):
        if not tensor.is_floating_point():
            raise ValueError(f"{name}: expected floats, got {tensor.dtype}")
    check_qkv(Q, K, V)
    dtype = torch.promote_types(Q.dtype, K.dtype)
    dtype = torch.promote_types(dtype, V.dtype)
    # half precision is too coarse for long sums, and its range too small
    work = torch.promote_types(dtype, torch.float32)
    Q, K, V = Q.to(work), K.to(work), V.to(work)

    scores = Q @ K.transpose(-2, -1)  # (..., L_q, L_k)
    scores = scores / math.sqrt(Q.shape[-1])
    if mask is not None:
        check_tensor_mask(mask, scores.shape)
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = softmax(scores)
    output = weights @ V  # (..., L_q, d_v)
    return output.to(dtype), weights.to(dtype)


class SelfAttention(nn.Module):
    """One attention head over one sequence, with learned projections.

    Parameters
    ----------
    d_model : int
        Width of the input.
    d_k : int
        Width of queries and keys.
    d_v : int
        Width of values, and of the output.
    """

    def __init__(self, d_model, d_k, d_v):
        super().__init__()
        self.W_q = nn.Linear(d_model, d_k, bias=False)
        self.W_k = nn.Linear(d_model, d_k, bias=False)
        self.W_v = nn.Linear(d_model, d_v, bias=False)

    def forward(self, x, mask=None):
        """Return ``(output, weights)`` for `x` of shape (..., L, d_model).

        Parameters
        ----------
        x : Tensor, shape (..., L, d_model)
        mask : Tensor of bool, optional
            True = may attend. Broadcasts to (..., L, L).

        Returns
        -------
        output : Tensor, shape (..., L, d_v)
        weights : Tensor, shape (..., L, L)
        """
        Q, K, V = self.W_q(x), self.W_k(x), self.W_v(x)
        return scaled_dot_product_attention(Q, K, V, mask)
