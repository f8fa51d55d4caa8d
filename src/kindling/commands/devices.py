"""Lists the devices of this machine, and the choice of trainer.accelerator=auto.

python -m src.devices
python -m src.devices --json       for programs
"""

import json

from kindling.system.arguments import command_parser
from kindling.system.process import importing


def main() -> None:
    parser = command_parser("devices", __doc__)
    parser.flag("--json", "print one JSON object")
    arguments = parser.parse_args()
    with importing():
        from kindling.native.engine import state
        from kindling.system.machine import describe_survey, survey

    found = survey(state())
    print(json.dumps(found) if arguments.json else describe_survey(found))
