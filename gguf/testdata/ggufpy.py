"""Asks gguf-py, the Python package of llama.cpp's own converters.

Usage: ggufpy.py map FILE        prints the tensors and the scalar metadata of a file as JSON
       ggufpy.py dequantize      reads lines "TYPE FILE" from stdin and writes the floats of each to FILE.f32
       ggufpy.py write DIR       writes odd files into DIR
"""

import json
import os
import sys

import gguf
import numpy as np


def value(field):
    """A scalar or a list of scalars of the metadata, as JSON knows them."""
    v = field.contents()
    return v.item() if isinstance(v, np.generic) else v


def describe(path):
    # The reader takes a vocabulary apart into a million small arrays, which take twice as long as views of a memmap.
    mapped = np.memmap
    np.memmap = lambda *args, **options: mapped(*args, **options).view(np.ndarray)
    r = gguf.GGUFReader(path)
    return {
        "tensors": [
            [t.name, int(t.tensor_type), [int(n) for n in t.shape], int(t.data_offset), int(t.n_bytes)]
            for t in r.tensors
        ],
        "metadata": {
            name: value(f)
            for name, f in r.fields.items()
            if not name.startswith("GGUF.") and len(f.types) == 1
            and f.types[0] not in (gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.FLOAT64)
        },
        "alignment": int(r.alignment),
    }


def write(directory):
    """Writes files of kinds that converters seldom write."""
    def writer(name, **options):
        w = gguf.GGUFWriter(os.path.join(directory, name), "odd", **options)
        w.add_uint8("odd.byte", 255)
        w.add_int64("odd.least", -(1 << 63))
        w.add_bool("odd.yes", True)
        w.add_string("odd.empty", "")
        w.add_string("odd.words", "zwölf Bären\nand a line")
        w.add_array("odd.names", ["", "a", "ä"])
        return w

    def close(w):
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    numbers = np.arange(24, dtype=np.float32)
    for name, alignment, endian in (("aligned-8", 8, "LITTLE"), ("aligned-4096", 4096, "LITTLE"), ("big", 32, "BIG")):
        w = writer(name + ".gguf", endianess=gguf.GGUFEndian[endian])
        w.add_custom_alignment(alignment)
        w.add_tensor("one", numbers[:1])
        w.add_tensor("three.dims", numbers.reshape(2, 3, 4))
        w.add_tensor("half", numbers.astype(np.float16))
        w.add_tensor("integers", np.arange(5, dtype=np.int32))
        close(w)
    w = writer("quantized.gguf")
    for t in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.TQ2_0):
        w.add_tensor(t.name, gguf.quants.quantize(np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 256), t),
                     raw_dtype=t)
    close(w)
    close(writer("empty.gguf"))


if sys.argv[1] == "map":
    print(json.dumps(describe(sys.argv[2])))
elif sys.argv[1] == "write":
    write(sys.argv[2])
else:
    for line in sys.stdin:
        name, path = line.split()
        raw = np.fromfile(path, dtype=np.uint8)
        with np.errstate(all="ignore"):  # scales are random, some of them infinite
            floats = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
        floats.astype(np.float32).tofile(path + ".f32")
