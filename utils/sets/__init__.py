"""Other training sets behind the same weights."""
