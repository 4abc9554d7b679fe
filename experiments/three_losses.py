"""Three losses of candidates x (…, m, d) on one model, without a unit: the bilevel, the stationarity and DecoReco's.

l_bi = ‖θ(x) − θ*‖²/‖θ*‖² of eq. (2), l_st = ‖∇_θE(x, y; θ*)‖²/(μ²‖θ*‖²) of eq. (3), and with free coefficients
l_free = min_c ‖θ* − Σ_i c_i ∇_θΦ(x_i; θ*)‖²/‖θ*‖². The model, which was `released`, is affine or has one hidden layer.
"""

import math
from typing import NamedTuple

import torch

from attacks import bilevel, starts
from evaluation import notation
from evaluation.evaluate import matched_distance
from training import images, stationary
from utils import networks
from utils.kernels import affine, one_hidden, solvers

LOSSES = ("bilevel", "stationarity", "DecoReco")


class Model(NamedTuple):
    """A victim and three sets of m images, in r coordinates of all that the losses see."""

    sets: tuple  # (m, r) each: training, partition and noise
    released: networks.Released  # what was released, equal neurons merged
    basis: torch.Tensor  # (d, r), of these coordinates
    begins: tuple = ()  # for a hidden layer two θ⁰, Weights: the victim's own and another
    target: tuple = ()  # for a hidden layer θ* with all of its neurons, of Layers


def setting(labelled, m, recipe, seed, device):
    """The Split, three sets of m images (training, partition, noise), and what a victim of the recipe released."""
    data = images.split(labelled, m, m, seed, device)
    noise = starts.random(m, data.secret.images.shape[1], seed, device)
    released = stationary.train(data.secret, recipe, seed).released
    return data, (data.secret.images, data.known.images, noise), released


def in_coordinates(released, basis):
    """What was released, for images given by their coordinates in a basis (d, r)."""
    return released._replace(network=networks.in_span(released.network, basis))


def model_of(sets, released, seed):
    """The Model of three sets (m, d) and of what a victim released, whose θ⁰ was drawn from `seed`."""
    basis = networks.span_of(*sets, released.network[0].weight)
    recipe = released.recipe
    merged = in_coordinates(bilevel.merge_neurons(released), basis)
    inside = tuple(part @ basis for part in sets)
    if not recipe.hidden:
        return Model(inside, merged, basis)
    drawn = (
        networks.initial(recipe, len(basis), s, device=basis.device) for s in (seed, 1000 + seed)
    )
    begins = (one_hidden.weights(first, recipe.sharpness, basis) for first in drawn)
    return Model(inside, merged, basis, tuple(begins), networks.in_span(released.network, basis))


# ---- The losses and their gradients ----


def energy_gradient(x, released):
    """∇_θ E at θ* as a vector (…, n)."""
    model, theta, y, decay = bilevel.lower_level(released)
    if model is affine:
        return affine.energy_gradient(x, y, theta, decay)
    vector = one_hidden.pack(theta).expand(*x.shape[:-2], -1)
    return one_hidden.energy(vector, x, y, decay, theta.sharpness)[1]


def bilevel_loss(x, released):
    """l_bi (…); a network's training begins at θ*."""
    model, theta, y, decay = bilevel.lower_level(released)
    solved = model.inner(x, y, decay, theta)[0]
    return model.square_norm(model.difference(solved, theta)) / model.square_norm(theta)


def stationarity_loss(x, released):
    """l_st (…) and its gradient (…, m, d)."""
    model, theta, y, decay = bilevel.lower_level(released)
    p = energy_gradient(x, released)
    unit = decay**2 * model.square_norm(theta)
    z = affine.logits(x, theta) if model is affine else None
    at = affine.Solved(theta, z, None, None, 0, None)
    slope = 2 * model.cross_gradient(x, y, at, p) / unit[..., None, None]
    return affine.square_norm(p) / unit, slope


def output_gradients(x, released):
    """The gradients ∇_θ Φ(xᵢ; θ*) as rows (…, m, n)."""
    model, theta, *_ = bilevel.lower_level(released)
    if model is affine:
        return one_hidden.append_ones(x)
    at = one_hidden.forward(one_hidden.pack(theta), x, theta.sharpness)
    # (…, m, h, 1) * (…, m, 1, d+1) -> (…, m, h·(d+1))
    first = ((at.slope * at.w)[..., None] * at.x[..., None, :]).flatten(-2)
    return torch.cat([first, at.active, torch.ones_like(first[..., :1])], -1)


def free_loss(x, released):
    """l_free (…); its gradient is that at these coefficients."""
    model, theta, *_ = bilevel.lower_level(released)
    theta = theta if model is affine else one_hidden.pack(theta)
    rows = output_gradients(x, released)
    target = theta.expand(*rows.shape[:-2], -1)[..., None]
    c = torch.linalg.lstsq(rows.detach().mT, target).solution
    residual = (target - rows.mT @ c)[..., 0]
    return residual.square().sum(-1) / theta.square().sum()


def free_gradient(x, released):
    """l_free (…) and its gradient (…, m, d)."""
    x = x.detach().requires_grad_()
    value = free_loss(x, released)
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]


