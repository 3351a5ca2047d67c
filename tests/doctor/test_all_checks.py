"""The list of all checks has those of each module, each once."""

import pkgutil
from collections import Counter
from importlib import import_module

from gpuscaler.doctor import checks
from gpuscaler.doctor.checks.all_checks import CHECKS


def test_each_check_of_each_module_is_in_the_list_once() -> None:
    modules = [import_module(info.name) for info in pkgutil.walk_packages(checks.__path__, f"{checks.__name__}.")]
    listed = Counter(map(id, CHECKS))
    defined = {id(check): check for module in modules for check in getattr(module, "CHECKS", ())}

    assert not [check.title for ident, check in defined.items() if listed[ident] != 1]
