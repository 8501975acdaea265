"""Which tensors are read from disk again and again?

A model that does not fit in memory is read anew for each token: not all of it, and not evenly. This example
answers, from a capture of tracer, which tensors come back, how often, and why. It needs pandas and pyarrow:

    sudo tracer --detail op+io -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
    python3 docs/examples/rereads.py tracer.capture

It is written to be read from top to bottom and changed, cell by cell as in a notebook.
"""

import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa

capture = Path(sys.argv[1] if len(sys.argv) > 1 else "tracer.capture")
MIB = 1 << 20


# %% 1. The tables
#
# A capture's tables are Arrow streams. `pagein` has a row for each piece of the model's file that came from
# disk, with the tensor that it belongs to and what caused the read. It is there if tracer ran with op+io.
# A long capture is cut into segments (pagein.0001.arrows and so on), which together are one table.


def read(table):
    streams = sorted(capture.glob(f"{table}.arrows")) + sorted(capture.glob(f"{table}.*.arrows"))
    if not streams:
        sys.exit(f"{capture} has no table {table}: record it with tracer --detail op+io")
    return pa.concat_tables(pa.ipc.open_stream(s).read_all() for s in streams).to_pandas()


reads, tensors = read("pagein"), read("structure")
print(f"{capture}: {reads.bytes.sum() / MIB:.0f} MiB came from disk in {len(reads)} reads")

# %% 2. What was read again?
#
# `rereads` says how often these bytes had been read from disk before. The load of the model counts: what was
# read then, evicted, and read for the first token is a reread. So 0 means "for the first time".

again = reads[reads.rereads > 0]
if again.empty:
    print("nothing was read again: what the run needed of the model stayed in memory")
    sys.exit()
print(f"read again: {again.bytes.sum() / MIB:.0f} MiB, {again.bytes.sum() / reads.bytes.sum():.0%} of that\n")

# %% 3. Which tensors?
#
# The sum of the bytes says what costs time. Divided by the tensor's size it says how many times it came back,
# in whole or in part. A tensor that comes back once for each token was not kept at all.

key = ["model", "tensor_name"]  # two models of one process have tensors of the same names
by_tensor = again.groupby(key, observed=True).bytes.sum().rename("reread_bytes").reset_index()
by_tensor = by_tensor.merge(tensors[[*key, "size_bytes", "type", "layer"]], on=key, how="left")
by_tensor["times"] = by_tensor.reread_bytes / by_tensor.size_bytes
by_tensor = by_tensor.sort_values(["reread_bytes", "tensor_name"], ascending=[False, True])
print(by_tensor.head(10).to_string(index=False, float_format="%.2f"), "\n")

# %% 4. Which layers?
#
# Where all layers come back alike, the page cache works as a ring that is too short: whoever goes through a
# file in order, again and again, evicts just what comes next. Where some layers stay, somebody keeps them.

size = tensors.groupby("layer").size_bytes.sum()  # layer -1: tensors that are in no layer
by_layer = by_tensor.groupby("layer").reread_bytes.sum().reindex(size.index, fill_value=0)
by_layer = pd.DataFrame({"reread_mib": by_layer / MIB, "times": by_layer / size})
print(by_layer.to_string(float_format="%.2f"), "\n")

# %% 5. Why?
#
# A fault made the target wait; readahead came along with a fault; what a helper reads is "read". A tensor that
# comes back by faults alone is one that nobody saw coming.

causes = again.groupby("cause", observed=True).bytes.sum().sort_values(ascending=False) / again.bytes.sum()
print(causes.rename("share of what was read again").to_string(float_format="%.2f"))
