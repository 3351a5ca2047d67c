"""Templates of CloudFormation: the way of interruption notices from rules of EventBridge to a queue.

Only what is written in the long form is read, as ``Fn::GetAtt``: the short form, ``!GetAtt``, is a tag that only CloudFormation's YAML has.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuscaler.doctor.checks.aws.interruptions import EVENTS, LATE, UNUSABLE_KEY, lets_send
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.findings import WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, removed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests

_LOST = Mistake("D33", WARNING, LATE)
_QUEUE, _POLICY, _RULE = "AWS::SQS::Queue", "AWS::SQS::QueuePolicy", "AWS::Events::Rule"


def has_notices(manifest: Manifest) -> bool:
    """Whether this is a template with a rule of EventBridge."""
    return not manifest.document.kind and any(_of(manifest, _RULE))


def find_lost_notices(manifests: Manifests) -> Iterable[Finding]:
    """D33 in files: queues that rules of EventBridge send to, but that take nothing from it."""
    for manifest in manifests.items:
        if has_notices(manifest):
            yield from _lost(manifest)


def _lost(manifest: Manifest) -> Iterator[Finding]:
    targets = {_name(target.get("Arn")) for _, rule in _of(manifest, _RULE) for target in _mappings(rule.value("Targets"))}
    policies = [policy for _, policy in _of(manifest, _POLICY)]
    for name, queue in _of(manifest, _QUEUE):
        if name not in targets:
            continue
        path = ("Resources", name, "Properties")
        own = [policy for policy in policies if name in map(_name, _mappings(policy.value("Queues")))]
        if not any(lets_send(policy.part("PolicyDocument")) for policy in own):
            expected = f"a {_POLICY} for it that lets {EVENTS} send messages"
            yield _LOST.at(manifest, path, seen=f"no policy that admits {EVENTS}", expected=expected, advice=f"add {expected}")
        if queue.text("KmsMasterKeyId") == UNUSABLE_KEY:
            key = (*path, "KmsMasterKeyId")
            new = changed(removed(manifest.data, key), (*path, "SqsManagedSseEnabled"), True)
            seen, expected = f"{UNUSABLE_KEY}, a key that EventBridge may not use", "SqsManagedSseEnabled: true, or a key of your own"
            yield _LOST.at(manifest, key, seen=seen, expected=expected, new=new)


def _of(manifest: Manifest, type_: str) -> Iterator[tuple[str, Document]]:
    """The names and properties of the resources of a type."""
    for name, resource in manifest.document.part("Resources").data.items():
        if isinstance(resource, dict) and resource.get("Type") == type_:
            yield name, Document(resource).part("Properties")


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _name(reference: object) -> str:
    """The resource that ``Ref`` or ``Fn::GetAtt`` names; empty if it is neither."""
    if not isinstance(reference, dict):
        return ""
    named = reference.get("Ref") or reference.get("Fn::GetAtt")
    first = named[0] if isinstance(named, list) and named else named
    return first.partition(".")[0] if isinstance(first, str) else ""


LINTS = (Lint("D33", "notices of interruptions in templates of CloudFormation", find_lost_notices),)
