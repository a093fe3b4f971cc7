"""The oracle's loops agree with PyTorch in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .oracle import encoder_layer as oracle

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 6), (2, 1)])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm_and_its_gradients_are_pytorchs(shape, eps):
    x, dy = 3 * normal(*shape) + 1, normal(*shape, seed=1)
    gamma, beta = normal(shape[-1], seed=2), normal(shape[-1], seed=3)
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, gamma, beta)]
    expected = F.layer_norm(tensors[0], shape[-1:], *tensors[1:], eps=eps)
    np.testing.assert_allclose(
        oracle.layer_norm(x, gamma, beta, eps), expected.detach().numpy(), **CLOSE
    )
    expected.backward(torch.tensor(dy))
    gradients = oracle.layer_norm_backward(dy, x, gamma, eps)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), **CLOSE)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_feed_forward_is_pytorchs(activation):
    x = normal(2, 3, 4)
    W1, b1, W2, b2 = normal(4, 7, seed=1), normal(7, seed=2), normal(7, 5, seed=3), normal(5)
    hidden = getattr(F, activation)(F.linear(torch.tensor(x), torch.tensor(W1.T), torch.tensor(b1)))
    expected = F.linear(hidden, torch.tensor(W2.T), torch.tensor(b2)).numpy()
    found = oracle.feed_forward(x, W1, b1, W2, b2, activation)
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("d_model", [1, 2, 7, 8])
def test_positional_encoding_is_that_of_angles_computed_in_logarithms(d_model):
    # the form of most PyTorch code: exp(-2i log(10000) / d)
    position = torch.arange(9, dtype=torch.float64)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position * torch.exp(-even * torch.log(torch.tensor(10000.0).double()) / d_model)
    expected = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]
    np.testing.assert_allclose(oracle.positional_encoding(9, d_model), expected, **CLOSE)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masked", [None, "causal", "padding"])
def test_encoder_layer_is_pytorchs(norm_first, activation, masked):
    d_model, num_heads, L = 6, 3, 4
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        d_model, num_heads, 10, 0.0, activation, norm_first=norm_first, batch_first=True
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    state = {name: tensor.detach().numpy() for name, tensor in layer.state_dict().items()}
    weights = {
        "W_o": state["self_attn.out_proj.weight"].T,
        "b_o": state["self_attn.out_proj.bias"],
        **{f"W{i}": state[f"linear{i}.weight"].T for i in "12"},
        **{f"b{i}": state[f"linear{i}.bias"] for i in "12"},
        **{f"gamma{i}": state[f"norm{i}.weight"] for i in "12"},
        **{f"beta{i}": state[f"norm{i}.bias"] for i in "12"},
    }
    for i, letter in enumerate("qkv"):
        rows = slice(i * d_model, (i + 1) * d_model)
        weights[f"W_{letter}"] = state["self_attn.in_proj_weight"][rows].T
        weights[f"b_{letter}"] = state["self_attn.in_proj_bias"][rows]

    x = normal(2, L, d_model)
    keep = np.array([[True] * L, [True] * 2 + [False] * 2])
    masks = {None: None, "causal": np.tri(L, dtype=bool), "padding": keep[:, None, None]}
    theirs = {
        None: {},
        "causal": {"src_mask": torch.tensor(~masks["causal"])},
        "padding": {"src_key_padding_mask": torch.tensor(~keep)},
    }
    expected = layer(torch.tensor(x), **theirs[masked]).detach().numpy()
    found = oracle.encoder_layer(x, weights, num_heads, masks[masked], norm_first, activation)
    np.testing.assert_allclose(found, expected, **CLOSE)
