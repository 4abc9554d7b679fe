"""Kernels of two workers must not meet: a TCP port that one has found free may be taken by the other.

So the kernels of all tests, papermill's and nbval's, talk through sockets that are files, in a folder of their own.
"""

import atexit
import functools
import secrets
import shutil
import tempfile

from jupyter_client.manager import KernelManager

FOLDER = tempfile.mkdtemp(prefix="kernels-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
begin = KernelManager.__init__


@functools.wraps(begin)
def begin_with_files(manager, *given, **settings):
    begin(manager, *given, **{"transport": "ipc", "ip": f"{FOLDER}/{secrets.token_hex(8)}"} | settings)


KernelManager.__init__ = begin_with_files


def pytest_addoption(parser):
    parser.addoption("--reverse", action="store_true", help="the last test first: none may need one before it")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--reverse"):
        items.reverse()
