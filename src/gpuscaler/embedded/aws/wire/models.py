"""The services' own models, from botocore: which operation a request is, and the fields of the request and its answer."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

from gpuscaler.embedded.aws.wire.errors import AwsError

#: The supported services, by the name that requests are signed for.
SERVICES: Final = ("autoscaling", "ec2", "eks", "pricing", "sqs", "sts")
#: A value of a Smithy path pattern.
_LABEL: Final = re.compile(r"\{(\w+)\+?\}")


class MissingExtraError(Exception):
    """botocore is not installed."""


@cache
def service_files() -> Any:
    """botocore's reader of its data files, shared by all sessions here: reading that of EC2 takes a quarter of a second."""
    from botocore.loaders import create_loader  # noqa: PLC0415 - an extra

    return create_loader()


class Models:
    """Service models, loaded on first use. Raises :class:`MissingExtraError` if botocore is not installed."""

    def __init__(self) -> None:
        try:
            from botocore.session import Session  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtraError(
                "the AWS endpoint needs botocore, which is not installed: pip install '.[aws]' in a clone of gpuscaler"
            ) from error
        session = Session()
        session.register_component("data_loader", service_files())
        self._load = cache(session.get_service_model)
        self._routes = cache(self._routes_of)

    def service(self, name: str) -> Any:
        """botocore's ServiceModel."""
        if name not in SERVICES:
            raise AwsError("UnknownService", f"saw a request to {name}, expected one of {', '.join(SERVICES)}", status=404)
        return self._load(name)

    def operation(self, service: str, action: str) -> Any:
        """botocore's OperationModel."""
        model = self.service(service)
        if action not in model.operation_names:
            raise AwsError("InvalidAction", f"The action {action} is not valid for this web service.")
        return model.operation_model(action)

    def route(self, service: str, method: str, path: str) -> tuple[str, Mapping[str, str]]:
        """The operation of a REST service, and the parameters in the path."""
        for wanted, pattern, name in self._routes(service):
            if wanted == method and (match := pattern.fullmatch(path)):
                return name, {label: unquote(value) for label, value in match.groupdict().items()}
        raise AwsError("UnknownOperationException", f"{method} {path}", status=404)

    def _routes_of(self, service: str) -> list[tuple[str, re.Pattern[str], str]]:
        model = self.service(service)
        routes = []
        for name in model.operation_names:
            http = model.operation_model(name).http
            path = re.escape(http["requestUri"].split("?")[0]).replace(r"\{", "{").replace(r"\}", "}").replace(r"\+", "+")
            routes.append((http["method"], re.compile(_LABEL.sub(r"(?P<\1>[^/]+)", path)), name))
        return routes
