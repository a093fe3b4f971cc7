"""Mark the stress of every vowel in an English word: an encoder and an LSTM of the same budget.

``python book/experiments/word_stress.py`` writes ``book/data/word_stress.json`` (curves, accuracy,
time) and ``book/data/word_stress.npz`` (the weights of one trained encoder). Both readers get the
same words in the same batches, the same number of steps and about as many parameters. Shape and
learning rate of each are those that did best on the validation part in runs of half the length. The
test part is used for the final runs alone. It takes about half an hour on one core.
"""

import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from attention.in_numpy.training import batches, warmup_cosine
from attention.in_torch.device import pick_device
from attention.in_torch.training import lm_loss, train_step
from attention.in_torch.word_stress import StressEncoder, StressLSTM
from attention.word_stress import (
    NO_SOUND,
    by_sound,
    by_sound_and_place,
    load_words,
    look_up,
    pad_words,
    score,
    split_words,
)

SETTINGS = {
    "epochs": 4,
    "epochs_to_choose": 2,
    "batch": 128,
    "warmup": 100,
    "max_norm": 1.0,
    "learning_rates": [0.003, 0.001, 0.01, 0.03],  # shapes are compared at the first
    "seeds": [0, 1, 2, 3, 4],
    "seeds_of_variants": [0, 1],
    "seed_to_choose": 100,
    "longer": {"epochs": 12, "seed": 0},
}


def encoder(num_layers, d_model, d_ff, **options):
    return StressEncoder(num_layers, d_model, 4, d_ff, 0.0, **options)


def lstm(num_layers, d_embed, width, **options):
    return StressLSTM(num_layers, d_embed, width, 0.0, **options)


MAKE = {"encoder": encoder, "LSTM": lstm}
SHAPES = {  # sizes that give each about as many parameters
    "encoder": {
        "2 layers of 64": (2, 64, 128),
        "3 layers of 52": (3, 52, 104),
        "4 layers of 48": (4, 48, 72),
    },
    "LSTM": {
        "1 layer of 64": (1, 64, 64),
        "2 layers of 40": (2, 48, 40),
    },
}
VARIANTS = {  # with the learning rate of the reader they vary, and its shape where none stands here
    "encoder, no positions": ("encoder", None, {"positions": False}),
    "encoder, causal": ("encoder", None, {"causal": True}),
    "LSTM, forward only": ("LSTM", (2, 64, 64), {"bidirectional": False}),
}
STEPS_A_POINT = 50  # the curves are means over so many steps
DATA = Path(__file__).resolve().parent.parent / "data"


