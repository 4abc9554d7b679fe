"""The mode that imitates other processors moves what they round, by as much as they do, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rehearsal.rounding import OtherRounding

from conftest import drawn

pytestmark = pytest.mark.skipif("ROUNDING" in os.environ, reason="the mode is on already")
ROOT = Path(__file__).parent.parent


@pytest.fixture
def x():
    return drawn(40, 60)


def test_sums_move_by_rounding_of_the_sizes_of_their_terms(x):
    plain, sizes = x @ x.mT, x.abs() @ x.abs().mT
    with OtherRounding(1):
        moved = x @ x.mT
    assert 0 < ((moved - plain).abs() / sizes).max() <= 3 * torch.finfo(torch.float64).eps
    assert (moved != plain).double().mean() > 0.5


def test_whole_numbers_and_arguments_stay(x):
    before = x.clone()
    with OtherRounding(1):
        count = (x > 0).double().sum()
        total = torch.ones(3, 3).addmm_(torch.eye(3), torch.ones(3, 3))
    assert count == (x > 0).sum() and (total == 2).all() and torch.equal(x, before)


KERNEL = """
import sys
sys.path.insert(0, ".")
import conftest
import nbformat, papermill
code = "from torch.utils._python_dispatch import _get_current_dispatch_mode as mode; mode()"
cell = nbformat.v4.new_code_cell(code, id="one")
kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel}), sys.argv[1])
done = papermill.execute_notebook(sys.argv[1], sys.argv[1], progress_bar=False)
print(done.cells[0].outputs[0]["data"]["text/plain"])
"""


@pytest.mark.chapters
def test_a_rehearsal_reaches_the_kernels_of_notebooks(tmp_path):
    environment, command = {**os.environ, "ROUNDING": "3"}, [sys.executable, "-c", KERNEL, str(tmp_path / "a.ipynb")]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "OtherRounding" in ended.stdout, ended.stderr
