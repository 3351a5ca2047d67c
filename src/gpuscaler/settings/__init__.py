"""Settings that people write: strict parsing with every mistake named at once, and JSON Schemas."""

from gpuscaler.settings.errors import Problem, SettingsError
from gpuscaler.settings.pools_file import load_policy, parse_policy

__all__ = ["Problem", "SettingsError", "load_policy", "parse_policy"]
