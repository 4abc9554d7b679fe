"""Record the frames that the page on unmixing plays: `python -m tools.unmix_frames FILE.npz [SEED]`.

The victim is like that of the page, with 500 neurons in each layer, trained on fifty secret images of the file; SEED
draws it, 0 if not given. Into the book go unmix.webp, a strip of fifty tiles for each of twelve steps and one of the
secret images, and unmix.json, what the evaluator says of each step.
"""

import io
import json
import sys
from pathlib import Path

import torch
from PIL import Image
from torch.nn.functional import normalize
from torchvision.utils import make_grid

from attacks import unmixing
from evaluation.measures import STRONG
from training import images, stationary
from utils import networks
from utils.errors import InputError, write
from utils.kernels.similarity import ncc

BOOK = Path(__file__).parent.parent / "book"
M = 50
NEURONS = 500
FRAMES = 12


def attacked(released, shape, seed):
    """The attack's images (m, d), and what it held at every step (n, m, d), with the signs that it gives at its end.

    It sees what an attacker sees. InputError if it had to begin anew: its steps are then those of several searches.
    """
    count, basis, _ = unmixing.read(released)
    start = unmixing.orthogonal(count, basis.shape[1], seed)
    white = unmixing.whiten_features(basis, shape, True)[1]
    trail = [normalize(start, dim=1)]
    unmixing.unmix(basis, shape, count, seed, each=trail.append)
    result = unmixing.attack(released, shape, seed=seed)
    steps = torch.stack(trail) @ white @ basis.mT  # (n, m, r) @ (r, r) @ (r, d)
    signs = (steps[-1] * result.images).sum(-1).sign()
    steps = steps * (0.22 * signs / steps.std(-1))[..., None]
    if result.stopped != "even" or not torch.allclose(steps[-1], result.images):
        raise InputError(f"The search with the seed {seed} had to begin anew: take another seed.")
    return result.images, steps


def telling(progress, count):
    """The first step, the last one, and those between at which the progress (n,) has risen by as much each time."""
    levels = torch.linspace(progress[0].item(), progress.max().item(), count)[1:-1]
    return sorted(
        {0, len(progress) - 1, *((progress >= level).nonzero()[0].item() for level in levels)}
    )


def main(path, seed=0):
    """Train, attack, and write the two files."""
    data = images.split(images.load(path), M, M, int(seed), held_out=M)
    victim = stationary.train(
        data.secret, networks.perceptron("signed", NEURONS, NEURONS), int(seed)
    )
    result, steps = attacked(victim.released, data.shape, int(seed))

    # From here on the evaluator: he has the secret images and the held-out ones, both without their mean.
    truth, unused = (x - x.mean(0) for x in (data.secret.images, data.held_out.images))
    likeness = torch.stack([ncc(truth, step) for step in steps])  # (n, 50, 50)
    chosen = telling(likeness.amax(2).mean(1), FRAMES)
    owner = likeness[-1].argmax(0)  # which secret image a tile shows at the end
    if len(set(owner.tolist())) < M:
        raise InputError(
            f"With the seed {seed} two tiles show the same secret image: take another seed."
        )
    others = torch.stack([ncc(unused, steps[k]).amax(1) for k in chosen])  # (12, 50)
    summary = {
        "seed": int(seed),
        "steps": chosen,
        "above": [(likeness[k].amax(1) > STRONG).sum().item() for k in chosen],
        "held_out": (others > STRONG).sum(1).tolist(),
        "best_held_out": [round(value, 2) for value in others.amax(1).tolist()],
        "likeness": [
            [round(value, 2) for value in likeness[k][owner, range(M)].tolist()] for k in chosen
        ],
    }
    tiles = torch.cat([*(steps[k] + 0.5 for k in chosen), data.secret.images[owner]])
    tiles = (255 * tiles.clamp(0, 1)).round().byte().view(-1, *data.shape).permute(0, 3, 1, 2)
    sheet = Image.fromarray(make_grid(tiles, nrow=10, padding=0).permute(1, 2, 0).numpy())
    sheet.save(file := io.BytesIO(), "WEBP", quality=60, method=6)
    write(BOOK / "unmix.webp", file.getvalue())
    write(BOOK / "unmix.json", f"{json.dumps(summary)}\n".encode())
    above = summary["above"]
    held_out = summary["held_out"]
    print(
        f"{len(file.getvalue())} bytes; steps {chosen}; above {STRONG}: {above}; held-out {held_out}"
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) in (2, 3) else __doc__)
