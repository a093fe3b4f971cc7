"""Read handwritten digits one pixel at a time: recurrent readers and one attention head.

``python book/experiments/digits_by_pixel.py`` writes ``book/data/digits_by_pixel.json``. Each
reader gets the same number of epochs. Its learning rate is chosen on a validation part, and the
accuracy is that on a held-out part, for five seeds. It takes some minutes on one core.
"""

import json
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from attention.in_torch.rnn_limits import (
    AttentionClassifier,
    RecurrentReader,
    accuracy,
    train_reader,
)

SETTINGS = {
    "held_out": 360,
    "validation": 240,
    "epochs": 60,
    "batch": 32,
    "learning_rates": [0.001, 0.003, 0.01, 0.03],
    "seeds": [0, 1, 2, 3, 4],
}
READERS = {  # widths that give each about as many parameters
    "RNN": lambda: RecurrentReader("rnn", 1, 66, 10),
    "LSTM": lambda: RecurrentReader("lstm", 1, 32, 10, forget_bias=1.0),
    "attention": lambda: AttentionClassifier(1, 30, 10, length=64),
    "attention, no positions": lambda: AttentionClassifier(1, 36, 10),
}
RESULT = Path(__file__).resolve().parent.parent / "data" / "digits_by_pixel.json"


def load():
    """Return training, validation and held-out parts: pixels (n, 64, 1) in 0 to 1, and classes."""
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32).reshape(-1, 64, 1)
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held_out, validation, training = order.split(
        [
            SETTINGS["held_out"],
            SETTINGS["validation"],
            len(x) - SETTINGS["held_out"] - SETTINGS["validation"],
        ]
    )
    return [(x[part], y[part]) for part in (training, validation, held_out)]


def one_run(name, lr, seed, training):
    """Train one reader from one seed and return it."""
    x, y = training
    torch.manual_seed(seed)
    reader = READERS[name]()

    def batches():
        for _ in range(SETTINGS["epochs"]):
            for part in torch.randperm(len(x)).split(SETTINGS["batch"]):
                yield x[part], y[part]

    train_reader(reader, batches(), lr)
    return reader


def main():
    torch.set_num_threads(1)
    training, validation, held_out = load()
    rates, seeds = SETTINGS["learning_rates"], SETTINGS["seeds"]
    start, done = time.perf_counter(), 0
    whole = len(READERS) * (len(rates) + len(seeds))
    results = []
    for name, make in READERS.items():
        tried = []
        for lr in rates:  # seeds of their own, so that the choice sees no run that counts
            tried.append(accuracy(one_run(name, lr, 100, training), *validation))
            done += 1
        lr = rates[tried.index(max(tried))]
        scores = []
        for seed in seeds:
            reader = one_run(name, lr, seed, training)
            scores.append(round(accuracy(reader, *held_out), 4))
            done += 1
            left = (time.perf_counter() - start) * (whole - done) / done
            print(f"{done / whole:4.0%}  {left:4.0f} s left  {name:24} seed {seed}: {scores[-1]}")
        results.append(
            {
                "reader": name,
                "parameters": sum(p.numel() for p in make().parameters()),
                "validation": [round(score, 4) for score in tried],
                "lr": lr,
                "accuracy": scores,
            }
        )
    RESULT.parent.mkdir(exist_ok=True)
    text = json.dumps({"settings": SETTINGS, "results": results}, indent=1)
    RESULT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
