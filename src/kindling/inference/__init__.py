"""The use of trained models: evaluation, prediction, export and the demo."""
