"""Files that are whole or not there. Loads no torch."""

import os


def write(path, contents):
    """Write bytes to a Path, whole or not at all: beside the file, then in its place in one step. Makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(contents)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
