"""SQS: standard queues with visibility and receipts."""

import re
from collections.abc import Iterable, Mapping, Set
from hashlib import md5
from typing import Any, Final

from gpuscaler.embedded.aws.queue_state import Message, Queue
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.wire.errors import AwsError

_ADDRESS: Final = re.compile(r"/queue/([a-z0-9-]+)/")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
#: Attributes that are stored and shown only.
_STORED: Final = ("Policy", "KmsMasterKeyId", "RedrivePolicy", "SqsManagedSseEnabled")
#: Maximum bytes of a message and of a batch; maximum delay of a message in seconds.
LONGEST: Final = 1_048_576
LONGEST_DELAY: Final = 900


def make_queue(region: Region, name: str, attributes: dict[str, str], *, host: str = "") -> Queue:
    """The queue of that name, created if there is none."""
    if not _NAME.fullmatch(name):
        raise AwsError("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
    if name not in region.queues:
        place = f"{host}/queue/{region.name}" if host else f"https://sqs.{region.name}.amazonaws.com"
        region.queues[name] = Queue(name, f"{place}/{region.account}/{name}")
    queue = region.queues[name]
    _set_attributes(queue, attributes)
    return queue


def _set_attributes(queue: Queue, attributes: Mapping[str, str]) -> None:
    queue.visibility = float(attributes.get("VisibilityTimeout", queue.visibility))
    queue.wait = float(attributes.get("ReceiveMessageWaitTimeSeconds", queue.wait))
    queue.retention = float(attributes.get("MessageRetentionPeriod", queue.retention))
    queue.settings |= {name: attributes[name] for name in _STORED if name in attributes}


def region_in(url: str) -> str:
    """The region in the path of a queue's URL, if one endpoint serves all regions; "" if there is none."""
    match = _ADDRESS.search(url)
    return match[1] if match is not None else ""


def _queue(region: Region, params: dict[str, Any]) -> Queue:
    name = params["QueueUrl"].rpartition("/")[2] if "QueueUrl" in params else params["QueueName"]
    if name not in region.queues:
        text = "The specified queue does not exist."
        raise AwsError("AWS.SimpleQueueService.NonExistentQueue", text)
    return region.queues[name]


def _create(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    return {"QueueUrl": make_queue(region, params["QueueName"], params.get("Attributes", {})).url}


def _delete_queue(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    del region.queues[_queue(region, params).name]
    return {}


def _url(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    return {"QueueUrl": _queue(region, params).url}


def _list(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    prefix = params.get("QueueNamePrefix", "")
    return {"QueueUrls": [queue.url for queue in region.queues.values() if queue.name.startswith(prefix)]}


def _attributes(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    queue = _queue(region, params)
    ready = len(queue.ready(region.now))
    attributes = {
        "QueueArn": f"arn:aws:sqs:{region.name}:{region.account}:{queue.name}",
        "ApproximateNumberOfMessages": str(ready),
        "ApproximateNumberOfMessagesNotVisible": str(len(queue.messages) - ready),
        "VisibilityTimeout": f"{queue.visibility:g}",
        "MessageRetentionPeriod": f"{queue.retention:.0f}",
        "ReceiveMessageWaitTimeSeconds": f"{queue.wait:g}",
        **queue.settings,
    }
    wanted = params.get("AttributeNames", [])
    return {"Attributes": {name: value for name, value in attributes.items() if name in wanted or "All" in wanted}}


def _change_attributes(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    _set_attributes(_queue(region, params), params["Attributes"])
    return {}


def _send(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    queue, body, delay = _queue(region, params), params["MessageBody"], params.get("DelaySeconds", 0)
    if not 0 <= delay <= LONGEST_DELAY:
        text = f"Value {delay} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= {LONGEST_DELAY}."
        raise AwsError("InvalidParameterValue", text)
    if len(body.encode()) > LONGEST:
        text = f"One or more parameters are invalid. Reason: Message must be shorter than {LONGEST} bytes."
        raise AwsError("InvalidParameterValue", text)
    message = queue.send(body, ident=region.uuid(), now=region.now, delay=delay)
    return {"MessageId": message.id, "MD5OfMessageBody": _md5(message.body)}


def _send_batch(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """Send each entry by itself; errors of single entries are returned beside the results."""
    entries = _batch(params["Entries"])
    _queue(region, params)
    size = sum(len(entry["MessageBody"].encode()) for entry in entries)
    if size > LONGEST:
        text = f"Batch requests cannot be longer than {LONGEST} bytes. You have sent {size} bytes."
        raise AwsError("AWS.SimpleQueueService.BatchRequestTooLong", text)
    sent, failed = [], []
    for entry in entries:
        try:
            sent.append({"Id": entry["Id"], **_send(region, {"QueueUrl": params["QueueUrl"], **entry})})
        except AwsError as error:
            failed.append({"Id": entry["Id"], "SenderFault": True, "Code": error.code, "Message": error.message})
    return {"Successful": sent, "Failed": failed}


def _receive(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    queue = _queue(region, params)
    most = params.get("MaxNumberOfMessages", 1)
    if not 1 <= most <= 10:
        text = f"Value {most} for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
        raise AwsError("InvalidParameterValue", text)
    messages = queue.ready(region.now)[:most]
    for message in messages:
        message.received += 1
        message.receipt = f"{message.id}#{message.received}"
        message.visible_at = region.now + params.get("VisibilityTimeout", queue.visibility)
    wanted = {*params.get("AttributeNames", ()), *params.get("MessageSystemAttributeNames", ())}
    return {"Messages": [_describe_message(message, wanted) for message in messages]} if messages else {}


def wait_seconds(region: Region, params: dict[str, Any]) -> float:
    """Seconds that a ReceiveMessage without messages waits for one."""
    return float(params.get("WaitTimeSeconds", _queue(region, params).wait))


def _describe_message(message: Message, wanted: Set[str]) -> dict[str, Any]:
    reply: dict[str, Any] = {
        "MessageId": message.id,
        "ReceiptHandle": message.receipt,
        "Body": message.body,
        "MD5OfBody": _md5(message.body),
    }
    attributes = {"SentTimestamp": str(int(message.sent_at * 1000)), "ApproximateReceiveCount": str(message.received)}
    if kept := {name: value for name, value in attributes.items() if name in wanted or "All" in wanted}:
        reply["Attributes"] = kept
    return reply


def _delete(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    if not _forget(_queue(region, params), params["ReceiptHandle"]):
        raise AwsError("ReceiptHandleIsInvalid", f'The input receipt handle "{params["ReceiptHandle"]}" is not a valid receipt handle.')
    return {}


def _delete_batch(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    queue = _queue(region, params)
    done, failed = [], []
    for entry in _batch(params["Entries"]):
        if _forget(queue, entry["ReceiptHandle"]):
            done.append({"Id": entry["Id"]})
        else:
            text = "The input receipt handle is not a valid receipt handle."
            failed.append({"Id": entry["Id"], "SenderFault": True, "Code": "ReceiptHandleIsInvalid", "Message": text})
    return {"Successful": done, "Failed": failed}


def _forget(queue: Queue, receipt: str) -> bool:
    """Delete a received message; deleting it again does nothing. False for a receipt that never existed."""
    ident, mark, count = receipt.partition("#")
    if not mark or not count.isdigit():
        return False
    message = queue.messages.get(ident)
    if message is not None and message.receipt == receipt:
        del queue.messages[ident]
    return True


def _change(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    queue = _queue(region, params)
    message = queue.messages.get(params["ReceiptHandle"].partition("#")[0])
    if message is not None and message.receipt == params["ReceiptHandle"]:
        message.visible_at = region.now + params["VisibilityTimeout"]
    return {}


def _purge(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    _queue(region, params).messages.clear()
    return {}


def _batch(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    batch = list(entries)
    if not batch:
        raise AwsError("AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(batch) > 10:
        text = f"Maximum number of entries per request are 10. You have sent {len(batch)}."
        raise AwsError("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", text)
    if len({entry["Id"] for entry in batch}) < len(batch):
        raise AwsError("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Two or more batch entries in the request have the same Id.")
    return batch


def _md5(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()


OPERATIONS: Final = {
    "CreateQueue": _create,
    "DeleteQueue": _delete_queue,
    "GetQueueUrl": _url,
    "ListQueues": _list,
    "GetQueueAttributes": _attributes,
    "SetQueueAttributes": _change_attributes,
    "SendMessage": _send,
    "SendMessageBatch": _send_batch,
    "ReceiveMessage": _receive,
    "DeleteMessage": _delete,
    "DeleteMessageBatch": _delete_batch,
    "ChangeMessageVisibility": _change,
    "PurgeQueue": _purge,
}
