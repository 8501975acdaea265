"""Opens every table of a capture in pandas, pyarrow, polars and DuckDB, and fails where they do not agree.

Usage: readers.py CAPTURE ANALYSIS

CAPTURE has the tables as Arrow streams; ANALYSIS has what `analyze --all --export` wrote, as Parquet and CSV. It prints
one line of JSON: the rows of each table, by its name.
"""

import glob
import json
import os
import sys

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

capture, analysis = sys.argv[1:]


def name(path):
    return os.path.basename(path).split(".")[0]


def agree(what, *readings):
    """Fails unless all readings, each of them the columns' names and the number of rows, are the same."""
    if any(r != readings[0] for r in readings):
        sys.exit(f"{what}: {readings}")


def of_duckdb(query):
    rows = duckdb.sql(f"SELECT * FROM {query}")
    return list(rows.columns), duckdb.sql(f"SELECT count(*) FROM {query}").fetchall()[0][0]


rows = {}
for path in glob.glob(f"{capture}/*.arrows"):
    streamed = pa.ipc.open_stream(path).read_all()
    frame, lazy = streamed.to_pandas(), pl.read_ipc_stream(path)
    first = (streamed.column_names, streamed.num_rows)
    agree(path, first, (list(frame.columns), len(frame)), (lazy.columns, lazy.height))
    if name(path) != "hidden":  # DuckDB takes Arrow tables by the variable's name, but none of half precision
        agree(path, first, of_duckdb("streamed"))
    parquet = f"{analysis}/{name(path)}.parquet"
    stored, frame, lazy = pq.read_table(parquet), pd.read_parquet(parquet), pl.read_parquet(parquet)
    agree(parquet, first, (stored.column_names, stored.num_rows), (list(frame.columns), len(frame)),
          (lazy.columns, lazy.height), of_duckdb(f"'{parquet}'"))
    agree(f"the values of {parquet} and {path}", stored.to_pylist(), streamed.to_pylist())
    rows[name(path)] = streamed.num_rows

for path in glob.glob(f"{analysis}/*.csv"):
    table, frame, lazy = pa.csv.read_csv(path), pd.read_csv(path), pl.read_csv(path, infer_schema_length=None)
    parquet = pq.read_table(path.replace(".csv", ".parquet"))
    agree(path, (parquet.column_names, parquet.num_rows), (table.column_names, table.num_rows),
          (list(frame.columns), len(frame)), (lazy.columns, lazy.height), of_duckdb(f"'{path}'"))
    rows["csv " + name(path)] = table.num_rows

# The types are those of docs/tables.md.
text, ids = ("phase", "op", "tensor_name"), "experts"
stream, parquet = f"{capture}/access.arrows", f"{analysis}/access.parquet"
arrow, stored = pa.ipc.open_stream(stream).schema, pq.read_schema(parquet)
for column in text:
    agree(column, True, pa.types.is_dictionary(arrow.field(column).type),
          pa.types.is_string(arrow.field(column).type.value_type), pa.types.is_string(stored.field(column).type),
          pl.read_ipc_stream(stream)[column].dtype == pl.Categorical, pl.read_parquet(parquet)[column].dtype == pl.String)
agree(ids, pa.int32(), arrow.field(ids).type.value_type, stored.field(ids).type.value_type)
agree(ids, pl.List(pl.Int32), pl.read_ipc_stream(stream)[ids].dtype, pl.read_parquet(parquet)[ids].dtype)
agree(ids, "INTEGER[]", str(duckdb.sql(f"SELECT {ids} FROM '{parquet}'").types[0]))
agree("timestamp", pa.int64(), arrow.field("timestamp").type, stored.field("timestamp").type)
agree("the clock", b"ns since capture start, CLOCK_MONOTONIC", arrow.metadata[b"tensorcast.clock"])
agree("where no expert was chosen", True, arrow.field(ids).nullable,
      bool(pd.read_parquet(parquet)[ids].isna().sum() == pl.read_parquet(parquet)[ids].null_count() > 0))

print(json.dumps(rows))
