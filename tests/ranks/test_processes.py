"""Two ranks on two CPU cores: real processes, gloo between them."""

import errno
import ipaddress
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
from torch.multiprocessing.spawn import spawn

from kindling.config.compose import compose
from kindling.data.class_balance import BalancedOrder
from kindling.data.module import DataModule
from kindling.data.sources.digits import digits
from kindling.data.sources.source import split_off_validation
from kindling.ranks import processes as ranks
from kindling.ranks.processes import RankError, RankKilledError
from kindling.records.folder import Run
from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError, Interrupted, exit_on_error
from kindling.system.files import lock_or_fail
from kindling.training.checkpoints import Checkpoints
from kindling.training.fit import Job, fit, fit_rank, fit_stack
from tests.helpers.commands import LONG, SMALL, Command, Train, started
from tests.helpers.kills import kill_fork_server
from tests.helpers.weights import weights

POINTS = [(0.02, 0), (0.05, 0), (0.02, 1)]
BOTH = ("trainer.devices=2", "trainer.strategy=ddp")


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["f1", "auroc"])
def test_two_ranks_are_one(measure: str, train: Train) -> None:
    """Half the batch each: the same gradients, so the same weights and the same evaluation."""
    overrides = ["optimizer.lr=0.1", "data.drop_last=true", f"checkpoint.monitor=val/{measure}"]
    one = train("data.batch_size=100", *overrides)
    two = train("data.batch_size=50", *overrides, *BOTH, "logger=tensorboard")
    a, b = weights(one), weights(two)
    assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-5
    assert two.result["ranks"] == 2
    assert two.result["steps"] == one.result["steps"]
    assert len(list((two.folder / "tensorboard").iterdir())) == 1  # one rank speaks
    for row, other in zip(one.history, two.history, strict=True):
        assert other["val/acc"] == row["val/acc"]  # each sample counted once
        assert other[f"val/{measure}"] == pytest.approx(row[f"val/{measure}"], abs=1e-5)
        assert other["val/loss"] == pytest.approx(row["val/loss"], abs=1e-5)
        assert other["train/loss"] == pytest.approx(row["train/loss"], abs=1e-5)
        assert other["train/acc"] == pytest.approx(row["train/acc"])
    assert two.result["test/acc"] == one.result["test/acc"]
    assert torch.equal(b["model.layers.0.bias"], weights(two)["model.layers.0.bias"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer=adam", "model.dropout=0.3", "model.noise=0.2", "trainer.ema_decay=0.9"),
        ("trainer.precision=64", "trainer.gradient_clip_val=0.1", "model.norm=layer"),
        ("trainer.accumulate_grad_batches=2", "optimizer.momentum=0.9", "model.input_dropout=0.2"),
    ],
)
def test_the_engine_trains_two_ranks_as_one(overrides: tuple[str, ...], train: Train) -> None:
    """Also with the same random numbers for each sample."""
    common = ("data.drop_last=true", "optimizer.lr=0.01", *overrides)
    one, two = train("data.batch_size=100", *common), train("data.batch_size=50", *common, *BOTH)
    assert (one.result["step"], two.result["step"]) == ("native", "native")
    assert two.result["ranks"] == 2
    a, b = weights(one), weights(two)
    assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-5
    for row, other in zip(one.history, two.history, strict=True):
        assert other["val/loss"] == pytest.approx(row["val/loss"], abs=1e-5)
        assert other["train/loss"] == pytest.approx(row["train/loss"], abs=1e-5)


