"""Logs are JSON, one object per line, without secrets."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gpuscaler.serving.logs import HIDDEN, configure, lines_to


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    root = logging.getLogger()
    before, level, configuration = root.handlers[:], root.level, structlog.get_config()
    yield
    structlog.configure(**configuration)
    root.handlers[:] = before
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def configured(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure(stream, level, now=lambda: 1_800_000_000.25)
    return stream


def test_a_log_line_is_one_json_object_with_time_level_and_message_first() -> None:
    stream = configured()
    structlog.get_logger().warning("it\nrains", drops=3)

    assert stream.getvalue() == '{"time": "2027-01-15T08:00:00.250Z", "level": "warning", "message": "it\\nrains", "drops": 3}\n'


def test_only_lines_at_or_above_the_log_level_are_written_and_the_level_can_change() -> None:
    stream = configured("warning")
    structlog.get_logger().info("quiet")
    configure(stream, "debug", now=lambda: 0.0)
    structlog.get_logger().debug("loud")

    assert [line["message"] for line in lines(stream)] == ["loud"]


def test_log_lines_of_libraries_are_json_from_warning_on() -> None:
    stream = configured()
    logging.getLogger("aiohttp.server").info("chatter")
    logging.getLogger("aiohttp.server").error("%d requests failed", 2)

    assert [(line["message"], line["logger"], line["level"]) for line in lines(stream)] == [
        ("2 requests failed", "aiohttp.server", "error")
    ]


def test_a_logged_exception_is_one_line() -> None:
    stream = configured()
    try:
        raise OSError("gone")
    except OSError:
        structlog.get_logger().exception("it broke")

    (line,) = lines(stream)
    assert line["message"] == "it broke"
    assert line["exception"].endswith("OSError: gone")


@pytest.mark.parametrize(
    ("fields", "secret"),
    [
        ({"token": "abcdef123456"}, "abcdef123456"),
        ({"client_secret": "abcdef123456"}, "abcdef123456"),
        ({"headers": {"Authorization": "abcdef123456"}}, "abcdef123456"),
        ({"problem": "GET /: sent Bearer abcdef123456789"}, "abcdef123456789"),
        ({"problems": ["saw eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmVk"]}, "eyJzdWIiOiJtZSJ9"),
    ],
)
def test_credentials_are_hidden_everywhere_in_log_lines(fields: dict[str, Any], secret: str) -> None:
    stream = configured()
    structlog.get_logger().info("said", **fields)
    logging.getLogger("library").warning("%s", fields.get("problem", f"Bearer {secret}"))

    assert secret not in stream.getvalue()
    assert stream.getvalue().count(HIDDEN) == 2


def test_values_without_a_json_form_are_written_as_text() -> None:
    stream = configured()
    structlog.get_logger().info("said", what=frozenset({1}), place=ValueError("x"))

    assert lines(stream)[0]["place"] == "ValueError('x')" or lines(stream)[0]["place"] == "x"


def test_logging_is_restored_after_the_context_of_lines_to() -> None:
    stream, root = io.StringIO(), logging.getLogger()
    handlers = root.handlers[:]
    with lines_to(stream, "info", now=lambda: 0.0) as set_level:
        structlog.get_logger().debug("quiet")
        set_level("debug")
        structlog.get_logger().debug("loud")
    structlog.get_logger().info("elsewhere")
    logging.getLogger("library").error("elsewhere")

    assert [line["message"] for line in lines(stream)] == ["loud"]
    assert root.handlers == handlers
