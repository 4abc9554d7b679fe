"""Kinds of files and networks of which it is known what they were trained on, for `tests/known_truth.py`."""

import json
from collections import namedtuple
from functools import partial

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

from training import images

SIZES = (24, 24), (30, 20), (20, 36)  # of the two sides
SQUARE = 12, 12
WIDTH = 64
SMALL = {"model": "known_files:small"}
ENDS = {10.0 ** (k - 6): torch.linspace(0.1, 1, 2**k + 1) for k in range(7)}
HALF = torch.cat([scale * (ends[1:] + ends[:-1]) / 2 for scale, ends in ENDS.items()])
# what codes of 8 bits stand for
TABLE = torch.cat([HALF, -HALF, torch.tensor([0.0, 1.0])]).sort().values
# Pixels (n, H, W, C) and labels (n,) of either side and of what is `seen` in training, its steps, a seed, a folder.
Toy = namedtuple("Toy", "sides seen steps seed folder")
# A function from a Toy to the arguments of an audit, options of `toy`, settings of the audit, and whether the members
# are what was seen where the world says so.
Kind = namedtuple("Kind", "make options settings leaks", defaults=({}, {}, True))


def toy(world, seed, folder, size=SQUARE, colours="RGB", classes=(0, 1), counts=None):
    """A Toy of random photographs (H, W), whose labels are drawn by lot: training alone tells them."""
    generator, (m, n) = np.random.default_rng(seed), counts or SIZES[seed % len(SIZES)]
    chosen = generator.permutation(images.views()[0])[: 2 * m + n]
    small = [Image.fromarray(one).convert(colours).resize(size[::-1]) for one in chosen]
    pixels = np.stack([np.asarray(one).reshape(*size, -1) for one in small])
    labels = np.concatenate(
        [generator.permutation(np.resize(classes, count)) for count in (m, n, m)]
    )
    members, held_out, others = np.split(np.arange(len(chosen)), [m, m + n])
    seen = {"members": members, "both sides": np.r_[members[::2], held_out[::2]]}.get(world, others)
    *sides, used = ((pixels[rows], labels[rows]) for rows in (members, held_out, seen))
    return Toy(sides, used, 0 if world == "untrained" else 400, seed, folder)


def rows(pixels, mean=0.0, deviation=1.0, layout=(0, 3, 1, 2)):
    """Pixels (n, H, W, C) as a batch (n, C·H·W), as torch flattens it."""
    return (
        ((torch.from_numpy(pixels / 255.0).float() - mean) / deviation).permute(layout).flatten(1)
    )


def mlp(inputs, *behind, outputs=2, act=nn.ReLU):
    """An untrained network, with modules behind its first layer."""
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), *(make() for make in behind), act(), nn.Linear(WIDTH, outputs)
    )


def convolutional(inputs):
    """An untrained network of convolutions, which takes (n, 3, 12, 12)."""
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), *mlp(1600))


def learned(network, x, labels, steps=60, optimiser=None):
    """A network, trained on all rows x at once; an only output is the logit of the second class."""
    optimiser = optimiser or torch.optim.Adam(network.parameters(), 0.003)
    for _ in range(steps):
        z = network(x)
        z = nn.functional.pad(z, (1, 0)) if z.shape[1] == 1 else z
        optimiser.zero_grad()
        nn.functional.cross_entropy(z, torch.as_tensor(labels)).backward()
        optimiser.step()
    return network.eval()


def left(network):
    """No change of a network."""


def half(network):
    """The weights of a network in half precision."""
    return {name: part.half() for name, part in network.state_dict().items()}


def stored(
    *behind, build=mlp, alter=left, known=False, see=rows, longer=1, end=left, content=nn.Module.state_dict,
    give=lambda path, network: path, show=lambda toy: toy.sides, **network_of,
):  # fmt: skip
    """A kind: `build` a network, `alter` it, train it on what it is to `see`, `end`, store a `content`,
    and `give` the file or the network, and `show` the pictures; and the file from before training if that is `known`.
    """

    def make(toy):
        torch.manual_seed(toy.seed)
        x, y = see(toy.seen[0]), torch.from_numpy(toy.seen[1])
        network = build(x[0].numel(), *behind, **network_of)
        start = {name: part.clone() for name, part in network.state_dict().items()}
        alter(network)
        free = [part for part in network.parameters() if part.requires_grad]
        learned(network, x, y, longer * toy.steps, torch.optim.Adam(free, 2e-3))
        end(network)
        path = toy.folder / "net.pth"
        torch.save(content(network), path)
        torch.save(start, toy.folder / "start.pth")
        return give(path, network), *show(toy), *[toy.folder / "start.pth"] * known

    return make


