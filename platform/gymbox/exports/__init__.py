"""Exports: what a run has written, as other tools take it.

    wandb_run, mlflow_run      figures, settings and rollouts in an experiment tracker; `tracked_run` is what both get
    rollout_table              one Parquet file, a row a rollout; `dataset_folder` puts it where `datasets` loads it
    sft, dpo                   sets to train on, as TRL takes them, of `conversations` or of `token_samples`

Each reads gymbox's runs and JSONL files of rollouts, NeMo Gym's too (`gymbox.evaluation.rollouts.RunReader`).
"""
