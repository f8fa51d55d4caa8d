# PYTHON_ARGCOMPLETE_OK
"""Lists the devices of this machine, and the choice of trainer.accelerator=auto.

python -m src.devices
python -m src.devices --json       for programs
"""

import json

from src.system.arguments import command_parser
from src.system.process import importing, run


def main() -> None:
    parser = command_parser("devices", __doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with importing():
        from src.native.engine import state
        from src.system.survey import describe, survey

    found = survey(state())
    print(json.dumps(found) if arguments.json else describe(found))


if __name__ == "__main__":
    run(main)
