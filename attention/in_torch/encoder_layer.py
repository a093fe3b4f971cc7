"""The encoder layer in PyTorch, its parameters named as in `nn.TransformerEncoderLayer`."""

import torch
import torch.nn.functional as F
from torch import nn

from attention.in_numpy.encoder_layer import positional_encoding
from attention.in_numpy.multi_head import check_divides, check_num_heads, unpack_in_proj

TORCH_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


class PositionalEncoding(nn.Module):
    """Add the sinusoids of section 3.5 of Vaswani et al. (2017).

    Parameters
    ----------
    d_model : int
    max_len : int
        The longest sequence.
    """

    def __init__(self, d_model, max_len=512):
        super().__init__()
        pe = torch.tensor(positional_encoding(max_len, d_model))
        # a buffer: moved and saved with the layer, not trained
        self.register_buffer("pe", pe.to(torch.get_default_dtype()))

    def forward(self, x):
        """Return ``x + pe`` for `x` of shape (..., L, d_model).

        Raises
        ------
        ValueError
            If L is larger than `max_len`.
        """
        L = x.shape[-2]
        if len(self.pe) < L:
            most = len(self.pe)
            raise ValueError(f"x: expected at most {most} tokens, got {L}")
        return x + self.pe[:L]


class MultiHeadSelfAttention(nn.Module):
    """Multi-head self-attention, parameters as in `nn.MultiheadAttention`.

    Parameters
    ----------
    d_model : int
    num_heads : int
        It must divide `d_model`.
    dropout : float
        Probability with which a weight becomes 0 while training.
    """

    def __init__(self, d_model, num_heads, dropout):
        super().__init__()
        check_divides(check_num_heads(num_heads), d_model, "the layer")
        self.num_heads, self.dropout = num_heads, dropout
        in_proj_weight = torch.empty(3 * d_model, d_model)
        self.in_proj_weight = nn.Parameter(in_proj_weight)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d_model))
        self.out_proj = nn.Linear(d_model, d_model)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x, mask=None):
        """Return the output, (..., L, d_model); mask as in `EncoderLayer`."""
        QKV = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        shape = (3, self.num_heads, -1)
        QKV = QKV.unflatten(-1, shape)  # (..., L, 3, h, d_k)
        Q, K, V = QKV.movedim(-3, 0).transpose(-2, -3)  # (..., h, L, d_k)
        if mask is not None and 3 <= mask.ndim <= x.ndim:
            mask = mask.unsqueeze(-3)  # an axis for the heads
        p = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(Q, K, V, mask, dropout_p=p)
        return self.out_proj(context.transpose(-2, -3).flatten(-2))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each added to its input.

    A `state_dict` of `nn.TransformerEncoderLayer` loads into it, and the
    other way round.

    Parameters
    ----------
    d_model : int
    num_heads : int
        It must divide `d_model`.
    d_ff : int
        Width of the feed-forward network's hidden layer.
    dropout : float
        While training, numbers are dropped in four places: attention
        weights, hidden layer, and the outputs of both sublayers.
    norm_first : bool
        False: normalize each sum (post-norm). True: normalize each
        sublayer's input (pre-norm).
    activation : {"relu", "gelu"}

    Raises
    ------
    ValueError
        If `num_heads` does not divide `d_model`, or an option is unknown.
    """

    def __init__(
        self,
        d_model,
        num_heads,
        d_ff,
        dropout,
        norm_first=False,
        activation="relu",
    ):
        super().__init__()
        if activation not in TORCH_ACTIVATIONS:
            known = "'relu' or 'gelu'"
            raise ValueError(f"activation: expected {known}, got {activation!r}")
        self.self_attn = MultiHeadSelfAttention(d_model, num_heads, dropout)
        self.linear1 = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm_first, self.activation = norm_first, activation

    def forward(self, x, mask=None):
        """Return the layer's output, of the shape of `x`.

        Parameters
        ----------
        x : Tensor, shape (..., L, d_model)
        mask : Tensor of bool, optional
            True = may attend. It broadcasts to (..., L, L) and then holds
            for every head, or it has an axis for the heads and broadcasts
            to (..., h, L, L). For `x` of 3 axes, 3 axes mean (B, L, L). A
            query with no allowed key has context 0.
        """
        if self.norm_first:
            x = x + self.attend(self.norm1(x), mask)
            return x + self.think(self.norm2(x))
        x = self.norm1(x + self.attend(x, mask))
        return self.norm2(x + self.think(x))

    def attend(self, x, mask):
        return self.dropout(self.self_attn(x, mask))

    def think(self, x):
        activation = TORCH_ACTIVATIONS[self.activation]
        hidden = activation(self.linear1(x))  # (..., L, d_ff)
        return self.dropout(self.linear2(self.dropout(hidden)))


class Encoder(nn.Module):
    """Encoder layers, one after another. There is no norm at the end.

    Parameters
    ----------
    num_layers : int
    d_model, num_heads, d_ff, dropout, norm_first, activation
        As in `EncoderLayer`, the same for all layers.
    """

    def __init__(
        self,
        num_layers,
        d_model,
        num_heads,
        d_ff,
        dropout,
        norm_first=False,
        activation="relu",
    ):
        super().__init__()
        sizes = (d_model, num_heads, d_ff)
        options = (*sizes, dropout, norm_first, activation)
        layers = [EncoderLayer(*options) for _ in range(num_layers)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x, mask=None):
        """Return the last layer's output; the mask holds in every layer."""
        for layer in self.layers:
            x = layer(x, mask)
        return x


