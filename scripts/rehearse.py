"""Rehearse other machines on this one: run the tests under other instructions, rounding, threads and toy images.

    .venv/bin/python scripts/rehearse.py [SETTING …]

Prints a line for each setting and stage, and exits 1 if a test fails. Without names, all of SETTINGS: hours.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
ORDER = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
SETTINGS = {
    "here": {},
    "default": dict(zip(ORDER, ("default", "SSE41", "SSE4_2"))),
    "avx2": dict(zip(ORDER, ("avx2", "AVX2", "AVX2"))),
    "avx512": dict(zip(ORDER, ("avx512", "AVX512_CORE", "AVX512"))),
    "two-threads": {"OMP_NUM_THREADS": "2"},
    **{f"rounding-{seed}": {"ROUNDING": str(seed)} for seed in (1, 2, 3)},
    **{f"images-{seed}": {"TOY": str(seed)} for seed in (1, 2, 3)},
}
STAGES = {
    "check": ["tests", "-m", "not chapters and not browser"],
    "toy": ["tests/test_toy_runs.py", "-m", "chapters"],
    "outputs": ["--dist", "loadfile", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "1800", "book"],
}


def rehearsed(setting, stage):
    """Run a stage under a setting: whether it passed, and pytest's last line."""
    quiet = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "NO_CACHE": "1"}  # results of other settings do not count
    command = [sys.executable, "-m", "pytest", "-q", "--durations=40", "-n", "2", *STAGES[stage]]
    log = ROOT / "_build" / "rehearsal" / f"{setting}-{stage}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        environment = {**os.environ, **quiet, **SETTINGS[setting]}
        code = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file).returncode
    last = re.sub(r"^=+ | =+$", "", log.read_text().strip().splitlines()[-1])
    return code == 0, last


def main(names):
    if unknown := set(names) - SETTINGS.keys():
        return f"{min(unknown)} is none of {', '.join(SETTINGS)}"
    failed = 0
    for setting in names or SETTINGS:
        for stage in STAGES:
            if "TOY" in SETTINGS[setting] and stage != "toy":
                continue  # other images are those of toy runs alone
            begun = time.monotonic()
            passed, last = rehearsed(setting, stage)
            failed += not passed
            print(f"{setting:12} {stage:8} {time.monotonic() - begun:5.0f} s  {last}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
