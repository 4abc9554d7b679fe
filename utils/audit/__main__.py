"""python -m utils.audit NETWORK MEMBERS HELD_OUT: exit status 0 found nothing, 1 something leaks, 2 no answer."""

import argparse
import sys
import traceback

from utils.audit.report import FILES, NO_ANSWER, writable
from utils.audit.run import audit
from utils.errors import InputError

INTERRUPTED = 130


def parser():
    """The command line."""
    end = "Exit status: 0 these attacks found nothing, 1 something leaks, 2 there is no answer."
    found = argparse.ArgumentParser("python -m utils.audit", description=__doc__, epilog=end)
    found.add_argument("network", help="weights: a state dict as .pth or .safetensors; no code in it is run")
    found.add_argument("members", help="training pictures: an .npz file or a folder, with folders as classes")
    found.add_argument("held_out", help="pictures of the same source that were not trained on, in the same form")
    found.add_argument("--before", metavar="NETWORK", help="the network before training, if an attacker can have it")
    found.add_argument("--out", default="audit", metavar="FOLDER", help="for report.html and report.json (%(default)s)")
    found.add_argument("--mean", type=float, nargs="+", default=[0.0], help="taken off pixels in [0, 1] by the trainer")
    found.add_argument("--deviation", type=float, nargs="+", default=[1.0], help="by which it then divided")
    found.add_argument("--centred", action="store_true", help="it took off the mean of the training pictures, too")
    found.add_argument("--layout", choices=["CHW", "HWC"], default="CHW", help="how it flattened them (%(default)s)")
    found.add_argument("--loss", choices=["auto", "square", "logistic", "cross_entropy"], default="auto")
    found.add_argument("--steps", type=int, default=200, help="of the stationarity attack (%(default)s)")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--level", type=float, default=0.05, help="chance of a false alarm (%(default)s)")
    found.add_argument("--limit", type=float, default=600.0, help="seconds of a stage, beyond which it is left out")
    found.add_argument("--skip-corrupt", action="store_true", dest="skip", help="leave out broken pictures")
    return found


def main(arguments=None):
    """Audit, write the report, and return the exit status."""
    given = vars(parser().parse_args(arguments))
    folder = given.pop("out")
    try:
        writable(folder)
        report = audit(**given)
        path = report.save(folder)
    except InputError as error:
        print(error, file=sys.stderr)
        return NO_ANSWER
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            traceback.print_exc()
        else:
            print("The memory is full: audit fewer pictures, or end what else runs.", file=sys.stderr)
        return NO_ANSWER
    except KeyboardInterrupt:
        print("Interrupted: no report was written.", file=sys.stderr)
        return INTERRUPTED
    except Exception:  # 1 would say that something leaks
        traceback.print_exc()
        return NO_ANSWER
    for warning in report.content["warnings"]:
        print(f"Note: {warning}", file=sys.stderr)
    print(f"{report.sentence}\n{path} ({FILES[0]} beside it)")
    return report.status


if __name__ == "__main__":
    sys.exit(main())
