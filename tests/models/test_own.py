"""A module of a program: what may be given, how it is made, and the message for each fault."""

import functools
import pickle
import sys
import traceback
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from kindling.config import schema
from kindling.models import build_model, try_model
from kindling.models.own import OwnModel
from kindling.steps.vmap import why_no_vmap
from kindling.system.errors import InputError
from tests.helpers.own import Net, make


def section(given: Any) -> schema.Own:
    return schema.Own(name="own").holding(OwnModel(given))


def test_a_module_is_copied_each_time() -> None:
    net = Net(4, 3)
    first, second = (build_model(section(net), (4,), 3) for _ in range(2))
    for name, value in net.state_dict().items():
        for other in (first.state_dict()[name], second.state_dict()[name]):
            assert torch.equal(other, value)
            assert other.data_ptr() != value.data_ptr()


def with_default(shape: tuple[int, ...], outputs: int, width: int = 3) -> nn.Module:
    return Net(shape[0], outputs)


def of_anything(*given: Any, **named: Any) -> nn.Module:
    assert not given
    return Net()


def of_one(one: int) -> nn.Module:
    return Net()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (make, "make"),
        (Net, "Net"),
        (functools.partial(Net, 4, outputs=2), "Net"),
        (with_default, "with_default"),
        (of_anything, "of_anything"),
    ],
)
def test_a_function_draws_new_weights_each_time(given: Any, name: str) -> None:
    own = OwnModel(given)
    assert own.name == name
    torch.manual_seed(3)
    first, second = (own.build((4,), 2).get_parameter("last.weight") for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(own.build((4,), 2).get_parameter("last.weight"), first)


def test_a_function_may_return_one_module_each_time() -> None:
    net = Net()
    first = OwnModel(lambda: net).build((4,), 2)
    with torch.no_grad():
        first.get_parameter("last.weight").zero_()
    assert net.last.weight.any()


class Lit(LightningModule):
    def forward(self, features: Tensor) -> Tensor:
        return features


class WithText(Net):
    def get_extra_state(self) -> str:
        return "more"


def _complex() -> nn.Module:
    net = Net()
    net.register_buffer("waves", torch.zeros(2, dtype=torch.complex64))
    return net


class Returns(Net):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, features: Tensor) -> Any:
        return self.answer(super().forward(features))


def _frozen() -> nn.Module:
    return Net().requires_grad_(False)


def _old_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(nn.Linear(4, 2))


def _raises() -> nn.Module:
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (3, "^model: is int, must be a module, or a function of one$"),
        (of_one, "^model=of_one: needs 1 arguments, .*type model=lambda shape, outputs: of_one"),
        (lambda: 3, "^model=<lambda>: returns int, must return a torch module$"),
        (Lit(), "^model=Lit: is a LightningModule; give the torch module in it"),
        (Lit, "^model=Lit: is a LightningModule"),
        (nn.LazyLinear(2), "^model=LazyLinear: has lazy parameters"),
        (nn.Flatten(), "^model=Flatten: has no parameters that train$"),
        (_frozen, "has no parameters that train$"),
        (Net().to("meta"), r"^model=Net: is not on the CPU; type model.cpu\(\), and"),
        (Net().double(), r"^model=Net: has weights other than float32; type model.float\(\)"),
        (WithText(), r"has \['_extra_state'\] in its state_dict, which a"),
        (_complex, r"has \['waves'\] in its state_dict, which"),
        (_old_norm, r"cannot be copied by copy.deepcopy \("),
        (Net(5), r"^model=Net: cannot take samples of shape \[4\] \(RuntimeError: .*correct its"),
        (_raises, r"^model=_raises: its function fails for .* \[4\] \(KeyError: 'mine'\); correct"),
        (Net(4, 3), r"gives \(2, 3\) for 2 samples, must give \(2, 2\); make its last layer of 2"),
        (
            nn.LSTM(4, 2),
            r"its forward returns tuple, must return a tensor \(2, 2\) of real numbers",
        ),
        (
            Returns(lambda y: {"logits": y}),
            r"its forward returns dict, must return a tensor \(2, 2\)",
        ),
        (Returns(lambda _: None), r"its forward returns NoneType, must return a tensor \(2, 2\)"),
        (
            Returns(lambda y: y.detach().numpy()),
            r"its forward returns ndarray, must return a tensor",
        ),
        (Returns(lambda y: y + 0j), r"its forward returns complex numbers, must return a tensor"),
        (nn.Linear(4, 2, dtype=torch.complex64), "has complex parameters, which cannot be trained"),
        (nn.Linear(4, 2, dtype=torch.complex64).float(), "has complex parameters, which cannot be"),
    ],
)
def test_faults(given: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        build_model(section(given), (4,), 2)
    assert "\n" not in str(caught.value)


class Failing(Net):
    def forward(self, features: Tensor) -> Tensor:
        return self.of_mine(features)

    def of_mine(self, features: Tensor) -> Tensor:
        raise ZeroDivisionError("in my code")


def test_the_traceback_of_the_users_code_stays_and_ours_is_cut_away() -> None:
    with pytest.raises(InputError) as caught:
        build_model(section(Failing()), (4,), 2)
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    frames = traceback.extract_tb(cause.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["forward", "of_mine"]
    assert not [frame for frame in frames if "/kindling/" in frame.filename]


def test_other_processes_get_what_they_can_import() -> None:
    assert pickle.loads(pickle.dumps(OwnModel(make))).given is make
    copy = pickle.loads(pickle.dumps(OwnModel(Net())))
    assert isinstance(copy.given, Net)
    with pytest.raises(InputError, match=r"^model=.*<lambda>: cannot go to another process"):
        pickle.dumps(OwnModel(lambda: Net(4)))


def test_what_a_notebook_defines_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process would look for the class in a file."""
    main = sys.modules["__main__"]
    kind = type("Cell", (Net,), {"__module__": "__main__"})
    monkeypatch.setattr(main, "Cell", kind, raising=False)
    monkeypatch.setattr(main, "__file__", "a.py", raising=False)
    assert pickle.loads(pickle.dumps(OwnModel(kind))).given is kind
    monkeypatch.delattr(main, "__file__")
    with pytest.raises(
        InputError, match=r"^model=Cell: .* \(it is defined in a notebook\); define"
    ):
        pickle.dumps(OwnModel(kind))


def test_answers_about_one_model_are_not_those_of_another() -> None:
    """Though their sections have the same values."""
    small, large = section(Net), section(nn.Linear(4, 2))
    assert small == small.model_copy()
    assert small != large
    for _ in range(2):
        assert try_model(small, (4,), 2).outputs > try_model(large, (4,), 2).outputs
        assert why_no_vmap(large, (4,), 2) is None
    frozen = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    assert why_no_vmap(section(frozen), (4,), 2) is not None
