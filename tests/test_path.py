"""Path matching, piece by piece, and two images back from a small network; and the span test."""

import math

import pytest
import torch
from torch import nn

from attacks import optimisers, path, simulation, span
from conftest import drawn, refused
from conftest import slope as difference
from training import deep
from training.images import Part
from utils.networks import Released

LABELS, SHAPE = torch.tensor([0, 1]), (6, 6, 3)


def network():
    """A convolution and a fully connected layer for images of 6 × 6, in double precision."""

    def made():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(128, 2))

    return deep.OnRows(deep.drawn(made, 0).double(), SHAPE)


def pictures(count, seed):
    """Images (count, d), as a network is shown them."""
    return deep.DEVIATION * drawn(count, math.prod(SHAPE), seed=seed)


X = pictures(2, 1)  # on which networks are trained


def trained(trainer, rate, steps=8):
    """The weights before and after some steps on two images, and the optimiser's state."""
    net = network()
    initial = path.flat(net)
    _, optimiser = deep.train(net, X, LABELS, trainer, rate, steps)
    state = {} if trainer == "plain" else deep.state(net, optimiser)._asdict()
    return initial, path.flat(net), state


@pytest.fixture(scope="module")
def ends():
    """The weights around eight steps of gradient descent at a rate of 0.1."""
    return trained("plain", 0.1)[:2]


def test_slopes_are_those_of_differences(ends):
    initial, end = ends
    net, anchors = network(), path.Ends(*ends).begin().anchors
    toward = torch.stack([end - initial, 2 * (initial - end), drawn(len(end)) * (end - initial)])
    found = path.pull(net, anchors, X, LABELS, toward, 3e-4 * (end - initial).norm())
    for seed in range(20):
        way = drawn(*X.shape, seed=seed)
        wanted = difference(
            lambda z: (toward * path.gradients(net, anchors, z, LABELS)).sum(), X, way
        )
        assert torch.isclose((found * way).sum(), wanted, rtol=1e-4)


def test_the_metric_is_a_root_of_the_inverse_and_fitted_weights_are_not_negative():
    gradients, eye = drawn(4, 9, seed=3), torch.eye(9).double()
    values = torch.linalg.eigvalsh(gradients @ gradients.mT)
    whole = eye + gradients.mT @ gradients / (path.PUBLIC * values.median())
    metric = path.whitening(gradients)(eye)
    torch.testing.assert_close(metric @ metric @ whole, eye)
    gradients, change = drawn(3, 7, seed=4), drawn(7, seed=5)
    found = path.fit_weights(gradients, change)
    slopes = gradients @ (change - found @ gradients)  # the conditions of Karush, Kuhn and Tucker
    assert (found >= 0).all() and (slopes < 1e-9).all() and (found * slopes).abs().max() < 1e-9


def test_a_descent_on_the_images_finds_the_rate_and_ends_where_training_did(ends):
    known = path.Ends(*ends)
    guess = known.retrace(network(), known.begin()._replace(rate=0.1), X, LABELS, 0.5)
    assert guess.rate == 0.1 and guess.gap < 1e-6 and len(guess.part) == 8
    g = path.gradients(network(), guess.anchors, X, LABELS)
    torch.testing.assert_close(0.1 * known.total(guess, g, 0.5), known.change)


@pytest.mark.parametrize("of_one", [False, True])
def test_an_exact_simulation_ends_where_training_did_and_has_the_slope_of_differences(ends, of_one):
    batches = [torch.tensor([k % 2]) if of_one else torch.arange(2) for k in range(8)]
    known = simulation.Exact(*ends, rate=0.1, batches=batches)

    def look(z):
        return known.look(network(), known.begin(), z, LABELS, 0.5)

    loss, _, guess = look(X)
    assert (guess.gap < 1e-6) == (loss < 1e-9) != of_one
    mixed, way = (pictures(2, 3) + X) / 2, drawn(*X.shape, seed=2)
    wanted = difference(lambda z: look(z)[0], mixed, way)
    assert math.isclose((look(mixed)[1] * way).sum(), wanted, rel_tol=1e-2)


def test_a_learned_place_on_the_line_moves_to_where_gradients_fit_better(ends):
    known = simulation.Surrogate(*ends)
    guess = known.begin()
    losses = []
    for _ in range(8):
        loss, _, guess = known.look(network(), guess, X, LABELS, 0.5)
        losses.append(loss)
    assert losses[-1] < losses[0]


def test_steps_are_counted_until_the_loss_is_low():
    net, secret = network().float(), Part(X, LABELS.double())
    fifth, sixth = (
        deep.train(network().float(), X.float(), LABELS, "plain", 0.1, steps)[0] for steps in (5, 6)
    )
    assert deep.steps_until(net, secret, 0.0, 0.1, 8, (fifth + sixth) / 2) == 6


