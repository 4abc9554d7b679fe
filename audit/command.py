"""The command line, of three verbs: `audit network` writes a report on pictures, `audit words` prints words, `audit
outputs` writes a table of records.
"""

import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields

from audit.__main__ import FAULT, HELPED, LEAKS, NO_ANSWER, Helped, Line
from audit.outputs import FILE, outputs
from audit.report import FILES, check_room
from audit.run import audit
from audit.showing import Asking, Showing
from audit.words import words
from training.images import DATA
from utils.errors import InputError, printable
from utils.kernels.step import full

VERBS = """\
usage: audit network NETWORK MEMBERS HELD_OUT [options]
       audit words NETWORK [--before NETWORK] [options]
       audit outputs TABLE [options]

  network   which of its training pictures does a network give away?
  words     which words was a fine-tuned language model shown?
  outputs   whom was a network trained on, of which only the outputs are known?

`audit network --help` and the like list the options. Outside of an
environment in which it is installed, `python -m audit` is the same command.
"""
NETWORK = """\
Which of its training pictures does a network give away?

The audit makes all attacks of this book on a network, and compares what comes
back with the training pictures and with held-out ones, which give the null.

example, a network that was fine-tuned from a public one:
  audit network tuned.safetensors training-pictures held-out-pictures \\
      --before public.safetensors --mean 0.49 0.48 0.45 --out report
"""
END = """\
output:
  FOLDER/report.html   the finding, the ten pictures most at risk, and what came
                       back; opens in any browser, prints to PDF. It shows
                       training pictures: keep it to yourself (--no-pictures)
  FOLDER/report.json   the same numbers (data/audit.schema.json describes them)
  FOLDER/pictures.csv  each picture's risk, the most exposed first

exit status:
  0    these attacks found nothing; never said of a folder without class folders
  1    something leaks
  2    there is no answer: a file or setting was refused; the memory is full;
       the two sides differ, are too small or were exchanged; pictures were
       shown in another way than in training; or some tests were left out and
       the others found nothing
  70   the program failed or was ended, which says nothing about the network
  130  it was interrupted

README.md and the chapter "Try your own" tell more.
"""
WORDS = """\
Which words was a fine-tuned language model shown?

The words that training used are the rows of the embedding that moved. They are
training data. Behind a word stands its place in its text, from 0 on, where the
rows of places tell one. It never says that nothing leaks: other attacks may
tell what this one does not.
"""
WORDS_END = "exit status: 1 the words can be read, 2 there is no answer, 70 the program failed."
OUTPUTS = """\
Whom was a network trained on, of which only the outputs are known?

The table is a CSV file with a head and a row for each record: `member`, whether
the network was trained on it (1 or 0), `label`, its class, and the probability
of each class, in the classes' order, or of the second one of two alone.
Membership alone is asked: it never says that nothing leaks.
"""
OUTPUTS_END = """\
output: FOLDER/records.csv, the false-positive rate of each record.
exit status: 1 something leaks, 2 there is no answer, 70 the program failed.
"""
ASKED_OF_OUTPUTS = "epsilon", "delta", "level", "seed"  # of the fields of Asking
NETWORK_FILES = {
    "--before": (
        "NETWORK",
        "the network before training, if an attacker can have it; else its start is read from the signs of the weights,"
        " where torch drew it on a CPU",
    ),
    "--model": (
        "MODULE:FUNCTION",
        "your function that builds it, of any kind, such as nets:resnet or path/nets.py:resnet, or its name in a"
        " library, timm:NAME or torchvision:NAME; its code is run",
    ),
    "--key": ("NAME", "which of several networks in its file, such as model_ema"),
    "--optimizer": (
        "FILE",
        "its optimiser's state, where its own file or folder does not hold that",
    ),
}
WORDS_FILES = {
    "--vocabulary": ("FILE", "vocab.json or tokenizer.json, or one word in a line"),
    "--key": ("NAME", "which of several networks in a file"),
    "--embedding": ("NAME", "of the matrix with a row for each word, if it is not found"),
}


def network_line():
    """The command line of `audit network`, whose options are the fields of Showing and Asking."""
    usage = "%(prog)s NETWORK MEMBERS HELD_OUT [options]"
    line = Line("audit network", usage, NETWORK, END)
    line.add_argument(
        "network",
        help="its weights, a .pth, .ckpt, .safetensors or .npz file, or a folder of transformers; no code in it is run",
    )
    line.add_argument(
        "members",
        help="its training pictures: a folder, whose folders are the classes, or an .npz file",
    )
    line.add_argument(
        "held_out",
        help="ten or more pictures of the same source that it never saw, in the same form",
    )
    add_files(line.add_argument_group("the network"), NETWORK_FILES)
    add_fields(line.add_argument_group("how it saw the pictures"), Showing)
    group = line.add_argument_group("the audit")
    add_fields(group, Asking)
    add_out(group, "the report's files")
    return line


