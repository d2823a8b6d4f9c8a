"""Writes recorded jobs as files of the straggler-analysis format."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml


def rows_of(recording, ranks_per_worker=1):
    """One dict per operation, as the format has them."""
    rows = []
    replicas = len(recording.replicas)
    for index, operation in enumerate(recording.operations):
        for step, number in enumerate(recording.steps):
            for column, replica in enumerate(recording.replicas):
                if np.isnan(recording.start[index, step, column]):
                    continue
                rows.append(
                    {
                        "dp_rank": int(replica),
                        "stage": operation.key.stage,
                        "rank": (operation.key.stage * replicas + int(replica)) * ranks_per_worker,
                        "step": int(number),
                        "optype": operation.key.type,
                        "start_ts": float(recording.start[index, step, column]),
                        "duration": float(recording.duration[index, step, column]),
                        "seq_id": operation.key.sequence,
                        "mc": operation.chunk,
                        "mb_id": operation.microbatch,
                        "gmc": operation.part,
                    }
                )
    return rows


def write_rows(folder, rows, name="T", **sizes):
    """Returns the path of the trace."""
    path = folder / f"trace-{name}.parquet"
    table = pa.Table.from_pylist(rows)
    if "optype" in table.column_names:
        index = table.column_names.index("optype")
        table = table.set_column(index, "optype", table["optype"].dictionary_encode())
    pq.write_table(table, path)
    ranks = sizes.get("tp_size", 1) * sizes.get("dsp_size", 1)
    stages, replicas = 1 + max(r["stage"] for r in rows), 1 + max(r["dp_rank"] for r in rows)
    meta = {
        "trial_name": name,
        "run_id": 0,
        "dp_size": replicas,
        "dsp_size": 1,
        "pp_size": stages,
        "tp_size": 1,
        "vpp_size": 1,
        "world_size": stages * replicas * ranks,
    }
    path.with_name(f"meta-{name}.yaml").write_text(yaml.safe_dump({**meta, **sizes}))
    return path


def write(folder, recording, name="T", **sizes):
    ranks = sizes.get("tp_size", 1) * sizes.get("dsp_size", 1)
    return write_rows(folder, rows_of(recording, ranks), name, **sizes)
