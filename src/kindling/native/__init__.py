"""The engine: compiled code that trains and evaluates multilayer perceptrons on a CPU.

The C files are the engine (`train.h` has the steps, `engine.h` the interface), `compiler.py` builds
it, and `engine.py` calls it. Nothing here imports torch.
"""
