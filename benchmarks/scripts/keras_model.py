"""Ten epochs of 784-32-10 by Keras on PyTorch: python keras_model.py DATA.npz MODEL"""

import os
import sys

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras

data, model = sys.argv[1:]
keras.utils.set_random_seed(0)
arrays = np.load(data)
inputs = {part: arrays[f"x_{part}"] / np.float32(255) for part in ("train", "val", "test")}
hidden, outputs = keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)
network = keras.Sequential([keras.Input((784,)), hidden, outputs])
network.compile(
    keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)  # fmt: skip
network.fit(
    inputs["train"], arrays["y_train"], 100, epochs=10,
    validation_data=(inputs["val"], arrays["y_val"]),
)  # fmt: skip
print()
print("test", network.evaluate(inputs["test"], arrays["y_test"], 100, verbose=0)[1])
network.save(f"{model}.keras")
