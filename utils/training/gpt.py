"""A small language model in plain PyTorch: the GPT of Radford et al. (2019), with adapters where they are asked for.

`deep.train` trains it, on tokens (n, T) and the tokens that follow (n, T).
"""

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

ATTENTION = "q", "k", "v", "out"


class Adapted(nn.Module):
    """A layer with LoRA's adapter of a rank, x ↦ Wx + b + BAx, of which only A and B are to train: Hu et al. (2022)."""

    def __init__(self, layer, rank):
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        outputs, inputs = layer.weight.shape
        self.A = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):
        """Inputs (…, inputs) to outputs (…, outputs)."""
        return linear(x, self.weight, self.bias) + x @ self.A.mT @ self.B.mT


class Block(nn.Module):
    """Attention and a layer of four times the width, each behind a norm and added to what went in."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in ATTENTION)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x, mask):
        """The sum behind attention where the mask (T, T) is true, and {layer: what it and the next are shown}."""
        shown = self.norm(x)
        q, k, v = (layer(shown).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x, {"q": shown, "out": mixed, "mlp.0": self.second(x)}

    def forward(self, x, mask):
        """Vectors (n, T, width) of tokens to such vectors."""
        x, shown = self.attend(x, mask)
        return x + self.mlp(shown["mlp.0"])


class GPT(nn.Module):
    """Two blocks over the vectors of tokens and places; the head is tied to these vectors, or has its own."""

    def __init__(self, vocabulary, width=256, places=33, tied=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(places, width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        """Scores (n, vocabulary, T) of what follows each of the tokens (n, T)."""
        count = tokens.shape[1]
        mask = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril()
        x = self.tokens(tokens) + self.places.weight[:count]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x)).mT


def adapt(model, rank):
    """Give every layer of a model's attention an adapter."""
    for block in model.blocks:
        for name in ATTENTION:
            setattr(block, name, Adapted(getattr(block, name), rank))
    return model


def frozen(model):
    """What does not train in an adapted model: all but the A and B of its adapters."""
    return [nn.ParameterList(p for name, p in model.named_parameters() if name.rpartition(".")[2] not in ("A", "B"))]
