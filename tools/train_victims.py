"""Train the book's victims from the seeds, for anyone to attack: weights, recipes, and which images they saw.

    .venv/bin/python -m tools.train_victims [FOLDER] [--dataset photos] [--images 20] [--neurons 90] [--seed 0]

FOLDER gets `index.json` and `.safetensors` files, but no image: the index names the places of images in the data set.
The files of data/victims are those of the default settings; the book's size is `--images 50 --neurons 500`.
"""

import argparse
import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from audit import benchmark
from training import images, ordinary, stationary
from utils import networks
from utils.errors import InputError

# What files do not tell of a recipe: these networks have ReLUs or no neurons.
HIDDEN = "dtype", "sharpness"
ABOUT = {
    "affine": "An affine classifier with weight decay, at its stationary point.",
    "small-start": "A three-layer ReLU network from small weights, with weight decay, to a stationary point.",
    "known-start": "A three-layer ReLU network by torch's SGD with momentum and decay, from a known start.",
    "adam": "The same network, from the same known start, by Adam.",
}


def train_all(data, neurons, seed):
    """{name: Victim}, the first two at stationary points."""
    recipes = {
        "affine": networks.affine(0.01),
        "small-start": networks.perceptron("signed", neurons, neurons),
    }
    victims = {name: stationary.train(data.secret, one, seed) for name, one in recipes.items()}
    given = data.secret, None, data.shape
    for name, trainer in {"known-start": "sgd_decay", "adam": "adam"}.items():
        victims[name] = ordinary.train(*given, trainer, (neurons, neurons), seed=seed)
    return victims


def find(part, labelled):
    """Where the images of a Part are in a data set."""
    rows = {image.tobytes(): k for k, image in enumerate(labelled.images)}
    pixels = (part.images * 255).round().numpy().astype(labelled.images.dtype)
    return [rows[image.tobytes()] for image in pixels]


def write(path, network, metadata):
    """Write a network in single precision, as networks are published; the name of the file."""
    named = {
        f"layers.{k}.{name}": part.float().cpu().contiguous()
        for k, layer in enumerate(network)
        for name, part in layer._asdict().items()
        if part is not None
    }
    save_file(named, path, metadata)
    return path.name


def train_and_write(folder, data, rows, neurons, told):
    """Train all victims on a Split, and write their files: the index, {name: what is said of it, `told` of all}."""
    index = {}
    for name, victim in train_all(data, neurons, told["seed"]).items():
        recipe = victim.released.recipe._asdict()
        recipe = {key: value for key, value in recipe.items() if key not in HIDDEN}
        before = None
        mean = [0.0] * data.shape[-1]  # per colour
        if victim.initial:
            mean = victim.mean.view(data.shape)[0, 0].tolist()
            path = folder / "start.safetensors"  # the same for all that have one
            before = write(path, victim.initial, {"about": "before any training"})
        path = folder / f"{name}.safetensors"
        index[name] = {
            "about": ABOUT[name],
            "before": before,
            "shape": list(data.shape),
            "file": write(path, victim.released.network, {"recipe": json.dumps(recipe)}),
            **told,
            "mean": mean,
            "recipe": recipe,
            "training": rows[0],
            "held_out": rows[1],
            "labels": data.secret.labels.long().tolist(),
            "held_out_labels": data.held_out.labels.long().tolist(),
        }
    return index


def main(arguments=None):
    """Train all victims, and write their files and the index."""
    parser = argparse.ArgumentParser(
        "python -m tools.train_victims", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", default=benchmark.FOLDER, type=Path)
    parser.add_argument(
        "--dataset", default="photos", help="photos, cifar10-subset or an .npz file of bytes"
    )
    for name, default in {"images": 20, "neurons": 90, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    labelled = images.load(given.dataset)
    if labelled.images.dtype.kind != "u":
        raise InputError("The index names images by their bytes: give a data set of bytes.")
    m = given.images
    data = images.split(labelled, m, m, given.seed, held_out=m)
    rows = [find(part, labelled) for part in (data.secret, data.held_out)]
    given.folder.mkdir(parents=True, exist_ok=True)
    told = {
        "dataset": given.dataset,
        "binary": True,
        "seed": given.seed,
        "sha256": benchmark.digest(labelled.images[sum(rows, [])]),
    }
    index = train_and_write(given.folder, data, rows, given.neurons, told)
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in index.items())
    (given.folder / "index.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
