"""The code of a commit: a run's fingerprint is computed again at the commit that the run names."""

import functools
import io
import subprocess
import tempfile
import zipfile
from pathlib import Path

from utils import fingerprint

ROOT = Path(__file__).parent.parent


def git(*words):
    """What a command of git prints, as bytes; None where there is no git, no repository or no such commit."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


@functools.cache
def fingerprint_at(commit, notebook, given):
    """The fingerprint of a notebook (a path in the repository) at a commit, with these parameters given, or None."""
    archive = git("archive", "--format=zip", commit, "utils", "requirements.lock", str(notebook))
    if archive is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(io.BytesIO(archive)).extractall(folder)
        return fingerprint.Code(Path(folder)).fingerprint(fingerprint.notebook(Path(folder) / notebook, given))


def commit_of(notebook, given, code):
    """The commit that is checked out, marked if the notebook's fingerprint `code` is another there; "" without git."""
    head = (git("rev-parse", "HEAD") or b"").decode().strip()
    committed = head and fingerprint_at(head, str(notebook), tuple(given)) == code
    return head if committed or not head else f"{head}-dirty"
