"""Path matching, piece by piece, and two images back from a small network; and the span test."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from attacks import optimisers, path, span
from conftest import drawn, refused
from training import deep
from training.images import Part
from utils.kernels import naive
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


def trained(trainer, rate, steps):
    """Two images, the weights before and after some steps on them, and the optimiser's state."""
    net, x = network(), pictures(2, 1)
    initial = path.flat(net)
    _, optimiser = deep.train(net, x, LABELS, trainer, rate, steps)
    return (
        x,
        initial,
        path.flat(net),
        {} if trainer == "plain" else deep.state(net, optimiser)._asdict(),
    )


@pytest.fixture(scope="module")
def victim():
    """What eight steps of gradient descent at a rate of 0.1 leave."""
    return trained("plain", 0.1, 8)[:3]


def knowns(victim):
    """What may be known, each with the path that it begins with, and a simulated one."""
    x, initial, end = victim
    _, _, _, state = trained("adam", 1e-3, 8)
    for one in (
        path.Ends(initial, end),
        optimisers.AdamEnds(initial, end, scale=0.01),
        optimisers.MomentumState(end, initial - end, 0.1),
        optimisers.MomentumState(end, **state),
    ):
        first = one.begin()
        yield one, first
        yield one, one.retrace(network(), first, x, LABELS, 0.5)


def test_slopes_are_those_of_differences(victim):
    x, initial, end = victim
    net, step = network(), 1e-6 * torch.eye(216, dtype=torch.float64).view(216, 2, 108)
    guess = path.Ends(initial, end).begin()
    toward = torch.stack(
        [end - initial, 2 * (initial - end), drawn(len(end), seed=2) * (end - initial)]
    )

    def along(z):
        return (toward * path.gradients(net, guess.anchors, z, LABELS)).sum()

    wanted = torch.stack([along(x + s) - along(x - s) for s in step]).view_as(x) / 2e-6
    found = path.pull(net, guess.anchors, x, LABELS, toward, 3e-4 * (end - initial).norm())
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-7 * wanted.abs().max())
    by_weights = path.gradient(net, initial, x, LABELS)
    some = torch.randperm(len(initial), generator=torch.Generator().manual_seed(0))[:20]
    for k in some:
        moved = [
            path.error(net, initial + s * 1e-5 * torch.eye(len(initial))[k], x, LABELS)
            for s in (1, -1)
        ]
        assert by_weights[k] == pytest.approx(((moved[0] - moved[1]) / 2e-5).item(), abs=1e-7)


def test_the_misfits_slope_is_that_of_differences(victim):
    for known, guess in knowns(victim):
        if guess.rest is None and type(known) is path.Ends:
            continue  # the shares of a straight line change with its gradients, and are held
        g = path.gradients(network(), guess.anchors, victim[0] + 0.1, LABELS)
        _, slopes = path.misfit(known, guess, g, 0.5)
        way = 1e-4 * g.abs() * drawn(*g.shape, seed=3)
        ends = [path.misfit(known, guess, g + s * way, 0.5)[0] for s in (1, -1)]
        assert ends[0] - ends[1] == pytest.approx(
            2 * (slopes * way).sum().item(), rel=1e-3, abs=1e-12
        )


def test_the_metric_is_a_root_of_the_inverse_and_shares_are_not_negative():
    gradients = drawn(4, 9, seed=3)
    values = torch.linalg.eigvalsh(gradients @ gradients.mT)
    whole = torch.eye(9).double() + gradients.mT @ gradients / (path.PUBLIC * values.median())
    metric = path.whitening(gradients)(torch.eye(9).double())
    assert torch.allclose(metric @ metric @ whole, torch.eye(9).double(), atol=1e-10)
    gradients, change = drawn(3, 7, seed=4), drawn(7, seed=5)
    found = path.fit_weights(gradients, change)
    rest = change - found @ gradients
    assert (
        (found >= 0).all()
        and (gradients @ rest < 1e-9).all()
        and (found * (gradients @ rest)).abs().max() < 1e-9
    )
    assert torch.equal(path.fit_weights(change[None], -change), torch.ones(1).double())  # all alike


def test_a_descent_on_the_images_finds_the_rate_and_ends_where_training_did(victim):
    x, initial, end = victim
    known = path.Ends(initial, end)
    places = path.descend(network(), initial, end, x, LABELS, known.move(0.1))
    assert len(places) == 9 and torch.allclose(places[-1], end)
    guess = known.retrace(network(), known.begin()._replace(rate=0.1), x, LABELS, 0.5)
    assert guess.rate == 0.1 and guess.gap < 1e-6 and len(guess.part) == 8
    g = path.gradients(network(), guess.anchors, x, LABELS)
    assert torch.allclose(0.1 * known.total(guess, g, 0.5), initial - end)


