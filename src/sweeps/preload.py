"""What the process imports from which the processes of executor=local are forked."""

from src.system.process import importing

with importing():
    import src.sweeps.executors.local
    import src.sweeps.run_command  # noqa: F401
