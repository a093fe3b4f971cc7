"""The layer in PyTorch agrees with the oracle and with PyTorch's own, on every device and dtype."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attention.in_torch.multi_head import MultiHeadAttention, copy_from_torch
from attention.in_torch.weights import copy_from_linear, copy_to_linear

from .oracle import multi_head as oracle

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_device = pytest.mark.parametrize("device", DEVICES)


def normal(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def as_array(tensor):
    return tensor.detach().double().cpu().numpy()


def close(tensor, expected, times):
    """Assert that a result in some dtype is the expected float64 result, up to its rounding."""
    bound = times * torch.finfo(tensor.dtype).eps
    np.testing.assert_allclose(as_array(tensor), expected, rtol=bound, atol=bound)


def layer_and_arrays(d_model, num_heads, dtype, device="cpu", seed=1):
    """Return a layer with random weights, and the same weights as arrays (rounded to its dtype)."""
    rng = np.random.default_rng(seed)
    layer = MultiHeadAttention(d_model, num_heads).to(device, dtype)
    arrays = {}
    for letter, linear in zip("qkvo", layer.children(), strict=True):
        W = rng.normal(size=(d_model, d_model)) / d_model**0.5
        copy_to_linear(linear, W, rng.normal(size=d_model))
        W, b = copy_from_linear(linear)
        arrays[f"W_{letter}"], arrays[f"b_{letter}"] = W.astype(float), b.astype(float)
    return layer, arrays


MASKS = {
    "none": None,
    "(L, L)": (5, 5),
    "(B, L, L)": (3, 5, 5),
    "(B, 1, L)": (3, 1, 5),
    "(B, 1, 1, L)": (3, 1, 1, 5),
    "(B, h, L, L)": (3, 3, 5, 5),
}


@every_device
@every_dtype
@pytest.mark.parametrize("kind", MASKS)
def test_the_layer_and_its_gradients_are_the_oracles(kind, dtype, device):
    # As many sequences as heads: a mask without its axis for the heads would raise no error.
    layer, arrays = layer_and_arrays(6, 3, dtype, device)
    x = normal(3, 5, 6, seed=2).to(device, dtype).requires_grad_()
    mask = None
    if MASKS[kind] is not None:
        mask = np.random.default_rng(3).random(MASKS[kind]) < 0.6
        if mask.shape[-2] > 1:
            mask[..., 2, :] = False  # a query with no key
    before = x.detach().clone()
    output, weights = layer(x, None if mask is None else torch.tensor(mask, device=device))
    assert output.dtype == weights.dtype == dtype
    assert output.device == weights.device == x.device
    X = as_array(x)
    expected, expected_weights = oracle.multi_head_attention(X, **arrays, num_heads=3, mask=mask)
    assert weights.shape == (3, 3, 5, 5)
    close(weights, expected_weights, times=16)
    close(output, expected, times=32)
    if mask is not None and mask.shape[-2] > 1:
        assert not weights[:, :, 2].any()
        assert output[:, 2].equal(layer.W_o.bias.expand(3, 6))

    doutput = normal(3, 5, 6, seed=4).to(device, dtype)
    output.backward(doutput)
    assert x.detach().equal(before)
    dX, gradients = oracle.multi_head_attention_backward(
        as_array(doutput), X, **arrays, num_heads=3, weights=expected_weights
    )
    close(x.grad, dX, times=64)
    for letter, linear in zip("qkvo", layer.children(), strict=True):
        close(linear.weight.grad, gradients[f"W_{letter}"].T, times=128)
        close(linear.bias.grad, gradients[f"b_{letter}"], times=128)


@every_device
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("num_heads", [1, 3, 4])
def test_output_weights_and_gradients_are_those_of_pytorchs_layer(num_heads, dtype, device):
    torch.manual_seed(num_heads)
    theirs = nn.MultiheadAttention(12, num_heads, batch_first=True).to(device, dtype)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = copy_from_torch(theirs)
    x = normal(2, 5, 12).to(device, dtype)
    mask = torch.tensor(np.random.default_rng(5).random((2, 5, 5)) < 0.6, device=device)
    mask |= torch.eye(5, dtype=torch.bool, device=device)
    doutput = normal(2, 5, 12, seed=6).to(device, dtype)

    x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, weights = ours(x_ours, mask)
    expected, expected_weights = theirs(
        *[x_theirs] * 3,
        attn_mask=~mask.repeat_interleave(num_heads, dim=0),
        average_attn_weights=False,
    )
    output.backward(doutput)
    expected.backward(doutput)
    close(output, as_array(expected), times=64)
    close(weights, as_array(expected_weights), times=64)
    close(x_ours.grad, as_array(x_theirs.grad), times=256)
    weight = torch.cat([ours.W_q.weight.grad, ours.W_k.weight.grad, ours.W_v.weight.grad])
    bias = torch.cat([ours.W_q.bias.grad, ours.W_k.bias.grad, ours.W_v.bias.grad])
    close(weight, as_array(theirs.in_proj_weight.grad), times=512)
    close(bias, as_array(theirs.in_proj_bias.grad), times=512)
    close(ours.W_o.weight.grad, as_array(theirs.out_proj.weight.grad), times=512)
    close(ours.W_o.bias.grad, as_array(theirs.out_proj.bias.grad), times=512)


@pytest.mark.parametrize("bias", [False, True])
@every_dtype
def test_a_copy_of_pytorchs_layer_has_its_dtype_its_mode_and_memory_of_its_own(bias, dtype):
    theirs = nn.MultiheadAttention(6, 2, bias=bias, batch_first=True).to(dtype).eval()
    ours = copy_from_torch(theirs)
    assert not ours.training
    assert {p.dtype for p in ours.parameters()} == {dtype}
    assert ours.W_k.weight.equal(theirs.in_proj_weight[6:12])
    with torch.no_grad():
        ours.W_k.weight.zero_()
    assert theirs.in_proj_weight[6:12].any()
    assert ours.W_q.bias.tolist() == [0.0] * 6


@pytest.mark.parametrize("options", [{"kdim": 3}, {"vdim": 3}])
def test_a_layer_of_other_widths_is_not_copied(options):
    with pytest.raises(ValueError, match="theirs: expected kdim and vdim equal to embed_dim"):
        copy_from_torch(nn.MultiheadAttention(6, 2, **options))


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_a_layer_with_extra_keys_is_not_copied(option):
    with pytest.raises(ValueError, match="theirs: expected neither add_bias_kv nor add_zero_attn"):
        copy_from_torch(nn.MultiheadAttention(6, 2, **{option: True}))


def test_the_layer_has_four_matrices_and_four_biases_and_nothing_else():
    layer = MultiHeadAttention(6, 3)
    shapes = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
    expected = {f"W_{letter}.weight": (6, 6) for letter in "qkvo"}
    assert shapes == expected | {f"W_{letter}.bias": (6,) for letter in "qkvo"}
    assert all(parameter.requires_grad for parameter in layer.parameters())


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_any_leading_axes(lead):
    layer, arrays = layer_and_arrays(6, 2, torch.float64)
    x = normal(*lead, 4, 6, seed=7)
    mask = np.random.default_rng(8).random((*lead, 4, 4)) < 0.7
    output, weights = layer(x, torch.tensor(mask))
    expected = oracle.multi_head_attention(as_array(x), **arrays, num_heads=2, mask=mask)
    close(output, expected[0], times=64)
    close(weights, expected[1], times=64)


def test_gradcheck_with_a_mask_and_an_empty_row():
    layer, _ = layer_and_arrays(4, 2, torch.float64)
    mask = torch.tensor(np.random.default_rng(9).random((2, 3, 3)) < 0.6)
    mask[1, 0] = False
    x = normal(2, 3, 4, seed=10).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, mask)[0], [x])


@pytest.mark.parametrize("num_heads", [1, 2, 8])
def test_parameters_and_operations_do_not_depend_on_the_number_of_heads(num_heads):
    B, L, d = 2, 5, 16
    layer = MultiHeadAttention(d, num_heads)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 4 * d**2 + 4 * d
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(B, L, d))
    assert counter.get_total_flops() == 8 * B * L * d**2 + 4 * B * L**2 * d


@pytest.mark.parametrize(
    ("d_model", "num_heads", "message"),
    [
        (6, 4, "num_heads: expected a divisor of 6, the width of the layer, got 4"),
        (6, 0, "num_heads: expected a positive integer, got 0"),
        (6, 1.5, "num_heads: expected a positive integer, got 1.5"),
    ],
)
def test_the_layer_refuses_heads_that_do_not_fit(d_model, num_heads, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(d_model, num_heads)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.eye(4), "mask: expected booleans"),
        (torch.eye(4, dtype=torch.bool).expand(3, 4, 4), r"mask: .*\(2, 3, 4, 4\), got \(3, 1"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(6, 3)(torch.randn(2, 4, 6), mask)
