"""Copy weights between arrays that are used as ``x @ W + b`` and ``nn.Linear``.

``nn.Linear`` stores the transpose of `W`: it computes ``x @ weight.T + bias``.
"""

import numpy as np
import torch


def copy_to_linear(linear, W, b=None):
    """Give a linear layer the weights of ``x @ W + b``, in place.

    The layer keeps its dtype and its device.

    Parameters
    ----------
    linear : torch.nn.Linear
        The layer to change.
    W : array_like, shape (d_in, d_out)
        Used as ``x @ W``; the layer stores its transpose.
    b : array_like, shape (d_out,), optional
        Must be given exactly where the layer has a bias.

    Raises
    ------
    ValueError
        If a shape does not fit the layer, or only one of layer and arguments
        has a bias.
    """
    W = np.asarray(W)
    expected = (linear.in_features, linear.out_features)
    if W.shape != expected:
        raise ValueError(f"W: expected shape (d_in, d_out) = {expected}, got {W.shape}")
    if (b is None) != (linear.bias is None):
        has = "no bias" if linear.bias is None else "a bias"
        raise ValueError(f"b: the layer has {has}, got {'None' if b is None else 'an array'}")
    if b is not None and np.shape(b) != expected[1:]:
        raise ValueError(f"b: expected shape (d_out,) = {expected[1:]}, got {np.shape(b)}")
    with torch.no_grad():
        linear.weight.copy_(torch.tensor(W.T))
        if b is not None:
            linear.bias.copy_(torch.tensor(b))


def copy_from_linear(linear):
    """Return a linear layer's weights for use as ``x @ W + b``.

    Parameters
    ----------
    linear : torch.nn.Linear

    Returns
    -------
    W : ndarray, shape (d_in, d_out)
    b : ndarray of shape (d_out,), or None
        Copies, in the layer's dtype (float32 for bfloat16, which NumPy lacks).
    """
    return _as_array(linear.weight.T), None if linear.bias is None else _as_array(linear.bias)


def _as_array(tensor):
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.numpy().copy()
