"""`python -m src.train KEY=VALUE …` is `kindling train KEY=VALUE …`."""

from kindling.commands.train import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)  # plain: this program does nothing else before
