"""One null for all that is measured, and one rule for what is found: p-values are uniform without a leak."""

import pytest
import torch
from scipy.stats import fisher_exact, kstest

from audit import fit, judge, report, stages
from conftest import drawn


def test_p_values_are_uniform_without_a_leak_and_within_classes():
    labels = (torch.arange(20) % 2, (torch.arange(30) % 10 == 0).long())
    found = []
    for seed in range(60):
        draws = (drawn(len(part), seed=2 * seed + k) for k, part in enumerate(labels))
        ours, theirs = (draw + 5 * part for draw, part in zip(draws, labels))
        found.append(judge.p_value(ours, theirs, labels, seed))
    assert kstest(found, "uniform").pvalue > 0.01
    assert judge.p_value(ours, theirs) < 0.05  # the classes are taken for a leak


def comparison(name, p):
    """A Comparison with this p-value, which needs no correction."""
    return judge.Comparison(name, 0.9, 0.5, p, p)


def test_a_count_is_exchanged_within_classes():
    """Sides of other classes do not tell a network that knows neither; without classes the test is Fisher's."""
    labels = torch.arange(60) < 45, torch.arange(60) < 20
    passing = [part.clone() for part in labels]
    assert judge.of_count("right", passing).p < 1e-5
    assert judge.of_count("right", passing, labels).p == 1
    ours, theirs = torch.arange(20) < 12, torch.arange(30) < 7
    for alternative, field in (("greater", "p"), ("less", "opposite")):
        expected = fisher_exact([[12, 8], [7, 23]], alternative=alternative).pvalue
        found = judge.of_count("right", [ours, theirs])
        assert getattr(found, field) == pytest.approx(expected)
        assert (found.training, found.held_out) == (12, 7)


def test_losses_that_are_rounded_to_nothing_are_told_apart():
    z = torch.tensor([[90.0, 0, 0], [0, 100, 0], [3, 2, 1]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0])
    margins = stages.margins("cross_entropy", z, labels)
    losses = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    assert margins[1] > margins[0] > margins[2]
    torch.testing.assert_close(torch.nn.functional.softplus(-margins), losses, rtol=0, atol=1e-12)
    assert stages.margins("logistic", z[:, :1], labels).tolist() == [-90, 0, -3]


def test_p_values_are_adjusted_for_their_number_by_holm():
    adjusted = [one.adjusted for one in judge.holm([comparison("", p) for p in (0.04, 0.01, 0.03)])]
    assert adjusted == pytest.approx([0.06, 0.03, 0.06])


@pytest.mark.parametrize("ours, theirs", [((9, 200), (0, 9)), ((9, 9), (0, 9)), ((9, 9), (4, 9))])
@pytest.mark.parametrize("level", [0.05, 1e-4])
@pytest.mark.parametrize("differ", [False, True])
def test_pictures_that_came_back_leak_by_both_sizes_and_the_level(ours, theirs, level, differ):
    near = [torch.arange(size) < count for count, size in (ours, theirs)]
    (count,) = judge.holm([judge.Near(*judge.of_count("", near))])
    status, _ = report.finding(near, [count], [comparison("brightness", 1e-4)] * differ, level)
    alone = not theirs[0]  # that none of so few came back does not say that nothing leaks
    unsure = report.NO_ANSWER if differ or alone else report.FOUND_NOTHING
    assert status == (report.LEAKS if count.p < level else unsure)


@pytest.mark.parametrize(
    "p, differ, doubts, status",
    [
        ([1e-4], 1e-4, {}, 2),
        ([1e-4], 1.0, {"poor": "50 %.", "missed": ["No losses."], "blind": "Few."}, 1),
        ([], 1.0, {}, 2),
        ([0.5], 1.0, {"poor": "50 %."}, 2),
        ([0.5], 1.0, {"better": "50 %."}, 2),
        ([0.5], 1.0, {}, 0),
        ([0.5], 1.0, {"missed": ["No losses."]}, 2),
        ([0.5], 1.0, {"blind": "Few."}, 2),
    ],
)
def test_what_is_found(p, differ, doubts, status):
    tests = [comparison("loss", one) for one in p], [comparison("brightness", differ)]
    assert report.finding(None, *tests, 0.05, **doubts)[0] == status


@pytest.mark.parametrize("high, blind", [(0.7499, False), (0.75, True)])
def test_an_area_that_may_be_large_is_no_all_clear(high, blind):
    score = judge.scored([drawn(9), drawn(9)])
    outcomes = []
    for kind, end in ((stages.WEIGHTS, 1.0), (stages.OUTPUTS, high)):
        scores = {"": score._replace(area=score.area._replace(high=end))}
        outcomes.append(stages.Outcome("", "ran", "", scores=scores, kind=kind))
    assert bool(report.blindness(outcomes)) == blind


def test_the_network_that_knows_the_held_out_pictures_is_asked_about():
    test = comparison("loss", 0.9)._replace(opposite=0.001)
    status, said = report.finding(None, [test], [], 0.05)
    assert status == report.NO_ANSWER and said.endswith("held-out pictures exchanged?")


@pytest.mark.parametrize(
    "right, accuracy, doubted",
    [(69, None, True), (90, None, False), (69, 0.72, False), (69, 1.0, True)],
)
def test_too_few_pictures_that_are_known_are_doubted_unless_it_was_so(right, accuracy, doubted):
    facts = {"accuracy": [right / 100, 0.5], "losses": [[0.0] * 100, [0.0]]}
    outcome = stages.Outcome(stages.BY_LOSS, "ran", "", facts=facts)
    assert bool(fit.poor([outcome], accuracy)) == doubted
