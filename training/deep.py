"""Small deep networks, of pictures and of text, and their ordinary training: no first layer sees a picture whole.

Networks of pictures take them as torch has them, (n, C, H, W), and `OnRows` takes images as rows. The language model is
the GPT of Radford et al. (2019), with adapters if asked for, of tokens (n, T) and those that follow.
"""

import copy
from collections.abc import Iterable
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

from training import Victim
from training.images import Part
from training.ordinary import FIRST, OPTIMISERS, fit, measure, moments, shuffle
from training.ordinary import drawn as drawn
from utils import networks
from utils.errors import InputError, choose
from utils.networks import Released

DEVIATION = 0.25  # about that of a photograph's pixels
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}
NORMS = {
    "none": lambda size: nn.Identity(),
    "group": partial(nn.GroupNorm, 4),
    "batch": nn.BatchNorm2d,
}
PROJECTIONS = "q", "k", "v", "out"  # of an attention
RATES = {  # of each of OPTIMISERS, where none is asked for
    "plain": 0.05,
    "sgd": 0.02,
    "sgd_decay": 0.02,
    "adam": 1e-3,
    "adamw": 1e-3,
}


class Block(nn.Module):
    """Two convolutions, added to what went in: He et al. (2016), Fig. 2."""

    def __init__(self, inputs, outputs, stride, activation, norm):
        super().__init__()
        norm = NORMS[norm]
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1), norm(outputs), ACTIVATIONS[activation]()
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1), norm(outputs))
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x):
        """Images or channels (n, inputs, H, W) to (n, outputs, H, W), or to half of the sides with a stride of two."""
        return self.activation(self.second(self.first(x)) + self.short(x))


