"""Peak memory and time of the ways to compute attention, up to 16384 positions.

``python book/experiments/memory.py`` writes ``book/data/memory.json``. It takes about four minutes
on one core, and up to 8 GiB of memory.

Three kinds of numbers, one head of width 64, float32, one thread:

- ``numpy``: the highest sum of NumPy's allocations during the call, by `tracemalloc`, and the
  shortest time of some calls. The inputs were allocated before and do not count.
- ``torch``: the same by PyTorch's profiler, which records what PyTorch's allocator hands out and
  takes back. `tracemalloc` does not see that.
- ``gpu``: the same with float16 where there is an NVIDIA or AMD GPU, else null.
"""

import json
import os
import time
import tracemalloc
from functools import partial
from itertools import accumulate
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np  # after the number of threads was set
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from attention.in_numpy import efficient_attention as in_numpy
from attention.in_numpy.single_head import attention_backward, scaled_dot_product_attention
from attention.in_torch import efficient_attention as in_torch
from attention.in_torch.single_head import scaled_dot_product_attention as torch_dense

SETTINGS = {
    "lengths": [512, 1024, 2048, 4096, 8192, 16384],
    "width": 64,
    "chunk_size": 128,
    "window": 512,
    "dtype": "float32",
    "calls": 3,
}
CHUNK, WINDOW = SETTINGS["chunk_size"], SETTINGS["window"]
RESULT = Path(__file__).resolve().parent.parent / "data" / "memory.json"


# --- NumPy -----------------------------------------------------------------------------------


def dense_backward(Q, K, V, doutput):
    """Forward and backward, keeping the weights."""
    _, weights = scaled_dot_product_attention(Q, K, V)
    return attention_backward(doutput, Q, K, V, weights)


def chunked_backward(Q, K, V, doutput):
    """Forward and backward, keeping a number for each query."""
    kept = in_numpy.chunked_attention(Q, K, V, CHUNK, return_logsumexp=True)
    return in_numpy.chunked_attention_backward(doutput, Q, K, V, *kept, CHUNK)


NUMPY_WAYS = {
    "dense": lambda Q, K, V, _: scaled_dot_product_attention(Q, K, V),
    "chunked": lambda Q, K, V, _: in_numpy.chunked_attention(Q, K, V, CHUNK),
    "dense, with gradients": dense_backward,
    "chunked, with gradients": chunked_backward,
    "causal, query chunks": lambda Q, K, V, _: in_numpy.causal_attention_by_query_chunks(
        Q, K, V, CHUNK
    ),
    "window": lambda Q, K, V, _: in_numpy.sliding_window_attention(Q, K, V, WINDOW, CHUNK),
    "linear": lambda Q, K, V, _: in_numpy.linear_attention(Q, K, V),
}


def numpy_numbers(way, L):
    """Return the peak in MiB and the seconds of one way at one length."""
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(4, L, SETTINGS["width"])).astype(SETTINGS["dtype"])
    call = partial(NUMPY_WAYS[way], *arrays)
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return round(peak, 2), round(shortest(call, SETTINGS["calls"] if L < 16384 else 2), 5)


def shortest(call, calls):
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# --- PyTorch ---------------------------------------------------------------------------------


def fused(Q, K, V):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(Q, K, V)


def math_backend(Q, K, V):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(Q, K, V)


def with_gradients(function, Q, K, V):
    tensors = [t.detach().requires_grad_() for t in (Q, K, V)]
    return torch.autograd.grad(function(*tensors).sum(), tensors)


def chunked(Q, K, V):
    return in_torch.chunked_attention(Q, K, V, CHUNK)


def dense(Q, K, V):
    return torch_dense(Q, K, V)[0]


TORCH_WAYS = {"dense": dense, "chunked": chunked, "math backend": math_backend, "fused": fused}
TORCH_WAYS |= {
    f"{name}, with gradients": partial(with_gradients, way) for name, way in TORCH_WAYS.items()
}


def tensors(L, **options):
    torch.manual_seed(0)
    return [torch.randn(1, 1, L, SETTINGS["width"], **options) for _ in range(3)]


def torch_numbers(way, L):
    """Return the peak in MiB and the seconds of one way at one length."""
    call = partial(TORCH_WAYS[way], *tensors(L))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = list(accumulate(event.nbytes() for event in events))  # freed bytes are negative
    calls = SETTINGS["calls"] if L < 16384 else 2
    return round(max(held) / 2**20, 2), round(shortest(call, calls), 5)


def gpu_numbers(way, L):
    """Return the peak in MiB and the seconds on a GPU in float16."""
    call = partial(TORCH_WAYS[way], *tensors(L, device="cuda", dtype=torch.float16))

    def and_wait():
        call()
        torch.cuda.synchronize()

    and_wait()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    and_wait()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    return round(peak, 2), round(shortest(and_wait, 5), 6)


# --- all of it -------------------------------------------------------------------------------


def table(numbers, ways):
    """Return the peaks and seconds of each way at each length."""
    rows = {}
    for way in tqdm(ways):
        pairs = [numbers(way, L) for L in SETTINGS["lengths"]]
        rows[way] = {"mib": [p for p, _ in pairs], "seconds": [s for _, s in pairs]}
    return rows


def main():
    torch.set_num_threads(1)
    result = {"settings": SETTINGS, "numpy": table(numpy_numbers, NUMPY_WAYS)}
    result["torch"] = table(torch_numbers, TORCH_WAYS)
    result["gpu"] = None
    if torch.cuda.is_available():
        result["gpu"] = table(gpu_numbers, TORCH_WAYS)
        result["gpu_name"] = torch.cuda.get_device_name()
    RESULT.write_text(json.dumps(result) + "\n", encoding="utf-8")
    for kind in ("numpy", "torch", "gpu"):
        for way, row in (result[kind] or {}).items():
            print(f"{kind:6} {way:26} MiB {row['mib']}  s {row['seconds']}")


if __name__ == "__main__":
    main()
