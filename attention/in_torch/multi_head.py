"""Many attention heads in PyTorch, with the meaning of the NumPy twin."""

import torch
from torch import nn

from attention.in_numpy.multi_head import check_divides, check_num_heads, unpack_in_proj

from . import single_head
from .weights import copy_to_linear


class MultiHeadAttention(nn.Module):
    """Several attention heads over one sequence, with learned projections.

    Section 3.2.2 of Vaswani et al. (2017), with biases, and with heads of
    width ``d_k = d_v = d_model / num_heads``.

    Parameters
    ----------
    d_model : int
        Width of input and output.
    num_heads : int
        Number of heads. It must divide `d_model`.

    Raises
    ------
    ValueError
        If `num_heads` does not divide `d_model`.
    """

    def __init__(self, d_model, num_heads):
        super().__init__()
        check_divides(check_num_heads(num_heads), d_model, "the layer")
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        """Return ``(output, weights)`` for `x` of shape (..., L, d_model).

        Parameters
        ----------
        x : Tensor, shape (..., L, d_model)
        mask : Tensor of bool, optional
            True = may attend. It broadcasts to (..., L, L) and then holds
            for every head, or it has an axis for the heads and broadcasts
            to (..., h, L, L). For `x` of 3 axes, 3 axes mean (B, L, L).

        Returns
        -------
        output : Tensor, shape (..., L, d_model)
        weights : Tensor, shape (..., h, L, L)
            A query with no allowed key has weights 0 and context 0, so its
            output is the bias of `W_o`.
        """
        heads = []
        for linear in (self.W_q, self.W_k, self.W_v):
            part = linear(x).unflatten(-1, (self.num_heads, -1))
            heads.append(part.transpose(-2, -3))  # (..., h, L, d_k)
        if mask is not None and 3 <= mask.ndim <= x.ndim:
            mask = mask.unsqueeze(-3)  # an axis for the heads
        attend = single_head.scaled_dot_product_attention
        context, weights = attend(*heads, mask)  # (..., h, L, d_k)
        joined = context.transpose(-2, -3).flatten(-2)  # (..., L, d_model)
        return self.W_o(joined), weights


def copy_from_torch(theirs):
    """Return a `MultiHeadAttention` with the weights of PyTorch's own layer.

    Parameters
    ----------
    theirs : nn.MultiheadAttention
        A layer of one width. Dropout is not copied: the twin has none.

    Returns
    -------
    MultiHeadAttention
        Same dtype, device, and mode (training or evaluation).

    Raises
    ------
    ValueError
        If `theirs` has keys or values of another width, or learned or zero
        extra keys.
    """
    if theirs.in_proj_weight is None:
        raise ValueError("theirs: expected kdim and vdim equal to embed_dim")
    if theirs.bias_k is not None or theirs.add_zero_attn:
        raise ValueError("theirs: expected neither add_bias_kv nor add_zero_attn")
    weight, bias = theirs.in_proj_weight.detach(), theirs.in_proj_bias
    matrices = unpack_in_proj(weight.double().cpu(), theirs.out_proj.weight.detach().double().cpu())
    d_model = theirs.embed_dim
    if bias is None:
        biases = torch.zeros(4, d_model, dtype=torch.float64)
    else:
        biases = torch.cat([bias, theirs.out_proj.bias]).detach().double().cpu()
        biases = biases.reshape(4, d_model)  # q, k, v, o
    ours = MultiHeadAttention(d_model, theirs.num_heads)
    ours = ours.to(weight.device, weight.dtype).train(theirs.training)
    for linear, W, b in zip(ours.children(), matrices, biases, strict=True):
        copy_to_linear(linear, W, b.numpy())
    return ours
