"""Whether the audit finds how the trainer saw the pictures, and says nothing where they were given as in training."""

import numpy as np
import pytest
import torch
from helpers import audit, fitted, knowing, mlp
from known_files import toy
from PIL import Image

from audit import fit, pictures, report, stages
from audit.showing import Showing
from conftest import SHAPE, SIDE


def last(batch):
    """Pixels as (n, H, W, C)."""
    return batch.permute(0, 2, 3, 1)


SEEN = {
    "as given": ({}, {}, ""),
    "a normalisation": ({"showing": lambda batch: 2 * batch - 1}, {}, "--mean"),
    "a layout": ({"showing": last}, {}, "--layout HWC"),
    "two of three": ({"order": (2, 0), "outputs": 3}, {}, "--classes 1 - 0."),
    "an activation": ({"act": torch.nn.Sigmoid}, {}, "--activation sigmoid"),
    "an activation that is given": ({"act": torch.nn.Tanh}, {"activation": "tanh"}, ""),
}


@pytest.fixture(scope="module")
def many():
    """Both sides' photographs (40, 16, 16, 3), with labels of two classes by lot."""
    return toy("members", 1, None, size=(SIDE, SIDE), counts=(40, 40)).sides


def hints(found):
    """The sentences of a report on another way to show the pictures."""
    return [one for one in (found.sentence, *found.content["warnings"]) if " try --" in one]


@pytest.mark.parametrize("kind", SEEN)
def test_what_fits_better_is_said_with_its_option(kind, many):
    trained, given, option = SEEN[kind]
    found = audit(fitted(many[:1], steps=150, **trained), *many, steps=1, **given)
    assert len(hints(found)) == bool(option) or found.status == report.LEAKS
    assert all(option in one for one in hints(found))


READ = {  # how files were read, and the option that is named
    "squashed": ({"resize": "squash"}, "--resize squash"),
    "the middle of a larger one": ({"resize": 20}, "--resize 20"),
    "not turned": ({"turn": False}, "--unturned"),
    "on black": ({"alpha": "black"}, "--alpha black"),
}


@pytest.mark.parametrize("kind", READ)
def test_another_way_to_read_files_is_named(kind, many, tmp_path):
    how, option = READ[kind]
    folders, exif = [tmp_path / "in", tmp_path / "held"], Image.Exif()
    exif[pictures.ORIENTATION] = 3 if "turn" in how else 1
    veil = Image.new("L", (3 * SIDE, SIDE), 60)
    for path, (pixels, labels) in zip(folders, many):
        for k, one in enumerate(pixels):
            place = path / str(labels[k])
            place.mkdir(parents=True, exist_ok=True)
            wide = Image.fromarray(np.concatenate([one, pixels[k - 1], one], 1))
            if "alpha" in how:
                wide.putalpha(veil)
            wide.save(place / f"{k:02}.png", exif=exif)
    seen = pictures.load(folders[0], "", Showing(shape=SHAPE, **how))
    pixels = [(255 * seen.images.view(-1, *SHAPE).numpy(), np.array(seen.labels, int))]
    found = audit(fitted(pixels, steps=150), *folders, steps=1, shape=SHAPE)
    assert found.status == report.LEAKS or f"try {option}" in found.sentence


