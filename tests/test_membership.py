"""The null, detectors and membership tests: what they say of leaks that are known, and of none."""

import pytest
import torch
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score
from torch.nn.functional import avg_pool2d, softplus

from attacks import decoreco, detectors, starts
from attacks.contract import Attack
from conftest import drawn, refused
from evaluation import measures, membership, null
from experiments import altered, closed_world, detection, variants
from training import stationary
from utils import networks
from utils.kernels import contrast
from utils.kernels.layers import Layer, flatten, pullback
from utils.kernels.losses import LOSSES
from utils.kernels.similarity import detail_ncc, match
from utils.networks import Released

SHAPE = (32, 32, 3)
close = torch.testing.assert_close


@pytest.fixture(scope="module")
def parts(views):
    """Forty photographs, and twice forty others of the same classes."""
    return views.secret.images, views.held_out.images, views.known.images


def test_noisy_ghosts_of_the_training_images_leak_and_other_photographs_do_not(parts):
    training, held_out, others = parts
    ghosts = 0.7 * training + 0.3 * others + 0.1 * drawn(*training.shape)
    found = measures.leak(ghosts, training, held_out, SHAPE)
    turned = measures.leak(ghosts, held_out, training, SHAPE)
    assert found.auc.low > 0.95 and found.p < 0.001 and found.above >= 38 and found.alike >= 38
    assert abs(found.auc.value + turned.auc.value - 1) < 1e-12 and turned.p > 0.99
    found = measures.leak(others, training, held_out, SHAPE)
    assert found.auc.low < 0.5 < found.auc.high and found.p > 0.05 and found.alike <= 2
    assert "held_out=IMAGES" in refused(measures.leak, others, training, held_out[:30], SHAPE)


def test_the_null_is_exact_where_nothing_leaked():
    """Over many draws without a leak, p is below 0.1 in about a tenth, and the interval holds 0.5 in about 95 %."""
    p, inside = [], []
    for _ in range(200):
        one, two = torch.rand(2, 30, dtype=torch.float64)
        area = null.area(one, two)
        p.append(null.p_value(one, two))
        inside.append(area.low <= 0.5 <= area.high)
    assert 0.04 < sum(value < 0.1 for value in p) / 200 < 0.17 and sum(inside) / 200 > 0.9


def test_area_and_p_are_those_of_other_libraries():
    above, below = torch.randn(2, 40).double().round(decimals=1)  # with ties, which count half
    above = above + 0.5
    scores, truth = torch.cat([above, below]), torch.arange(80) < 40
    found = null.detection(scores, truth)
    assert abs(found.auc.value - roc_auc_score(truth, scores)) < 1e-12
    assert found.tpr == (above > below.max()).double().mean()
    p = mannwhitneyu(above, below, alternative="greater").pvalue
    classes = torch.arange(80) % 2
    for found in (null.p_value(above, below), null.p_value(above, below, 0, 0 * classes)):
        assert abs(found - p) < 0.05
    assert null.p_value(above + 9 * classes[:40], below + 9 * classes[40:], 0, classes) < 0.1
    assert null.p_value(below[:1], below[:1]) == 1 and null.detection(scores, truth | True) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_that_is_constant_up_to_rounding_detects_nothing(parts, dtype):
    """Its order is that of rounding errors, here the truth itself; so is a share in the span of an attack within it."""
    truth = torch.arange(40) < 20
    rounding = torch.where(truth, 1.0, -1.0).to(dtype) * torch.finfo(dtype).eps
    assert null.detection(3 * (1 + rounding), truth) is null.detection(0 * rounding, truth) is None
    assert null.detection(3 * (1 + 100 * rounding), truth).auc.value == 1
    released = Released((Layer((drawn(60, 40) @ parts[0]).to(dtype), None),), torch.zeros(40), None)
    start, basis = parts[2].to(dtype), networks.span(released.network)
    for x, there in ((networks.within(start, basis), False), (start, True)):
        found = Attack(x + 0.1 * networks.within(x, basis), *[None] * 4)
        named = detectors.scores(released, drawn(*start.shape).to(dtype), found, None, SHAPE)
        assert ("share in the span" in named) == there and "drift from the start" in named


