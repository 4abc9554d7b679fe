"""The command line of an audit."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from audit.__main__ import FAULT, HELPED, INTERRUPTED, Helped, Line
from audit.report import FILES, NO_ANSWER, check_room
from audit.run import audit
from audit.weights import ACTIVATIONS
from training.images import DATA
from utils.errors import InputError, printable
from utils.kernels.step import full

WHAT = """\
Which of its training pictures does a network give away?

The audit makes all attacks of this book on a network, and compares what comes
back with the training pictures and with held-out ones, which give the null.

example, a network that was fine-tuned from a public one:
  %(prog)s tuned.safetensors training-pictures held-out-pictures \\
      --before public.safetensors --mean 0.49 0.48 0.45 --out report
"""
END = """\
output:
  FOLDER/report.html   the finding, and the pictures that came back; opens in
                       any browser, shows training pictures: keep it to yourself
  FOLDER/report.json   the same numbers (data/audit.schema.json describes them)

exit status:
  0    these attacks found nothing
  1    something leaks
  2    there is no answer: a file or setting was refused; the two sides differ, are
       too small or were exchanged; pictures were shown in another way than in
       training; or some tests were left out and the others found nothing
  70   the program failed, which says nothing about the network
  130  it was interrupted

README.md and the chapter "Try your own" tell more.
"""


def parser():
    """The command line."""
    prog = "audit" if Path(sys.argv[0]).stem == "audit" else "python -m audit"
    line = Line(prog, "%(prog)s NETWORK MEMBERS HELD_OUT [options]", WHAT, END)
    line.formatter_class = argparse.RawDescriptionHelpFormatter
    line.add_argument(
        "network", help="its weights, a .pth, .safetensors or .npz file; no code in it is run"
    )
    line.add_argument(
        "members",
        help="its training pictures: a folder, whose folders are the classes, or an .npz file",
    )
    line.add_argument(
        "held_out",
        help="ten or more pictures of the same source that it never saw, in the same form",
    )
    of_network(line.add_argument_group("the network").add_argument)
    of_pictures(line.add_argument_group("how it saw the pictures").add_argument)
    of_audit(line.add_argument_group("the audit").add_argument)
    return line


def of_network(add):
    """Options that tell more of the network."""
    add("--before", metavar="NETWORK", help="the network before training, if an attacker can have it; else its start is"
        " read from the signs of the weights, where torch drew it on a CPU")  # fmt: skip
    add("--model", metavar="MODULE:FUNCTION", help="your function that builds it, of any kind, such as nets:resnet or"
        " path/nets.py:resnet; its code is run")  # fmt: skip
    add("--key", metavar="NAME", help="which of several networks in its file, such as model_ema")
    add(
        "--activation",
        default="relu",
        choices=ACTIVATIONS,
        help="between a file's layers (%(default)s)",
    )
    add(
        "--optimizer",
        metavar="FILE",
        help="its optimiser's state, where its own file does not hold that",
    )


def of_pictures(add):
    """Options on how its trainer showed the pictures."""
    add("--mean", nargs="+", type=float, metavar="X", help="subtracted from pixels in [0, 1], one number or one for"
        " each channel; else what the network's file holds as normalize.mean and .std, or 0 and 1")  # fmt: skip
    add("--deviation", nargs="+", type=float, metavar="X", help="then divided by, in the same form")
    add(
        "--centred",
        action="store_true",
        help="the mean of the training pictures was subtracted, too",
    )
    add(
        "--layout",
        choices=["CHW", "HWC"],
        default="CHW",
        help="how it flattened them (%(default)s)",
    )
    add(
        "--shape",
        nargs="+",
        type=int,
        metavar="N",
        help="height, width and channels (1 or 3) that it takes",
    )
    add("--resize", type=side_or_word, default="crop", metavar="HOW", help="files of another size are cut to their"
        " middle (crop), or squashed (squash); or their shorter side is resized to so many pixels (a number), and the"
        " middle is cut out (%(default)s)")  # fmt: skip
    add(
        "--unturned",
        action="store_false",
        dest="turn",
        help="do not turn pictures as their cameras say (EXIF)",
    )
    add("--alpha", choices=["white", "black", "drop"], default="white", help="transparent pictures are laid on this"
        " paper, or lose their transparency (%(default)s)")  # fmt: skip
    add("--classes", nargs="+", default=(), metavar="NAME", help="in the order of the outputs, - for one without"
        " pictures (else the alphabet's; numbers are outputs)")  # fmt: skip
    add("--skip-corrupt", action="store_true", dest="skip", help="leave out broken pictures")


def side_or_word(text):
    """A number of pixels, or what else is given."""
    return int(text) if text.isdecimal() else text


def of_audit(add):
    """Options on what is asked, and where the report goes."""
    add("--accuracy", type=float, metavar="SHARE", help="of its training pictures that it classified correctly when its"
        " training ended, if that was below 0.9")  # fmt: skip
    add(
        "-o",
        "--out",
        default="report",
        metavar="FOLDER",
        help="for the report's two files (%(default)s)",
    )
    add("--shadows", type=int, default=0, metavar="N", help="train so many reference networks, such as 16, on random"
        " halves of all pictures, for two more tests of membership")  # fmt: skip
    add("--train", metavar="MODULE:FUNCTION", help="your function (pictures, labels, seed) that trains such a network"
        " as yours was, on normalised pictures, and returns it; its code is run")  # fmt: skip
    add(
        "--loss",
        choices=["auto", "square", "logistic", "cross_entropy"],
        default="auto",
        help="it was trained by",
    )
    add("--steps", type=int, default=200, help="of the stationarity attack (%(default)s)")
    add("--seed", type=int, default=0, help="of what is drawn at random (%(default)s)")
    add("--level", type=float, default=0.05, help="chance of a false alarm (%(default)s)")
    add("--limit", type=float, default=600, help="seconds that a stage may take a usual core; beyond, it is left out"
        " (%(default)s)")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit, write the report, say the finding or what went wrong, and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        settings = vars(parser().parse_args(arguments))
        folder = settings.pop("out")
        if not DATA.is_dir():
            raise InputError(
                "The audit reads files of its repository: install it from a clone, by pip install -e ."
            )
        check_room(folder)
        report = audit(**settings)
        path = report.save(folder)
        for warning in report.content["warnings"]:
            print(printable(f"Note: {warning}"), file=sys.stderr)
        print(printable(report.sentence))
        print(printable(f"{path} ({FILES[0]} beside it)"), flush=True)
        return report.status
    except Helped:
        return HELPED
    except KeyboardInterrupt:
        print("Interrupted: no report was written.", file=sys.stderr)
        return INTERRUPTED
    except InputError as error:
        print(printable(str(error)), file=sys.stderr)
        return NO_ANSWER
    except Exception as error:
        if full(error):
            print(
                "The memory is full: audit fewer pictures, or end other programs.", file=sys.stderr
            )
            return NO_ANSWER
        traceback.print_exc()
        return FAULT