@pytest.mark.parametrize("step", ["native", "closed_form", "autograd"])
def test_each_rank_divides_by_the_weights_of_its_own_samples(step: str, tmp_path: Path) -> None:
    """As DistributedDataParallel with torch's CrossEntropyLoss(weight)."""
    weights_of_classes = [1.0, 0.1, 2.0, 5.0, 1.0, 0.5, 1.0, 30.0, 1.0, 4.0]
    config = compose(
        *SMALL, *BOTH, "trainer.max_epochs=1", "trainer.precision=64", "optimizer.lr=0.1",
        "model=logistic_regression", "data.batch_size=50", "data.sampler=balanced",
        f"trainer.class_weights={weights_of_classes}", f"trainer.step={step}",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    source = digits()
    train, _ = split_off_validation(source.train, 0.2, 0)
    torch.manual_seed(0)
    model = torch.nn.Linear(784, 10).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = torch.nn.CrossEntropyLoss(torch.tensor(weights_of_classes).double())
    order = BalancedOrder(0, train, source)(0, len(train))
    parts = [torch.split(order[rank::2], 50) for rank in range(2)]
    for batches in zip(*parts, strict=True):
        losses = [
            loss(model(train.features[batch].double().flatten(1)), train.labels[batch])
            for batch in batches
        ]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for value, expected in zip(weights(run).values(), model.parameters(), strict=True):
        assert torch.allclose(value.double(), expected, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_two_ranks_train_a_stack(tmp_path: Path) -> None:
    def stack(*overrides: str) -> list[Run]:
        common = ("data.drop_last=true", "optimizer.momentum=0.5", "checkpoint.monitor=val/recall")
        base = (*SMALL, *common, *overrides)
        configs = [compose(*base, f"optimizer.lr={rate}", f"seed={seed}") for rate, seed in POINTS]
        where = tmp_path / str(len(overrides))
        folders = [where / str(number) for number in range(len(configs))]
        return fit_stack(configs, folders, where / "stack")

    for one, two in zip(
        stack("data.batch_size=100"), stack("data.batch_size=50", *BOTH), strict=True
    ):
        a, b = weights(one), weights(two)
        assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-5
        assert two.result["test/acc"] == one.result["test/acc"]
        assert two.result["test/recall"] == one.result["test/recall"]
        assert two.monitored == one.monitored


@pytest.mark.slow
def test_ranks_follow_the_same_plateaus(tmp_path: Path) -> None:
    """Ranks with different rates would have other losses than ranks with rates given in advance."""
    common = (*SMALL, *BOTH, "trainer.max_epochs=5", "optimizer.lr=1.5")
    run = fit(compose(*common, "scheduler=plateau", "scheduler.patience=0"), tmp_path / "run")
    rates = [float(row["lr"] or 0) for row in run.history[1:]]
    falls = [n for n in range(1, 5) if rates[n] < rates[n - 1]]
    assert falls
    given = ("scheduler=multistep", f"scheduler.milestones={falls}", "scheduler.gamma=0.1")
    other = fit(compose(*common, *given), tmp_path / "other")
    names = ("train/loss", "val/loss")
    assert [[row[n] for n in names] for row in run.history] == [
        [row[n] for n in names] for row in other.history
    ]


def test_ranks_stop_together_when_a_run_diverges(tmp_path: Path) -> None:
    config = compose(*SMALL, *BOTH, "optimizer.lr=1e6", "trainer.max_epochs=3")
    result = fit(config, tmp_path / "run").result
    assert (result["status"], result["epochs"]) == ("diverged", 1)


def test_a_fault_in_a_rank_comes_home(tmp_path: Path) -> None:
    config = compose(*SMALL, *BOTH, "data.batch_size=600", "data.drop_last=true")
    with pytest.raises(InputError, match=r"type data\.batch_size=575 or less"):
        fit(config, tmp_path / "run")


@pytest.mark.slow
def test_ranks_from_the_command_line_in_a_sweep(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "-m", "optimizer.lr=0.1,0.5", *SMALL, "trainer.max_epochs=1", *BOTH)
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.glob("sweeps/*/*/results.csv")
    assert [line.split(",")[:3] for line in results.read_text().splitlines()] == [
        ["trial", "status", "optimizer.lr"],
        ["0", "finished", "0.1"],
        ["1", "finished", "0.5"],
    ]
    assert len(list(tmp_path.glob("**/history.csv"))) == 2  # no second output tree
    assert done.stdout.count("epoch 1/1") == 2  # rank 0 alone speaks


@pytest.mark.slow
def test_lines_of_ranks_that_cannot_be_written_fail_the_command(
    command: Command, tmp_path: Path
) -> None:
    done = command("src.train", *SMALL, *BOTH, "hydra.run.dir=run", stdout="full")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the standard output cannot be written (No space left")
    assert len(done.stderr.splitlines()) == 1
    assert Run(tmp_path / "run").result["status"] == "finished"


# --- started by others -------------------------------------------------------------------------

TORCHRUN = ("-m", "torch.distributed.run", "--rdzv-backend=c10d", "--max-restarts=0")
DROPPED = (*SMALL, "trainer.strategy=ddp", "model.dropout=0.1", "model.noise=0.1")


def processes(folder: Path, *commands: tuple[list[str], dict[str, str]]) -> list[str]:
    """Runs the commands side by side; their outputs, when all have ended well."""
    running = [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments, environment in commands
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert [process.returncode for process in running] == [0] * len(running), outputs
    return outputs


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def own_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What two ranks come to that the project starts itself."""
    config = compose(*DROPPED, "trainer.devices=2")
    return fit(config, tmp_path_factory.mktemp("own") / "run")


@pytest.fixture(scope="module")
def ranks_by_gloo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same of ranks that share no memory."""
    config = compose(*DROPPED, "trainer.devices=2", "trainer.step=closed_form")
    return fit(config, tmp_path_factory.mktemp("gloo") / "run")


def same_weights(run: Run, other: Run) -> bool:
    a, b = weights(run), weights(other)
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_two_agents_finish_a_run_as_one(tmp_path: Path, ranks_by_gloo: Run) -> None:
    port = free_port()
    agent = [
        *TORCHRUN, "--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=1", "-m", "src.train", *DROPPED, "trainer.devices=1", "trainer.num_nodes=2",
    ]  # fmt: skip
    outputs = processes(tmp_path, (agent, {}), (agent, {}))
    (result,) = tmp_path.glob("runs/*/*/result.json")
    assert same_weights(Run(result.parent), ranks_by_gloo)
    assert sum(output.count("epoch 2/2") for output in outputs) == 1
    assert (
        sum(output.count("effective batch size 200: 100 on each of 2") for output in outputs) == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "fit(compose(*small, 'trainer.devices=2', 'trainer.strategy=ddp'))",
        "sweep(*small, 'seed=0,1', 'hydra.launcher.executor=local', 'hydra.launcher.slots=1')",
    ],
)
def test_a_program_that_its_processes_would_start_again(tmp_path: Path, call: str) -> None:
    """Its error is the only one. It lacks `if __name__ == "__main__":`."""
    text = f"from kindling import compose, fit, sweep\nsmall = {SMALL}\n{call}\n"
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.splitlines()[-1] == (
        f"kindling.system.errors.InputError: {tmp_path / 'program.py'}: starts processes, and each "
        'of them imports this file; put all that runs below the line if __name__ == "__main__":'
    )
    assert "memory" not in done.stdout + done.stderr


@pytest.mark.slow
def test_torchrun_in_a_sweep(tmp_path: Path, own_ranks: Run) -> None:
    command = [
        *TORCHRUN, "--standalone", "--nproc-per-node=2", "-m", "src.train", "-m", *DROPPED,
        "trainer.devices=2", "seed=0,1",
    ]  # fmt: skip
    processes(tmp_path, (command, {}))
    (results,) = tmp_path.glob("sweeps/*/*/results.csv")
    assert len(results.read_text().splitlines()) == 3
    assert len(list(tmp_path.glob("**/history.csv"))) == 2
    assert same_weights(Run(results.parent / "0"), own_ranks)


@pytest.mark.slow
def test_srun(tmp_path: Path, ranks_by_gloo: Run) -> None:
    """As `srun --ntasks=2` starts two tasks, by the variables that it sets."""
    command = ["-m", "src.train", *DROPPED, "trainer.devices=2", "hydra.run.dir=run", "resume=auto"]
    slurm = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1",
        "SLURM_NODELIST": "localhost", "SLURM_JOB_NAME": "train",
        "SLURM_NODEID": "0", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    tasks = [
        (command, {**slurm, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)})
        for number in range(2)
    ]
    processes(tmp_path, *tasks)
    assert same_weights(Run(tmp_path / "run"), ranks_by_gloo)


def test_what_started_the_ranks_must_suit_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InputError, match="type torchrun --nnodes=3 --nproc-per-node=1"):
        check_command_line([*SMALL, "trainer.num_nodes=3"])
    for name, value in (("RANK", 0), ("WORLD_SIZE", 4), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with pytest.raises(InputError, match=r"type trainer\.devices=2 trainer\.num_nodes=2 trainer"):
        check_command_line([*SMALL])
    right = (*SMALL, "trainer.devices=2", "trainer.num_nodes=2", "trainer.strategy=ddp")
    check_command_line(right)
    with pytest.raises(InputError, match="with torchrun the trials run one after the other"):
        check_command_line(["-m", *right, "hydra/launcher=fused", "seed=1,2"])


def test_data_parallel_is_told_of_ddp() -> None:
    with pytest.raises(InputError, match=r"trainer\.strategy=dp: .*did you mean ddp"):
        compose("trainer.strategy=dp")


@pytest.mark.slow
def test_raschkas_toy_on_two_ranks(tmp_path: Path) -> None:
    result = fit(compose("experiment=raschka_toy_ddp"), tmp_path / "run").result
    assert (result["last"]["train/acc"], result["test/acc"], result["ranks"]) == (1.0, 1.0, 2)
    module = DataModule(compose("experiment=raschka_toy_ddp", "data.factor=1").data, world_size=8)
    with pytest.raises(InputError, match=r"2 test samples are too few for 8 devices; type "):
        module.setup()
    module = DataModule(compose("experiment=raschka_toy_ddp", "data.factor=4").data, world_size=8)
    module.setup()
    assert module.batches_per_epoch == 1


@pytest.mark.parametrize("part", ["training", "validation", "test"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_each_rank_needs_a_sample_of_each_part(part: str, ranks: int) -> None:
    """Lightning would end with a traceback of each rank, for the loader that has no batch."""
    sizes = {"training": 40, "validation": 40, "test": 40}

    def open_data() -> None:
        samples = sizes["training"] + sizes["validation"]
        config = compose(
            "data=synthetic",
            f"data.samples={samples}",
            f"data.test_samples={sizes['test']}",
            f"data.val_fraction={sizes['validation'] / samples}",
            "data.batch_size=1",
        ).data
        DataModule(config, world_size=ranks).setup()

    sizes[part] = ranks
    open_data()
    sizes[part] = ranks - 1
    told = f"trainer.devices: {ranks - 1} {part} samples are too few for {ranks} devices; type "
    with pytest.raises(InputError, match=f"^{told}trainer.devices={ranks - 1} or less$"):
        open_data()


# --- ranks that die ----------------------------------------------------------------------------


def dies_once(job: Job) -> None:
    """fit_rank, but rank 1 is killed in the second epoch of the first attempt."""
    after_batch = Checkpoints.on_train_batch_end
    mark = Path(job.folders[0]) / "died"

    def killed(self: Checkpoints, trainer: Any, *others: Any) -> None:
        if trainer.global_rank == 1 and trainer.current_epoch == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        after_batch(self, trainer, *others)

    Checkpoints.on_train_batch_end = killed  # type: ignore[method-assign, assignment]
    fit_rank(job)


def dies_always(job: Job) -> None:
    """fit_rank, but rank 1 is killed in the second epoch of each attempt."""
    after_batch = Checkpoints.on_train_batch_end

    def killed(self: Checkpoints, trainer: Any, *others: Any) -> None:
        if trainer.global_rank == 1 and trainer.current_epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        after_batch(self, trainer, *others)

    Checkpoints.on_train_batch_end = killed  # type: ignore[method-assign, assignment]
    fit_rank(job)


def stops_once(rank: int, job: Job) -> None:
    """fit_rank, but this rank is stopped in the second epoch of the first attempt."""
    after_batch = Checkpoints.on_train_batch_end
    mark = Path(job.folders[0]) / "stopped"

    def stopped(self: Checkpoints, trainer: Any, *others: Any) -> None:
        if trainer.global_rank == rank and trainer.current_epoch == 1 and not mark.exists():
            mark.with_name("new").write_text(str(os.getpid()))
            mark.with_name("new").rename(mark)
            os.kill(os.getpid(), signal.SIGSTOP)
        after_batch(self, trainer, *others)

    Checkpoints.on_train_batch_end = stopped  # type: ignore[method-assign, assignment]
    fit_rank(job)


def raises(job: Job) -> None:
    """fit_rank, but rank 1 meets a fault of the program."""
    after_batch = Checkpoints.on_train_batch_end

    def faulty(self: Checkpoints, trainer: Any, *others: Any) -> None:
        if trainer.global_rank == 1:
            raise ZeroDivisionError("of rank 1")
        after_batch(self, trainer, *others)

    Checkpoints.on_train_batch_end = faulty  # type: ignore[method-assign, assignment]
    fit_rank(job)


def full_disk(job: Job) -> None:
    """fit_rank, but rank 0, which alone writes, finds the disk full after an epoch."""
    after_epoch = Checkpoints.on_train_epoch_end

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def filled(self: Checkpoints, trainer: Any, *others: Any) -> None:
        if trainer.current_epoch == 1:
            os.fsync = full  # type: ignore[assignment]
        after_epoch(self, trainer, *others)

    Checkpoints.on_train_epoch_end = filled  # type: ignore[method-assign, assignment]
    fit_rank(job)


@pytest.mark.slow
def test_restarted_ranks_come_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ranks: Run
) -> None:
    monkeypatch.setattr("kindling.training.fit.fit_rank", dies_once)
    config = compose(*DROPPED, "trainer.devices=2", "trainer.max_restarts=1")
    run = fit(config, tmp_path / "run")
    assert (tmp_path / "run" / "died").exists()
    assert run.result["status"] == "finished"
    assert "going on from epoch 1, batch 0" in run.log_file.read_text()
    assert same_weights(run, own_ranks)
    assert [row["val/loss"] for row in run.history] == [
        row["val/loss"] for row in own_ranks.history
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGCONT, signal.SIGKILL])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_wait_for_one_that_is_stopped(
    rank: int,
    sent: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own_ranks: Run,
) -> None:
    """It goes on, or is killed and starts again: the run comes to the same."""
    monkeypatch.setattr("kindling.training.fit.fit_rank", partial(stops_once, rank))
    run = Run(tmp_path / "run")
    seen = list[int]()

    def wake() -> None:
        while not (run.folder / "stopped").exists():
            time.sleep(0.01)
        process = int((run.folder / "stopped").read_text())
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        time.sleep(0.5)  # the other rank comes to wait for this one
        seen.append(len(run.history))
        os.kill(process, sent)

    threading.Thread(target=wake, daemon=True).start()
    fit(compose(*DROPPED, "trainer.devices=2", "trainer.max_restarts=1"), run.folder)
    assert seen == [2]  # nobody has come further than the first epoch
    assert ("going on from epoch 1" in run.log_file.read_text()) is (sent == signal.SIGKILL)
    assert run.result["status"] == "finished"
    assert same_weights(run, own_ranks)
    losses = [[row["val/loss"] for row in each.history] for each in (run, own_ranks)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_ranks_that_are_killed_too_often_end_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kindling.training.fit.fit_rank", dies_always)
    run = Run(tmp_path / "run")
    with pytest.raises(SystemExit) as end, exit_on_error():
        fit(compose(*DROPPED, "trainer.devices=2", "trainer.max_restarts=1"), run.folder)
    assert end.value.code == 1  # no mistake of the user's
    errors = capfd.readouterr().err
    assert re.fullmatch(
        r"error: rank [01] (was ended by SIGKILL|lost its connection to a rank that was ended), "
        r"and trainer\.max_restarts=1 allows no more starts\. A system kills processes when its "
        rf"memory is full; to go on, type\n  python -m src\.train resume={run.folder}\n",
        errors,
    )
    assert run.result["status"] == "failed"
    assert "trainer.max_restarts=1 allows no more" in run.result["error"]


@pytest.mark.slow
def test_ranks_whose_fork_server_is_killed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kill_fork_server(monkeypatch)
    with pytest.raises(RankKilledError, match="the process that starts the ranks was ended"):
        ranks.launch(time.sleep, (0,), 2)


@pytest.mark.slow
def test_a_signal_after_the_ranks_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = TemporaryDirectory.cleanup

    def signalled(self: "TemporaryDirectory[str]") -> None:
        usual(self)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TemporaryDirectory, "cleanup", signalled)
    with pytest.raises(Interrupted) as stopped:
        ranks.launch(time.sleep, (0,), 2)
    assert stopped.value.number == signal.SIGTERM


@pytest.mark.slow
def test_a_rank_that_is_killed_after_its_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits until all ranks have ended theirs."""
    usual = MultiprocessContext._is_done

    def kills(self: Any) -> bool:
        done = usual(self)
        if done:
            os.kill(self.pids()[1], signal.SIGKILL)
            time.sleep(0.5)
        return done

    monkeypatch.setattr(MultiprocessContext, "_is_done", kills)
    with pytest.raises(RankKilledError, match="rank 1 was ended by SIGKILL"):
        ranks.launch(time.sleep, (0,), 2)


@pytest.mark.slow
def test_a_full_disk_of_ranks_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kindling.training.fit.fit_rank", full_disk)
    run = tmp_path / "run"
    told = (
        r"No space left on device\); the last checkpoint is intact\. "
        r"When files can be written again, type\n  "
    )
    # By whether the process of the ranks has seen a checkout.
    command = r"(kindling train|python -m src\.train)"
    with pytest.raises(InputError, match=rf"{told}{command} resume={run}$"):
        fit(compose(*SMALL, *BOTH, "trainer.max_epochs=3"), run)


def test_a_dead_rank_ends_the_run_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kindling.training.fit.fit_rank", raises)
    config = compose(*DROPPED, "trainer.devices=2")
    with pytest.raises(RankError, match="rank 1: ZeroDivisionError: of rank 1") as caught:
        fit(config, tmp_path / "run")
    assert "in faulty" in str(caught.value)
    result = Run(tmp_path / "run").result
    assert result["status"] == "failed"
    assert "ZeroDivisionError: of rank 1" in result["error"]
    assert [child for server in children(os.getpid()) for child in children(server)] == []


@pytest.mark.slow
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    """The run is long: a rank that went on would be found. Nobody else gets the folder before the
    last rank has ended."""
    process = started(tmp_path, *LONG, *BOTH, "hydra.run.dir=run")
    folder = tmp_path / "run" / "checkpoints"
    try:
        found = [rank for server in children(process.pid) for rank in children(server)]
        assert len(found) == 2
        for rank in found:
            os.kill(rank, signal.SIGSTOP)
        process.kill()
        process.wait()
        refused = pytest.raises(InputError, match=f"process {process.pid} of .* is writing there")
        with refused, lock_or_fail(folder / ".lock"):
            pass

        def awake() -> None:
            for rank in found:
                os.kill(rank, signal.SIGCONT)

        threading.Timer(1, awake).start()
        with lock_or_fail(folder / ".lock", patience=0.1):
            pass  # the launcher has ended: its ranks get longer than a living process
        until = time.monotonic() + 60
        while (left := session(process.pid)) and time.monotonic() < until:
            time.sleep(0.05)
        assert left == []
        with lock_or_fail(folder / ".lock"):
            pass
    finally:
        for member in session(process.pid):
            os.kill(member, signal.SIGKILL)
        process.communicate()


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended in between
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def children(process: int) -> list[int]:
    """Those of all its threads: the server that forks ranks is one of ours, they are its own."""
    found = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for path in found for number in path.read_text().split()]


def listening(processes: list[int]) -> set[str]:
    """The addresses at which any of these processes waits for connections, as Linux tells them."""
    sockets = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                sockets.add(str(descriptor.readlink()))
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *others = line.split()
            if state == "0A" and f"socket:[{others[5]}]" in sockets:
                raw = bytes.fromhex(local.partition(":")[0])
                words = [raw[place : place + 4][::-1] for place in range(0, len(raw), 4)]
                addresses.add(str(ipaddress.ip_address(b"".join(words))))
    return addresses


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_listen_on_this_machine_alone(tmp_path: Path) -> None:
    """While they train: neither the launcher nor a rank can be reached from outside."""
    process = started(tmp_path, *LONG, *BOTH, "hydra.run.dir=run")
    try:
        servers = children(process.pid)
        found = [rank for server in servers for rank in children(server)]
        assert len(found) == 2
        assert listening([process.pid, *servers, *found]) == {"127.0.0.1"}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143


def gathers(rank: int, file: str) -> None:
    """A rank that sends its value, or one that would run code where it arrives."""
    dist.init_process_group("gloo", store=FileStore(file, 2), rank=rank, world_size=2)
    sent = {"rank": rank, "seed": [rank] * (5 + 3 * rank), "state": torch.arange(rank + 1)}
    one, other = ranks.gather({**sent, "nothing": None, "metrics": (torch.ones(rank), 2)})
    assert (one["rank"], other["rank"]) == (0, 1)
    assert (one["seed"], other["seed"]) == ([0] * 5, [1] * 8)
    assert other["state"].tolist() == [0, 1]
    assert one["metrics"][0].tolist() == []
    with pytest.raises(pickle.UnpicklingError):
        ranks.gather({"code": Harmful(file)})
    assert not Path(f"{file}.harmed").exists()
    dist.destroy_process_group()


class Harmful:
    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (Path(f"{self.file}.harmed"),)


@pytest.mark.slow
def test_what_ranks_send_each_other_runs_no_code(tmp_path: Path) -> None:
    spawn(gathers, (str(tmp_path / "meeting"),), nprocs=2)  # type: ignore[no-untyped-call]