# --- weights between the two worlds ----------------------------------------------------------

# the NumPy layer's names, and those of PyTorch's parameters
TORCH_NAMES = {
    "W1": "linear1.weight",
    "b1": "linear1.bias",
    "W2": "linear2.weight",
    "b2": "linear2.bias",
    "gamma1": "norm1.weight",
    "beta1": "norm1.bias",
    "gamma2": "norm2.weight",
    "beta2": "norm2.bias",
}


def weights_from_torch(parameters):
    """Return the weights of `encoder_layer` in NumPy from a torch layer's.

    Parameters
    ----------
    parameters : dict of str to Tensor
        The `state_dict` of an `EncoderLayer` or an `nn.TransformerEncoderLayer`,
        or the gradients of its parameters under the same names.

    Returns
    -------
    dict of str to ndarray
        Copies, for ``x @ W + b``; bfloat16 becomes float32.
    """
    arrays = {name: as_array(tensor) for name, tensor in parameters.items()}
    matrices = unpack_in_proj(
        arrays["self_attn.in_proj_weight"], arrays["self_attn.out_proj.weight"]
    )
    biases = [
        *arrays["self_attn.in_proj_bias"].reshape(3, -1),
        arrays["self_attn.out_proj.bias"],
    ]
    weights = {}
    for letter, W, b in zip("qkvo", matrices, biases, strict=True):
        weights[f"W_{letter}"], weights[f"b_{letter}"] = W, b.copy()
    for ours, theirs in TORCH_NAMES.items():
        weights[ours] = arrays[theirs].T.copy()  # of a vector the transpose is itself
    return weights


def weights_to_torch(weights):
    """Return the `state_dict` of an `EncoderLayer` from the weights in NumPy.

    Parameters
    ----------
    weights : dict of str to array_like
        As in `encoder_layer`, with square attention matrices.

    Returns
    -------
    dict of str to Tensor
        Copies, in the dtype of the arrays.
    """
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    state = {
        "self_attn.in_proj_weight": torch.cat([tensors[f"W_{c}"].T for c in "qkv"]),
        "self_attn.in_proj_bias": torch.cat([tensors[f"b_{c}"] for c in "qkv"]),
        "self_attn.out_proj.weight": tensors["W_o"].T.contiguous(),
        "self_attn.out_proj.bias": tensors["b_o"],
    }
    for ours, theirs in TORCH_NAMES.items():
        tensor = tensors[ours]
        state[theirs] = tensor.T.contiguous() if tensor.ndim == 2 else tensor
    return state


def as_array(tensor):
    """Return a copy of a tensor as an array; bfloat16, which NumPy lacks, as float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()