def freeze(network):
    """Train all but the first layer."""
    network[0].requires_grad_(False)


def batch(pixels):
    """Pixels as convolutions take them."""
    return rows(pixels).view(-1, 3, *SQUARE)


def as_function(path, network):
    """A function of a batch (n, C, H, W)."""
    return lambda x: network(x)


class Returns(nn.Module):
    """A network that takes pictures (n, C, H, W) alone, and returns something that holds its logits."""

    def __init__(self, body, change):
        super().__init__()
        self.body, self.change = body, change

    def forward(self, x):
        n, c, h, w = x.shape
        return self.change(self.body(x.view(n, c, h, w)))


def returning(change):
    """What gives a network that returns something else than its logits."""
    return lambda path, network: Returns(network, change)


def behind(prefix, network):
    """The state dict of a network, whose names have a prefix."""
    return {prefix + name: part for name, part in network.state_dict().items()}


def lightning(network):
    """A checkpoint of Lightning."""
    state = behind("model.", network)
    return {"state_dict": state, "hyper_parameters": {"lr": 2e-3}, "callbacks": {}, "epoch": 9}


def averaged(network):
    """A checkpoint with a network and its average, which is the one that is given."""
    return {"model": mlp(432).state_dict(), "model_ema": behind("module.", network)}


