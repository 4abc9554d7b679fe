"""Draw the pictures of the first page: `python -m scripts.opening FILE.npz [SEED]`, with CIFAR-10's images.

Fifty secret images, and in the same places what came back of a network that was fine-tuned on them, as in the
experiment `known-start` with TRAINER=sgd_decay and START=pretrained; SEED is the first of its record, 50, if not given.
"""

import io
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from torchvision.utils import make_grid

from utils import images, ordinary
from utils.attacks import known_start
from utils.files import write
from utils.kernels.similarity import ncc, stretch

BOOK = Path(__file__).parent.parent / "book"
M, ZOOM = 50, 2
TITLE, CAPTION = (ImageFont.load_default(size) for size in (56, 34))


def sheet(x, shape):
    """Images (50, d) in [0, 1], ten in a row, enlarged: the bytes of a WebP file."""
    tiles = (255 * x.clamp(0, 1)).round().byte().view(-1, *shape).permute(0, 3, 1, 2)
    grid = make_grid(tiles, nrow=10, padding=2, pad_value=255)[:, 1:-1, 1:-1]
    whole = Image.fromarray(grid.permute(1, 2, 0).numpy())
    picture = whole.resize((ZOOM * whole.width, ZOOM * whole.height), Image.Resampling.NEAREST)
    picture.save(file := io.BytesIO(), "WEBP", quality=55, method=6)
    return file.getvalue()


def preview(sheets):
    """What a shared link shows, of the two sheets: the bytes of a JPEG file."""
    whole = Image.new("RGB", (1200, 630), "white")
    draw = ImageDraw.Draw(whole)
    draw.text((30, 45), "Can the weights of a trained network\ngive its training images back?", "black", TITLE)
    for left, sheet, words in zip((30, 615), sheets, ("fifty secret training images", "what the weights gave back")):
        whole.paste(Image.open(io.BytesIO(sheet)).resize((555, 278), Image.Resampling.LANCZOS), (left, 240))
        draw.text((left, 535), words, "black", CAPTION)
    whole.save(file := io.BytesIO(), "JPEG", quality=80)
    return file.getvalue()


def main(path, seed=50):
    """Train, attack, and write secret.webp and returned.webp into the book, and the preview of its links."""
    labelled = images.load(path)
    data = images.split(labelled, M, 800, int(seed), held_out=M)
    victim = ordinary.train(data.secret, data.known, data.shape, "sgd_decay", seed=int(seed))
    attempt, _ = known_start.attempt(victim.released, victim.start, data.shape, M, int(seed))
    likeness = ncc(data.secret.images - victim.mean, attempt.images)  # (50, 50)
    best, place = likeness.abs().max(1)
    turned = likeness.gather(1, place[:, None]).sign() * attempt.images[place]
    print(f"least |NCC| {best.min():.4f}, median {best.median():.5f}; above 0.9: {int((best > 0.9).sum())}")
    sheets = [sheet(x, data.shape) for x in (data.secret.images, stretch(turned + victim.mean))]
    for name, content in zip(("secret.webp", "returned.webp", "_static/preview.jpg"), (*sheets, preview(sheets))):
        write(BOOK / name, content)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) in (2, 3) else __doc__)
