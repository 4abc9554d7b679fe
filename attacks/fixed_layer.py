"""Images behind a first layer that was drawn and never trained: what training added to the last layer tells them.

Training the last layer alone adds combinations of the features φ(x) = max(W₁x + b₁, 0) of training images to it, so
Δ = W₂ − W₂⁰ = Σ_i c_i φ(x_i)ᵀ. The attack looks for m images whose features span a space that holds Δ: it minimises
‖P⊥Δ‖²/‖Δ‖², where P⊥ takes away what is in that space (Iurada et al., 2026, who show that a layer with many more
neurons than m images have pixels, h ≫ md, allows no others). Where weight decay has worn W₂⁰ away, W₂ itself is Δ.
"""

import time
from typing import NamedTuple

import torch
from scipy.optimize import minimize

from attacks.contract import Attack
from utils.errors import InputError
from utils.kernels.layers import Layer, forward

ROUNDS = 5  # of L-BFGS; before each but the first the idle images are drawn anew
STEPS = 1500  # of a round, at most
FOUND = 1e-5  # share of ‖Δ‖² that is missed, at which the attack ends
IDLE = 1.0  # an image is idle if its absence would raise the share by less than this part of it
RIDGE = 1e-9  # of the mean of the features' squared norms, so that equal images do no harm
SCALE = 0.2  # standard deviation of the pixels of the images to begin with


class Residual(NamedTuple):
    """What the features of m images leave of Δ (k, h)."""

    share: torch.Tensor  # ‖P⊥Δ‖²/‖Δ‖², a number
    absence: torch.Tensor  # (m,), what each image's absence would add to the share
    coefficients: torch.Tensor  # c (m, k), of the features in Δ


def residual(first, change, x):
    """What images x (m, d) leave of Δ (k, h): Residual."""
    rows = forward((first,), x)[1][0].clamp_min(0)  # φ(x) (m, h)
    gram = rows @ rows.mT
    size = change.square().sum()
    inverse = torch.linalg.inv(gram + RIDGE * gram.diagonal().mean() * torch.eye(len(x)).to(gram))
    c = inverse @ (rows @ change.mT)
    return Residual(
        share=1 - (rows.mT @ c * change.mT).sum() / size,
        absence=c.square().sum(1) / inverse.diagonal() / size,
        coefficients=c,
    )


def descend(first, change, x):
    """Images with a smaller loss, by L-BFGS from x (m, d), and the loss of every evaluation."""
    history = []

    def value(flat):
        leaf = torch.as_tensor(flat).to(x).view(x.shape).requires_grad_()
        loss = residual(first, change, leaf).share
        slope = torch.autograd.grad(loss, leaf)[0]
        history.append(loss.item())
        return history[-1], slope.cpu().flatten().numpy()

    options = {"maxiter": STEPS, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-12}
    end = minimize(value, x.cpu().flatten().numpy(), jac=True, method="L-BFGS-B", options=options).x
    return torch.as_tensor(end).to(x).view(x.shape), history


def attack(first: Layer, change: torch.Tensor, count: int, *, seed: int = 0) -> Attack:
    """Images (count, d) whose features hold Δ (k, h), given the fixed first layer: Attack. InputError if Δ vanishes.

    A descent may end with an image that explains nothing, mostly a second copy of another one. Such idle images are
    drawn anew, and the next round of descent goes on with the others where they are.
    """
    clock = time.perf_counter()
    chance = torch.Generator().manual_seed(seed)
    if change.shape[1] != len(first.weight) or not change.isfinite().all() or not change.any():
        shapes = f"values of shape {tuple(change.shape)} for {len(first.weight)} neurons"
        raise InputError(
            f"Nothing was added to the last layer, or {shapes}: give its change, one row for an output."
        )
    first = type(first)(*(p if p is None else p.double() for p in first))
    change = change.double()
    idle = torch.ones(count, dtype=torch.bool)
    x = first.weight.new_zeros(count, first.weight.shape[1])
    history = []
    for _ in range(ROUNDS):
        drawn = SCALE * torch.randn(x.shape, generator=chance)
        x, losses = descend(first, change, torch.where(idle.to(x.device)[:, None], drawn.to(x), x))
        history += losses
        left = residual(first, change, x)
        idle = (left.absence < IDLE * left.share).cpu()
        if left.share < FOUND:
            break
    return Attack(
        images=x,
        loss=left.share,
        history=torch.tensor(history),
        stopped="found" if left.share < FOUND else "missed",
        seconds=time.perf_counter() - clock,
        details=left,
        coefficients=left.coefficients.mT,
    )
