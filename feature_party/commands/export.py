"""``feature-party export``: the model as one file that other programs run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from labelveil.common.config import Section, setting
from labelveil.common.config.answers import Json
from labelveil.feature_party.commands.options import options, start
from labelveil.feature_party.config.sections import FeaturePartyConfig

SAMPLE_ROWS = 2_000
"""Rows of the features on which an exported model is compared with the original."""


class ExportOptions(Section):
    output: Path = setting(Path("model.onnx"), "File to write: .onnx or .pt2.", flag="--output -o")
    format_: Literal["auto", "onnx", "torch"] = setting(
        "auto", "What to write; auto goes by the file's name.", flag="--format"
    )


@options("output.model", "data.features", "output.source")
def export(config: FeaturePartyConfig, wanted: ExportOptions, shown: Json) -> None:
    start({"--output": wanted.output})
    import polars.selectors as cs

    from labelveil.feature_party.export.run import export_model
    from labelveil.feature_party.groups.saved import load_trained
    from labelveil.feature_party.tables import scan_table

    models = load_trained(config.output.model).for_source(config.output.source)
    sample = None
    if config.data.features is not None:
        frame = scan_table(config.data.features)
        models.encoder.check(frame.collect_schema().names())
        sample = frame.select(cs.by_name(*models.encoder.columns)).head(SAMPLE_ROWS).collect()
    exported = export_model(models, wanted.output, wanted.format_, sample)
    checked = "not compared: no runtime for it is installed here, see labelveil[export]"
    if exported.runtime:
        checked = f"{exported.rows:,} rows agree to {exported.difference:.1g} in {exported.runtime}"
    files = " and ".join(str(path) for path in exported.files)
    inputs = [{"name": c.name, "input": c.input, "kind": c.kind} for c in exported.columns]
    document: dict[str, Any] = {"inputs": inputs, "files": exported.files}
    if exported.runtime:
        document |= {
            "runtime": exported.runtime,
            "rows_compared": exported.rows,
            "largest_difference": exported.difference,
        }
    shown.answer(document, f"{len(exported.columns)} inputs; {checked}; in {files}")
