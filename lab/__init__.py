"""Run notebooks (`run`), grids of them (`grid`), keep what they gave (`record`) and compute it again (`verify`)."""
