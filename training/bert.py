"""BERT (Devlin et al., 2019), such as MiniLM, in plain torch under the names of its files, and how it is fine-tuned.

A model is read from a folder as `transformers` writes it, with config.json and model.safetensors, and trained as its
trainer does: AdamW with decay of matrices alone, gradients clipped at norm 1, a rate that falls to 0, and dropout.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_

from training.ordinary import fit, shuffle

CLIP = 1.0  # norm of a gradient
DECAY = 0.01
PLAIN = "bias", "LayerNorm.weight"  # end the names of parameters without decay
MASKED = 0.15  # of the words are to be said
UNSAID = -100  # the label of all others, which a loss leaves out


def tree(**parts: nn.Module) -> nn.ModuleDict:
    """Modules under these names."""
    return nn.ModuleDict(parts)


class Layer(nn.Module):
    """Attention in both directions, then a wider layer; behind both a sum with what went in, and a norm."""

    def __init__(self, config: Mapping[str, Any]):
        super().__init__()
        width, wide = config["hidden_size"], config["intermediate_size"]
        norm = partial(nn.LayerNorm, width, config["layer_norm_eps"])
        query, key, value = (nn.Linear(width, width) for _ in range(3))
        self.attention = tree(
            self=tree(query=query, key=key, value=value),
            output=tree(dense=nn.Linear(width, width), LayerNorm=norm()),
        )
        self.intermediate = tree(dense=nn.Linear(width, wide))
        self.output = tree(dense=nn.Linear(wide, width), LayerNorm=norm())
        self.heads = config["num_attention_heads"]
        self.dropout = nn.Dropout(config["hidden_dropout_prob"])

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (n, T, width) of tokens to such vectors."""
        attention, output = self.attention["self"], self.attention["output"]
        q, k, v = (
            attention[name](x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        chance = self.dropout.p if self.training else 0.0
        mixed = scaled_dot_product_attention(q, k, v, dropout_p=chance)
        mixed = output["dense"](mixed.transpose(1, 2).flatten(2))
        x = output["LayerNorm"](x + self.dropout(mixed))
        wide = gelu(self.intermediate["dense"](x))
        return self.output["LayerNorm"](x + self.dropout(self.output["dense"](wide)))


class Bert(nn.Module):
    """A BERT with a head that says a class of a text, or the words that were masked."""

    def __init__(self, config: Mapping[str, Any], classes: int = 2):
        super().__init__()
        self.width = width = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        norm = partial(nn.LayerNorm, width, config["layer_norm_eps"])
        words = nn.Embedding(config["vocab_size"], width)
        self.bert = tree(
            embeddings=tree(
                word_embeddings=words,
                position_embeddings=nn.Embedding(config["max_position_embeddings"], width),
                token_type_embeddings=nn.Embedding(config["type_vocab_size"], width),
                LayerNorm=norm(),
            ),
            encoder=tree(
                layer=nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
            ),
        )
        self.dropout = nn.Dropout(config["hidden_dropout_prob"])
        dense = nn.Linear(width, width)
        if classes:
            self.bert["pooler"] = tree(dense=dense)
            self.classifier = nn.Linear(width, classes)
        else:
            self.cls = tree(predictions=tree(transform=tree(dense=dense, LayerNorm=norm())))
            self.cls["predictions"].bias = nn.Parameter(torch.zeros(config["vocab_size"]))
        self.apply(partial(draw, deviation=config["initializer_range"]))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (n, classes) of tokens (n, T); or (n, V, T) of the word at every place."""
        parts = self.bert["embeddings"]
        kind = parts["token_type_embeddings"].weight[0]
        places = parts["position_embeddings"].weight[: tokens.shape[1]]
        x = self.dropout(parts["LayerNorm"](parts["word_embeddings"](tokens) + kind + places))
        for layer in self.bert["encoder"]["layer"]:
            x = layer(x)
        if "pooler" in self.bert:
            pooled = self.bert["pooler"]["dense"](x[:, 0]).tanh()
            return self.classifier(self.dropout(pooled))
        head = self.cls["predictions"]
        x = head["transform"]["LayerNorm"](gelu(head["transform"]["dense"](x)))
        return (x @ parts["word_embeddings"].weight.mT + head.bias).mT


def draw(module: nn.Module, deviation: float) -> None:
    """Draw the weights of a new layer as BERT does: normal, without biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=deviation)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def drawn(config: Mapping[str, Any], classes: int, seed: int) -> Bert:
    """A new Bert, whose head says one of so many classes, or words if there are none."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Bert(config, classes).eval()


def read(folder: Path, classes: int, seed: int, dropout: float) -> Bert:
    """The Bert in a folder with this dropout, and a new head."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = drawn(config | {"hidden_dropout_prob": dropout}, classes, seed)
    model.bert.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    return model


def tune(
    model: Bert,
    tokens: Tensor,
    labels: Tensor | None,
    rate: float,
    epochs: int,
    batch: int,
    seed: int,
    mask: int = 0,
) -> torch.optim.Optimizer:
    """Fine-tune a model in place on texts (n, T) with labels (n,), or on words of them that a `mask` hides.

    All texts have the length T, and a seed draws batches, masks and dropout. The optimiser, whose parameters are in two
    groups, as the trainer of `transformers` orders them: those that decay, and the others.
    """
    groups: tuple = [], []
    for name, parameter in model.named_parameters():
        groups[name.endswith(PLAIN)].append(parameter)
    decays, plain = (
        {"params": group, "weight_decay": decay} for group, decay in zip(groups, (DECAY, 0.0))
    )
    optimiser = torch.optim.AdamW([decays, plain], lr=rate)
    steps = epochs * -(-len(tokens) // batch)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    optimiser.register_step_pre_hook(clip)
    optimiser.register_step_post_hook(lambda *_: schedule.step())
    chance = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.train()
        for _ in range(epochs):
            batches = shuffle(tokens, tokens if labels is None else labels, batch, chance)
            if labels is None:
                batches = hide(batches, mask, chance)
            fit(model, optimiser, batches, cross_entropy)
        model.eval()
    return optimiser


def clip(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    """Bring the norm of all gradients of an optimiser's parameters down to CLIP."""
    clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], CLIP)


def hide(batches, mask, chance):
    """The same batches of texts (n, T), a share MASKED of whose inner words a `mask` hides, and these as labels."""
    for tokens, words in batches:
        hidden = torch.rand(words.shape, generator=chance) < MASKED
        hidden[:, [0, -1]] = False
        yield tokens.masked_fill(hidden, mask), words.masked_fill(~hidden, UNSAID)
