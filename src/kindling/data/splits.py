"""A data set, its splits, and the blocks of batches that an epoch has. Without Lightning, of which
`module.py` makes them the data module."""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kindling.config import schema
from kindling.config.measures import MULTILABEL, REGRESSION, in_words, score_of
from kindling.config.written import counted
from kindling.data import loader
from kindling.data.class_balance import BALANCED, BalancedOrder
from kindling.data.loader import BlockSampler, FoldOrder, Order, SeededOrder, in_order, limited
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.folds import Folds, training_and_validation
from kindling.data.sources.source import Source, Split, require_weight
from kindling.system.errors import InputError

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
CLASSES_TOLD = 5  # by name, with their counts
AT_ONCE = 4096  # samples


class Splits:
    """`setup` opens the data set. `world_size` devices share an epoch. All ranks open the data set
    themselves, and a lock lets one of them download."""

    source: Source
    train: Split  # what the orders choose from: with folds, the whole training set
    validations: Sequence[Split]  # one, or one for each of `folds`
    test: Split
    training_samples: int  # of an epoch

    def __init__(
        self,
        config: schema.Data,
        *,
        task: schema.Task = schema.OLD_TASK,
        steps_per_call: int | str = "auto",
        world_size: int = 1,
        folds: Sequence[int] = (),
        limits: schema.Trainer | None = None,
    ) -> None:
        """`folds` are the numbers of the folds that trials are validated on, by default
        `config.fold`. `limits` has the keys that limit the batches."""
        self.limits = limits
        self.folds = folds or ([] if config.fold is None else [config.fold])
        self.config, self.steps_per_call, self.world_size = config, steps_per_call, world_size
        self.task = task
        self.start = (0, 0)  # epoch and batch where training begins
        self.operations: int | None = None  # see `use_rows`
        self.set_orders([SeededOrder(0)], trial_count=1)

    def setup(self, stage: str = "fit") -> None:  # noqa: ARG002, Lightning's argument
        """Opens the data set and, unless it has one, splits off the validation set. Later calls do
        nothing. Raises InputError when the data cannot be loaded, when the training set does not
        fill one batch, and when a split has fewer samples than there are devices."""
        if hasattr(self, "source"):
            return
        config, world_size = self.config, self.world_size
        self.source = source = open_source(config, self.task)
        if config.folds is None or source.validation is not None:
            self.train, validation = training_and_validation(
                source.train, config, source.labels, source.validation
            )
            self.validations, self.training_samples = [validation], len(self.train)
        else:
            folds = Folds(source.train, config.folds, config.split_seed, source.labels)
            self.train, self.training_samples = source.train, folds.training_samples
            self.rows = {fold: folds.training_rows(fold) for fold in self.folds}
            self.validations = [folds.validation(fold) for fold in self.folds]
        if limit := self._limit("overfit_batches"):
            self.train = self._first_batches(self.train, limit)
            self.validations, self.training_samples = [self.train], len(self.train)
        limit = self._limit("limit_val_batches")
        self.validations = [self._first_batches(each, limit) for each in self.validations]
        self.test = self._first_batches(source.test, self._limit("limit_test_batches"))
        sampler = self.sampler()
        self.batches_per_epoch, self.smallest_batch = sampler.batches, sampler.smallest
        sizes = {
            "training": self.training_samples,
            "validation": min(map(len, self.validations)),
            "test": len(self.test),
        }
        name, size = min(sizes.items(), key=lambda item: item[1])
        if size < world_size:
            more = ", or data.factor=4 for more points" if config.name == "toy" else ""
            raise InputError(
                f"trainer.devices: {size} {name} samples are too few for {world_size} devices; "
                f"type trainer.devices={size} or less{more}"
            )
        folds_or_none: Sequence[int | None] = self.folds or [None]
        for fold in folds_or_none:
            require_weight(self.training_weights(fold), config.name, "training")
        for split in self.validations:
            require_weight(split.weights, config.name, "validation")
        require_weight(self.test.weights, config.name, "test")
        if not self.batches_per_epoch:
            raise InputError(
                f"data.batch_size={config.batch}: {self.training_samples} training samples on "
                f"{world_size} device(s) do not fill one batch, and data.drop_last=true drops "
                "incomplete batches; type "
                f"data.batch_size={max(1, self.training_samples // world_size)} or less"
            )

    def require_variance(self, batch_norm: str | None) -> None:
        """Raises InputError for a batch norm, as it was typed, whose last batch has one sample."""
        if batch_norm and self.smallest_batch == 1:
            size = self.config.batch
            raise InputError(
                f"{batch_norm}: of {self.training_samples} training samples the last batch of "
                f"data.batch_size={size} has only one sample, so it has no variance; type "
                f"data.drop_last=true, or data.batch_size={size + 1}"
            )

    def _limit(self, key: str) -> int | float | None:
        return getattr(self.limits, key, None)

    def _first_batches(self, split: Split, limit: int | float | None) -> Split:
        """The samples of the first batches of a split."""
        if limit is None:
            return split
        size = self.config.batch * self.world_size
        return split.take(slice(limited(math.ceil(len(split) / size), limit) * size))

    def order(self, seed: int, fold: int | None) -> Order:
        """The order of the samples of a trial with this seed, which is validated on this fold.
        With trainer.overfit_batches, that of the split, as Lightning has it. Raises InputError as
        BalancedOrder."""
        if self._limit("overfit_batches"):
            return in_order
        train = self.training_split([fold])
        order: Order = SeededOrder(seed)
        if self.config.sampler == BALANCED:
            order = BalancedOrder(seed, train, self.source)
        return order if fold is None else FoldOrder(order, self.rows[fold])

    def training_split(self, folds: Sequence[int | None]) -> Split:
        """The samples that trials on this fold train on; on several folds, the whole training set.
        Only stacks of an older version have several folds and look at their samples."""
        (fold, *others) = dict.fromkeys(folds)
        return self.train if fold is None or others else self.train.take(self.rows[fold])

    def training_labels(self, fold: int | None) -> Tensor:
        """The labels of the samples that trials on this fold train on."""
        return self.train.labels if fold is None else self.train.labels[self.rows[fold]]

    def training_weights(self, fold: int | None) -> Tensor | None:
        """The weights of these samples."""
        weights = self.train.weights
        return weights if weights is None or fold is None else weights[self.rows[fold]]

    def validation_number(self, fold: int | None) -> int:
        """The place of a fold's samples in `validations`."""
        return 0 if fold is None else self.folds.index(fold)

    def set_orders(self, orders: Sequence[Order], trial_count: int) -> None:
        """Sets the orders of samples, one per distinct seed; a block has batches of each."""
        self.trial_count, self.all_orders = trial_count, orders
        self.orders = list(orders)  # the loader refers to this list

    def keep_orders(self, numbers: Sequence[int]) -> None:
        """Keeps only these orders from the next epoch on, because no trial uses the others."""
        self.orders[:] = [self.all_orders[number] for number in numbers]

    def use_rows(self, operations: int | None, most: int | None = None) -> None:
        """Sets whether blocks are Rows, which resident data can be: at most `most` batches, and as
        many as their number of operations allows. If `operations` is None, blocks are copies."""
        self.operations = operations if self.config.loader == "resident" else None
        self.most_batches = most or self.batches_per_epoch

    def origin(self) -> dict[str, Any]:
        """The data set's record in a checkpoint. A run is resumed only when the records agree."""
        source = self.source
        return {
            "data": source.name,
            "shape": list(source.shape),
            "labels": list(source.labels),
            "samples": [
                len(split)
                for split in (source.train, source.validation, source.test)
                if split is not None
            ],
            "digest": source.digest,
            "validation_digest": source.validation_digest,
            "columns": source.columns and source.columns.model_dump(exclude_defaults=True),
            "arrays": source.arrays and source.arrays.model_dump(),
            **({"targets": source.targets.model_dump()} if source.targets else {}),
        }

    def in_a_line(self) -> str:
        """The classes and the samples of each part, such as `csv: 2 classes (no, yes); training 64
        (no 40, yes 24), validation 16 (no 10, yes 6), test 20 (no 12, yes 8)`; of numbers, mean and
        deviation in place of the counts; of several labels, how many samples have each."""
        source, names = self.source, [name[:40] for name in self.source.labels]
        parts = {"training": self.train.labels}
        if len(self.folds) == 1:
            parts["training"] = self.training_labels(self.folds[0])
        if len(self.folds) < 2:
            parts["validation"] = self.validations[0].labels
        parts["test"] = self.test.labels
        told = []
        for name, labels in parts.items():
            told.append(f"{name} {len(labels):,} ({self._labels_in_words(labels, names)})")
        if len(self.folds) > 1:
            told[0] += f", of which {len(self.folds)} folds are the validation sets"
        more = ", …" if names[CLASSES_TOLD:] else ""
        kind = {REGRESSION: "number", MULTILABEL: "label"}.get(self.task.name)
        count = f"{len(names):,} classes" if kind is None else counted(len(names), kind)
        classes = f"{count} ({', '.join(names[:CLASSES_TOLD])}{more})"
        return f"{source.name}: {classes}; {', '.join(told)}"

    def _labels_in_words(self, labels: Tensor, names: Sequence[str]) -> str:
        targets = self.source.targets
        if targets is not None:
            found = targets.restored(labels)
            deviations = found.std(0, correction=min(1, len(found) - 1))
            each = zip(names, found.mean(0).tolist(), deviations.tolist(), strict=True)
            texts = [f"{name} {mean:.4g} ± {deviation:.3g}" for name, mean, deviation in each]
            return ", ".join(texts[:CLASSES_TOLD]) + (", …" if texts[CLASSES_TOLD:] else "")
        if labels.dim() > 1:
            counts = labels.sum(0).long().tolist()
        else:
            counts = torch.bincount(labels, minlength=len(names)).tolist()
        if len(names) > CLASSES_TOLD:
            least, most = min(counts), max(counts)
            return f"{least:,}{f' to {most:,}' if most > least else ''} of each class"
        return ", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True))

    def tell(self) -> None:
        """Logs the notes of the source, and the warnings."""
        self.source.tell()
        for text in self.warnings():
            log.warning("%s", text)

    def warnings(self) -> list[str]:
        """A text for each split that lacks samples of a class; one for test samples that are also
        in the training set; and one for a validation set of the user's own that has their samples.
        """
        splits = [("training", self.train), *(("validation", v) for v in self.validations)]
        own = self.source.validation is not None
        drawn = {
            "training": f"data.split_seed{'' if own else ' or data.val_fraction'}",
            "validation": "" if own else "data.split_seed or data.val_fraction",
            "test": "data.split_seed or data.test_fraction",
        }
        texts = [
            f"the {name} set has no sample of {', '.join(missing[:10])}"
            f"{f' and {len(missing) - 10} more' if missing[10:] else ''}; add samples"
            f"{drawn[name] and f', or try another {drawn[name]}'}"
            for name, split in [*splits, ("test", self.test)]
            if (missing := split.empty_classes(self.source.labels))
        ]
        if self.test_in_training:
            texts.append(
                f"{self.test_in_training:,} of {counted(len(self.test), 'test sample')} "
                f"{'has' if self.test_in_training == 1 else 'have'} the "
                f"features of a training sample, so the test {in_words(score_of(self.task.name))} "
                "may be too good; leave out repeated samples, or give them one group (data.group)"
            )
        known = self._known_validation
        if known:
            texts.append(
                f"{known:,} of {counted(len(self.validations[0]), 'validation sample')} "
                f"{'has' if known == 1 else 'have'} the features of a training or test sample, so "
                "the best epoch is chosen by known samples; leave out repeated ones"
            )
        return [*dict.fromkeys(texts)]

    @cached_property
    def _known_validation(self) -> int:
        """How many samples of a validation set of the user's own are training or test samples, as
        far as `test_in_training` tells."""
        own = self.source.validation
        if own is None or self.test_in_training is None:
            return 0
        train, test = (repeated(own.features, part.features) for part in (self.train, self.test))
        return min(len(own), train + test)

    @cached_property
    def test_in_training(self) -> int | None:
        """How many test samples have the features of a training sample. None for published data
        sets, and for pictures that are not in memory."""
        if self.source.digest is None or self.config.loader != "resident":
            return None
        return repeated(self.test.features, self.train.features)

    def sampler(self, rank: int = 0, device: torch.device = CPU) -> BlockSampler:
        """The samples of the batches of an epoch, for loaders on this device."""
        ahead = device.type == "cuda" and self.config.loader == "resident"
        return BlockSampler(
            self.training_samples, self.orders, self.config.batch, self._batches_per_block(device),
            drop_last=self.config.drop_last, rank=rank, world_size=self.world_size,
            start=self.start, ahead=ahead, limit=self._limit("limit_train_batches"),
        )  # fmt: skip

    def _batches_per_block(self, device: torch.device) -> int:
        if self.steps_per_call != "auto":
            return int(self.steps_per_call)
        if self.operations is not None:
            pays = math.ceil(loader.CALL_OPERATIONS * self.trial_count / self.operations)
            # The numbers of the samples; a rate, a loss and a count of each trial.
            held = 8 * self.config.batch * len(self.orders) + 16 * self.trial_count
            most = min(self.most_batches, max(1, loader.ROWS_BYTES // held))
            return max(1, min(most, max(loader.OPERATIONS // self.operations, pays)))
        features = len(self.orders) * math.prod(self.source.shape)
        # Kept until the block ends.
        logits = self.trial_count * self.task.outputs(self.source.classes)
        return loader.batches_per_block(4 * self.config.batch * (features + logits), device)


def repeated(samples: Tensor, among: Tensor) -> int:
    """How many of `samples` (N, ...) have the features of one of `among` (M, ...), on the CPU. Both
    have one shape and one type; NaN equals NaN. A model has seen such a test sample already."""
    wanted = Counter(_rows(samples))
    return sum(wanted[row] for row in {row for row in _rows(among) if row in wanted})


def _rows(features: Tensor) -> Iterator[bytes]:
    """The bytes of each sample."""
    for some in torch.split(features.flatten(1), AT_ONCE):
        array = some.numpy()
        rows = array + 0 if array.dtype.kind == "f" else array  # -0.0 becomes 0.0
        yield from (row.tobytes() for row in rows)
