"""The torch layer is PyTorch's own, number for number, and the NumPy layer's twin."""

import numpy as np
import pytest
import torch
from torch import nn

from attention.in_numpy.encoder_layer import encoder_layer, encoder_layer_backward
from attention.in_numpy.encoder_layer import positional_encoding as numpy_positions
from attention.in_torch.encoder_layer import (
    Encoder,
    EncoderLayer,
    PositionalEncoding,
    weights_from_torch,
    weights_to_torch,
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
# How far two layers of the same numbers may be apart, with the sums in another order.
ATOL = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.15, torch.float16: 0.02}

every_device = pytest.mark.parametrize("device", DEVICES)
every_norm = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
every_activation = pytest.mark.parametrize("activation", ["relu", "gelu"])
D_MODEL, HEADS, D_FF, L = 8, 2, 12, 5


@pytest.fixture(autouse=True)
def _no_fast_path():
    """PyTorch's fused evaluation has rounding, and empty rows, of its own."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def normal(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def shaken(module, seed=0):
    """Move every parameter a little, so that no bias is 0 and no scale 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) / 5)
    return module


def pytorchs_layer(norm_first, activation, dropout=0.0):
    return shaken(
        nn.TransformerEncoderLayer(
            D_MODEL, HEADS, D_FF, dropout, activation, norm_first=norm_first, batch_first=True
        )
    )


def twin_of(theirs, norm_first, activation, dropout=0.0):
    ours = EncoderLayer(D_MODEL, HEADS, D_FF, dropout, norm_first, activation)
    ours.load_state_dict(theirs.state_dict())
    return ours


KEEP = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
CAUSAL = torch.ones(L, L, dtype=torch.bool).tril()
# our mask, PyTorch's arguments, the rows that are real
MASKS = {
    "none": (None, {}, torch.ones(3, L, dtype=torch.bool)),
    "padding": (KEEP[:, None, None], {"src_key_padding_mask": ~KEEP}, KEEP),
    "causal": (CAUSAL, {"src_mask": ~CAUSAL}, torch.ones(3, L, dtype=torch.bool)),
    "both": (
        CAUSAL & KEEP[:, None, None],
        {"src_mask": ~CAUSAL, "src_key_padding_mask": ~KEEP},
        KEEP,
    ),
}
every_mask = pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)


def on(device, masks):
    mask, arguments, real = masks
    arguments = {name: tensor.to(device) for name, tensor in arguments.items()}
    return None if mask is None else mask.to(device), arguments, real.to(device)


@every_device
@every_norm
@every_activation
@every_mask
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_layer_is_pytorchs_output_and_gradients(
    device, norm_first, activation, masks, training, dtype
):
    theirs = pytorchs_layer(norm_first, activation).to(device, dtype).train(training)
    ours = twin_of(theirs, norm_first, activation).to(device, dtype).train(training)
    mask, arguments, real = on(device, masks)
    x = normal(3, L, D_MODEL).to(device, dtype).requires_grad_()
    x_theirs = x.detach().clone().requires_grad_()
    y, expected = ours(x, mask), theirs(x_theirs, **arguments)
    atol = ATOL[dtype]
    torch.testing.assert_close(y[real], expected[real], rtol=atol, atol=atol)
    dy = normal(3, L, D_MODEL, seed=1).to(device, dtype) * real[..., None]
    y.backward(dy)
    expected.backward(dy)
    torch.testing.assert_close(x.grad, x_theirs.grad, rtol=atol, atol=10 * atol)
    pairs = zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
    for (name, parameter), (their_name, other) in pairs:
        assert name == their_name
        assert parameter.grad.abs().max() > 0
        torch.testing.assert_close(parameter.grad, other.grad, rtol=atol, atol=20 * atol)


@every_norm
@every_activation
def test_with_dropout_and_one_sequence_the_same_numbers_are_dropped(norm_first, activation):
    theirs = pytorchs_layer(norm_first, activation, dropout=0.3)
    ours = twin_of(theirs, norm_first, activation, dropout=0.3)
    x = normal(1, L, D_MODEL).float()
    results = []
    for layer, argument in ((ours, {"mask": CAUSAL}), (theirs, {"src_mask": ~CAUSAL})):
        torch.manual_seed(5)
        results.append(layer(x, **argument))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    assert (results[0] - ours.eval()(x, CAUSAL)).abs().max() > 0.01
    torch.testing.assert_close(ours(x), theirs.eval()(x), rtol=1e-5, atol=1e-5)


@every_norm
@every_activation
def test_the_stack_is_pytorchs(norm_first, activation):
    theirs = nn.TransformerEncoder(
        pytorchs_layer(norm_first, activation), num_layers=3, enable_nested_tensor=False
    ).double()
    shaken(theirs, seed=1)
    ours = Encoder(3, D_MODEL, HEADS, D_FF, 0.0, norm_first, activation).double()
    ours.load_state_dict(theirs.state_dict())
    x, dy = normal(3, L, D_MODEL), normal(3, L, D_MODEL, seed=1) * KEEP[..., None]
    y, expected = ours(x, KEEP[:, None, None]), theirs(x, src_key_padding_mask=~KEEP)
    torch.testing.assert_close(y[KEEP], expected[KEEP], rtol=1e-11, atol=1e-11)
    y.backward(dy)
    expected.backward(dy)
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-9, atol=1e-9)


