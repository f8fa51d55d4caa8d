"""The history of a run for TensorBoard, MLflow and W&B, a module for each."""