def test_adams_moves_are_torchs_and_add_up_to_the_change():
    ends = trained("adam", 1e-3)[:2]
    known = optimisers.AdamEnds(*ends, rate=1e-3)
    guess = known.retrace(network(), known.begin(), X, LABELS, 0.5)
    assert guess.gap < 1e-4 and len(guess.part) == 8
    g = path.gradients(network(), guess.anchors, X, LABELS)
    assert torch.allclose(1e-3 * known.total(guess, g, 0.5), known.change, atol=1e-7)
    last = path.Ends(*ends, rate=1e-3).retrace(network(), guess, X, LABELS, 0.5)
    assert last.gap > known.far / 2  # no gradient descent comes near


@pytest.mark.parametrize("trainer, rate", [("sgd", 0.01), ("adam", 1e-4)])
def test_walking_back_finds_the_way_that_training_came(trainer, rate):
    initial, end, state = trained(trainer, rate)
    known = optimisers.MomentumState(end, **state)
    back, counts = known.walk_back(network(), X, LABELS)
    assert counts[8:].sum() < 1e-2 < counts[7]  # nothing counts from before training
    left = (back[7] - initial).norm()
    assert left < 1e-2 * (end - initial).norm()
    strangers, _ = known.walk_back(network(), pictures(2, 8), LABELS)
    assert (strangers[7] - initial).norm() > 10 * left


def attacked(known, **how):
    return path.attack(Released(network(), LABELS, None), known, SHAPE, **how)


def test_two_images_come_back_and_no_held_out_one(ends):
    public, few = pictures(8, 7), LABELS[:1].expand(8)

    def metric(at):
        return path.whitening(path.singles(network(), at, public, few))

    *of_adam, _ = trained("adam", 1e-3)
    _, end, state = trained("sgd", 0.01)
    size = optimisers.size(path.singles(network(), ends[0], public, few), 2)
    for known, least in (
        (path.Ends(*ends, metric(ends[0])), 0.8),
        (optimisers.AdamEnds(*of_adam, scale=size), 0.5),
        (optimisers.MomentumState(end, metric=metric(end), **state), 0.5),
    ):
        found = attacked(known, steps=200)
        ours, theirs = (torch.cosine_similarity(z, found.images) for z in (X, pictures(2, 8)))
        assert found.history[-1] < found.history[0]
        assert ours.min() > least and theirs.max() < 0.4, (known, ours, theirs)


def test_what_cannot_be_attacked_is_said(ends):
    initial, end = ends
    for words, wrong in {
        "`initial` has 481": path.Ends(initial[1:], end),
        "`end` holds": path.Ends(initial, end * math.nan),
        "nothing was trained": path.Ends(initial, initial),
        "moment is zero": optimisers.MomentumState(end, 0 * initial, 0.1),
        "SGD without momentum": optimisers.MomentumState(end, initial, 0.1, beta=0.0),
    }.items():
        assert words in refused(attacked, wrong)
    changing = nn.Sequential(nn.BatchNorm2d(3), network())
    assert "is in training mode" in refused(path.check, changing, LABELS)


# ---- The span test: what a step adds to a layer holds its images' inputs alone ----


def stepped(trainer, steps, frozen=False):
    """Five images, three strangers, a network of double precision before and after training, and the optimiser."""

    def made():  # four places in an image of 8 × 8
        body = nn.Conv2d(3, 60, 3, stride=3, padding=1, dilation=2), nn.ReLU(), nn.Flatten()
        return nn.Sequential(*body, nn.Linear(240, 60), nn.ReLU(), nn.Linear(60, 2))

    x = drawn(8, 3, 8, 8, seed=0)
    before, after = (deep.drawn(made, 1).double() for _ in range(2))
    y = torch.arange(5) % 2
    _, optimiser = deep.train(
        after, x[:5], y, trainer, 0.1, steps, moved=after[frozen:].parameters()
    )
    return x[:5], x[5:], before, after, optimiser


@pytest.mark.parametrize("layer, shape, rank", [(0, (5, 4, 27), 20), (3, (5, 1, 240), 5)])
def test_the_inputs_of_a_step_lie_in_the_span_of_what_it_adds(layer, shape, rank):
    x, strangers, before, after, _ = stepped("plain", steps=1)
    seen = span.inputs(before, before[layer], x)
    assert seen.shape == shape
    basis = span.basis(after[layer].weight, before[layer].weight, alpha=1.0)
    assert basis.shape[1] == rank
    assert span.distances(seen, basis).max() < 1e-6
    assert span.distances(span.inputs(before, before[layer], strangers), basis).min() > 0.01


@pytest.mark.parametrize("trainer", ["sgd", "sgd_decay", "adam"])
def test_a_moment_tells_the_inputs_without_the_start(trainer):
    x, strangers, _, after, optimiser = stepped(trainer, steps=8, frozen=True)
    basis = span.basis(deep.moment(optimiser, after[3].weight), after[3].weight)
    near, far = (span.distances(span.inputs(after, after[3], z), basis) for z in (x, strangers))
    assert near.max() < 1e-5 < 0.01 < far.min()


def test_what_cannot_be_read_is_said():
    x, _, before, after, _ = stepped("adam", steps=3)
    grouped = nn.Conv2d(3, 3, 3, groups=3)
    assert "full rank" in refused(span.basis, after[0].weight, before[0].weight)
    assert "has groups" in refused(span.inputs, nn.Sequential(grouped), grouped, x)