def test_alike_ignores_brightness_contrast_shading_and_noise_but_not_content(parts):
    x, others, _ = parts
    shading = torch.linspace(-1, 1, 32, dtype=x.dtype)[:, None, None].expand(SHAPE).flatten()
    planes = x.reshape(-1, *SHAPE).permute(0, 3, 1, 2)
    blurred = avg_pool2d(planes, 3, 1, 1).permute(0, 2, 3, 1).flatten(1)
    for one in (0.2 * x + 0.5, x + shading, blurred, x + 0.5 * x.std() * drawn(*x.shape)):
        assert (detail_ncc(one, x, SHAPE).diagonal() > measures.ALIKE).double().mean() > 0.95
    assert (detail_ncc(others, x, SHAPE).amax(0) > measures.ALIKE).double().mean() < 0.05
    close(detail_ncc(-x, x, SHAPE).diagonal(), -torch.ones(len(x), dtype=x.dtype))
    assert detail_ncc(0.3 + 0 * x[:1], x, SHAPE).abs().max() < 1e-6  # what is flat is like no image
    few = drawn(6, 50)  # of these, none is a twin of another
    assert measures.twins(few) == 0 and measures.twins(torch.cat([few, 2 * few[:2] + 1])) == 4 / 8


@pytest.mark.parametrize("side, leaks", [("secret", True), ("known", False)])
def test_only_the_victim_of_these_images_leaks_them(views, side, leaks):
    """The same attack on a network that was trained on them, and on one that was trained on others."""
    recipe = networks.perceptron("signed", 60, 60)._replace(epochs=400, stages=2)
    released = stationary.train(getattr(views, side), recipe).released
    start = starts.normal(80, 3072, 0.02, 0)
    settings, basis = decoreco.ADAM._replace(iterations=200), networks.span(released.network)
    found = decoreco.attack(released, start, settings, basis=basis)
    found = measures.leak(found.images, views.secret.images, views.held_out.images, SHAPE)
    assert found.p < 0.01 < 0.6 < found.auc.low if leaks else found.p > 0.01 and found.auc.low < 0.5


@pytest.mark.parametrize("rule, stages", [("signed", 2), ("margin", 0)])
def test_a_trained_network_tells_its_members_and_an_untrained_one_nobody(views, rule, stages):
    recipe = networks.perceptron(rule, 60)._replace(epochs=300, stages=stages)
    trained = stationary.train(views.secret, recipe, 0)
    victim, x, y = trained.released, trained.subtract_mean(views.secret.images), views.secret.labels
    target, loss = flatten(victim.network), LOSSES[victim.recipe.loss]
    for k, score in enumerate(closed_world.by_residual(victim, x[:3].clone(), y[:3])):
        slope = pullback(victim.network, x[[k]], lambda z, k=k: loss.slope(z, y[[k]]))[1]
        close(score, -(slope @ target) / slope.norm() / target.norm())
    found = closed_world.areas(victim, views, trained.mean)
    assert found["span"].low > 0.5 and found["loss"].low > 0.5
    untrained = networks.initial(victim.recipe._replace(initial="standard"), 3072, 1)
    told = closed_world.areas(victim._replace(network=untrained), views, trained.mean)
    assert all(area.low < 0.5 < area.high for area in told.values())


# ---- Reference networks ----


def test_every_picture_is_in_half_of_the_networks_and_every_class_is_halved():
    labels = torch.tensor([0] * 9 + [1] * 14 + [2])
    masks = membership.halves(labels, 6, seed=1)
    assert torch.equal(masks[1::2], ~masks[::2]) and len(masks.unique(dim=0)) == 6
    for kind in labels.unique():
        assert ((2 * masks - 1)[:, labels == kind].sum(1).abs() <= 1).all()


