"""How many key-value pairs can a reader hold? Trains readers of two widths on the recall task.

``python book/experiments/recall_task.py`` writes ``book/data/recall_task.json``: the held-out
accuracy of each reader for each width, number of pairs and seed. It takes some minutes on one core.
"""

import json
import time
from itertools import product
from pathlib import Path

import torch

from attention.in_torch.rnn_limits import (
    LookupReader,
    RecurrentReader,
    accuracy,
    recall_batch,
    train_reader,
)

SETTINGS = {
    "widths": [16, 64],
    "num_keys": 16,
    "num_values": 4,
    "pairs": [1, 2, 4, 8, 16],
    "seeds": [0, 1, 2, 3, 4],
    "steps": 4000,
    "batch": 64,
    "lr": 1e-2,
    "held_out": 2000,
}
NUM_KEYS, NUM_VALUES = SETTINGS["num_keys"], SETTINGS["num_values"]
READERS = {
    "RNN": lambda *sizes: RecurrentReader("rnn", *sizes),
    "LSTM": lambda *sizes: RecurrentReader("lstm", *sizes, forget_bias=1.0),
    "look-up": LookupReader,
}
RESULT = Path(__file__).resolve().parent.parent / "data" / "recall_task.json"


def one_run(name, width, pairs, seed):
    """Train one reader from one seed; return its accuracy on sequences that it has not seen."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)

    def draw(batch):
        return recall_batch(batch, pairs, NUM_KEYS, NUM_VALUES, generator)

    reader = READERS[name](NUM_KEYS + NUM_VALUES, width, NUM_VALUES)
    batches = (draw(SETTINGS["batch"]) for _ in range(SETTINGS["steps"]))
    train_reader(reader, batches, SETTINGS["lr"])
    return round(accuracy(reader, *draw(SETTINGS["held_out"])), 4)


def main():
    torch.set_num_threads(1)
    start, done = time.perf_counter(), 0
    # The work of a run grows with the number of steps that it reads.
    runs = len(READERS) * len(SETTINGS["widths"]) * len(SETTINGS["seeds"])
    whole = runs * sum(pairs + 1 for pairs in SETTINGS["pairs"])
    results = []
    for name, width, pairs in product(READERS, SETTINGS["widths"], SETTINGS["pairs"]):
        scores = []
        for seed in SETTINGS["seeds"]:
            scores.append(one_run(name, width, pairs, seed))
            done += pairs + 1
        results.append({"reader": name, "width": width, "pairs": pairs, "accuracy": scores})
        left = (time.perf_counter() - start) * (whole - done) / done
        share = f"{done / whole:4.0%}  {left:4.0f} s left"
        print(f"{share}  {name:8} width {width}  {pairs:2d} pairs  {scores}", flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    text = json.dumps({"settings": SETTINGS, "results": results}, indent=1)
    RESULT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
