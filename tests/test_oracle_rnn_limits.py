"""The oracle's loops agree with PyTorch in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from .oracle import rnn_limits as oracle

CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def torch_cell(d_in, H, seed):
    """A PyTorch cell, and its parameters as the oracle takes them: (W_x, W_h, b)."""
    torch.manual_seed(seed)
    cell = nn.RNN(d_in, H, batch_first=True, dtype=torch.float64)
    W_ih, W_hh, b_ih, b_hh = (p.detach().numpy() for p in cell.parameters())
    return cell, 2 * W_ih.T, 2 * W_hh.T, b_ih + b_hh


def load(cell, W_x, W_h, b):
    with torch.no_grad():
        cell.weight_ih_l0.copy_(torch.tensor(W_x.T))
        cell.weight_hh_l0.copy_(torch.tensor(W_h.T))
        cell.bias_ih_l0.copy_(torch.tensor(b))
        cell.bias_hh_l0.zero_()


@pytest.mark.parametrize(("B", "T", "d_in", "H"), [(3, 6, 2, 5), (1, 1, 4, 3), (2, 4, 3, 3)])
def test_forward_and_backward_are_pytorchs(B, T, d_in, H):
    rng = np.random.default_rng(T)
    cell, W_x, W_h, b = torch_cell(d_in, H, seed=T)
    load(cell, W_x, W_h, b)
    x, h0, dhs = (rng.normal(size=s) for s in [(B, T, d_in), (B, H), (B, T, H)])
    x_t = torch.tensor(x, requires_grad=True)
    h0_t = torch.tensor(h0[None], requires_grad=True)
    states, _ = cell(x_t, h0_t)
    (states * torch.tensor(dhs)).sum().backward()

    hs = oracle.rnn_forward(x, W_x, W_h, b, h0)
    np.testing.assert_allclose(hs, states.detach().numpy(), **CLOSE)
    expected = (
        x_t.grad,
        cell.weight_ih_l0.grad.T,
        cell.weight_hh_l0.grad.T,
        cell.bias_ih_l0.grad,
        h0_t.grad[0],
    )
    gradients = oracle.rnn_backward(dhs, x, hs, W_x, W_h, h0)
    for gradient, tensor in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, tensor.numpy(), **CLOSE)


def test_leading_axes_are_sequences_of_their_own():
    rng = np.random.default_rng(4)
    W_x, W_h, b = rng.normal(size=(2, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    x, h0, dhs = (rng.normal(size=s) for s in [(2, 3, 4, 2), (2, 3, 3), (2, 3, 4, 3)])
    hs = oracle.rnn_forward(x, W_x, W_h, b, h0)
    flat = oracle.rnn_forward(x.reshape(6, 4, 2), W_x, W_h, b, h0.reshape(6, 3))
    np.testing.assert_array_equal(hs, flat.reshape(2, 3, 4, 3))
    many = oracle.rnn_backward(dhs, x, hs, W_x, W_h, h0)
    one = oracle.rnn_backward(dhs[1, 2], x[1, 2], hs[1, 2], W_x, W_h, h0[1, 2])
    np.testing.assert_allclose(many[0][1, 2], one[0], **CLOSE)
    np.testing.assert_allclose(many[4][1, 2], one[4], **CLOSE)


def test_the_last_state_is_that_of_the_sequence_read_alone():
    rng = np.random.default_rng(5)
    W_x, W_h, b = rng.normal(size=(2, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    x, h0 = rng.normal(size=(4, 5, 2)), rng.normal(size=(4, 3))
    lengths = [5, 1, 3, 2]
    last = oracle.rnn_last_state(oracle.rnn_forward(x, W_x, W_h, b, h0), lengths)
    for row, length in enumerate(lengths):
        alone = oracle.rnn_forward(x[row, :length], W_x, W_h, b, h0[row])
        np.testing.assert_allclose(last[row], alone[-1], **CLOSE)


def test_no_steps_give_no_states_and_no_gradients():
    x, h0 = np.zeros((2, 0, 3)), np.arange(8.0).reshape(2, 4)
    W_x, W_h = np.arange(12.0).reshape(3, 4), np.arange(16.0).reshape(4, 4)
    hs = oracle.rnn_forward(x, W_x, W_h, np.arange(4.0), h0)
    assert hs.shape == (2, 0, 4)
    shapes = [g.shape for g in oracle.rnn_backward(hs, x, hs, W_x, W_h, h0)]
    assert shapes == [(2, 0, 3), (3, 4), (4, 4), (4,), (2, 4)]
    assert not oracle.rnn_backward(hs, x, hs, W_x, W_h, h0)[4].any()
