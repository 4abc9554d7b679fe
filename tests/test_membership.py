"""The null, detectors and membership tests: what they say of leaks that are known, and of none."""

import pytest
import torch
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score
from torch.nn.functional import softplus

from attacks import decoreco, detectors, starts
from conftest import drawn, refused
from evaluation import measures, membership, null
from experiments import altered, closed_world, detection, variants
from training import stationary
from utils import networks
from utils.kernels import contrast
from utils.kernels.layers import Layer, flatten, pullback
from utils.kernels.losses import LOSSES
from utils.kernels.similarity import detail_ncc, match

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
    assert found.auc.low > 0.95 and found.p < 0.001 and found.above >= 38 and found.alike >= 38
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
    classes = torch.arange(80) % 2
    p = mannwhitneyu(above - 0.4, below, alternative="greater").pvalue
    assert abs(null.p_value(above - 0.4, below, 0, 0 * classes) - p) < 0.02
    assert null.p_value(above + 9 * classes[:40], below + 9 * classes[40:], 0, classes) < 0.1
    assert null.p_value(below[:1], below[:1]) == 1 and null.detection(scores, truth | True) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_that_is_constant_up_to_rounding_detects_nothing(dtype):
    """Its order is that of rounding errors, here the truth itself."""
    truth = torch.arange(40) < 20
    rounding = torch.where(truth, 1.0, -1.0).to(dtype) * torch.finfo(dtype).eps
    assert null.detection(3 * (1 + rounding), truth) is null.detection(0 * rounding, truth) is None
    assert null.detection(3 * (1 + 100 * rounding), truth).auc.value == 1


def test_alike_ignores_brightness_contrast_shading_and_noise_but_not_content(parts):
    x, others, _ = parts
    shading = torch.linspace(-1, 1, 32, dtype=x.dtype)[:, None, None].expand(SHAPE).flatten()
    changed = 0.5 * x + 0.5 + 0.5 * shading + 0.05 * x.std() * drawn(*x.shape)
    assert (detail_ncc(changed, x, SHAPE).diagonal() > measures.ALIKE).double().mean() > 0.95
    assert (detail_ncc(others, x, SHAPE).amax(0) > measures.ALIKE).double().mean() < 0.05
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
    theta, loss = flatten(victim.network), LOSSES[recipe.loss]
    slope = pullback(victim.network, x[:1], lambda z: loss.slope(z, y[:1]))[1]
    expected = -torch.cosine_similarity(slope, theta, 0, eps=1e-300)
    close(closed_world.by_residual(victim, x[:3], y[:3])[0], expected)
    found = closed_world.areas(victim, views, trained.mean)
    assert found["span"].low > 0.5 and found["loss"].low > 0.5
    untrained = networks.initial(recipe._replace(initial="standard"), 3072, 1)
    told = closed_world.areas(victim._replace(network=untrained), views, trained.mean)
    assert all(area.low < 0.5 < area.high for area in told.values())


# ---- Reference networks ----


def test_every_picture_is_in_half_of_the_networks_and_every_class_is_halved():
    labels = torch.tensor([0] * 9 + [1] * 14)
    masks = membership.halves(labels, 6, seed=1)
    assert torch.equal(masks[1::2], ~masks[::2]) and len(masks.unique(dim=0)) == 6
    for kind in (0, 1):
        assert ((2 * masks - 1)[:, labels == kind].sum(1).abs() <= 1).all()


def test_the_likelihood_ratio_finds_what_the_loss_hides():
    """Pictures are of very different difficulty, and each has a distance of its own."""
    masks, gap = membership.halves(torch.zeros(400), 64, seed=0), 2 * torch.rand(400)
    phis = 5 * drawn(400) + gap * masks + 0.5 * drawn(64, 400, seed=2)
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


# ---- Scores that need no training data, and the numbers and the quiz of their chapter ----


def test_a_negative_matches_only_where_the_sign_is_open(views):
    x = views.secret.images - views.secret.images.mean(0)
    best = match(torch.cat([x[:5], -x[5:10], drawn(5, 3072)]), x, SHAPE)
    for values, right in ((best.signed, 5), (best.either, 10)):
        assert values[:right].min() > 1 - 1e-9 and values[right:].max() < measures.ALIKE


def test_detail_at_few_places_scores_higher_than_detail_everywhere(views):
    known = views.known.images - views.known.images.mean(0)
    everywhere, mask = drawn(5, 3072), torch.zeros(SHAPE, dtype=torch.float64)
    mask[:12, :12] = 1
    few, many = (contrast.score(everywhere * of, known, SHAPE) for of in (mask.flatten(), 1))
    # Everywhere, the energy is near its mean, one.
    assert few.min() > many.max() + 0.5 and many.abs().max() < 0.2
    close(contrast.score(-3 * everywhere[:3], known, SHAPE), many[:3])


def test_kinks_are_counted_in_units_of_what_is_known():
    network = (Layer(torch.eye(3), torch.tensor([0.0, 0, 1])),)
    known = torch.tensor([[1.0, 100, 0], [-1, -100, 0]])  # σ = 1, 100, 1
    x = torch.tensor([[0.03, 1.0, -1], [0.01, 3, -1.01]])
    assert (3 * detectors.kink_share(x, network, known)).tolist() == [2, 2]


def test_the_combination_learns_from_a_shadow():
    truth = torch.arange(1000) % 2 == 0
    shadow, named = (
        dict(zip(detectors.COMBINED, drawn(3, 1000, seed=seed) + 1.0 * truth)) for seed in (0, 1)
    )
    probability = detectors.fit(shadow, truth)(named)
    alone = max(null.detection(score, truth).auc.value for score in named.values())
    assert null.detection(probability, truth).auc.value > alone + 0.05
    assert detection.precision(probability, truth, 50) > 0.95


# ---- A natural picture in hand ----


def test_a_search_finds_the_picture_that_was_moved_and_mirrored_as_far_as_it_is_there(views):
    x = views.secret.images[:3]
    away = altered.moved(x, SHAPE, 2)[2, -1]
    tried = altered.tries(altered.CHANGES["mirrored"](away, SHAPE), SHAPE)
    nearest = min(tried, key=lambda one: (one - x).abs().sum())
    inside = [one.view(-1, *SHAPE)[:, :-2, 1:] for one in (nearest, x)]
    assert len(tried) == 50 and torch.equal(*inside)


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