def words_line():
    """The command line of `audit words`."""
    usage = "%(prog)s NETWORK [--before NETWORK] [options]"
    line = Line("audit words", usage, WORDS, WORDS_END)
    known = (
        "a state dict of the fine-tuned model in a .pth or .safetensors file, or a checkpoint's folder"
        " as transformers writes it, whose optimizer.pt tells words without --before"
    )
    line.add_argument("network", help=known)
    line.add_argument("--before", metavar="NETWORK", help="the same before fine-tuning")
    add_files(line, WORDS_FILES)
    return line


def outputs_line():
    """The command line of `audit outputs`, with some of the fields of Asking."""
    line = Line("audit outputs", "%(prog)s TABLE [options]", OUTPUTS, OUTPUTS_END)
    line.add_argument("table", help="a CSV file of outputs")
    add_fields(line, Asking, ASKED_OF_OUTPUTS)
    add_out(line, "the table of records")
    return line


def add_out(line, what):
    """Add the option of the folder that `what` is written to."""
    help = f"for {what} (%(default)s)"
    line.add_argument("-o", "--out", default="report", metavar="FOLDER", help=help)


def add_files(group, options):
    """Add options that are {name: (metavar, help)}."""
    for name, (metavar, help) in options.items():
        group.add_argument(name, metavar=metavar, help=help)


def add_fields(group, kind, names=()):
    """Add the fields of a dataclass as options, or those of some names; it checks their values itself."""
    for one in (one for one in fields(kind) if not names or one.name in names):
        how = {name: part for name, part in one.metadata.items() if name != "between"}
        flag = how.pop("flag", f"--{one.name}")
        if isinstance(one.default, bool):
            how["action"] = "store_false" if one.default else "store_true"
        elif isinstance(one.default, int | float):
            how["type"] = type(one.default)
        elif choices := how.pop("choices", ()):
            how["metavar"] = f"{{{','.join(choices)}}}"
        group.add_argument(flag, dest=one.name, default=one.default, **how)


def audit_network(given):
    """Audit, write the report, say the finding, and return the exit status."""
    settings = vars(given)
    folder = settings.pop("out")
    if not DATA.is_dir():
        mend = "install it from a clone, by pip install -e ."
        raise InputError(f"The audit reads files of its repository: {mend}")
    check_room(folder)
    report = audit(**settings)
    path = report.save(folder)
    for warning in report.content["warnings"]:
        print(printable(f"Note: {warning}"), file=sys.stderr)
    print(printable(report.sentence))
    print(printable(f"{path} ({' and '.join(FILES[1:])} beside it)"), flush=True)
    return report.status


def print_words(given):
    """Print the finding and the words, and return the exit status."""
    found = words(**vars(given))
    names = [printable(str(name)) for name in found.names]
    ends = ["" if place is None else f"\t{place}" for place in found.places]
    print(found.sentence, *map(str.__add__, names, ends), sep="\n")
    return LEAKS


def audit_outputs(given):
    """Ask a table of outputs, write the risks of its records, say the finding, and return the exit status."""
    settings = vars(given)
    folder = settings.pop("out")
    check_room(folder, [FILE])
    found = outputs(settings.pop("table"), **settings)
    path = found.save(folder)
    print(printable(found.sentence))
    print(printable(str(path)), flush=True)
    return found.status


VERB_OF = {
    "network": (network_line, audit_network),
    "words": (words_line, print_words),
    "outputs": (outputs_line, audit_outputs),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says, say what went wrong, and return the exit status."""
    verb, *rest = with_verb(sys.argv[1:] if arguments is None else [*arguments])
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        if verb not in VERB_OF:
            print(VERBS)
            return HELPED if verb else NO_ANSWER
        line, run = VERB_OF[verb]
        return run(line().parse_args(rest))
    except Helped:
        return HELPED
    except InputError as error:
        print(printable(str(error)), file=sys.stderr)
        return NO_ANSWER
    except Exception as error:
        if full(error):
            mend = "audit fewer pictures, or end other programs"
            print(f"The memory is full: {mend}.", file=sys.stderr)
            return NO_ANSWER
        traceback.print_exc()
        return FAULT


def with_verb(arguments):
    """A command line with its verb: the old spelling has none, and a sentence names the new one."""
    verb, *_ = arguments = arguments or [""]
    if verb in (*VERB_OF, "-h", "--help", ""):
        return arguments
    print("This spelling is old: say `audit network NETWORK MEMBERS HELD_OUT`.", file=sys.stderr)
    return ["network", *arguments]
