"""The audit of networks of which it is known whether they leak: no leak is cleared, and alarms are as rare as said."""

import functools

import pytest
from known_files import KINDS
from known_truth import allowed, run, table

from audit.report import FOUND_NOTHING, LEAKS, NO_ANSWER
from training import images

VIEWS = functools.cache(images.views)
LEAKING = [kind for kind in KINDS if KINDS[kind].leaks]


def ended(kind, world, monkeypatch):
    """The Run of a kind of file, the same in every run of the tests; photographs are cut once for all."""
    monkeypatch.setattr(images, "views", VIEWS)
    return run(kind, world, [*KINDS].index(kind), steps=1)


@pytest.mark.parametrize("kind", LEAKING)
def test_no_network_that_leaks_is_cleared(kind, monkeypatch):
    found = ended(kind, "members", monkeypatch)
    assert found.status in (LEAKS, NO_ANSWER), found.sentence


def test_alarms_are_as_rare_as_the_level_says_and_nothing_is_cleared_without_classes(monkeypatch):
    worlds = ("others", "both sides", "untrained")
    safe = [ended(kind, worlds[k % 3], monkeypatch) for k, kind in enumerate([*KINDS][1::2])]
    assert {one.status for one in safe} <= {FOUND_NOTHING, LEAKS, NO_ANSWER}
    assert sum(one.status == LEAKS for one in safe) <= allowed(len(safe)), table(safe)
    assert ended("no classes", "others", monkeypatch).status == NO_ANSWER
