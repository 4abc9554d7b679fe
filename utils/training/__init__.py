"""The trainer: to a stationary point, or by torch's optimisers as a practitioner writes them."""
