"""Airflow: release each day's labels once their window has closed.

A retried or repeated task is free: the same epoch is built once, whatever restarts.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "label_party",
    schedule="0 6 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=True,
    max_active_runs=1,  # the ledger takes one release at a time
    default_args={"retries": 3, "retry_delay": timedelta(minutes=10)},
):
    release = BashOperator(
        task_id="release",  # of the day whose window of 30 days is over
        bash_command="label-party release --epoch {{ macros.ds_add(ds, -30) }}",
        cwd="/etc/labelveil",
    )
    backup = BashOperator(
        task_id="backup",
        bash_command="label-party backup --to /srv/backups/labelveil-{{ ds }}.tar",
        cwd="/etc/labelveil",
    )
    release >> backup
