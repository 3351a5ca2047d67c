"""Error answers become typed errors, whatever their body."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.kube.errors import (
    AlreadyExists,
    ApiError,
    Cause,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotApiServerError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    check_answer,
    error_of,
    error_of_status,
)


def status(**fields: object) -> bytes:
    return msgspec.json.encode({"kind": "Status", "apiVersion": "v1", "status": "Failure", **fields})


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", ApiError),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerError),
        (504, "Timeout", ServerError),
        (307, "", ApiError),
    ],
)
def test_each_http_status_becomes_an_error_of_its_class(code: int, reason: str, expected: type[ApiError]) -> None:
    api_error = error_of(code, {}, status(message="m", reason=reason, code=code))
    assert type(api_error) is expected
    assert (api_error.status, api_error.reason, api_error.message) == (code, reason, "m")


def test_the_details_of_a_status_are_kept() -> None:
    details = {
        "name": "p",
        "kind": "pods",
        "retryAfterSeconds": 3,
        "causes": [{"reason": "FieldValueInvalid", "message": "bad", "field": "spec.x"}, {"message": None}],
    }
    api_error = error_of(422, {}, status(message="m", details=details))
    assert (api_error.name, api_error.kind, api_error.retry_after) == ("p", "pods", 3.0)
    assert api_error.causes == (Cause("FieldValueInvalid", "bad", "spec.x"), Cause("", "", ""))


@pytest.mark.parametrize(
    ("header", "expected"), [("7", 7.0), ("0", 0.0), ("-4", 0.0), ("", 3.0), ("soon", 3.0), ("nan", 3.0), ("1e9", 3.0)]
)
def test_the_retry_after_header_takes_precedence_over_the_delay_in_the_body(header: str, expected: float) -> None:
    assert error_of(429, {"retry-after": header}, status(details={"retryAfterSeconds": 3})).retry_after == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Bad Gateway"),
        (b"<html>\n <h1>502</h1></html>", "a web page ('502') instead of the JSON of a Kubernetes API server"),
        (b"<!DOCTYPE html><style>", "a web page instead of the JSON of a Kubernetes API server"),
        (b'{"kind": "Pod"}', '{"kind": "Pod"}'),
        (b'{"kind": "Status", "message": null}', "Bad Gateway"),
        (b"[" * 50_000, "[" * 300 + "…"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_a_body_that_is_not_a_status_is_quoted(body: bytes, message: str) -> None:
    api_error = error_of(502, {}, body)
    assert isinstance(api_error, ServerError)
    assert api_error.message == message


PAGE = b"""<!DOCTYPE HTML>
<html><head><title>Log in</title><style>h1 { color: red; }</style><script>track("<b>")</script></head>
<body><!-- a remark --><h1>Please&nbsp;log in</h1>\n<p>%s</p></body></html>""" % (b"to go on " * 500)


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 405])
def test_a_web_page_is_no_answer_of_an_api_server_and_its_first_words_are_quoted(status: int) -> None:
    for headers in ({"content-type": "text/html; charset=utf-8"}, {}):
        with pytest.raises(NotApiServerError) as raised:
            check_answer("GET", "/apis/apps/v1/deployments", status, headers, PAGE)

        assert str(raised.value) == (
            f"GET /apis/apps/v1/deployments: saw status {status} with a web page "
            "('Please log in to go on to go on to go on to go on to go on t…'), expected the JSON of a Kubernetes API server"
        )


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_the_page_of_a_load_balancer_is_an_error_of_the_server_with_its_pause(status: int) -> None:
    headers = {"content-type": "text/html", "retry-after": "7"}
    check_answer("GET", "/api/v1/nodes", status, headers, PAGE)

    api_error = error_of(status, headers, PAGE)

    assert isinstance(api_error, ServerError | TooManyRequests)
    assert api_error.retry_after == 7.0
    assert api_error.message.startswith("a web page ('Please log in to go on")


@pytest.mark.parametrize("body", [b"404 page not found\n", b"", b'{"detail": "Not Found"}', b"[]"])
def test_a_server_that_does_not_know_the_core_of_the_api_is_no_api_server(body: bytes) -> None:
    with pytest.raises(NotApiServerError, match="saw status 404 with '"):
        check_answer("GET", "/api/v1/namespaces/default/pods/p", 404, {"content-type": "text/plain"}, body)
    # API servers answer so for groups that they do not have, and forward what programs answer.
    for path in ("/apis/karpenter.sh/v1/nodepools", "/api/v1/namespaces/a/services/p:80/proxy/api/v1/series"):
        check_answer("GET", path, 404, {"content-type": "text/plain"}, body)
    check_answer("GET", "/api/v1/namespaces/default/pods/p", 404, {}, status(message="not found", reason="NotFound"))


def test_an_error_shows_the_servers_message() -> None:
    assert str(error_of(404, {}, status(message='pods "p" not found', reason="NotFound"))) == 'pods "p" not found (404 NotFound)'
    assert str(error_of(799, {}, b"")) == "an answer without a reason (799)"


def test_an_error_event_of_a_watch_becomes_an_error_by_its_own_code() -> None:
    api_error = error_of_status(status(message="too old resource version: 1 (9)", reason="Expired", code=410))
    assert isinstance(api_error, Gone)
    assert isinstance(error_of_status(b"{}"), ServerError)
    assert isinstance(error_of_status(b"?"), ServerError)


@given(st.integers(300, 599), st.binary(max_size=200), st.dictionaries(st.just("retry-after"), st.text(max_size=9)))
def test_any_failed_response_becomes_a_typed_error(code: int, body: bytes, headers: dict[str, str]) -> None:
    api_error = error_of(code, headers, body)
    assert api_error.status == code
    assert str(api_error)
