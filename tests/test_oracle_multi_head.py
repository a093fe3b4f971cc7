"""The oracle's loops over sequences and heads agree with PyTorch in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from .oracle import multi_head as oracle

CLOSE = {"rtol": 1e-11, "atol": 1e-11}
BIASES = ("b_q", "b_k", "b_v", "b_o")


def pytorchs(seed, d_model=6, num_heads=3, B=2, L=4):
    """Return PyTorch's layer with random biases, an input and a gradient of its output."""
    torch.manual_seed(seed)
    layer = nn.MultiheadAttention(d_model, num_heads, batch_first=True, dtype=torch.float64)
    nn.init.normal_(layer.in_proj_bias)
    nn.init.normal_(layer.out_proj.bias)
    x = torch.randn(B, L, d_model, dtype=torch.float64, requires_grad=True)
    return layer, x, torch.randn(B, L, d_model, dtype=torch.float64)


def arguments_of(layer, x):
    weights = (layer.in_proj_weight.detach().numpy(), layer.out_proj.weight.detach().numpy())
    biases = torch.cat([layer.in_proj_bias, layer.out_proj.bias]).detach().reshape(4, -1).numpy()
    matrices = oracle.unpack_in_proj(*weights)
    return (x.detach().numpy(), *matrices, layer.num_heads), dict(zip(BIASES, biases, strict=True))


def test_splitting_cuts_columns_as_pytorch_does_and_merging_undoes_it():
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 8))
    expected = torch.tensor(x).unflatten(-1, (4, 2)).transpose(-2, -3).numpy()
    np.testing.assert_array_equal(oracle.split_heads(x, 4), expected)
    np.testing.assert_array_equal(oracle.merge_heads(expected), x)
    assert oracle.split_heads([[10, 11, 12, 13], [20, 21, 22, 23]], 2).tolist() == [
        [[10, 11], [20, 21]],
        [[12, 13], [22, 23]],
    ]


def test_a_number_of_heads_that_does_not_divide_the_width_is_refused():
    x = np.arange(12.0).reshape(2, 6)
    with pytest.raises(ValueError, match="4 does not divide 6"):
        oracle.split_heads(x, 4)
    with pytest.raises(ValueError, match="num_heads: 4 does not divide"):
        oracle.multi_head_attention(x, *[np.eye(6)] * 4, 4)


@pytest.mark.parametrize("kind", ["none", "(L, L)", "(B, L, L)", "(B, 1, 1, L)", "(B, h, L, L)"])
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_layer_and_gradients_are_pytorchs(kind, num_heads):
    B, L = 2, 4
    layer, x, doutput = pytorchs(seed=1, num_heads=num_heads)
    shape = {"none": None, "(L, L)": (L, L), "(B, L, L)": (B, L, L)}
    shape |= {"(B, 1, 1, L)": (B, 1, 1, L), "(B, h, L, L)": (B, num_heads, L, L)}
    mask, ignore = None, None
    if shape[kind] is not None:
        mask = np.random.default_rng(2).random(shape[kind]) < 0.6
        mask[..., 0] = True  # every query has a key: PyTorch's layer gives NaN without
        # PyTorch takes (B * h, L, L), sequence by sequence, where True means "leave out".
        full = mask[:, None] if kind == "(B, L, L)" else mask
        full = np.broadcast_to(full, (B, num_heads, L, L)).reshape(-1, L, L)
        ignore = torch.tensor(~full)
    expected, expected_weights = layer(x, x, x, attn_mask=ignore, average_attn_weights=False)
    expected.backward(doutput)

    arguments, biases = arguments_of(layer, x)
    output, weights = oracle.multi_head_attention(*arguments, mask, **biases)
    np.testing.assert_allclose(output, expected.detach().numpy(), **CLOSE)
    np.testing.assert_allclose(weights, expected_weights.detach().numpy(), **CLOSE)

    dX, gradients = oracle.multi_head_attention_backward(
        doutput.numpy(), *arguments, weights, **biases
    )
    np.testing.assert_allclose(dX, x.grad.numpy(), **CLOSE)
    in_proj = np.concatenate([gradients[f"W_{letter}"].T for letter in "qkv"])
    np.testing.assert_allclose(in_proj, layer.in_proj_weight.grad.numpy(), **CLOSE)
    np.testing.assert_allclose(gradients["W_o"].T, layer.out_proj.weight.grad.numpy(), **CLOSE)
    in_bias = np.concatenate([gradients[f"b_{letter}"] for letter in "qkv"])
    np.testing.assert_allclose(in_bias, layer.in_proj_bias.grad.numpy(), **CLOSE)
    np.testing.assert_allclose(gradients["b_o"], layer.out_proj.bias.grad.numpy(), **CLOSE)


def test_unequal_widths_and_two_leading_axes_are_those_of_autograd():
    rng = np.random.default_rng(3)
    shapes = {"X": (2, 3, 4, 5), "W_q": (5, 4), "W_k": (5, 4), "W_v": (5, 6), "W_o": (6, 7)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    mask = rng.random((2, 3, 4, 4)) < 0.7
    mask[0, 1, 2] = False
    tensors = {name: torch.tensor(a, requires_grad=True) for name, a in arrays.items()}
    X, W_q, W_k, W_v, W_o = tensors.values()
    contexts = []
    for head in range(2):  # the definition: each head with columns of its own
        q, v = slice(2 * head, 2 * head + 2), slice(3 * head, 3 * head + 3)
        contexts.append(
            nn.functional.scaled_dot_product_attention(
                X @ W_q[:, q], X @ W_k[:, q], X @ W_v[:, v], attn_mask=torch.tensor(mask)
            )
        )
    expected = torch.cat(contexts, dim=-1) @ W_o
    doutput = rng.normal(size=expected.shape)
    expected.backward(torch.tensor(doutput))

    output, weights = oracle.multi_head_attention(**arrays, num_heads=2, mask=mask)
    np.testing.assert_allclose(output, expected.detach().numpy(), **CLOSE)
    assert weights.shape == (2, 3, 2, 4, 4)
    assert not output[0, 1, 2].any()
    dX, gradients = oracle.multi_head_attention_backward(
        doutput, **arrays, num_heads=2, weights=weights
    )
    for name, tensor in tensors.items():
        gradient = dX if name == "X" else gradients[name]
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), **CLOSE)


def test_a_query_with_no_allowed_key_gets_the_bias_of_the_output():
    layer, x, _ = pytorchs(seed=4)
    arguments, biases = arguments_of(layer, x)
    mask = np.ones((2, 4, 4), dtype=bool)
    mask[1, 2] = False
    output, weights = oracle.multi_head_attention(*arguments, mask, **biases)
    assert not weights[1, :, 2].any()
    np.testing.assert_array_equal(output[1, 2], biases["b_o"])


@pytest.mark.parametrize("shape", [(3, 4, 4), (3, 3, 4, 4), (1, 2, 3, 4, 4), (2, 5, 4, 4)])
def test_a_mask_that_does_not_fit_is_refused(shape):
    layer, x, _ = pytorchs(seed=5)
    arguments, _ = arguments_of(layer, x)
    with pytest.raises(ValueError, match=r"broadcast|dimensions"):
        oracle.multi_head_attention(*arguments, np.zeros(shape, dtype=bool))
