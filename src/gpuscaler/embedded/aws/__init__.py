"""An AWS endpoint of our own, over HTTP: boto3, the AWS CLI and gpuscaler can use it where there is no account.

Start it in a test, and call it with the real boto3::

    account = Account(now=time.time, regions=("us-east-1",))
    serving = await serve(Endpoint(account))
    client = boto3.client("autoscaling", region_name="us-east-1", endpoint_url=serving.url, aws_access_key_id="x", ...)

``account`` is :class:`gpuscaler.embedded.aws.account.Account`, :class:`~gpuscaler.embedded.aws.serving.endpoint.Endpoint` answers requests
from it, and :func:`gpuscaler.embedded.aws.serving.server.serve` puts that behind a port. Any key and secret are accepted; region and
service are those that a request is signed for.
"""