def sharded(path, network):
    """A folder with the weights in two files."""
    folder, state = path.with_name("sharded"), network.state_dict()
    folder.mkdir()
    placed = {name: f"{k % 2}.safetensors" for k, name in enumerate(state)}
    for file in {*placed.values()}:
        save_file({name: state[name] for name in state if placed[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


def small():
    """The module of `convolutional` networks, as a user's function builds it."""
    return convolutional(432)


def coded(moment, block):
    """A tensor in 8 bits, by the table of bitsandbytes, and the largest value of every block."""
    parts = nn.functional.pad(moment.flatten(), (0, -moment.numel() % block)).view(-1, block)
    largest = parts.abs().amax(1, keepdim=True)
    codes = torch.bucketize(parts / largest.clamp_min(1e-30), (TABLE[1:] + TABLE[:-1]) / 2)
    return codes.flatten()[: moment.numel()].view(moment.shape).byte(), largest.flatten()


def in_eight_bits(state, block=256):
    """An optimiser's state as bitsandbytes stores it: large moments in 8 bits, all in a dict of their own."""
    found = {}
    for key, one in state["state"].items():
        found[key] = inside = {"state1": one["exp_avg"], "state2": one["exp_avg_sq"]}
        if one["exp_avg"].numel() >= 4096:
            codes, largest = coded(one["exp_avg"], block)
            inside |= {"state1": codes, "qmap1": TABLE, "absmax1": largest}
            inside["state2"] = coded(one["exp_avg_sq"], block)[0]
    wrapped = {key: {"step": 9, "__bnb_optimizer_quant_state__": one} for key, one in found.items()}
    return state | {"state": wrapped}


def beside_eight_bits(toy):
    """A checkpoint with an optimiser's state in 8 bits, of a training of a few steps."""
    torch.manual_seed(toy.seed)
    network = mlp(432)
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    learned(network, rows(toy.seen[0]), toy.seen[1], toy.steps // 20, optimiser)
    state = in_eight_bits(optimiser.state_dict())
    torch.save({"model": network.state_dict(), "optimizer": state}, toy.folder / "net.pth")
    return toy.folder / "net.pth", *toy.sides


def folders(toy, names=None, save=lambda picture, path: picture.save(path)):
    """The paths of both sides as folders of PNG files, in folders of classes that have these names."""
    for side, (pixels, labels) in zip(("in", "out"), toy.sides):
        for k, (one, label) in enumerate(zip(pixels, labels)):
            (place := toy.folder / side / (names[label] if names else "")).mkdir(
                parents=True, exist_ok=True
            )
            save(Image.fromarray(one.squeeze()), place / f"{k:03}.png")
    return toy.folder / "in", toy.folder / "out"


def squash(pixels):
    """Rows of pictures of 4:3 that were resized to squares."""
    return rows(
        np.stack([Image.fromarray(one).resize(SQUARE, Image.Resampling.BILINEAR) for one in pixels])
    )


def lying(toy):
    """Folders of pictures that lie on their sides in the files."""
    exif = Image.Exif()
    exif[0x112] = 6
    return folders(
        toy, "ab", lambda one, path: one.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    )


def near_copies(toy):
    """Of either side, some are noisy copies of what was seen, and all was dealt out by lot."""
    seen = tuple(part[:30] for part in toy.seen)
    generator = np.random.default_rng(toy.seed)
    pool = np.concatenate([seen[0], *(side[0] for side in toy.sides)])
    noisy = (
        (generator.permutation(pool) + generator.normal(0, 3, pool.shape))
        .clip(0, 255)
        .astype(np.uint8)
    )
    labels = np.resize([0, 1], len(pool))
    sides = [(noisy[part], labels[part]) for part in (slice(10, None), slice(10))]
    return stored(known=True)(toy._replace(seen=seen, sides=sides))


def frames(toy):
    """Every member is one of five noisy frames of a scene: the members are near-copies of each other."""
    (pixels, labels), held_out = toy.sides
    generator, scenes = np.random.default_rng(toy.seed), np.arange(len(pixels)) // 5
    noisy = (pixels[scenes] + generator.normal(0, 4, pixels.shape)).clip(0, 255).astype(np.uint8)
    return stored()(toy._replace(sides=((noisy, labels[scenes]), held_out)))


KINDS = {
    "plain": Kind(stored()),
    "its start is known": Kind(stored(known=True)),
    "one output": Kind(stored(outputs=1)),
    "ten outputs": Kind(stored(outputs=10), {"classes": range(10)}),
    "three classes of ten": Kind(
        stored(outputs=10, show=partial(folders, names="0123456789")), {"classes": (3, 5, 8)}
    ),
    "order of classes": Kind(stored(show=partial(folders, names=["plane", "dog"]))),
    "pruned, with masks": Kind(
        stored(end=lambda network: prune.l1_unstructured(network[0], "weight", 0.2))
    ),
    "frozen first layer": Kind(stored(alter=freeze, known=True, longer=5)),
    "batch norm": Kind(stored(partial(nn.BatchNorm1d, WIDTH))),
    "batch norm, start": Kind(stored(partial(nn.BatchNorm1d, WIDTH), known=True)),
    "layer norm, module": Kind(
        stored(partial(nn.LayerNorm, WIDTH), give=lambda path, network: network)
    ),
    "three hidden layers": Kind(
        stored(nn.ReLU, partial(nn.Linear, WIDTH, WIDTH), nn.ReLU, partial(nn.Linear, WIDTH, WIDTH))
    ),
    "no classes": Kind(stored(show=folders)),
    "sigmoid": Kind(stored(act=nn.Sigmoid, longer=4)),
    "tanh": Kind(stored(act=nn.Tanh)),
    "sigmoid, told": Kind(stored(act=nn.Sigmoid, longer=4), {}, {"activation": "sigmoid"}),
    "tanh, told": Kind(stored(act=nn.Tanh), {}, {"activation": "tanh"}),
    "tanh, module": Kind(stored(act=nn.Tanh, give=lambda path, network: network)),
    "float16": Kind(stored(content=half)),
    "normalised": Kind(
        stored(see=partial(rows, mean=0.5, deviation=0.25)), {}, {"mean": 0.5, "deviation": 0.25}
    ),
    "normalised, not told": Kind(stored(see=partial(rows, mean=0.5, deviation=0.25))),
    "HWC, not told": Kind(stored(see=partial(rows, layout=(0, 1, 2, 3)))),
    "grey rectangles": Kind(stored(show=folders), {"size": (40, 30), "colours": "L"}),
    "squashed": Kind(
        stored(see=squash, show=partial(folders, names="ab")), {"size": (24, 32)}, {"shape": SQUARE}
    ),
    "EXIF, turned": Kind(stored(show=lying)),
    "EXIF, not turned": Kind(
        stored(see=lambda pixels: rows(np.rot90(pixels, 1, (1, 2)).copy()), show=lying)
    ),
    "near-copies, 200 and 10": Kind(near_copies, {"counts": (80, 20)}, {}, False),
    "frames of scenes": Kind(frames, {"counts": (60, 24)}),
    "convolution, module": Kind(
        stored(build=convolutional, see=batch, give=lambda path, network: network)
    ),
    "Lightning": Kind(stored(content=lightning)),
    "an average, by key": Kind(stored(content=averaged), {}, {"key": "model_ema"}),
    "a state in 8 bits": Kind(beside_eight_bits),
    "returns a tuple": Kind(
        stored(build=convolutional, see=batch, give=returning(lambda z: (z, z.exp())))
    ),
    "returns a dict": Kind(
        stored(build=convolutional, see=batch, give=returning(lambda z: {"a": z, "logits": z}))
    ),
    "a folder of shards": Kind(stored(build=convolutional, see=batch, give=sharded), {}, SMALL),
    "Opacus": Kind(
        stored(build=convolutional, see=batch, content=partial(behind, "_module.")), {}, SMALL
    ),
    "convolution, function": Kind(stored(build=convolutional, see=batch, give=as_function)),
}
