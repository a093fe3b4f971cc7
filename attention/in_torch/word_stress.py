"""Two readers that mark the stress of each vowel in a word: an encoder, and an LSTM."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attention.in_numpy.encoder_layer import positional_encoding
from attention.word_stress import NO_SOUND, NUM_STRESSES, SOUNDS

from .encoder_layer import Encoder, PositionalEncoding, weights_to_torch
from .masking import causal_mask, combine_masks


class StressEncoder(nn.Module):
    """Sounds, positions, pre-norm encoder layers, a norm, three scores.

    Parameters
    ----------
    num_layers, d_model, num_heads, d_ff, dropout
        As in `Encoder`.
    positions : bool
        False: the sounds of a word are a set.
    causal : bool
        True: a sound is tagged from what was heard up to it.
    """

    def __init__(
        self,
        num_layers,
        d_model,
        num_heads,
        d_ff,
        dropout,
        positions=True,
        causal=False,
    ):
        super().__init__()
        self.embed = nn.Embedding(len(SOUNDS) + 1, d_model)
        place = PositionalEncoding(d_model, max_len=64)
        self.place = place if positions else nn.Identity()
        sizes = (num_layers, d_model, num_heads, d_ff, dropout)
        self.encoder = Encoder(*sizes, norm_first=True)
        self.norm = nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, NUM_STRESSES)
        self.causal = causal

    def forward(self, x):
        """Map sounds (B, L), padded with 0, to scores (B, L, 3)."""
        keep = x != NO_SOUND  # (B, L)
        mask = keep[:, None, None]  # (B, 1, 1, L)
        if self.causal:
            mask = combine_masks(keep, causal_mask(x.shape[1], x.device))
        h = self.encoder(self.place(self.embed(x)), mask)
        return self.out(self.norm(h))


class StressLSTM(nn.Module):
    """Sounds, an LSTM, three scores from the state at each sound.

    Parameters
    ----------
    num_layers, d_embed, width : int
        LSTM layers, numbers of a sound, and of a state (in each direction).
    dropout : float
        Between the layers and before the scores.
    bidirectional : bool
        True: one LSTM reads forward, one backward.
    """

    def __init__(
        self,
        num_layers,
        d_embed,
        width,
        dropout,
        bidirectional=True,
    ):
        super().__init__()
        self.embed = nn.Embedding(len(SOUNDS) + 1, d_embed)
        self.cell = nn.LSTM(
            d_embed,
            width,
            num_layers,
            batch_first=True,
            dropout=dropout if num_layers > 1 else 0.0,
            bidirectional=bidirectional,
        )
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width * (1 + bidirectional), NUM_STRESSES)

    def forward(self, x):
        """Map sounds (B, L), padded with 0, to scores (B, L, 3)."""
        lengths = (x != NO_SOUND).sum(dim=1).cpu()
        # packed, so that the backward reader starts at the last sound
        options = {"batch_first": True, "enforce_sorted": False}
        packed = pack_padded_sequence(self.embed(x), lengths, **options)
        states, _ = pad_packed_sequence(
            self.cell(packed)[0],
            batch_first=True,
            total_length=x.shape[1],
        )
        return self.out(self.dropout(states))


def load_tagger(model, weights, layers):
    """Copy the weights of a NumPy tagger into a `StressEncoder`.

    Parameters
    ----------
    model : StressEncoder
        Of the same sizes; it keeps its dtype and device.
    weights, layers
        As `attention.word_stress.init_tagger` returns them.
    """
    state = model.state_dict()
    E = weights["E"]
    state["embed.weight"] = torch.tensor(E)
    if "place.pe" in state:  # a model made in float32 has rounded them
        places = positional_encoding(len(state["place.pe"]), E.shape[1])
        state["place.pe"] = torch.tensor(places)
    state["norm.weight"] = torch.tensor(weights["gamma"])
    state["norm.bias"] = torch.tensor(weights["beta"])
    state["out.weight"] = torch.tensor(weights["W_out"].T)
    state["out.bias"] = torch.tensor(weights["b_out"])
    for number, layer in enumerate(layers):
        for name, tensor in weights_to_torch(layer).items():
            state[f"encoder.layers.{number}.{name}"] = tensor
    model.load_state_dict(state)
