"""What the process imports from which the processes of executor=local are forked."""

from kindling.system.process import importing

with importing():
    import kindling.sweeps.executors.local
    import kindling.sweeps.run_command  # noqa: F401