ORDERS = {
    "numbers as texts": ([str(k) for k in range(24)], str),
    "numbers in texts": ([f"class{k}" for k in range(24)], lambda name: int(name[5:])),
    "small and large letters": ([f"{'aB'[k % 2]}{k:02}" for k in range(24)], str.lower),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_orders_that_people_use_are_tried_with_any_number_of_classes(kind, many):
    names, key = ORDERS[kind]
    order = sorted(names, key=key)
    kinds = [np.array(names)[np.arange(len(part)) % 24] for part, _ in many]
    network = knowing(many[0][0], [order.index(name) for name in kinds[0]], 24)
    sides = [(part, name) for (part, _), name in zip(many, kinds)]
    (said,) = hints(audit(network, *sides))
    assert f"try --classes {' '.join(order)}." in said
    assert not hints(audit(network, *sides, classes=order))


def test_another_size_is_tried_where_a_network_takes_any(many):
    pixels, labels = many[0]
    larger = [np.asarray(Image.fromarray(one).resize((32, 32), pictures.FILTER)) for one in pixels]
    known = knowing(np.stack(larger), labels, 2)

    def network(given):
        return known(given) if given.shape[-1] == 32 else given.mean((2, 3))[:, :2]

    (said,) = hints(found := audit(network, *many, steps=1))
    assert found.status == report.NO_ANSWER and "try --shape 32 32." in said


def test_the_loss_is_asked_in_ways_in_which_as_many_are_classified_correctly(many):
    """A network that classifies all correctly, and knows the members if these are shown in the range of −1 to 1."""
    known = knowing(*many[0], 2, shows=lambda given: given / 2 + 0.5)
    pixels, kinds = (np.concatenate(part) for part in zip(*many))
    every = knowing(pixels, kinds, 2)
    (said,) = hints(found := audit(lambda x: known(x) if x.min() < 0 else every(x), *many))
    assert found.status == report.NO_ANSWER and "try --mean 0.5 --deviation 0.5" in said
    assert "the loss tells training pictures from held-out ones (p = 0.0" in said


def test_ways_that_a_few_pictures_rule_out_are_shown_no_more(many):
    known, shown = knowing(*many[0], 2), []
    audit(lambda given: shown.append(len(given)) or known(given), *many)
    assert shown.count(fit.FEW) > 10 and shown.count(len(many[0][0])) < 10


@pytest.mark.parametrize("kinds", [2, 3])
def test_networks_that_were_shown_pictures_so_get_no_hint(kinds, many):
    pixels, others = (part for part, _ in many)
    for seed in range(4):
        drawn = (np.random.default_rng(seed + k).permutation(40) % kinds for k in (0, 99))
        labels, theirs = drawn
        of = {"outputs": kinds, "order": range(kinds), "showing": last, "steps": 150}
        state = fitted([(pixels, labels)], seed=seed, **of)
        assert not hints(audit(state, (pixels, labels), (others, theirs), layout="HWC", steps=1))


def test_untrained_networks_get_no_hint(sides):
    found = [audit(mlp(seed=k).state_dict(), *sides, steps=1) for k in range(40)]
    assert sum(bool(hints(one)) for one in found) <= 2


def test_sides_that_were_exchanged_are_not_cleared(many):
    found = audit(fitted(many[:1], steps=150), *many[::-1], steps=1, accuracy=0.5)
    assert found.status == report.NO_ANSWER and found.sentence.endswith("exchanged?")


@pytest.mark.parametrize("share, said", [(0.55, "no more than by chance"), (0.8, ""), (0.0, "no")])
def test_a_stated_accuracy_that_chance_gives_says_nothing(share, said):
    facts = {"accuracy": (share, share), "losses": ([0.0] * 60, [0.0] * 60)}
    outcome = stages.Outcome("membership by loss", "ran", "", facts=facts)
    found = fit.poor([outcome], share, torch.arange(60) % 2)
    assert bool(found) == bool(said) and said in found


def way(right, name=""):
    """A Way in which so many of 40 pictures are classified correctly."""
    return fit.Way(name, name, None, None, (), right=torch.arange(40) < right)


def test_an_order_that_chance_found_is_judged_by_other_pictures():
    labels = torch.arange(200) % 10
    guesses = torch.randint(0, 10, (200,), generator=torch.Generator().manual_seed(0))
    order, right = fit.fitted(guesses, labels, 10)
    own = torch.tensor([order[kind] for kind in labels.tolist()]) == guesses
    assert right.double().mean() < 0.15 < own.double().mean()


@pytest.mark.parametrize(
    "right, share, others, found",
    [
        (20, 38, [26], 1),
        (4, 16, [16], 0),  # knows too few in any way
        (35, 40, [35], 0),  # p is 0.06
        (30, 40, [], 1),
        (30, 40, [30] * 39, 0),  # many ways must gain more
    ],
)
def test_another_way_is_right_more_often(right, share, others, found):
    assert len(fit.more_right(way(right), [way(share), *map(way, others)])) == found
