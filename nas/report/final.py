"""The measurements of a final training as a table."""

from collections.abc import Mapping
from typing import Any

from nas.report.table import Column, Table, difference, millions, with_error


def final_table(metrics: Mapping[str, Any]) -> Table:
    """The scores and costs of teacher, student and base model.

    Args:
        metrics: the content of the metrics.json that `train_final.py` writes.
    """
    names = metrics["metrics"]
    columns = (
        Column("model", is_text=True),
        *(Column(name, _score) for name in names),
        Column(f"{names[0]} − teacher's", lambda row: difference((row["value"], row["standard_error"]))),
        Column("parameters", millions),
        Column("MACs", millions),
        Column("latency", "{:.1f} ms".format),
    )
    rows = [
        (
            name,
            *(row[metric] for metric in names),
            row[names[0]].get("difference"),
            row["params"],
            row.get("macs"),
            row.get("latency_ms"),
        )
        for name, row in metrics["models"].items()
    ]
    tokens = f"; MACs and latency of a sentence of {metrics['tokens']} tokens" if "tokens" in metrics else ""
    return Table(columns, rows, f"After the final training, on {metrics['dev_rows']:,} rows of the dev split{tokens}")


def _score(row: Mapping[str, float]) -> str:
    return with_error((row["value"], row["standard_error"]))
