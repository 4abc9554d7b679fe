"""What all tests share, those of nbval among them: how kernels talk.

Kernels of two workers must not meet: a TCP port that one has found free may be taken by the other. So kernels of tests
talk through sockets that are files, in a folder of their own, and are forked (lab/forked.py).
"""

import atexit
import functools
import secrets
import shutil
import sys
import tempfile

# a grammar that nbformat's imports would build, in two seconds
sys.modules["rfc3987_syntax"] = None
from jupyter_client.manager import KernelManager  # noqa: E402

from lab import forked  # noqa: E402

FOLDER = tempfile.mkdtemp(prefix="kernels-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
begin = KernelManager.__init__


@functools.wraps(begin)
def begin_with_files(manager, *given, **settings):
    sockets = {"transport": "ipc", "ip": f"{FOLDER}/{secrets.token_hex(8)}"}
    begin(manager, *given, **sockets | settings)


KernelManager.__init__ = begin_with_files

forked.fork_kernels()
