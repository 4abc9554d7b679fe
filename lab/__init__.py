"""Run notebooks (`run`), grids of them (`grid`), keep what they gave (`record`) and compute it again (`verify`)."""

import utils  # noqa: F401  (before torch: how threads wait)
