"""Files of tensors without code, in the format safetensors: the length of a JSON header, the header, the numbers.

Read and written here, as its library would be one more package to lock.
"""

import json
import math

import torch

from utils.errors import InputError

FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
OTHERS = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
KINDS = {**FLOATS, **OTHERS, "BOOL": torch.bool}
ALIGNED = 8  # bytes, of which the header's length is a multiple
METADATA = "__metadata__"  # texts by name, beside the tensors


def read(contents):
    """{name: tensor} of the bytes of a file; ValueError, KeyError or TypeError if they are of another format.

    InputError for a tensor of a kind that torch's ordinary ones do not have, as quantised weights are.
    """
    header, numbers = header_of(contents)
    found = {}
    for name, entry in header.items():
        if name == METADATA:
            continue
        if entry["dtype"] not in KINDS:
            raise InputError(f"{name} is of the kind {entry['dtype']}, as quantised weights are: save it in float32.")
        (begin, end), kind, count = entry["data_offsets"], KINDS[entry["dtype"]], math.prod(entry["shape"])
        if not 0 <= begin <= end <= len(numbers) or end - begin != count * kind.itemsize:
            raise ValueError(f"{name} does not fit into the file")
        part = torch.frombuffer(numbers, dtype=kind, count=count, offset=begin) if count else torch.empty(0, dtype=kind)
        found[name] = part.view(entry["shape"])
    return found


def header_of(contents):
    """The header of a file, and its numbers as bytes."""
    end = 8 + int.from_bytes(contents[:8], "little")
    return json.loads(contents[8:end]), bytearray(contents[end:])


def written(tensors, metadata=None):
    """The bytes of a file with {name: tensor}, in the order of their names, and {name: text} beside them."""
    names = {kind: name for name, kind in KINDS.items()}
    header, numbers = {METADATA: metadata} if metadata else {}, bytearray()
    for name in sorted(tensors):
        part = tensors[name].detach().cpu().clone(memory_format=torch.contiguous_format)
        begin = len(numbers)
        numbers += part.flatten().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": names[part.dtype], "shape": [*part.shape], "data_offsets": [begin, len(numbers)]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % ALIGNED)
    return len(head).to_bytes(8, "little") + head + bytes(numbers)