def trained_from(begin, x, released, target):
    """‖θ(x) − θ*‖²/‖θ*‖² (S,) of training from θ⁰, then with neurons matched; NaN where it does not converge."""
    solved = one_hidden.solve(x, released.labels, released.recipe.weight_decay, begin, 1e-6)
    pairs = zip(solved.weights.first, solved.weights.second)
    nets = [one_hidden.network(one_hidden.Weights(*pair, begin.sharpness)) for pair in pairs]
    for measure in (networks.distance, matched_distance):
        values = torch.tensor([measure(net, target) for net in nets])
        yield torch.where(solved.converged.cpu(), values, torch.nan)


def losses_on(x, model):
    """{loss: (S,)} of images (S, m, r); with a hidden layer the bilevel loss in four readings."""
    released = model.released
    losses = {"stationarity": stationarity_loss(x, released)[0], "DecoReco": free_loss(x, released)}
    own = bilevel_loss(x, released)
    if not model.begins:
        return losses | {"bilevel": own}
    plain, matched = trained_from(model.begins[0], x, released, model.target)
    other, _ = trained_from(model.begins[1], x, released, model.target)
    return losses | {"bilevel": plain, "another θ⁰": other, "matched": matched, "from θ*": own}


# ---- Minima that the losses share, and how they are curved there ----


def common_minima(released, sets, model, iterations):
    """{name: images (m, d)} where all losses of the affine Model vanish: the truth, and the ends of three searches.

    Two are bilevel attacks, from the partition and from noise; the third is L-BFGS on l_st, from the same noise.
    """
    ends = {"truth": sets[0]}
    for name, start in zip(("partition", "noise"), sets[1:]):
        ends[name] = bilevel.attack(released, start).images
    start = model.sets[2]

    def objective(v):
        return [part.flatten() for part in stationarity_loss(v.view_as(start), model.released)]

    end = solvers.lbfgs(objective, start.flatten(), value_tolerance=1e-13, iterations=iterations).x
    return ends | {"noise_stationarity": end.view_as(start) @ model.basis.mT}


def spectra(x, released):
    """Eigenvalues of the Hessians of l_bi and of l_st at a common minimum x (m, d), up to 2/‖θ*‖², rising."""
    basis = networks.span_of(x, released.network[0].weight)
    inside = in_coordinates(released, basis)
    (model, theta, y, decay), x = bilevel.lower_level(inside), x @ basis
    solved, inverse = model.inner(x, y, decay, theta)
    unit = torch.eye(energy_gradient(x, inside).shape[-1]).to(x)
    b = model.cross_gradient(x, y, solved, unit).flatten(1)  # (n, m·r)
    j = torch.stack([inverse(u)[0] for u in unit]) @ b
    if model is affine:
        signals = affine.residuals(solved.logits, y)[:, None]  # (m, 1)
    else:
        at = one_hidden.forward(one_hidden.pack(theta), x, theta.sharpness)
        signals = at.slope * at.w * affine.residuals(at.logits, y)[:, None]  # (m, h)
    shared = torch.linalg.svdvals(signals / len(y))
    sizes = (torch.cat([torch.linalg.svdvals(a), shared / decay]) for a in (j, b / decay))
    return [size.square().sort().values for size in sizes]


def free_condition(x):
    """The condition number of the Hessian of l_free of the affine model, 1/(1ᵀ(X̄X̄ᵀ)⁻¹1)."""
    rows = one_hidden.append_ones(x)
    return 1 / torch.linalg.solve(rows @ rows.mT, torch.ones_like(x[:, 0])).sum().item()


def condition_numbers(x, released):
    """The largest over the smallest eigenvalue but zeros, of l_bi, l_st and l_free at a common minimum x (m, d)."""
    exact = spectra(x, released)
    assert (exact[0] <= exact[1] * (1 + 1e-6)).all()  # l_bi ≤ l_st
    return *((v[-1] / v[v > 1e-12 * v[-1]][0]).item() for v in exact), free_condition(x)


def line(a, b, points, beyond=0.5):
    """t (points,) from −beyond to 1 + beyond, and a + t(b − a) (points, …)."""
    t = torch.linspace(-beyond, 1 + beyond, points).to(a)
    return t, a + t.view(-1, *[1] * a.dim()) * (b - a)


# ---- Names of numbers ----


def free_name(name):
    """What a number of DecoReco's loss is called in RESULTS, for that of the other two."""
    kind, model, *rest = name.split("/")
    return "/".join([kind, f"{'affine' if model == 'affine' else 'one_hidden'}_free", *rest])


def rows(numbers, seed):
    """Rows of {name: (of l_bi, of l_st, of l_free)}, with l_bi as the baseline; what is not a number is left out."""
    named = {}
    for name, (upper, stationarity, free) in numbers.items():
        if math.isfinite(upper) and math.isfinite(stationarity):
            named[name] = stationarity, upper
        if math.isfinite(free):
            named[free_name(name)] = free, None
    return notation.rows("landscape", seed, named)
