"""Ten epochs of 784-32-10 by scikit-learn: python scikit_learn.py DATA.npz MODEL"""

import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

data, model = sys.argv[1:]
arrays = np.load(data)
inputs = {part: arrays[f"x_{part}"] / np.float32(255) for part in ("train", "val", "test")}
classifier = MLPClassifier(
    (32,), solver="sgd", alpha=0, batch_size=100, learning_rate_init=0.1, momentum=0,
    max_iter=10, n_iter_no_change=10, random_state=0,
)  # fmt: skip
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    classifier.fit(inputs["train"], arrays["y_train"])
for part in ("val", "test"):
    print(part, classifier.score(inputs[part], arrays[f"y_{part}"]))
Path(model).write_bytes(pickle.dumps(classifier))
