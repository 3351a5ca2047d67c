"""An AWS endpoint of our own, over HTTP: what boto3, the AWS CLI and gpuscaler meet where there is no account.

Start it in a test, and speak to it with the real boto3::

    account = Account(now=time.time, regions=("us-east-1",))
    serving = await serve(Endpoint(account))
    client = boto3.client("autoscaling", region_name="us-east-1", endpoint_url=serving.url, aws_access_key_id="x", ...)

``account`` is :class:`gpuscaler.embedded.aws.account.Account`, :class:`~gpuscaler.embedded.aws.serving.endpoint.Endpoint` answers requests
by it, and :func:`gpuscaler.embedded.aws.serving.server.serve` puts that behind a port. Any key and secret will do; the region and the
service are those that a request is signed for.
"""