def train(model, part, lr, seed, epochs, after_epoch=lambda: None):
    """Train on batches whose order the seed gives; return the loss of every step."""
    x, y = part
    lengths = (x != NO_SOUND).sum(axis=1)
    device = next(model.parameters()).device
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    drawn = list(batches(len(x), SETTINGS["batch"], epochs, np.random.default_rng(seed)))
    losses = []
    for step, rows in enumerate(tqdm(drawn, leave=False)):
        opt.param_groups[0]["lr"] = lr * warmup_cosine(step, len(drawn), SETTINGS["warmup"])
        L = lengths[rows].max()  # no more padding than the batch needs
        xs, ys = (torch.tensor(array[rows, :L], device=device) for array in (x, y))
        losses.append(train_step(model, opt, xs, ys, lm_loss, SETTINGS["max_norm"]))
        if (step + 1) % (len(drawn) // epochs) == 0:
            after_epoch()
    return losses


def answers(model, x):
    """Return the stress with the highest score at each position, (n, L)."""
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        parts = [model(torch.tensor(part, device=device)) for part in np.array_split(x, 20)]
    model.train()
    return torch.cat(parts).argmax(dim=-1).cpu().numpy()


def one_run(make, lr, seed, epochs, training, validation):
    """Train one reader from one seed; return it, its loss curve, validation and seconds."""
    torch.manual_seed(seed)
    model = make().to(pick_device())
    reached, clock = [], []

    def after_epoch():
        clock.append(time.process_time())
        shares = score(answers(model, validation[0]), validation[1])
        reached.append([round(share, 4) for share in shares])
        clock.append(time.process_time())

    start = time.process_time()
    losses = train(model, training, lr, seed, epochs, after_epoch)
    clock = np.reshape([start, *clock[:-1]], (epochs, 2))
    points = np.array_split(losses, round(len(losses) / STEPS_A_POINT))
    return model, {
        "seed": seed,
        "loss": [round(float(part.mean()), 4) for part in points],
        "validation": reached,
        "seconds_an_epoch": round(float(np.diff(clock).mean()), 2),
    }


def choose(name, training, validation):
    """Choose shape, then learning rate; the seed is none of the final runs'."""
    rates, tried = SETTINGS["learning_rates"], []

    def words_right(shape, lr):
        make = partial(MAKE[name], *SHAPES[name][shape])
        seed, epochs = SETTINGS["seed_to_choose"], SETTINGS["epochs_to_choose"]
        model, run = one_run(make, lr, seed, epochs, training, validation)
        shares = run["validation"][-1]
        tried.append({"shape": shape, "lr": lr, "parameters": size(model), "validation": shares})
        print(f"{name:22} {shape}, lr {lr}: validation {shares}", flush=True)
        return shares[1]

    of_shapes = {shape: words_right(shape, rates[0]) for shape in SHAPES[name]}
    shape = max(of_shapes, key=of_shapes.get)
    of_rates = {rates[0]: of_shapes[shape]}
    of_rates |= {lr: words_right(shape, lr) for lr in rates[1:]}
    lr = max(of_rates, key=of_rates.get)
    return {"reader": name, "shape": shape, "lr": lr, "tried": tried}


def final_runs(name, make, lr, seeds, parts):
    """Train from every seed and look at the test part; return the results and the first model."""
    training, validation, test = parts
    models, runs = [], []
    for seed in seeds:
        model, run = one_run(make, lr, seed, SETTINGS["epochs"], training, validation)
        run["test"] = [round(share, 4) for share in score(answers(model, test[0]), test[1])]
        print(
            f"{name:22} seed {seed}: test {run['test']}, {run['seconds_an_epoch']} s an epoch",
            flush=True,
        )
        models.append(model)
        runs.append(run)
    return {"reader": name, "parameters": size(models[0]), "lr": lr, "runs": runs}, models[0]


def longer_runs(jobs, training, validation):
    """Train the chosen readers for more epochs, from one seed; the test part has no use here."""
    runs = {}
    for name, make, lr, _ in jobs:
        settings = SETTINGS["longer"]
        _, run = one_run(make, lr, settings["seed"], settings["epochs"], training, validation)
        runs[name] = run["validation"]
        print(f"{name:22} {settings['epochs']} epochs: validation {runs[name][-1]}", flush=True)
    return runs


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def save_weights(model):
    """Write the weights as float16; positions are not among them."""
    state = {name: tensor.cpu().numpy() for name, tensor in model.state_dict().items()}
    del state["place.pe"]
    arrays = {name: array.astype(np.float16) for name, array in state.items()}
    np.savez_compressed(DATA / "word_stress.npz", **arrays)


def write(result):
    """Write what is known so far: the runs are long."""
    text = json.dumps(result)
    (DATA / "word_stress.json").write_text(text + "\n", encoding="utf-8")


def main():
    torch.set_num_threads(1)
    words, left_out = load_words()
    split = split_words(words)
    parts = [pad_words(part) for part in split]
    training, validation, test = parts
    result = {
        "settings": SETTINGS,
        "steps_a_point": STEPS_A_POINT,
        "left_out": left_out,
        "words": [len(part) for part in split],
        "look_up": {
            know.__name__: [
                round(share, 4) for share in score(look_up(know, training, test[0]), test[1])
            ]
            for know in (by_sound, by_sound_and_place)
        },
        "chosen": [choose(name, training, validation) for name in SHAPES],
        "readers": [],
    }
    chosen, jobs = {}, []
    for choice in result["chosen"]:
        name, shape, lr = choice["reader"], choice["shape"], choice["lr"]
        chosen[name] = SHAPES[name][shape], lr
        jobs.append((name, partial(MAKE[name], *SHAPES[name][shape]), lr, SETTINGS["seeds"]))
    for name, (of, shape, options) in VARIANTS.items():
        shape_of_reader, lr = chosen[of]
        make = partial(MAKE[of], *(shape or shape_of_reader), **options)
        jobs.append((name, make, lr, SETTINGS["seeds_of_variants"]))
    for name, make, lr, seeds in jobs:
        outcome, first = final_runs(name, make, lr, seeds, parts)
        result["readers"].append(outcome)
        if name == "encoder":
            save_weights(first)
        write(result)
    result["longer"] = longer_runs(jobs[: len(SHAPES)], training, validation)
    write(result)


if __name__ == "__main__":
    main()
