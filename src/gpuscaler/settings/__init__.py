"""Settings files: strict parsing that reports all mistakes at once, and JSON Schemas."""

from gpuscaler.model.reading.errors import Problem, SettingsError
from gpuscaler.settings.pools_file import load_policy, load_settings, parse_policy, parse_settings
from gpuscaler.settings.run_settings import RunSettings

__all__ = ["Problem", "RunSettings", "SettingsError", "load_policy", "load_settings", "parse_policy", "parse_settings"]
