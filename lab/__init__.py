"""What the book is made with: what a notebook says (`report`, `figures`), and what may stand in it (`parameters`,
`registry`); runs (`run`), grids of them (`grid`), what they gave (`record`, `recorded`, `ledger`), and that again
(`verify`).
"""

import utils  # noqa: F401  (before torch: how threads wait)
