#!/usr/bin/env python3
"""Says of each run what it read from disk, what of that it read again, and which experts it used most.

It needs the package duckdb, or pyarrow. python3 load.py [DIRECTORY]
"""
import pathlib
import sys

top = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
runs = sorted(top.glob("model=*/run=*"))
if not runs:
    sys.exit(f"{top} has no runs (model=MODEL/run=RUN)")

try:
    import duckdb

    def columns(path, *names):
        """The columns of a Parquet file, each as a list."""
        table = duckdb.read_parquet(str(path)).project(", ".join(names)).fetchall()
        return [list(column) for column in zip(*table)] or [[] for _ in names]
except ImportError:
    try:
        import pyarrow.parquet
    except ImportError:
        sys.exit("install duckdb or pyarrow: python3 -m pip install duckdb")

    def columns(path, *names):
        """The columns of a Parquet file, each as a list."""
        table = pyarrow.parquet.read_table(path, columns=list(names), partitioning=None)
        return [table.column(name).to_pylist() for name in names]

for run in runs:
    tokens, lost = (column[0] for column in columns(run / "run.parquet", "tokens", "lost"))
    sizes, rereads = columns(run / "pagein.parquet", "bytes", "rereads")
    again = sum(size for size, times in zip(sizes, rereads) if times > 0)
    line = f"{run.parent.name} {run.name}: {tokens} tokens, {sum(sizes)} bytes from disk, {again} of them again"
    if (run / "route.parquet").exists():
        layers, experts = columns(run / "route.parquet", "layer", "expert")
        if layers:
            pairs = list(zip(layers, experts))
            layer, expert = max(sorted(set(pairs)), key=pairs.count)
            line += f"; most used is expert {expert} of layer {layer}, {pairs.count((layer, expert))} times"
    if (run / "hidden.parquet").exists():
        (values,) = columns(run / "hidden.parquet", "values")
        line += f"; {len(values)} hidden states"
    print(line + (f"; {lost} events were lost" if lost else ""))
