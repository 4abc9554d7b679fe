"""Multi-layer perceptrons with ReLU, Φ(x; θ) = W_L σ(… σ(W₁x + b₁) …), and their training by full-batch gradient descent.

Shapes: images x (…, m, d); a layer maps n_{l−1} inputs to n_l outputs; outputs z_L (…, m, K), where K = 1 for two classes.
The first layer has a bias; the later ones have one or not. Like the networks of `hidden`, these see their training
images through X̄ᵀ = QLᵀ only: during training, W̄₁ moves inside the row space of X̄ and merely decays outside of it.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from joblib import Memory

from utils.images import DATA
from utils.losses import LOSSES

memory = Memory(DATA.parent / "_build" / "cache", verbose=0)  # trained networks, shared by the chapters
VERSION = [hashlib.sha256((Path(__file__).parent / name).read_bytes()).hexdigest() for name in ("mlp.py", "losses.py")]


class Layer(NamedTuple):
    """s = Wa + b."""

    weight: torch.Tensor  # W (n_l, n_{l−1})
    bias: torch.Tensor | None  # b (n_l,)


class Recipe(NamedTuple):
    """How a victim is trained."""

    loss: str  # one of losses.LOSSES
    weight_decay: float  # μ
    learning_rate: float
    momentum: float
    growth: float  # factor of the learning rate, each epoch in which the energy falls
    epochs: int
    dtype: torch.dtype = torch.float64
    small: float = 1e-4  # W̄₁ starts from N(0, 1) times this, the later layers from torch's default
    centred: bool = True  # whether the trainer subtracts the mean of the images


# After Haim et al. (2022) and Buzaglo et al. (2023): their losses, starts and weight decay. They take 10⁶ steps of a fixed
# learning rate; ours are fewer, with momentum and a growing rate. Without decay the loss needs float64 to fall on.
RECIPES = {
    "regression": Recipe("square", 7.5e-4, 0.01, 0.99, 1.01, 5000, torch.float32),
    "two_classes": Recipe("logistic", 0.0, 0.05, 0.0, 1.05, 2500),
    "many_classes": Recipe("cross_entropy", 0.0, 0.05, 0.0, 1.05, 2500),
}


class Victim(NamedTuple):
    """A trained network, and what its trainer knows about it."""

    weights: tuple  # of Layers
    mean: torch.Tensor  # (d,): was subtracted from the training images
    loss: float  # (1/m) Σ ℓ at the end
    gradient_norm: float  # ‖∇_θ E‖ at the end
    accuracy: float  # on the training images


def initial_weights(sizes, seed, small=1e-4, biases=False):
    """Draw θ⁰ for layers of these sizes (d, n_1, …, K), with a bias in the first layer or (`biases`) in every one.

    W̄₁ is N(0, `small`²); the others are U(−1/√n, 1/√n) for n inputs, torch's own default.
    """
    generator, layers = torch.Generator().manual_seed(seed), []
    for inputs, outputs in zip(sizes, sizes[1:]):
        draw, scale = (torch.rand, inputs**-0.5) if layers else (torch.randn, small)
        weight, bias = (
            draw(*size, dtype=torch.float64, generator=generator) for size in ((outputs, inputs), (outputs,))
        )
        if layers:
            weight, bias = 2 * weight - 1, 2 * bias - 1
        layers.append(Layer(scale * weight, scale * bias if biases or not layers else None))
    return tuple(layers)


def change(network, function):
    """Apply a function to every tensor of a network."""
    return tuple(Layer(*(None if p is None else function(p) for p in layer)) for layer in network)


def forward(network, x):
    """Run the network: every layer's inputs a_0 = x, …, a_{L−1}, and every layer's outputs z_1, …, z_L."""
    a, z = [x], []
    for layer in network:
        s = a[-1] @ layer.weight.mT  # (…, m, n_{l−1}) @ (n_{l−1}, n_l) -> (…, m, n_l)
        z.append(s if layer.bias is None else s + layer.bias[..., None, :])
        a.append(z[-1].clamp_min(0))
    return a[:-1], z


def back(network, top, slopes):
    """Propagate signals D_L = `top` (…, m, K) back: U_l = D_{l+1}W_{l+1} and D_l = U_l ∘ `slopes`_l for every layer."""
    d, u = [top], []
    for layer, slope in zip(network[:0:-1], slopes[::-1]):
        u.append(d[-1] @ layer.weight)  # (…, m, n_{l+1}) @ (n_{l+1}, n_l) -> (…, m, n_l)
        d.append(u[-1] * slope)
    return d[::-1], u[::-1]


def flatten(network):
    """All weights as one vector."""
    return torch.cat([p.flatten() for layer in network for p in layer if p is not None])


def unflatten(theta, like):
    """The network with the shapes of `like` whose weights are the entries of a vector, as views."""
    parts = iter(theta.split([p.numel() for layer in like for p in layer if p is not None]))
    return change(like, lambda p: next(parts).view(p.shape))


def gradient(network, x, labels, loss):
    """(1/m) Σ ℓ(Φ(x_i), y_i) and its gradient in θ, as one vector."""
    a, z = forward(network, x)
    d, _ = back(network, loss.slope(z[-1], labels) / len(x), [(s > 0).to(s) for s in z[:-1]])
    grads = tuple(Layer(dl.mT @ al, None if l.bias is None else dl.sum(0)) for l, dl, al in zip(network, d, a))
    return loss.value(z[-1], labels).mean(), flatten(grads)


def descend(objective, theta, recipe):
    """Gradient descent with momentum; the learning rate grows while the energy falls.

    A step that raises the energy is undone, the momentum forgotten and the rate cut by a fifth. So the rate follows the
    curvature as the weights shrink, and training goes on where the loss is tiny, and its gradient too.
    """
    value, slope = objective(theta)
    velocity, rate = torch.zeros_like(theta), recipe.learning_rate
    for _ in range(recipe.epochs):
        tried = recipe.momentum * velocity + slope
        trial = theta - rate * tried
        new, new_slope = objective(trial)
        if new <= value:
            theta, value, slope, velocity, rate = trial, new, new_slope, tried, recipe.growth * rate
        else:
            velocity, rate = torch.zeros_like(theta), 0.8 * rate
    return theta


def train(network, x, labels, recipe):
    """Minimise E = (1/m) Σ ℓ + (μ/2)‖θ‖² from θ⁰ = `network` on images x (m, d); return the Victim.

    The images' mean is subtracted first, unless the recipe is not `centred`; then the Victim's mean is zero.

    All arguments are in float64, and so is what is said of the Victim's weights; the descent is in the recipe's type.

    Outside of the row space of X̄ the gradient of W̄₁ is μW̄₁, so that all of that part is one number: its norm.
    """
    loss, mean = LOSSES[recipe.loss], x.mean(0) * recipe.centred
    basis, upper = torch.linalg.qr(torch.cat([x - mean, torch.ones_like(x[:, :1])], 1).mT)  # Q (d+1, m), Lᵀ (m, m)
    first = torch.cat([network[0].weight, network[0].bias[:, None]], 1)
    outside = first - first @ basis @ basis.mT
    inner, norm = (Layer(first @ basis, None), *network[1:]), outside.norm()
    seen, known = upper.mT.to(recipe.dtype), labels.to(recipe.dtype)

    def objective(theta):
        value, slope = gradient(unflatten(theta[:-1], inner), seen, known, loss)
        slope = torch.cat([slope, slope.new_zeros(1)]) + recipe.weight_decay * theta
        return value + recipe.weight_decay / 2 * theta @ theta, slope

    theta = torch.cat([flatten(inner), norm[None]]).to(recipe.dtype)
    theta = descend(objective, theta, recipe).to(x)
    inner = unflatten(theta[:-1], inner)
    first = inner[0].weight @ basis.mT + theta[-1] / norm * outside  # (n_1, m) @ (m, d+1) -> (n_1, d+1)
    weights = change((Layer(first[:, :-1], first[:, -1]), *inner[1:]), torch.clone)
    value, slope = gradient(weights, x - mean, labels, loss)
    slope = slope + recipe.weight_decay * flatten(weights)
    return Victim(weights, mean, value.item(), slope.norm().item(), accuracy(forward(weights, x - mean)[1][-1], labels))


def accuracy(z, labels):
    """The share of images whose class the outputs z (m, K) name."""
    named = z[:, 0] > 0 if z.shape[1] == 1 else z.argmax(1)
    return (named == labels).double().mean().item()


def victim(x, labels, recipe, width, depth=3, seed=0, biases=False):
    """Train `depth` layers, the hidden ones `width` wide, on images x (m, d); what was trained before is kept on disk."""
    arrays = (t.cpu().numpy() for t in (x, labels))
    trained = train_and_keep(*arrays, recipe, width, depth, seed, biases, VERSION)
    move = partial(torch.as_tensor, device=x.device)
    return trained._replace(weights=change(trained.weights, move), mean=move(trained.mean))


@memory.cache
def train_and_keep(x, labels, recipe, width, depth, seed, biases, version):
    """Train on the CPU; everything that the result depends on is an argument."""
    x, labels = (torch.as_tensor(array).double() for array in (x, labels))
    outputs = int(labels.max()) + 1 if recipe.loss == "cross_entropy" else 1
    sizes = [x.shape[1], *[width] * (depth - 1), outputs]
    return train(initial_weights(sizes, seed, recipe.small, biases), x, labels, recipe)
