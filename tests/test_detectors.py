"""Scores that need no training data: each against a case whose answer is known, and the quiz that a page shows."""

import pytest
import torch

from conftest import drawn
from experiments import detection
from utils import images, measures, null
from utils.attacks import detectors
from utils.kernels import contrast
from utils.kernels.layers import Layer
from utils.kernels.similarity import match

SHAPE = (32, 32, 3)


@pytest.fixture(scope="module")
def views():
    """Twenty secret and forty known photographs."""
    return images.split(images.load("photos"), 20, 40)


def test_a_negative_matches_only_where_the_sign_is_open(views):
    x = views.secret.images - views.secret.images.mean(0)
    mixed = torch.cat([x[:5], -x[5:10], drawn(5, 3072)])
    for signed, right in ((True, 5), (False, 10)):
        best = match(mixed, x, SHAPE)
        best = best.signed if signed else best.either
        torch.testing.assert_close(best[:right], torch.ones(right, dtype=torch.float64))
        assert best[right:].max() < measures.ALIKE


def test_detail_at_few_places_scores_higher_than_detail_everywhere(views):
    known = views.known.images - views.known.images.mean(0)
    everywhere, corner = drawn(5, 3072), torch.zeros(5, *SHAPE, dtype=torch.float64)
    corner[:, :12, :12] = drawn(5, 3072, seed=1).view(5, *SHAPE)[:, :12, :12]
    score = contrast.score
    few, many = score(corner.flatten(1), known, SHAPE), score(everywhere, known, SHAPE)
    assert few.min() > many.max() + 0.5
    assert many.abs().max() < 0.2  # the energy is near its mean, one, at all places
    torch.testing.assert_close(score(-3 * everywhere, known, SHAPE), many)  # neither sign nor scale counts
    torch.testing.assert_close(score(everywhere[:3], known, SHAPE), many[:3])  # nor the other pictures


def test_kinks_are_counted_in_units_of_what_is_known():
    weight = torch.eye(4, dtype=torch.float64)
    network = (Layer(weight, torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)),)
    known = torch.tensor([[1.0, 100, 0, 0], [-1, -100, 0, 0]], dtype=torch.float64)  # σ = 1, 100, 1, 1
    x = torch.tensor([[0.03, 1.0, -1, 0], [0.01, 3, -1.01, -1]], dtype=torch.float64)
    assert detectors.kinks(x, network, known).tolist() == [0.5, 0.75]


@pytest.mark.parametrize("n", [40, 80])
def test_photographs_are_known_ones_without_their_mean(views, n):
    known, mean = views.known, views.known.images.mean(0)
    found = detectors.photographs(known, n, SHAPE) + mean
    assert found.shape == (n, 3072)
    torch.testing.assert_close(found[:20], known.images[:20])
    classes = (found.view(n, *SHAPE)[:, None] - known.images.view(-1, *SHAPE)).abs().amax((2, 3, 4)) < 1e-9
    mirrored = (found.view(n, *SHAPE).flip(2)[:, None] - known.images.view(-1, *SHAPE)).abs().amax((2, 3, 4)) < 1e-9
    assert classes.any(1).sum() == 40 and (classes | mirrored).any(1).all()
    own = known.labels[(classes | mirrored).double().argmax(1)]
    assert own.tolist() == [0] * (n // 2) + [1] * (n // 2)


def test_halves_share_nothing_and_keep_the_classes(views):
    mine, rest = detection.halved(views.known)
    assert mine.labels.tolist() == rest.labels.tolist() == [0.0] * 10 + [1.0] * 10
    assert torch.cdist(mine.images, rest.images).min() > 0.1


def scored(n, gap, seed):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(n) % 2 == 0
    values = torch.randn(3, n, generator=generator) + gap * truth
    return dict(zip(detectors.COMBINED, values)), truth


def test_the_combination_learns_from_a_shadow_and_is_calibrated():
    learned = detectors.fit(*scored(1000, 1.0, 0))
    named, truth = scored(1000, 1.0, 1)
    probability = learned(named)
    alone = max(null.detection(score, truth).auc.value for score in named.values())
    assert null.detection(probability, truth).auc.value > alone + 0.05
    for _, number, predicted, share in detection.calibration(probability, truth):
        assert abs(float(predicted) - float(share)) < 4 * (0.25 / int(number)) ** 0.5
    scaled = {name: 5 + 3 * score for name, score in scored(1000, 1.0, 0)[0].items()}
    again = detectors.fit(scaled, scored(1000, 1.0, 0)[1])
    torch.testing.assert_close(again({k: 5 + 3 * s for k, s in named.items()}), probability, atol=1e-4, rtol=0)


@pytest.mark.parametrize("value", [True, False])
def test_nothing_is_learned_where_all_is_true_or_nothing(value):
    named, truth = scored(20, 1.0, 0)
    assert detectors.fit(named, torch.full_like(truth, value)) is None


def test_precision_and_choice_follow_the_scores():
    score = torch.tensor([3.0, 1.0, 3.0, 2.0, 0.0])
    truth = torch.tensor([True, True, False, True, False])
    assert detection.precision(score, truth, 3) == pytest.approx(2 / 3)
    assert detection.likeliest(torch.arange(5), score, 3).tolist() == [0, 2, 3]


def test_calibration_counts_every_reconstruction_once():
    probability = torch.tensor([0.0, 0.05, 0.1, 0.6, 0.9, 1.0], dtype=torch.float64)
    truth = torch.tensor([False, False, True, False, True, True])
    assert detection.calibration(probability, truth) == [
        ["0 to 0.1", "2", "0.03", "0.00"],
        ["0.1 to 0.5", "1", "0.10", "1.00"],
        ["0.5 to 0.9", "1", "0.60", "0.00"],
        ["0.9 to 1", "2", "0.95", "1.00"],
    ]


def test_the_quiz_asks_for_as_many_of_both_kinds():
    true, invented = torch.arange(60) < 20, torch.arange(60) >= 40
    some = detection.asked(true, invented, 8, 0)
    assert len(set(some.tolist())) == 16 and true[some].sum() == invented[some].sum() == 8
    again, other = (detection.asked(true, invented, 8, seed).tolist() for seed in (0, 1))
    assert some.tolist() == again != other
    assert true[some][:8].sum() not in (0, 8)  # shuffled
    assert len(detection.asked(torch.arange(60) < 3, invented, 8, 0)) == 11  # all three that there are


def test_rows_tell_shares_and_scores_where_there_is_something_to_tell():
    named, truth = scored(40, 1.0, 0)
    nothing, all_of = torch.zeros_like(truth), torch.ones_like(truth)
    scores = {"stationarity": named | {"combination": named["agreement"]}, "unmixing": named}
    judged = {
        "stationarity": detection.Judged(truth, ~truth, nothing),
        "unmixing": detection.Judged(all_of, all_of, nothing),
    }
    rows = {row.name.removeprefix("detector/"): row for row in detection.rows(scores, judged, "partition", 7)}
    share, pixels = (rows[f"stationarity/partition/{name}"] for name in ("share_true", "share_true_in_pixels"))
    assert (share.value, share.baseline, pixels.value) == (0.5, 0, 0.5)
    areas = rows["stationarity/partition/auc"].value, rows["stationarity/partition/auc_in_pixels"].value
    assert sum(areas) == pytest.approx(1)
    assert rows["stationarity/partition/auc"].value == rows["stationarity/partition/agreement/auc"].value
    beside = {name for name in rows if name.startswith("unmixing")}
    assert beside == {"unmixing/none/share_true", "unmixing/none/share_true_in_pixels"}
