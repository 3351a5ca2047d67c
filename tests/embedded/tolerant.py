"""A device plugin for clusters in which nothing opens machines for a moment: plugins as shipped would get no pods there."""

from gpuscaler.embedded.nodes.plugins import NAMESPACE, PLUGINS
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import DAEMON_SETS


async def tolerant_plugin(client: Client) -> None:
    """Install NVIDIA's plugin, and let it tolerate every taint."""
    plugin = PLUGINS[0].manifest()
    plugin["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    await client.create(DAEMON_SETS, plugin, namespace=NAMESPACE)