def test_a_guess_without_a_simulation_stays_where_it_is(victim):
    x, initial, end = victim
    straight, start = path.Straight(initial, end), path.Start(initial, end)
    assert torch.equal(straight.begin().anchors, path.Ends(initial, end).begin().anchors)
    guess = start.begin()
    assert torch.equal(guess.anchors, initial[None])
    for known, path_ in ((straight, straight.begin()), (start, guess)):
        assert known.retrace(network(), path_, x, LABELS, 0.9) is path_
    single = path.gradient(network(), initial, x, LABELS)
    total = start.total(guess, path.gradients(network(), guess.anchors, x, LABELS), 0.5)
    assert torch.cosine_similarity(total, single, dim=0) > 1 - 1e-9
    assert path.misfit(start, guess, single[None], 0.5)[0] == pytest.approx(
        1 - torch.cosine_similarity(single, initial - end, dim=0).item(), abs=1e-9
    )


def test_steps_are_counted_until_the_loss_is_low():
    x, net = pictures(2, 1), network().float()
    before, secret = path.flat(net), Part(x.double(), LABELS.double())
    losses = [
        deep.train(network().float(), x.float(), LABELS, "plain", 0.1, steps)[0]
        for steps in range(1, 9)
    ]
    assert losses == sorted(losses, reverse=True)  # each step helps
    between = (losses[4] + losses[5]) / 2
    assert deep.steps_until(net, secret, 0.0, 0.1, 8, between) == 6
    assert deep.steps_until(net, secret, 0.0, 0.1, 3, between) == 3  # and no more than are allowed
    assert torch.equal(path.flat(net), before)


def test_adams_moves_are_torchs_and_add_up_to_the_change():
    x, initial, end, _ = trained("adam", 1e-3, 8)
    known = optimisers.AdamEnds(initial, end, rate=1e-3)
    guess = known.retrace(network(), known.begin(), x, LABELS, 0.5)
    assert guess.gap < 1e-4 and len(guess.part) == 8
    g = path.gradients(network(), guess.anchors, x, LABELS)
    assert torch.allclose(1e-3 * known.total(guess, g, 0.5), initial - end, atol=1e-7)
    last = path.Ends(initial, end, rate=1e-3).retrace(network(), guess, x, LABELS, 0.5)
    assert last.gap > known.far / 2  # no gradient descent comes near


@pytest.mark.parametrize("trainer, rate", [("sgd", 0.01), ("adam", 1e-4)])
def test_walking_back_finds_the_way_that_training_came(trainer, rate):
    x, initial, end, state = trained(trainer, rate, 8)
    known = optimisers.MomentumState(end, **state)
    back, counts = known.walk_back(network(), x, LABELS)
    back, after = back[:8], counts[8:]
    assert (
        len(back) == 8
        and after.sum() < 1e-2 < counts[7]
        and (back[-1] - initial).norm() < 1e-2 * (end - initial).norm()
    )
    guess = known.retrace(network(), known.begin(), x, LABELS, 0.5)
    total = known.total(guess, path.gradients(network(), guess.anchors, x, LABELS), 0.5)
    assert torch.cosine_similarity(total, state["first"], dim=0) > 1 - 1e-6
    strangers, _ = known.walk_back(network(), pictures(2, 8), LABELS)
    assert (strangers[7] - initial).norm() > 10 * (back[-1] - initial).norm()


def public(at, held=8):
    """Gradients of public images at weights (P,)."""
    return path.singles(network(), at, pictures(held, 7), LABELS[:1].expand(held))


def test_two_images_come_back_and_no_held_out_one(victim):
    x, initial, end = victim
    adam, state = trained("adam", 1e-3, 8), trained("sgd", 0.01, 8)[2:]
    gradients, held_out = public(initial), pictures(2, 8)
    for known, least in (
        (path.Ends(initial, end, path.whitening(gradients)), 0.8),
        (optimisers.AdamEnds(adam[1], adam[2], scale=optimisers.size(gradients, 2)), 0.5),
        (
            optimisers.MomentumState(state[0], metric=path.whitening(public(state[0])), **state[1]),
            0.5,
        ),
    ):
        found = path.attack(Released(network(), LABELS, None), known, SHAPE, steps=200)
        like = [torch.cosine_similarity(z, found.images) for z in (x, held_out)]
        assert (
            found.history[-1] < found.history[0] and like[0].min() > least and like[1].max() < 0.4
        ), (known, like)
    begun = path.attack(
        Released(network(), LABELS, None), path.Ends(initial, end), SHAPE, steps=1, start=x
    )
    assert (begun.images - x.clamp(-path.BOUND, path.BOUND)).abs().max() <= path.RATE + 1e-9


