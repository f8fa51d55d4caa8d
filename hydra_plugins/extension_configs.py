"""Adds the folders of configurations that extensions bring to Hydra's search path."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from kindling.system.installation import CONF


class ExtensionConfigs(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        # Hydra asks its plugins in every Hydra application of the environment.
        paths = [element.path.removeprefix("file://") for element in search_path.get_path()]
        if str(CONF) not in paths:
            return
        from kindling.config.registry import CONFIG_FOLDERS, load_extensions

        load_extensions()
        for folder in CONFIG_FOLDERS:
            search_path.append("extension", f"file://{folder}")