@pytest.mark.parametrize("alike", [False, True])
def test_the_likelihood_ratio_finds_what_the_loss_hides(alike):
    """Pictures are of very different difficulty; with distances of their own, or only one distance for all."""
    n, masks = 400, membership.halves(torch.zeros(400), 64, seed=0)
    gap = 1.0 if alike else 2 * torch.rand(n, generator=torch.Generator().manual_seed(1))
    phis = 5 * drawn(n) + gap * masks + 0.5 * drawn(64, n, seed=2)
    target, *known = softplus(-phis)
    losses, inside = (target, torch.stack(known)), masks[0]
    scores = [-target, membership.lira(*losses, masks[1:]), membership.rmia(*losses)]
    scores += [membership.lira_offline(*losses, masks[1:], own) for own in (False, True)]
    areas = [null.area(score[inside], score[~inside]).value for score in scores]
    assert areas[0] < 0.65 and areas[1] > 0.85 and min(areas[2:]) > 0.8


def test_the_relative_likelihood_orders_pictures_as_its_share_of_others_does():
    target, known = drawn(30).square(), drawn(8, 30, seed=1).square()
    ratio = (-target).exp() / (-known).exp().mean(0)
    share = (ratio[:, None] > ratio).double().mean(1)
    assert torch.equal(membership.rmia(target, known).argsort(), share.argsort())


def test_offline_scores_of_pictures_in_no_network_pass_a_bar_as_often_as_those_that_set_it():
    """Pictures of no member, of very different difficulty, and networks that know of neither half."""
    hard, masks = 5 * drawn(4000), membership.halves(torch.zeros(4000), 64, seed=0)
    target, *known = softplus(-(hard + 0.5 * drawn(65, 4000, seed=2)))
    losses = target, torch.stack(known), masks
    scores = [membership.lira_offline(*losses, own) for own in (False, True)]
    for score in (*scores, membership.rmia_offline(*losses)):
        passing = (score[1::2] > score[::2].quantile(0.99)).double().mean()
        assert 0.003 < passing < 0.02
    member = membership.lira_offline(softplus(-(hard + 2)), *losses[1:], True)
    assert (member > scores[1].quantile(0.99)).double().mean() > 0.8


# ---- Scores that need no training data, and the numbers and the quiz of their chapter ----


def test_a_negative_matches_only_where_the_sign_is_open(views):
    x = views.secret.images - views.secret.images.mean(0)
    best = match(torch.cat([x[:5], -x[5:10], drawn(5, 3072)]), x, SHAPE)
    for values, right in ((best.signed, 5), (best.either, 10)):
        close(values[:right], torch.ones(right, dtype=torch.float64))
        assert values[right:].max() < measures.ALIKE


def test_detail_at_few_places_scores_higher_than_detail_everywhere(views):
    """Neither sign nor scale counts, nor the other pictures."""
    known = views.known.images - views.known.images.mean(0)
    everywhere, mask = drawn(5, 3072), torch.zeros(SHAPE, dtype=torch.float64)
    mask[:12, :12] = 1
    few, many = (contrast.score(everywhere * of, known, SHAPE) for of in (mask.flatten(), 1))
    # Everywhere, the energy is near its mean, one.
    assert few.min() > many.max() + 0.5 and many.abs().max() < 0.2
    close(contrast.score(-3 * everywhere[:3], known, SHAPE), many[:3])


def test_kinks_are_counted_in_units_of_what_is_known():
    bias = torch.tensor([0.0, 0, 1, 1], dtype=torch.float64)
    network = (Layer(torch.eye(4, dtype=torch.float64), bias),)
    known = torch.tensor([[1.0, 100, 0, 0], [-1, -100, 0, 0]]).double()  # σ = 1, 100, 1, 1
    x = torch.tensor([[0.03, 1.0, -1, 0], [0.01, 3, -1.01, -1]], dtype=torch.float64)
    assert detectors.kink_share(x, network, known).tolist() == [0.5, 0.75]


