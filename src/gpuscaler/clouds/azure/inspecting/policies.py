"""Policies that may refuse changes: the assignments that apply to resource groups, with the rules that deny, their parameters resolved."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.ids import group_path
from gpuscaler.clouds.azure.inspecting.inspection import DEFINITION, POLICY, Inspection, entries_of
from gpuscaler.model.azure_names import fold_id

_ASSIGNMENTS, _DEFINITIONS = "2022-06-01", "2021-06-01"
_PARAMETER: Final = re.compile(r"\[parameters\('([^']+)'\)\]")
_SET: Final = "/policysetdefinitions/"

Values = Mapping[str, Any]


async def read_policies(arm: Arm, subscription: str, groups: Sequence[str], inspection: Inspection) -> None:
    """Read each rule with the effect ``deny`` that is enforced in one of ``groups``, as a document of its assignment and its ``Rule``."""
    reader = _Reader(arm, inspection)
    await asyncio.gather(*(reader.read_group(subscription, group) for group in groups))


class _Reader:
    """Definitions are read once; an answer that failed is noted once."""

    def __init__(self, arm: Arm, inspection: Inspection) -> None:
        self._arm, self._inspection = arm, inspection
        self._definitions: dict[str, asyncio.Task[Mapping[str, Any]]] = {}

    async def read_group(self, subscription: str, group: str) -> None:
        path = f"{group_path(subscription, group)}/providers/Microsoft.Authorization/policyAssignments"
        assignments = entries_of(await self._inspection.ask(POLICY, path, self._arm.pages(path, version=_ASSIGNMENTS)))
        await asyncio.gather(*(self._read_assignment(assignment, path, group) for assignment in assignments))

    async def _read_assignment(self, assignment: Mapping[str, Any], path: str, group: str) -> None:
        properties = _object(assignment.get("properties"))
        excluded = [text for text in properties.get("notScopes") or () if isinstance(text, str)]
        scope = path.rpartition("/providers/")[0]
        if properties.get("enforcementMode") == "DoNotEnforce" or any(fold_id(scope).startswith(fold_id(text)) for text in excluded):
            return
        given = {name: _object(value).get("value") for name, value in _object(properties.get("parameters")).items()}
        for rule in await self._rules(str(properties.get("policyDefinitionId") or ""), given):
            entry = {"id": assignment.get("id"), "name": assignment.get("name"), "displayName": properties.get("displayName")}
            self._inspection.add(POLICY, [entry], Group=group, Rule=rule)

    async def _rules(self, definition: str, given: Values) -> list[Any]:
        """The conditions under which a definition denies, or those of a set of definitions."""
        properties = await self._definition(definition)
        values = {**_defaults(properties), **given}
        if _SET not in fold_id(definition):
            rule = _object(_resolved(properties.get("policyRule"), values))
            effect = _object(rule.get("then")).get("effect")
            return [rule.get("if")] if isinstance(effect, str) and effect.lower() == "deny" else []
        rules = await asyncio.gather(*(self._rules(*member) for member in _members(properties, values)))
        return [rule for found in rules for rule in found]

    async def _definition(self, ident: str) -> Mapping[str, Any]:
        if ident not in self._definitions:
            self._definitions[ident] = asyncio.ensure_future(self._read_definition(ident))
        return await self._definitions[ident]

    async def _read_definition(self, ident: str) -> Mapping[str, Any]:
        reply = await self._inspection.ask(DEFINITION, ident, self._arm.read(ident, version=_DEFINITIONS))
        return _object(_object(reply.body).get("properties")) if reply is not None else {}


def _members(properties: Mapping[str, Any], values: Values) -> Iterator[tuple[str, Values]]:
    """The definitions of a set that may deny, with their parameters."""
    for member in properties.get("policyDefinitions") or ():
        if not isinstance(member, Mapping) or not isinstance(member.get("policyDefinitionId"), str):
            continue
        given = {name: _resolved(_object(value).get("value"), values) for name, value in _object(member.get("parameters")).items()}
        effect = next((value for name, value in given.items() if name.lower() == "effect"), None)
        if not isinstance(effect, str) or effect.lower() == "deny":
            yield member["policyDefinitionId"], given


def _defaults(properties: Mapping[str, Any]) -> dict[str, Any]:
    declared = _object(properties.get("parameters"))
    return {name: _object(value)["defaultValue"] for name, value in declared.items() if "defaultValue" in _object(value)}


def _resolved(value: Any, values: Values) -> Any:
    """``value`` with the parameters that it names; other expressions of Azure stay as they are."""
    if isinstance(value, str) and (match := _PARAMETER.fullmatch(value)):
        names = {name.lower(): found for name, found in values.items()}
        return names.get(match[1].lower(), value)
    if isinstance(value, Mapping):
        return {key: _resolved(item, values) for key, item in value.items()}
    return [_resolved(item, values) for item in value] if isinstance(value, list) else value


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
