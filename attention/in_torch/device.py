"""Where to compute."""

import torch


def pick_device():
    """Return the fastest kind of device at hand.

    Returns
    -------
    torch.device
        An NVIDIA or AMD GPU ("cuda"), else an Apple GPU ("mps"), else "cpu".
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
