"""What one question needs, beside its notebook and its grid."""

import utils  # noqa: F401  (before torch: how threads wait)
