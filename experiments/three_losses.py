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
from utils.kernels.losses import curvatures


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


def bilevel_loss(x, released, inner=None):
    """l_bi (…) and its gradient (…, m, d); a network's training begins at θ*. `inner` is that of `bilevel.evaluate`."""
    lower = bilevel.lower_level(released)
    at = bilevel.evaluate(lower, x, lower.target, inner)
    unit = lower.model.square_norm(lower.target) / 2
    return at.loss / unit, at.gradient / unit


def bilevel_value(x, released):
    """l_bi (…) alone: its gradient needs a linear solve."""
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
    """l_free (…) and its gradient (…, m, d), which is that at the best coefficients."""
    model, theta, *_ = bilevel.lower_level(released)
    theta = theta if model is affine else one_hidden.pack(theta)
    x = x.detach().requires_grad_()
    rows = output_gradients(x, released)
    target = theta.expand(*rows.shape[:-2], -1)[..., None]
    c = torch.linalg.lstsq(rows.detach().mT, target).solution
    residual = (target - rows.mT @ c)[..., 0]
    value = residual.square().sum(-1) / theta.square().sum()
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]


LOSSES = {"bilevel": bilevel_loss, "stationarity": stationarity_loss, "DecoReco": free_loss}


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
    own = bilevel_value(x, released)
    both = {name: LOSSES[name](x, released)[0] for name in ("stationarity", "DecoReco")}
    if not model.begins:
        return both | {"bilevel": own}
    (plain, matched), (other, _) = (
        trained_from(begin, x, released, model.target) for begin in model.begins
    )
    return both | {"bilevel": plain, "another θ⁰": other, "matched": matched, "from θ*": own}


# ---- The price of a descent, in products with the data ----

STOPS = 0.1, 0.001  # ‖θ(x) − θ*‖/‖θ*‖


def energy_terms(x, released):
    """v -> (E, ∇E) and v -> (u -> ∇²E u) for θ as a vector; neither makes a matrix."""
    model, theta, y, decay = bilevel.lower_level(released)
    if model is one_hidden:
        terms = x, y, decay, theta.sharpness
        return (
            lambda v: one_hidden.energy(v, *terms),
            lambda v: one_hidden.hessian(v, *terms)[0],
        )

    def value(v):
        return affine.energy(x, y, v, decay), affine.energy_gradient(x, y, v, decay)

    def product(v):
        h = curvatures(affine.logits(x, v)) / len(y)
        return lambda u: affine.combine(x, h * affine.logits(x, u)) + decay * u

    return value, product


def counted(released, spent):
    """The lower level of `bilevel.evaluate` by Newton's method, from the last θ(x); adds its products to `spent`."""
    model, theta, *_ = bilevel.lower_level(released)
    last = theta if model is affine else one_hidden.pack(theta)

    def inner(x, y, decay, start):
        nonlocal last
        value, product = energy_terms(x, released)
        found = solvers.newton_cg(value, lambda v: (product(v), torch.positive), last)
        spent[0] += 2 * (1 + found.iterations)
        if model is affine:
            at = affine.Solved(found.x, affine.logits(x, found.x), None, None, 0, None)
            last = found.x
        else:
            weights = one_hidden.unpack(found.x, x.shape[-1], theta.sharpness)
            at = one_hidden.Solved(weights, None, 0, found.converged)

        def inverse(u):
            solution = solvers.cg(product(found.x), u, 1e-6)
            spent[0] += 2 * len(solution.residuals) + 1
            return solution.x, found.converged

        return at, inverse

    return inner


def priced(loss, released, spent):
    """A loss and its gradient as a function of x, which adds its price to `spent`."""
    inner = counted(released, spent)

    def evaluate(x):
        if loss == "bilevel":
            return bilevel_loss(x, released, inner)
        spent[0] += 3 if loss == "stationarity" else len(x) + 2
        return LOSSES[loss](x, released)

    return evaluate


def descent(loss, start, released, most):
    """L-BFGS from `start` until both stops are reached, or `most` products spent: {stop: (products, evaluations)}."""
    spent, looked, asked, reached = [0], 0, 0, {}
    size = priced(loss, released, [0])(start)[1].norm()
    function = priced(loss, released, spent)
    tied = loss == "stationarity"

    def objective(flat):
        nonlocal asked
        asked += 1
        value, slope = function(flat.view_as(start))
        return value / size, slope.flatten() / size

    def there(flat, value):
        nonlocal looked
        if not tied or spent[0] >= 1.1 * looked:
            looked = spent[0]
            far = bilevel_value(flat.view_as(start), released) if tied else value * size
            now = {stop: (spent[0], asked) for stop in STOPS if far <= stop**2}
            reached.update(now | reached)
        return spent[0] >= most or len(reached) == len(STOPS)

    solvers.lbfgs(objective, start.flatten(), each=there, iterations=most)
    return reached


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
