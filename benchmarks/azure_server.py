"""An Azure account over HTTP for the benchmark, in a process of its own: agent pools in several locations, slow answers.

Arguments: the number of pools, the duration of an answer in seconds, the locations. The URL is printed once it answers; it stops when its
standard input ends.
"""

import asyncio
import sys
import time

from gpuscaler.embedded.azure import Account, Conditions, Endpoint, Fault, making, serve

SIZE = "Standard_NC24ads_A100_v4"
#: The names of agent pools have at most 12 characters.
NAME = "gpu{}"


def cluster_name(location: str) -> str:
    return f"bench-{location}"


async def run(pools: int, seconds: float, locations: list[str]) -> None:
    account = Account(now=time.time, locations=locations, conditions=Conditions(page=100))
    clusters = [
        making.create_cluster(account, cluster_name(location), f"rg-{location}", location=location, system_size="")
        for location in locations
    ]
    for number in range(pools):
        making.create_pool(account, clusters[number % len(clusters)], NAME.format(number), SIZE, spot=number % 2 == 0, count=1)
    endpoint = Endpoint(account)
    endpoint.faults.all.append(Fault(delay=seconds))
    serving = await serve(endpoint)
    print(serving.url, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await serving.close()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
