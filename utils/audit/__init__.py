"""An audit: from a network and pictures to what it gives away, in one call, `audit`, or `python -m utils.audit`."""

from utils.audit.report import Report as Report
from utils.audit.run import audit as audit
