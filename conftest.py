"""What all tests share, those of nbval among them: how kernels talk, and what a rehearsal changes.

Kernels of two workers must not meet: a TCP port that one has found free may be taken by the other. So kernels of tests
talk through sockets that are files, in a folder of their own, and are forked (tests/forked.py). With ROUNDING=1, 2, …
in the environment torch rounds in another way, here and in every kernel (tests/rehearsal/rounding.py).
"""

import atexit
import functools
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

sys.modules["rfc3987_syntax"] = None  # a grammar that nbformat's imports would build, in two seconds
from jupyter_client.manager import KernelManager  # noqa: E402
from jupyter_client.provisioning import local_provisioner  # noqa: E402

FOLDER = tempfile.mkdtemp(prefix="kernels-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
begin = KernelManager.__init__


@functools.wraps(begin)
def begin_with_files(manager, *given, **settings):
    begin(manager, *given, **{"transport": "ipc", "ip": f"{FOLDER}/{secrets.token_hex(8)}"} | settings)


KernelManager.__init__ = begin_with_files

TESTS = Path(__file__).parent / "tests"
REHEARSAL = TESTS / "rehearsal"
sys.path.append(str(TESTS))
import forked  # noqa: E402

local_provisioner.launch_kernel = forked.Forked
if seed := os.environ.get("ROUNDING"):
    sys.path.append(str(REHEARSAL))
    import rounding

    rounding.begin(seed)
    startup = Path(FOLDER, "ipython", "profile_default", "startup", "00-begin.py")  # a kernel runs it first
    startup.parent.mkdir(parents=True)
    startup.write_text(f"import sys; sys.path.append({str(REHEARSAL)!r}); import rounding; rounding.begin({seed})")
    os.environ["IPYTHONDIR"] = str(startup.parents[2])


def pytest_addoption(parser):
    parser.addoption("--reverse", action="store_true", help="the last test first: none may need one before it")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--reverse"):
        items.reverse()
