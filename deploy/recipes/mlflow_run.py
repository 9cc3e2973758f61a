"""MLflow: log a finished run of ``feature-party run`` or ``labelveil simulate``.

Usage: python mlflow_run.py FOLDER
"""

import json
import sys
from pathlib import Path

import mlflow

folder = Path(sys.argv[1]).resolve()
metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
with mlflow.start_run(run_name=folder.name):
    mlflow.log_params({name: value for name, value in metrics.items() if isinstance(value, str)})
    mlflow.log_metrics(
        {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    )
    mlflow.log_artifact(str(folder / "report.html"))
    mlflow.log_artifacts(str(folder / "model"), "model")
