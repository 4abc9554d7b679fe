"""KKT sets: exact constructions, and merges and splits at random that must keep what the derivations say they keep."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from utils import images, kkt_trials, kktsets, mlp
from utils.errors import InputError

DRAWS = st.integers(0, 10**6)
often = settings(deadline=None, max_examples=30, derandomize=True)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def clusters(seed, dimensions, n=6, spread=0.35, distance=3.0):
    """Two clusters on opposite sides of the origin, n points each."""
    noise = torch.randn(2 * n, dimensions, dtype=torch.float64, generator=generator(seed))
    signs = double(1.0, -1.0).repeat_interleave(n)
    centre = torch.zeros(dimensions, dtype=torch.float64)
    centre[0] = distance
    return spread * noise + signs[:, None] * centre, signs


def exact(seed, dimensions=9, neurons=3, bias=True, n=6):
    """A KKT set at rounding level; only those points that the construction allows."""
    points, signs = clusters(seed, dimensions, n)
    kept = kktsets.compatible(points, signs, bias)
    return kktsets.two_groups(points[kept], signs[kept], neurons, bias, seed)


def rough(seed, dimensions=9, neurons=12, n=6):
    """A trained network's set, with ε and δ larger than zero."""
    points, signs = clusters(seed, dimensions, n, spread=0.6)
    recipe = mlp.RECIPES["two_classes"]._replace(epochs=60)
    start = mlp.initial_weights([dimensions, neurons, 1], seed, small=0.01)
    return kktsets.fitted(kktsets.retrained(start, points, signs, recipe), points, signs)


def direction(seed, dimensions):
    return torch.randn(dimensions, dtype=torch.float64, generator=generator(seed))


def difference(a, b):
    """The largest change of the residual's entries."""
    return (mlp.flatten(kktsets.residual(a)) - mlp.flatten(kktsets.residual(b))).abs().max().item()


def per_label(kkt):
    """Σλ of both labels."""
    return torch.stack([kkt.multipliers[kkt.signs == sign].sum() for sign in (1, -1)])


def slacks(kkt):
    return kkt.multipliers * (kktsets.margins(kkt) - 1)


# ---- What a set says ----