def test_photographs_are_known_ones_and_their_mirror_images_without_their_mean(views):
    found = detectors.photographs(views.known, 80, SHAPE) + views.known.images.mean(0)
    known = views.known.images.view(40, *SHAPE)
    both = torch.cat([known, known.flip(2)]).flatten(1)
    near = torch.cdist(found, both, compute_mode="donot_use_mm_for_euclid_dist") < 1e-9
    assert near.any(1).all() and near.any(0).all()
    close(found[:20], views.known.images[:20])  # of the first class


def test_halves_share_nothing_and_keep_the_classes(views):
    mine, rest = detection.halve(views.known)
    assert mine.labels.tolist() == rest.labels.tolist() == [0.0] * 10 + [1.0] * 10
    assert torch.cdist(mine.images, rest.images).min() > 0.1


def scored(n, seed):
    truth = torch.arange(n) % 2 == 0
    return dict(zip(detectors.COMBINED, drawn(3, n, seed=seed) + 1.0 * truth)), truth


def test_the_combination_learns_from_a_shadow_and_is_calibrated():
    shadow, truth = scored(1000, 0)
    named, _ = scored(1000, 1)
    probability = detectors.fit(shadow, truth)(named)
    alone = max(null.detection(score, truth).auc.value for score in named.values())
    assert null.detection(probability, truth).auc.value > alone + 0.05
    for _, number, predicted, share in detection.calibration(probability, truth):
        assert abs(float(predicted) - float(share)) < 4 * (0.25 / int(number)) ** 0.5
    stretched, other = ({k: 5 + 3 * s for k, s in of.items()} for of in (shadow, named))
    close(detectors.fit(stretched, truth)(other), probability, atol=1e-4, rtol=0)
    assert detectors.fit(named, truth | True) is detectors.fit(named, truth & False) is None


def test_precision_and_choice_follow_the_scores():
    score, truth = torch.tensor([3.0, 1, 3, 2, 0]), torch.tensor([1, 1, 0, 1, 0]) > 0
    assert detection.precision(score, truth, 3) == pytest.approx(2 / 3)
    assert detection.likeliest(torch.arange(5), score, 3).tolist() == [0, 2, 3]


def test_the_quiz_asks_for_as_many_of_both_kinds():
    true, invented = torch.arange(60) < 20, torch.arange(60) >= 40
    some = detection.asked(true, invented, 8, 0)
    assert len(some.unique()) == 16 and true[some].sum() == invented[some].sum() == 8
    assert true[some][:8].sum() not in (0, 8)  # shuffled


# ---- A natural picture in hand ----


def test_a_search_finds_the_picture_that_was_moved_and_mirrored_as_far_as_it_is_there(views):
    x = views.secret.images[:3]
    pictures = x.view(-1, *SHAPE)
    away = altered.moved(x, SHAPE, 2)[2, -1]
    shown = away.view(-1, *SHAPE)
    close(shown[:, 2:, :-1], pictures[:, :-2, 1:])
    assert (shown[:, :2] == shown[:, 2:3]).all()  # an edge, repeated
    tried = altered.tries(altered.CHANGES["mirrored"](away, SHAPE), SHAPE)
    nearest = min(tried, key=lambda one: (one - x).abs().sum())
    assert len(tried) == 50
    close(nearest.view(-1, *SHAPE)[:, :-2, 1:], pictures[:, :-2, 1:])


def test_a_bar_of_some_is_passed_by_one_of_a_thousand_of_the_others():
    found, alarms = closed_world.by_half(drawn(1000) + 3, drawn(20_000))
    assert 0.3 < found < 0.6 and 0 < alarms < 0.003


def test_networks_that_are_trained_together_are_those_that_are_trained_alone(views):
    o, y = variants.settings("base", 12)._replace(steps=40), views.secret.labels
    several = [part.images - part.images.mean(0) for part in (views.secret, views.held_out)]
    together = variants.train_together(several, [y, y.flip(0)], 1, o, (3, 4))
    for x, labels, seed, network in zip(several, (y, y.flip(0)), (3, 4), together):
        alone = variants.train_in_coordinates(x[None], labels, 1, o, seed)
        close(flatten(network), flatten(alone), rtol=1e-3, atol=1e-5)