def residual(classes, side=32, width=16, activation="gelu", norm="none", pooled=False):
    """ResNet-8 for `side` pixels, a norm of NORMS; its head sees all 8 × 8 places (of 32 pixels), or their mean."""
    first = nn.Conv2d(3, width, 3, padding=1), NORMS[norm](width), ACTIVATIONS[activation]()
    sizes = (width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)
    blocks = [Block(*size, activation, norm) for size in sizes]
    head = [nn.AdaptiveAvgPool2d(1)] if pooled else []
    places = 1 if pooled else (side // 4) ** 2
    return nn.Sequential(
        *first, *blocks, *head, nn.Flatten(), nn.Linear(4 * width * places, classes)
    )


def lenet(classes, side=32, width=32, activation="relu"):
    """Three convolutions, two of them with stride, and one fully connected layer, for images of `side` pixels."""
    body = convolutions((3, width, 2 * width, 2 * width), 5, (2, 2, 1), ACTIVATIONS[activation])
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(2 * width * (side // 4) ** 2, classes))


def convolutions(channels, size, strides, activation):
    """Convolutions of `size` × `size` pixels from one number of channels to the next, an activation behind each."""
    body: list = []
    for inputs, outputs, stride in zip(channels, channels[1:], strides):
        body += [nn.Conv2d(inputs, outputs, size, stride, size // 2), activation()]
    return body


class OnRows(nn.Module):
    """A network of pictures (n, C, H, W), for images as rows (n, d) in [0, 1] less their mean."""

    def __init__(self, network, shape):
        super().__init__()
        self.network, self.shape = network, shape

    def forward(self, x):
        """Images (n, d) of the shape (H, W, C), divided by DEVIATION, to what the network makes of them."""
        return self.network((x / DEVIATION).view(-1, *self.shape).permute(0, 3, 1, 2))


def behind_a_body(classes):
    """A body of three convolutions, whose 512 features are the means of quarters, and a head of two layers."""
    body = convolutions((3, 32, 64, 128), 3, (2, 2, 2), nn.ReLU)
    features = nn.Sequential(*body, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(features, nn.Linear(512, 500), nn.ReLU(), nn.Linear(500, classes))


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


class Attention(nn.Module):
    """Attention and a layer of four times the width, each behind a norm and added to what went in."""

    def __init__(self, width, heads=4):
        super().__init__()
        if width % heads:
            raise InputError(
                f"WIDTH is {width}; it must be a multiple of {heads}, the heads of an attention."
            )
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in PROJECTIONS)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def attend(self, x, mask):
        """The vectors (n, T, width) behind attention, and what its layers and the next ones are given: {layer: inputs}.

        A token sees another where the mask (T, T) is true. q, k and v are given the same, which stands under q.
        """
        shown = self.norm(x)
        q, k, v = (
            layer(shown).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x, {"q": shown, "out": mixed, "mlp.0": self.second(x)}

    def forward(self, x, mask):
        """Vectors (n, T, width) of tokens to such vectors."""
        x, shown = self.attend(x, mask)
        return x + self.mlp(shown["mlp.0"])


class GPT(nn.Module):
    """Two blocks over the vectors of tokens and places, and a head of its own."""

    def __init__(self, vocabulary, width=256, places=33):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(places, width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList([Attention(width), Attention(width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

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
        for name in PROJECTIONS:
            setattr(block, name, Adapted(getattr(block, name), rank))
    return model


def adapters(model):
    """The parameters of an adapted model that train: A and B of its adapters."""
    return [p for name, p in model.named_parameters() if name.endswith((".A", ".B"))]


def train(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    trainer: str,
    rate: float,
    steps: int,
    batch: int = 0,
    seed: int = 0,
    moved: Iterable[nn.Parameter] = (),
) -> tuple[float, torch.optim.Optimizer]:
    """Train a module in place by one of OPTIMISERS, or the parameters in `moved`: the loss at the end, the optimiser.

    Images x (n, C, H, W), or what else the module takes, come in shuffled batches, or all in each step if `batch` is 0.
    """
    parameters = [*moved] or module.parameters()
    optimiser = OPTIMISERS[choose("TRAINER", trainer, OPTIMISERS)](parameters, lr=rate)
    chance = torch.Generator().manual_seed(seed)
    epochs = (shuffle(x, y, batch or len(x), chance) for _ in range(steps))
    fit(module, optimiser, islice(chain.from_iterable(epochs), steps), cross_entropy)
    return measure(module, x, y, trainer, cross_entropy), optimiser


def steps_until(
    network: nn.Module, secret: Part, mean: Tensor, rate: float, most: int, until: float
) -> int:
    """How many steps of gradient descent on a Part less a mean (d,) bring its loss below `until`; `most` at most."""
    network = copy.deepcopy(network)
    x = (secret.images - mean).float()
    y = secret.labels.long()
    taken = 0
    loss = float("inf")
    while taken < most and loss >= until:
        loss, _ = train(network, x, y, "plain", rate, 1)
        taken += 1
    return taken


def moment(optimiser, weight):
    """The first moment of a weight in an optimiser's state, or None."""
    return next(iter(moments(optimiser, [weight], *FIRST)), None)


class State(NamedTuple):
    """An optimiser's state as its file holds it, with moments of all weights in one vector (P,)."""

    first: Tensor  # moment (P,)
    rate: float
    second: Tensor | None = None  # moment (P,), of Adam
    steps: int | None = None  # that Adam made


def state(module: nn.Module, optimiser: torch.optim.Optimizer) -> State:
    """The State of an optimiser with a first moment of every weight."""
    parameters = [*module.parameters()]
    rate = optimiser.param_groups[0]["lr"]

    def vector(*names):
        return torch.cat([m.flatten() for m in moments(optimiser, parameters, *names)])

    steps = optimiser.state[parameters[0]].get("step")
    if steps is None:
        return State(vector(*FIRST), rate)
    return State(vector(*FIRST), rate, vector("exp_avg_sq"), int(steps))


def train_victim(
    network: nn.Module,
    secret: Part,
    mean: Tensor,
    trainer: str,
    rate: float,
    steps: int,
    batch: int = 0,
    seed: int = 0,
) -> Victim:
    """Train a network `OnRows` in place on a Part less a mean (d,): Victim, with the State in a file, if there is one.

    Labels are classes, and the other arguments those of `train`.
    """
    initial = copy.deepcopy(network)
    x = (secret.images - mean).float()
    loss, optimiser = train(network, x, secret.labels.long(), trainer, rate, steps, batch, seed)
    files = (state(network, optimiser),) if trainer != "plain" else ()
    recipe = networks.SEVERAL._replace(
        initial="standard", biases=True, learning_rate=rate, epochs=steps
    )
    released = Released(network, secret.labels, recipe, checkpoints=files)
    return Victim(released, mean, loss, len(secret.labels), initial)