@often
@given(DRAWS, st.integers(2, 9), st.integers(1, 4), st.booleans())
def test_two_groups_are_a_kkt_point_to_rounding(seed, dimensions, neurons, bias):
    kkt = exact(seed, dimensions, neurons, bias)
    assert max(kktsets.conditions(kkt)) < 1e-11
    theta = mlp.flatten(kkt.network)
    assert torch.allclose(theta @ theta, 2 * kkt.multipliers.sum(), rtol=1e-10)  # Euler's identity, degree two
    first = torch.cat([p.reshape(len(kkt.network[0].weight), -1) for p in kkt.network[0] if p is not None], 1)
    assert torch.allclose(first.norm(dim=1), kkt.network[1].weight[0].abs(), rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_residual_equals_autograd(seed):
    kkt = rough(seed)
    network = mlp.change(kkt.network, lambda p: p.clone().requires_grad_())
    outputs = mlp.forward(network, kkt.points)[1][-1][:, 0]
    flat = [p for layer in network for p in layer if p is not None]
    gradients = torch.autograd.grad((kkt.multipliers * kkt.signs * outputs).sum(), flat)
    expected = torch.cat([(p - g).flatten() for p, g in zip(flat, gradients)])
    assert torch.allclose(mlp.flatten(kktsets.residual(kkt)), expected, rtol=1e-12, atol=1e-14)
    x = kkt.points.clone().requires_grad_()
    (in_x,) = torch.autograd.grad(mlp.forward(kkt.network, x)[1][-1].sum(), x)
    assert torch.allclose(kktsets.input_gradients(kkt), in_x, rtol=1e-12)


def test_conditions_tell_what_is_wrong():
    kkt = exact(0)
    assert kktsets.conditions(kkt._replace(multipliers=-kkt.multipliers)).negativity > 0.01
    shrunk = kkt._replace(network=mlp.change(kkt.network, lambda p: 0.9 * p))
    assert kktsets.conditions(shrunk).violation == pytest.approx(1 - 0.81)
    assert kktsets.conditions(kkt._replace(points=2 * kkt.points)).slackness > 0.1
    assert kktsets.conditions(kkt._replace(points=2 * kkt.points)).stationarity > 0.1


def test_fitted_finds_the_multipliers_again_at_any_scale():
    kkt = exact(1)
    larger = mlp.change(kkt.network, lambda p: 7 * p)
    again = kktsets.fitted(larger, kkt.points, kkt.signs)
    assert kktsets.conditions(again).stationarity < 1e-7
    assert torch.allclose(per_label(again), per_label(kkt), rtol=1e-7)
    assert torch.allclose(mlp.flatten(again.network), mlp.flatten(kkt.network), rtol=1e-10)


def test_fitted_beats_other_multipliers():
    kkt = rough(3)
    best = kktsets.conditions(kkt).stationarity
    for step in (1e-3, -1e-3):
        for i in range(len(kkt.points)):
            other = kkt.multipliers.clone()
            other[i] = (other[i] + step).clamp_min(0)
            assert kktsets.conditions(kkt._replace(multipliers=other)).stationarity >= best - 1e-9


# ---- Merge and split ----


@often
@given(DRAWS, st.integers(0, 2))
def test_merge_keeps_stationarity_margins_and_slack(seed, kind):
    kkt = [exact(seed), exact(seed, 4, 2, False), rough(seed % 50)][kind]
    cell = max(kktsets.cells(kkt), key=lambda cell: (kkt.multipliers[cell].sum() > 0, len(cell)))
    assume(len(cell) > 1 and kkt.multipliers[cell].sum() > 0)
    merged = kktsets.merge(kkt, cell)
    assert difference(merged, kkt) < 1e-10
    assert torch.allclose(per_label(merged), per_label(kkt), rtol=1e-12)
    assert len(merged.points) == len(kkt.points) - len(cell) + 1
    assert kktsets.margins(merged)[-1] >= kktsets.margins(kkt)[cell].min() - 1e-12
    assert torch.allclose(slacks(merged)[-1], slacks(kkt)[cell].sum(), atol=1e-12)


@often
@given(DRAWS, st.floats(0.05, 0.95), st.floats(0.05, 0.95), st.booleans())
def test_split_keeps_stationarity_and_merge_undoes_it(seed, forward, backward, trained):
    kkt = rough(seed % 50) if trained else exact(seed)
    index = int(kkt.multipliers.argmax())
    way = kktsets.tangent(kkt, [index], direction(seed + 1, kkt.points.shape[1]))
    reach = kktsets.budget(kkt, way)
    alpha, beta = (share * min(5.0, part[index].item()) for share, part in zip((forward, backward), reach))
    assume(min(alpha, beta) > 1e-6)
    made = kktsets.split(kkt, [index], way, alpha, beta)
    assert difference(made, kkt) < 1e-10
    assert torch.allclose(per_label(made), per_label(kkt), rtol=1e-12)
    assert torch.allclose(kktsets.margins(made)[-2:], kktsets.margins(kkt)[index].expand(2), atol=1e-10)
    gap = (made.points[-2] - made.points[-1]).norm().item()
    assert gap == pytest.approx(alpha + beta, rel=1e-9)
    n = len(made.points)
    back = kktsets.merge(made, [n - 2, n - 1])
    rest = [i for i in range(len(kkt.points)) if i != index]
    assert torch.allclose(back.points, kkt.points[[*rest, index]], atol=1e-10)
    assert torch.allclose(back.multipliers, kkt.multipliers[[*rest, index]], atol=1e-12)


@often
@given(DRAWS)
def test_a_split_that_keeps_the_margin_does_not_raise_the_slack(seed):
    kkt = rough(seed % 50)
    index = int(slacks(kkt).argmax())
    way = direction(seed, kkt.points.shape[1])
    pace = (kktsets.input_gradients(kkt)[index] @ way).abs().item()
    spare = kktsets.margins(kkt)[index].item() - 1
    step = 0.9 * min(spare / pace, *(part[index].item() for part in kktsets.budget(kkt, way)))
    made = kktsets.split(kkt, [index], way, step, 0.7 * step)
    assert difference(made, kkt) < 1e-10
    assert torch.allclose(slacks(made)[-2:].sum(), slacks(kkt)[index], atol=1e-12)
    assert slacks(made)[-2:].min() >= -1e-12 and slacks(made).max() <= slacks(kkt).max() + 1e-12


@often
@given(DRAWS, st.floats(0.001, 0.3))
def test_normalising_after_a_violation_grows_both_slacks_as_derived(seed, violation):
    kkt = exact(seed)
    index = int(kkt.multipliers.argmax())
    gradient = kktsets.input_gradients(kkt)[index]
    way = gradient / gradient.norm()
    step = violation / gradient.norm().item()
    assume(step < min(part[index].item() for part in kktsets.budget(kkt, way)))
    made = kktsets.split(kkt, [index], way, step, violation=violation + 1e-9)
    scaled = kktsets.normalised(made)
    before, after = kktsets.conditions(made), kktsets.conditions(scaled)
    assert before.violation == pytest.approx(violation, rel=1e-6)
    assert after.stationarity == pytest.approx(before.stationarity / math.sqrt(1 - violation), abs=1e-12)
    grown = kkt.multipliers.max().item() * violation / (1 - violation)
    assert after.slackness <= grown + 1e-9
    assert kktsets.known_slack_budget(kkt, index, way, after.slackness) == pytest.approx(step, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_known_slack_budget_is_the_largest_step(seed):
    kkt = rough(seed)
    index, way = int(kkt.multipliers.argmax()), direction(seed, kkt.points.shape[1])
    known = 1.5 * kktsets.conditions(kkt).slackness
    allowed = kktsets.known_slack_budget(kkt, index, way, known)

    def slackness(step):
        moved = kkt.points[index] + step * torch.stack([way, -way])
        halves = kkt.multipliers[index].expand(2) / 2
        made = kktsets.replaced(kkt, [index], moved, halves)
        gap = step * (kktsets.input_gradients(kkt)[index] @ way).abs()
        m = kktsets.margins(kkt)[index]
        margins = torch.cat([kktsets.margins(made)[:-2], torch.stack([m + gap, m - gap])])  # as if no neuron changed
        return (made.multipliers * (margins / margins.min() - 1)).max().item()

    assert slackness(0.999 * allowed) <= known
    assert slackness(1.001 * allowed) > known


@often
@given(DRAWS)
def test_budget_is_the_first_change_of_a_neuron(seed):
    kkt = rough(seed % 50)
    way = direction(seed, kkt.points.shape[1])
    for sign, reach in zip((1, -1), kktsets.budget(kkt, way)):
        active = kktsets.before(kkt.network, kkt.points) > 0
        finite = reach < 1e12
        for factor in (0.999, 1.001):
            moved = kkt.points + sign * factor * reach.clamp_max(1e12)[:, None] * way
            same = ((kktsets.before(kkt.network, moved) > 0) == active).all(1)
            assert same.all() if factor < 1 else not same[finite].any()


@often
@given(DRAWS, st.booleans(), st.floats(0.01, 100.0))
def test_derived_bound_holds(seed, trained, scale):
    kkt = rough(seed % 50) if trained else exact(seed)
    if not trained:  # the same picture in other units
        points = scale * kkt.points
        kept = kktsets.compatible(points, kkt.signs, bias=False)
        kkt = kktsets.two_groups(points[kept], kkt.signs[kept], 2, bias=False)
    for index in range(0, len(kkt.points), 3):
        way = kktsets.tangent(kkt, [index], direction(seed, kkt.points.shape[1]))
        reach = min(part[index].item() for part in kktsets.budget(kkt, way))
        assert reach >= kktsets.bounds(kkt, index, way).derived * (1 - 1e-9)


def test_quoted_bound_does_not_survive_a_change_of_units():
    points, signs = double([1.0, 0.0], [-1.0, 0.3]), double(1.0, -1.0)
    held = []
    for scale in (10.0, 0.01):
        kkt = kktsets.two_groups(scale * points, signs, bias=False)
        assert max(kktsets.conditions(kkt)) < 1e-12
        way = kktsets.tangent(kkt, [0], double(0.0, 1.0))
        reach = min(part[0].item() for part in kktsets.budget(kkt, way))
        found = kktsets.bounds(kkt, 0, way)
        assert found.derived <= reach * (1 + 1e-12)
        held.append(found.quoted <= reach)
    assert held == [True, False]


@often
@given(DRAWS)
def test_order_of_the_points_does_not_matter(seed):
    kkt = exact(seed)
    order = torch.randperm(len(kkt.points), generator=generator(seed))
    shuffled = kkt._replace(points=kkt.points[order], signs=kkt.signs[order], multipliers=kkt.multipliers[order])
    assert difference(kkt, shuffled) < 1e-12
    a, b = kktsets.condense(kkt), kktsets.condense(shuffled)
    assert torch.allclose(a.points[a.signs.argsort()], b.points[b.signs.argsort()], atol=1e-10)


@often
@given(DRAWS, st.integers(2, 6))
def test_spread_to_several_points(seed, count):
    kkt = kktsets.condense(exact(seed))
    moves = torch.randn(count, kkt.points.shape[1], dtype=torch.float64, generator=generator(seed))
    gradient = kktsets.input_gradients(kkt)[0]
    moves = moves - torch.outer(moves @ gradient, gradient) / (gradient @ gradient)
    shares = torch.rand(count, dtype=torch.float64, generator=generator(seed)) + 0.1
    shares = shares / shares.sum()
    moves = moves - shares @ moves
    one = kkt._replace(points=kkt.points[:1])
    room = min(kktsets.budget(one, move).forward.item() for move in moves)
    made = kktsets.spread(kkt, 0, 0.9 * min(room, 10.0) * moves, shares)
    assert difference(made, kkt) < 1e-9 and max(kktsets.conditions(made)) < 1e-9
    assert len(made.points) == len(kkt.points) + count - 1


# ---- Theorem 4 ----


@often
@given(DRAWS, st.floats(1e-3, 1e5), st.booleans())
def test_faraway_is_further_than_asked_for(seed, distance, trained):
    kkt = rough(seed % 50, dimensions=30) if trained else exact(seed, dimensions=16)
    far = kktsets.faraway(kkt, distance, seed=seed)
    assert len(far.points) == 2 * len(kkt.points)
    gaps = torch.cdist(far.points, kkt.points, compute_mode="donot_use_mm_for_euclid_dist")
    assert gaps.min() > distance
    assert difference(far, kkt) < 1e-14 * max(1.0, distance) * 1e3
    assert (kktsets.margins(far) > 1 - 1e-8).all()


# ---- Training ----


def test_retrained_is_gradient_descent_on_the_points_as_they_are():
    points, signs = clusters(0, 9)
    recipe = mlp.RECIPES["two_classes"]._replace(epochs=20)
    start = mlp.initial_weights([9, 5, 1], 0, small=0.1)
    loss = mlp.LOSSES["logistic"]

    def objective(theta):
        return mlp.gradient(mlp.unflatten(theta, start), points, (signs + 1) / 2, loss)

    plain = mlp.descend(objective, mlp.flatten(start), recipe)
    assert torch.allclose(mlp.flatten(kktsets.retrained(start, points, signs, recipe)), plain, rtol=1e-9, atol=1e-12)


def test_retrained_agrees_with_the_victim_where_the_mean_is_zero():
    points, signs = clusters(2, 20)
    points = points - points.mean(0)
    recipe = mlp.RECIPES["two_classes"]._replace(epochs=200)
    start = mlp.initial_weights([20, 7, 1], 2)
    victim = mlp.train(start, points, (signs + 1) / 2, recipe)
    ours = kktsets.retrained(start, points, signs, recipe)
    assert torch.allclose(mlp.flatten(ours), mlp.flatten(victim.weights), rtol=1e-6, atol=1e-9)


def test_a_trial_with_images(toy_npz):
    trial = kkt_trials.experiment(images.load(str(toy_npz)), 20, 10, 300, seed=1)
    assert max(kktsets.conditions(trial.exact)) < 1e-11
    assert kkt_trials.relative(trial.trained) < 0.1 < kkt_trials.relative(kkt_trials.fitted_strangers(trial))
    for kkt in (trial.exact, trial.trained):
        for made in (
            kkt_trials.towards_each_other(kkt, 5.0),
            kkt_trials.along_strangers(kkt, trial),
            kkt_trials.planted(kkt, trial),
        ):
            assert difference(made, kkt) < 1e-10
            assert len(made.points) > len(kktsets.condense(kkt).points)
    same = kkt_trials.compare(trial.victim.weights, trial)
    assert same == (1.0, 1.0, 1.0)
    other = kkt_trials.retrain(trial, trial.trained.points, trial.trained.signs, trial.seed)
    assert other.agreement == 1 and other.cosine > 0.99
    with pytest.raises(InputError, match="make IMAGES or NEURONS larger"):
        kkt_trials.experiment(images.load(str(toy_npz)), 2, 10, 300, seed=1)


# ---- Bad input ----


def refused(sentence, function, *arguments, **named):
    with pytest.raises(InputError, match=sentence):
        function(*arguments, **named)


def test_merges_that_are_refused():
    kkt = exact(0)
    first, second = (int((kkt.signs == sign).nonzero()[0]) for sign in (1, -1))
    refused("their labels differ", kktsets.merge, kkt, [first, second])
    same = kkt._replace(signs=torch.ones_like(kkt.signs))
    refused("6 neurons are active at some only", kktsets.merge, same, [first, second])
    refused("at least 2 different numbers from 0 to", kktsets.merge, kkt, [first])
    refused("at least 2 different numbers from 0 to", kktsets.merge, kkt, [first, first])
    refused("at least 2 different numbers from 0 to", kktsets.merge, kkt, [first, 99])
    none = kkt._replace(multipliers=torch.zeros_like(kkt.multipliers))
    refused("one must be positive", kktsets.merge, none, kktsets.cells(kkt)[0])


def test_splits_that_are_refused():
    kkt = exact(0)
    index = int(kkt.multipliers.argmax())
    gradient = kktsets.input_gradients(kkt)[index]
    refused("orthogonal to the gradient of the network in x", kktsets.split, kkt, [index], gradient, 0.01)
    assert len(kktsets.split(kkt, [index], gradient, 0.01, violation=1.0).points) == len(kkt.points) + 1
    way = kktsets.tangent(kkt, [index], direction(0, 9))
    reach = min(part[index].item() for part in kktsets.budget(kkt, way))
    refused("before a neuron changes its state", kktsets.split, kkt, [index], way, 1.01 * reach)
    assert len(kktsets.split(kkt, [index], way, 0.99 * reach).points) == len(kkt.points) + 1
    for step in (0.0, -1.0, math.nan, math.inf):
        refused("must be larger than 0", kktsets.split, kkt, [index], way, step)
    refused("at least 1 different numbers", kktsets.split, kkt, [99], way, 0.1)
    halves = double(0.5, 0.5)
    refused("must balance", kktsets.spread, kkt, index, torch.stack([way, way]), halves)
    refused("add up to 1", kktsets.spread, kkt, index, torch.stack([way, -way]), 2 * halves)


def test_theorem_4_needs_a_direction_that_is_left():
    refused("Theorem 4 does not apply", kktsets.faraway, exact(0, dimensions=3), 1.0)
    refused("The distance is 0", kktsets.faraway, exact(0, dimensions=20), 0.0)
    kkt = exact(0, dimensions=20)
    refused("Nothing is left of the direction", kktsets.without, kkt.points[0], kkt.points)


def test_constructions_that_are_refused():
    points, signs = clusters(0, 4)
    refused(
        "No hyperplane has class",
        kktsets.two_groups,
        points - 3.0 * signs[:, None] * double(1, 0, 0, 0),
        signs,
        bias=False,
    )
    refused("are active at the points", kktsets.two_groups, points + double(4.0, 0, 0, 0), signs, bias=False)
    refused("There is no point of class -1", kktsets.two_groups, points[:6], signs[:6])
    refused("No point of class -1 is left", kktsets.compatible, points[:6], signs[:6])


def test_networks_and_sets_that_are_refused():
    kkt = exact(0)
    deep = (*kkt.network, kkt.network[1])
    refused("two layers with one output", kktsets.merge, kkt._replace(network=deep), [0, 1])
    biased = (kkt.network[0], kkt.network[1]._replace(bias=torch.zeros(1)))
    refused("no bias after the first layer", kktsets.merge, kkt._replace(network=biased), [0, 1])
    refused("need 9 inputs", kktsets.merge, kkt._replace(signs=kkt.signs[:-1]), [0, 1])
    refused("must be −1 or \\+1", kktsets.merge, kkt._replace(signs=(kkt.signs + 1) / 2), [0, 1])
    refused("Train it for longer", kktsets.fitted, kkt.network, kkt.points, -kkt.signs)
