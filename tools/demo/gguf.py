"""Read and write GGUF version 3, as far as the demo model needs it: little-endian, three tensor types, data as bytes."""
import struct
from collections import namedtuple

U32, I32, F32_VALUE, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9       # types of metadata values
SCALAR = {U32: "I", I32: "i", F32_VALUE: "f", BOOL: "B"}
F32, Q4_0, Q8_0 = 0, 2, 8                                         # types of tensors
BLOCK_BYTES = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34)}       # values a block, bytes a block
ALIGNMENT = 32

Value = namedtuple("Value", "key type value")         # of an array: value = (type of its items, items)
Tensor = namedtuple("Tensor", "name type shape data")       # shape as in PyTorch: the last dimension is contiguous


def _string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def _value(kind, v):
    if kind == STRING:
        return _string(v)
    if kind == ARRAY:
        item, items = v
        return struct.pack("<IQ", item, len(items)) + b"".join(_value(item, x) for x in items)
    return struct.pack("<" + SCALAR[kind], v)


def _padding(n):
    return b"\0" * (-n % ALIGNMENT)


def write(path, values, tensors):
    infos, offset = b"", 0
    for t in tensors:
        infos += _string(t.name) + struct.pack("<I%dQIQ" % len(t.shape), len(t.shape), *t.shape[::-1], t.type, offset)
        offset += len(t.data) + len(_padding(len(t.data)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(_string(v.key) + struct.pack("<I", v.type) + _value(v.type, v.value) for v in values) + infos
    with open(path, "wb") as f:
        f.write(head + _padding(len(head)))
        for t in tensors:
            f.write(t.data + _padding(len(t.data)))


def read(path):
    """-> (values, tensors) of a file that write() could have made."""
    with open(path, "rb") as f:
        data = f.read()
    at = 4

    def take(form):
        nonlocal at
        v = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return v if len(v) > 1 else v[0]

    def string():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == STRING:
            return string()
        if kind == ARRAY:
            item, n = take("IQ")
            return item, [value(item) for _ in range(n)]
        return take(SCALAR[kind])

    version, n_tensors, n_values = take("IQQ")
    if data[:4] != b"GGUF" or version != 3:
        raise ValueError(path + " is no GGUF file of version 3")
    values = []
    for _ in range(n_values):
        key, kind = string(), take("I")
        values.append(Value(key, kind, value(kind)))
    infos = []
    for _ in range(n_tensors):
        name, dims = string(), take("I")
        shape = [take("Q") for _ in range(dims)][::-1]
        infos.append((name, shape, take("I"), take("Q")))
    base = at + len(_padding(at))
    tensors = []
    for name, shape, kind, offset in infos:
        n = 1
        for d in shape:
            n *= d
        per, size = BLOCK_BYTES[kind]
        tensors.append(Tensor(name, kind, tuple(shape), data[base + offset:base + offset + n // per * size]))
    return values, tensors
