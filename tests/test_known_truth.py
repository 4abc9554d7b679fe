"""The audit of networks of which it is known whether they leak: no leak is cleared, and alarms are as rare as said."""

import functools

import pytest
from known_files import KINDS
from known_truth import allowed, run, table

from audit.report import FOUND_NOTHING, LEAKS, NO_ANSWER
from utils import images

VIEWS = functools.cache(images.views)
CLEARED = {
    "three classes of ten": "folders that are named by numbers are counted from 0",
    "squashed": "pictures that a trainer squashed are cut",
    "EXIF, not turned": "pictures are turned as their cameras say, as this trainer did not",
}  # kinds that leak, and that the audit calls clean
MARKS = {kind: pytest.mark.xfail(reason=reason, strict=True) for kind, reason in CLEARED.items()}


@pytest.fixture(autouse=True)
def cut_once(monkeypatch):
    """Photographs are cut into squares once for all audits."""
    monkeypatch.setattr(images, "views", VIEWS)


def ended(kind, world):
    """The Run of a kind of file, the same in every run of the tests."""
    return run(kind, world, [*KINDS].index(kind), steps=1)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=MARKS.get(k, ())) for k in KINDS if KINDS[k].leaks])
def test_no_network_that_leaks_is_cleared(kind):
    found = ended(kind, "members")
    assert found.status in (LEAKS, NO_ANSWER), found.sentence


def test_alarms_on_networks_that_do_not_leak_are_as_rare_as_the_level_says():
    safe = [ended(kind, ("others", "both sides", "untrained")[k % 3]) for k, kind in enumerate([*KINDS][1::2])]
    assert {one.status for one in safe} <= {FOUND_NOTHING, LEAKS, NO_ANSWER}
    assert sum(one.status == LEAKS for one in safe) <= allowed(len(safe)), table(safe)
