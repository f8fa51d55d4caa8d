"""The engine: compiled code that trains and evaluates multilayer perceptrons on a CPU.

`engine.c` is the engine, `compiler.py` builds it, `engine.py` calls it. Nothing here imports torch.
"""
