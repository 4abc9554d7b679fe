"""The fast arithmetic: tensors in, tensors out, on any device. Nothing here knows of data, victims or attacks."""
