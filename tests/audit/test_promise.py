"""A promised ε is refuted where the sides are told too well, never confirmed, and not asked of sides that differ."""

import pytest
import torch
from helpers import audit, checked, fitted, mlp
from known_files import toy

from audit import judge, promise, report
from conftest import SIDE


def scored(mu, size=300, seed=0):
    """A Scored whose training values lie μ above the others."""
    draws = torch.randn(2, size, generator=torch.Generator().manual_seed(seed))
    return judge.scored((draws[0] + mu, draws[1]))


@pytest.mark.parametrize(
    "mu, epsilon, refuted, said",
    [
        (
            9.0,
            3.0,
            True,
            "is refuted, whatever the training was: 480 of 480 guesses are right (loss)",
        ),
        (9.0, 8.0, True, "is refuted, if normal noise made the training private"),
        (1.0, 8.0, False, "is not refuted, which does not confirm it"),
        (0.0, 0.1, False, "So ε is above 0.0, at a confidence of 95%"),
    ],
)
def test_a_promise_is_refuted_by_those_who_are_told_too_well(mu, epsilon, refuted, said):
    tested = promise.test((epsilon, 1e-5), 0.05, {"loss": scored(mu)}, seed=0, differ=False)
    assert tested.refuted == refuted and said in tested.said and promise.BY_LOT in tested.said
    assert tested.at_least <= tested.at_least_gaussian
    assert ("so few pictures refute no ε above 5.1, or 11.1 with noise" in tested.said) != refuted


def test_a_score_that_tells_nothing_does_not_hide_one_that_tells_all():
    scores = {f"noise {k}": scored(0, seed=k + 1) for k in range(5)} | {"loss": scored(9)}
    tested = promise.test((8, 1e-5), 0.05, scores, seed=0, differ=False)
    assert tested.score == "loss" and tested.refuted


@pytest.mark.parametrize("scores, differ", [({}, False), ({"loss": scored(9)}, True)])
def test_without_a_score_or_with_sides_that_differ_there_is_no_answer(scores, differ):
    tested = promise.test((8, 1e-5), 0.05, scores, seed=0, differ=differ)
    assert tested.refuted is None and "no ε can be tested" in tested.said


def test_the_report_says_what_became_of_a_promise():
    many = toy("members", 2, None, size=(SIDE, SIDE), counts=(60, 60)).sides
    leaky = fitted(many[:1], width=64, steps=200)
    found = audit(leaky, *many, steps=1, epsilon=0.5)
    content = checked(found)
    assert found.status == report.LEAKS and content["promise"]["refuted"]
    assert (
        content["promise"]["said"] in found.sentence and content["promise"]["said"] in found.html()
    )
    quiet = audit(mlp().state_dict(), *many, steps=1, epsilon=0.5)
    assert quiet.status == report.NO_ANSWER and not checked(quiet)["promise"]["refuted"]
    assert checked(audit(leaky, *many, steps=1))["promise"] is None
    # pictures that are sorted by their brightness are not drawn by lot
    dark = [(pixels // (1 + k), labels) for k, (pixels, labels) in enumerate(many)]
    assert checked(audit(leaky, *dark, steps=1, epsilon=0.5))["promise"]["refuted"] is None
