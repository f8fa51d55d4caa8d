"""What data.path names, as far as a look at it tells. No torch here."""

from pathlib import Path

from src import config as schema
from src.data.folders import class_folders
from src.data.tables import read_header
from src.errors import InputError
from src.files import kind


def path_faults(config: schema.Data) -> list[str]:
    """A text for each fault that needs no reading of the data themselves."""
    if not isinstance(config, schema.ImageFolder | schema.Npz | schema.Csv):
        return []
    path = Path(config.path)
    try:
        if not path.exists():
            where = "" if path.is_absolute() else f" in {Path.cwd()}"
            raise InputError(f"data.path={path}: there is no such file or folder{where}")
        if isinstance(config, schema.ImageFolder):
            if not path.is_dir():
                raise InputError(
                    f"data.path={path}: is a file; name the folder that has one for each class"
                )
            class_folders(path)
        elif path.is_dir():
            raise InputError(
                f"data.path={path}: is a folder; name a file, or type data=image_folder for "
                "pictures in folders"
            )
        elif not path.is_file():
            raise InputError(f"data.path={path}: is {kind(path.stat())}, must be a file")
        elif isinstance(config, schema.Csv):
            read_header(path).require([config.target], "data.target")
    except InputError as error:
        return [str(error)]
    except OSError as error:
        return [f"data.path={path}: cannot be read ({error.strerror})"]
    return []
