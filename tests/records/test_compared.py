"""How a model beside baselines is told."""

from typing import Any

from kindling.records.compared import compared_rows

OWN: dict[str, Any] = {"name": "the model", "score": 0.75, "low": 0.5, "high": 0.875, "less": None}
OTHER = OWN | {"name": "linear model", "score": 0.5, "less": [0.25, -0.125, 0.625]}


def test_accuracies_are_percent_and_differences_points() -> None:
    own, other = compared_rows("classification", [OWN, OTHER])
    assert own == {
        "on the test rows": "the model", "accuracy": "75.00%", "95% interval": "50.00% to 87.50%",
        "behind the model, points": "", "its 95% interval": "",
    }  # fmt: skip
    assert other["accuracy"] == "50.00%"
    assert other["behind the model, points"] == "+25.0"
    assert other["its 95% interval"] == "-12.5 to +62.5"


def test_numbers_have_r2() -> None:
    _, other = compared_rows("regression", [OWN, OTHER])
    assert other["R²"] == "0.5000"
    assert other["behind the model"] == "+0.250"
    assert other["its 95% interval"] == "-0.125 to +0.625"


def test_a_result_from_before_has_none() -> None:
    assert [*compared_rows("classification", [])] == []
