"""Commands that train: the command line of `python -m src.train`, also for a single run
(command_line.py, run_command.py); launchers and stacks of a sweep; `python -m src.search`.
"""
