"""Maps labels of series to resources, and resources to labels.

Source: prometheus-adapter v0.12, ``pkg/naming`` (``ResourceConverter``), read for behaviour.
"""

from collections.abc import Iterable, Mapping

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.running import Template
from gpuscaler.metrics.rules.patterns import Pattern, PatternError
from gpuscaler.metrics.rules.resources import Resource, ResourceError, Resources


class Labelling:
    """The labels of resources. ``overrides`` are label by label, ``template`` is general; of two labels for one resource the later is used.

    Raises :class:`~.errors.TemplateError`, :class:`~.patterns.PatternError` and, for a template that names no resource,
    :class:`~.resources.ResourceError`.
    """

    def __init__(self, overrides: Mapping[str, Resource], template: str, resources: Resources) -> None:
        self._by_label = dict(overrides)
        self._by_resource = {resource.text: label for label, resource in overrides.items()}
        self._resources = resources
        self._template = Template(template) if template else None
        self._pattern = _label_pattern(self._template) if self._template else None

    def label(self, resource: Resource) -> str:
        """The label that names ``resource``. Raises :class:`~.resources.ResourceError` if the rule has none."""
        named = self._by_resource.get(resource.text)
        if named is not None:
            return named
        if self._template is None:
            raise ResourceError(f"saw no label for {resource.text}, expected one in the rule's resources: overrides or template")
        group = resource.group.replace(".", "_").replace("-", "_")
        try:
            label = self._template.render({"Group": group, "Resource": self._resources.singular(resource.plural)})
        except TemplateError as error:
            raise ResourceError(f"saw no label for {resource.text}: {error}") from error
        if not label:
            raise ResourceError(f"saw an empty label for {resource.text}, expected text from the rule's resources.template")
        self._by_resource[resource.text] = label
        return label

    def resources(self, labels: Iterable[str]) -> tuple[Resource, ...]:
        """The resources that a series with these labels describes, each once, in the order of the labels' names."""
        resources = (self._resource(label) for label in sorted(labels))
        return tuple(dict.fromkeys(resource for resource in resources if resource is not None))

    def _resource(self, label: str) -> Resource | None:
        resource = self._by_label.get(label)
        if resource is not None or self._pattern is None:
            return resource
        name = self._pattern.first(label, "resource")
        if not name:
            return None
        group = self._pattern.first(label, "group") if "group" in self._pattern.names else ""
        try:
            return self._resources.find(name, group or "")
        except ResourceError:
            # Most labels that match the template are not resources.
            return None


def _label_pattern(template: Template) -> Pattern:
    """The expression that extracts group and resource from a label made by the template."""
    text = template.render({"Group": "(?P<group>.+?)", "Resource": "(?P<resource>.+?)"})
    if not text:
        raise PatternError("saw an empty label, expected text with <<.Resource>>")
    pattern = Pattern(f"^{text}$")
    if "resource" not in pattern.names:
        raise PatternError(f'saw "{template.source}", expected <<.Resource>> in it')
    return pattern