def test_the_state_of_pytorchs_layer_and_stack_loads_and_ours_into_theirs():
    theirs = nn.TransformerEncoderLayer(D_MODEL, HEADS, D_FF, batch_first=True)
    ours = EncoderLayer(D_MODEL, HEADS, D_FF, 0.1)
    shapes = {name: tensor.shape for name, tensor in ours.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    stack = nn.TransformerEncoder(theirs, 2, enable_nested_tensor=False)
    Encoder(2, D_MODEL, HEADS, D_FF, 0.1).load_state_dict(stack.state_dict())


@every_device
@every_norm
@every_activation
@every_mask
@pytest.mark.parametrize("dtype", ATOL, ids=str)
def test_the_layer_is_the_numpy_twin(device, norm_first, activation, masks, dtype):
    layer = shaken(EncoderLayer(D_MODEL, HEADS, D_FF, 0.0, norm_first, activation))
    layer = layer.to(device, dtype)
    weights = weights_from_torch(layer.state_dict())
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    x = normal(3, L, D_MODEL).to(device, dtype).requires_grad_()
    mask, _, _ = on(device, masks)
    numpy_mask = None if mask is None else mask.cpu().numpy()
    y = layer(x, mask)
    assert y.dtype == dtype
    assert y.device == x.device
    X = x.detach().cpu().double().numpy()
    arguments = (X, weights, HEADS, numpy_mask, norm_first)
    expected = encoder_layer(*arguments, activation=activation)
    np.testing.assert_allclose(y.detach().cpu().double(), expected, rtol=0, atol=ATOL[dtype])
    if dtype == torch.float64:
        dy = normal(3, L, D_MODEL, seed=1)
        y.backward(dy.to(device))
        dx, gradients = encoder_layer_backward(dy.numpy(), *arguments, activation=activation)
        np.testing.assert_allclose(x.grad.cpu(), dx, atol=1e-11)
        found = weights_from_torch({name: p.grad for name, p in layer.named_parameters()})
        assert set(found) == set(gradients)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(found[name], gradient, atol=1e-11, err_msg=name)


@every_device
@every_norm
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_an_empty_row_stays_finite_forward_and_backward(device, norm_first, training):
    layer = shaken(EncoderLayer(D_MODEL, HEADS, D_FF, 0.2, norm_first)).to(device).train(training)
    mask = torch.ones(3, L, L, dtype=torch.bool, device=device)
    mask[1, 2] = False  # one query
    mask[2] = False  # a whole sequence
    x = normal(3, L, D_MODEL).float().to(device).requires_grad_()
    y = layer(x, mask)
    y.square().sum().backward()
    assert torch.isfinite(y).all()
    for tensor in (x, *layer.parameters()):
        assert torch.isfinite(tensor.grad).all()
    if not training:
        array = x.detach().cpu().numpy()
        weights = weights_from_torch(layer.state_dict())
        expected = encoder_layer(array, weights, HEADS, mask.cpu().numpy(), norm_first)
        np.testing.assert_allclose(y.detach().cpu(), expected, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_make_the_round_trip(dtype):
    layer = shaken(EncoderLayer(D_MODEL, HEADS, D_FF, 0.0)).to(dtype)
    weights = weights_from_torch(layer.state_dict())
    assert weights["W1"].shape == (D_MODEL, D_FF)
    back = weights_to_torch(weights)
    assert set(back) == set(layer.state_dict())
    for name, tensor in layer.state_dict().items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name], tensor)
    weights["b_q"] += 1  # copies: the layer keeps its numbers
    weights["gamma1"] += 1
    assert torch.equal(layer.norm1.weight, back["norm1.weight"])
    assert torch.equal(layer.self_attn.in_proj_bias, back["self_attn.in_proj_bias"])


def test_positions_are_a_buffer_that_moves_with_the_layer_and_is_not_trained():
    layer = PositionalEncoding(7, max_len=10)
    assert not list(layer.parameters())
    assert list(layer.state_dict()) == ["pe"]
    x = normal(2, 6, 7).float()
    before = x.clone()
    np.testing.assert_allclose(
        layer(x) - x, np.broadcast_to(numpy_positions(6, 7), x.shape), atol=1e-6
    )
    assert torch.equal(x, before)
    assert layer.double()(x.double()).dtype == torch.float64
    assert layer.half()(x.half()).dtype == torch.float16
    with pytest.raises(ValueError, match="x: expected at most 10 tokens, got 11"):
        layer(normal(11, 7))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EncoderLayer(8, 3, 12, 0.0), "num_heads: expected a divisor of 8"),
        (lambda: EncoderLayer(8, 0, 12, 0.0), "num_heads: expected a positive integer"),
        (lambda: EncoderLayer(8, 2, 12, 0.0, activation="tanh"), "activation: expected 'relu' or"),
    ],
)
def test_a_wrong_option_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