def test_softened_and_normalised_networks_compute_what_they_say():
    z = torch.linspace(-2, 2, 9)
    with naive.InPlaceOfReLU(partial(nn.functional.softplus, beta=3.0)):
        soft = nn.ReLU()(z)
    assert torch.allclose(soft, torch.log1p((3 * z).exp()) / 3) and torch.equal(
        nn.ReLU()(z), z.clamp_min(0)
    )
    assert math.isclose(nn.ReLU(inplace=True)(z.clone()).min(), 0.0)
    x = drawn(3, 3, 8, 8, seed=1).float()
    for norm, kind in {"none": nn.Identity, "group": nn.GroupNorm, "batch": nn.BatchNorm2d}.items():
        net = deep.drawn(partial(deep.residual, 2, 8, 4, norm=norm), 0)
        assert sum(isinstance(part, kind) for part in net.modules()) >= 7 and net(x).shape == (3, 2)


def test_what_cannot_be_attacked_is_said(victim):
    _, initial, end = victim

    def said(known, labels=LABELS, net=None):
        return refused(path.attack, Released(net or network(), labels, None), known, SHAPE)

    for words, wrong in {
        "`initial` has 481": path.Ends(initial[1:], end),
        "`end` holds": path.Ends(initial, end * math.nan),
        "nothing was trained": path.Ends(initial, initial),
        "`second` has 3": optimisers.MomentumState(end, initial, 0.1, second=initial[:3]),
        "moment is zero": optimisers.MomentumState(end, 0 * initial, 0.1),
        "SGD without momentum": optimisers.MomentumState(end, initial, 0.1, beta=0.0),
    }.items():
        assert words in said(wrong)
    assert "whole numbers" in said(path.Ends(initial, end), LABELS + 0.5)
    for layer in (nn.Dropout(), nn.BatchNorm2d(3)):
        net = nn.Sequential(layer, network())
        size = len(path.flat(net))
        assert "is in training mode" in said(
            path.Ends(torch.zeros(size), torch.ones(size)), net=net.train()
        )


# ---- The span test: what a step adds to a layer holds its images' inputs alone ----


def dilated():
    """A convolution with four places in an image of 8 × 8, and 60 neurons, in double precision."""

    def made():
        body = nn.Conv2d(3, 60, 3, stride=3, padding=1, dilation=2), nn.ReLU(), nn.Flatten()
        return nn.Sequential(*body, nn.Linear(240, 60), nn.ReLU(), nn.Linear(60, 2))

    return deep.drawn(made, 1).double()


def stepped(trainer, steps, frozen=False):
    """Five images, three strangers, the network before and after training, and the optimiser."""
    x = drawn(8, 3, 8, 8, seed=0)
    before, after = dilated(), dilated()
    _, optimiser = deep.train(
        after, x[:5], torch.arange(5) % 2, trainer, 0.1, steps, frozen=after[:1] if frozen else ()
    )
    return x[:5], x[5:], before, after, optimiser


@pytest.mark.parametrize("layer", [0, 3])
def test_the_inputs_of_a_step_lie_in_the_span_of_what_it_adds(layer):
    x, strangers, before, after, _ = stepped("plain", steps=1)
    seen = span.inputs(before, before[layer], x)
    assert seen.shape == {0: (5, 4, 27), 3: (5, 1, 240)}[layer]
    by_hand = seen @ before[layer].weight.flatten(1).mT + before[layer].bias
    made = before[: layer + 1](x)  # the layer computes from its inputs what it does
    assert torch.allclose(by_hand.mT.reshape(made.shape), made)
    basis = span.basis(after[layer].weight, before[layer].weight, alpha=1.0)
    assert basis.shape[1] == {0: 20, 3: 5}[layer]
    near, far = (
        span.distances(span.inputs(before, before[layer], z), basis) for z in (x, strangers)
    )
    assert near.max() < 1e-6 and far.min() > 0.01


@pytest.mark.parametrize("trainer", ["sgd", "sgd_decay", "adam"])
def test_a_moment_tells_the_inputs_without_the_start(trainer):
    x, strangers, _, after, optimiser = stepped(trainer, steps=8, frozen=True)
    basis = span.basis(deep.moment(optimiser, after[3].weight), after[3].weight)
    near, far = (span.distances(span.inputs(after, after[3], z), basis) for z in (x, strangers))
    assert near.max() < 1e-5 < 0.01 < far.min()


def test_what_cannot_be_read_is_said():
    x, _, before, after, _ = stepped("adam", steps=3)
    assert "full rank" in refused(span.basis, after[0].weight, before[0].weight)
    assert "a ReLU" in refused(span.inputs, after, after[1], x)
    grouped = nn.Conv2d(3, 3, 3, groups=3)
    assert "has groups" in refused(span.inputs, nn.Sequential(grouped), grouped, x)
