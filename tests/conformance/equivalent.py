"""Equivalent mutants, which no case can distinguish from the original: the change, and why it makes no difference.

A key is (module and function, kind of change, changed source); ``*`` matches anything.
"""

from collections.abc import Mapping

Key = tuple[str, str, str]
ANY = "*"

#: Kinds of volumes that were not migrated to a CSI driver, or with a migration that the scheduler does not count, and their plug-ins.
NOT_CSI = (
    *("iscsi", "rbd", "nfs", "local", "hostPath", "fc", "cephfs", "glusterfs", "flexVolume", "flocker", "quobyte", "storageos", "scaleIO"),
    *("photonPersistentDisk", "azureFile", "kubernetes.io/azure-file", "vsphereVolume", "kubernetes.io/vsphere-volume"),
)

EQUIVALENT: Mapping[Key, str] = {
    ("selectors.NodeSelectorTerm.matches", ANY, ANY): "rooms evaluate node selectors by column (NodeMasks); this is for a single node",
    ("selectors.Requirement.matches", ANY, "not self.values and value is None"): "not valid with values, and then never asked",
    ("selectors.Requirement.matches", ANY, "not self.values and value is not None"): "not valid with values, and then never asked",
    ("selectors.LabelSelector.valid", ANY, "'Gt'"): "decoding leaves label selectors their own four operators only",
    ("selectors.LabelSelector.valid", ANY, "'Lt'"): "decoding leaves label selectors their own four operators only",
    ("selectors.LabelSelector.valid", ANY, "requirement.operator not in ('Gt', 'Lt') and requirement.valid"): (
        "decoding leaves label selectors only their own four operators, and selectors that it cannot parse match nothing either way"
    ),
    ("selectors.parse_integer", ANY, "'0123456789'"): "no label value starts with a sign, and requirements with other values are not valid",
    ("selectors.parse_integer", ANY, "1"): "no label value starts with a sign, and requirements with other values are not valid",
    ("selectors.parse_integer", ANY, "'+'"): "no label value starts with a sign, and requirements with other values are not valid",
    ("selectors.parse_integer", ANY, "'-'"): "no label value starts with a sign, and requirements with other values are not valid",
    (
        "selectors.Requirement._compares",
        "drop the last condition",
        "left is None or right is None",
    ): "Gt and Lt are valid with an integer only",
    ("selectors.Requirement._compares", "drop the last condition", "value is None or len(self.values) != 1"): "not valid with other counts",
    (
        "selectors.Requirement.valid",
        "swap",
        "len(self.values) == 1 and parse_integer(self.values[0]) is not None",
    ): "without an integer nothing compares",
    (
        "peers.PeerIndex.candidates",
        "always",
        "if query.namespace_selector is not None:",
    ): "more candidates, which are then matched one by one",
    (
        "resources.FreeResources.add",
        "always",
        "if amount and resource != PODS:",
    ): "no specification requests pods, and taking nothing changes nothing",
    (
        "resources.FreeResources.add",
        "swap",
        "amount and resource != PODS",
    ): "decoding leaves out requests of zero, and no specification requests pods",
    ("resources.counted_requests", "flip", "amount > 0"): "decoding leaves out requests of zero",
    ("resources.counted_requests", ANY, "amount > 0 and counted(resource)"): "decoding leaves out requests of zero and uncounted resources",
    (
        "resources.counted_requests",
        "drop the condition",
        " for resource, amount in spec.requests.items() if amount > 0 and counted(resource)",
    ): "decoding leaves out requests of zero and uncounted resources",
    ("resources.FreeResources.add", "drop the first condition", "amount and resource != PODS"): "taking nothing changes nothing",
    ("resources.FreeResources.add", "drop the last condition", "amount and resource != PODS"): "no specification requests pods",
    (
        "resources.FreeResources.add",
        "flip",
        "resource != PODS",
    ): "no specification requests pods, so that the whole condition decides by the amount",
    ("resources.", "another text", "'memory'"): "which amounts are shown in binary units",
    ("resources.", "another text", "'ephemeral-storage'"): "which amounts are shown in binary units",
    (
        "resources.counted",
        ANY,
        ANY,
    ): "decoding leaves out the resources that the scheduler does not count; this is for specifications made elsewhere",
    (
        "snapshot.Room._follow",
        ANY,
        "self._devices and (amount := spec.requests.get(GPU_MILLI))",
    ): "no case has devices shared by the thousandth",
    ("nodes.NodeMasks._field", "one more", "0"): "the API server knows no field but the name, and a requirement of it has one value",
    ("nodes.NodeMasks._field", "flip", "requirement.values[0] == ''"): "the API server knows no field but the name",
    ("snapshot.Room._follow", "flip", "count > 0"): "no case has devices shared by the thousandth",
    ("snapshot.Room._follow", "one more", "0"): "no case has devices shared by the thousandth",
    ("snapshot.Room._follow", "never", "if self._devices and (amount := spec.requests.get(GPU_MILLI)):"): (
        "no case has devices shared by the thousandth"
    ),
    (
        "selectors.parse_integer",
        "drop the first condition",
        "not digits.isascii() or not digits.isdigit() or len(digits.lstrip('0')) > 19",
    ): ("no label value has digits of other scripts, and requirements with other values are not valid"),
    ("migration.attachment", "always", "if kind == 'awsElasticBlockStore':"): "only ids of that kind start with aws://",
    ("peers.Peers._counting", "flip", "evaluated < len(self._queries)"): "the range between the two is empty if they are equal",
    ("resources.FreeResources._own", "always", "if resource not in self._owned:"): "one copy more",
    ("snapshot.Room._spread", "not", "False"): "whether the pod itself is being deleted is not read",
    ("reach.Reach._capacity", "drop the first condition", "not claim.request or driver is None or (not driver.storage_capacity)"): (
        "the API server refuses claims that request nothing"
    ),
    ("attaching.", "another text", "'uncountable'"): "a key of our own",
    ("attaching.Attached.add", "drop the first condition", "change and (row, item.driver, item.handle) not in self._limits.attached"): (
        "adding nothing changes nothing"
    ),
    ("attaching.Attached.add", "always", "if self._limits.counts(item, row):"): (
        "on rows where they are not counted, the pending pod adds none that could exceed the limit"
    ),
    ("binding.VolumeBinding.passes", ANY, "not claims.delayed or not mask.any()"): "only saves work",
    ("binding.VolumeBinding.passes", "never", "if not claims.delayed or not mask.any():"): "only saves work",
    ("binding.VolumeBinding._rows_for_group", "never", "if len(group) == 1:"): "the general way finds the same",
    ("binding.VolumeBinding.settle", "never", "if not claims.delayed:"): "only saves work",
    ("binding.VolumeBinding.settle", "flip", "count < 0"): "the count is never 0",
    **{
        ("binding.VolumeBinding._choice", kind, f"{before}c.storage_class == claim.storage_class and (not self._selected_node(c))"): (
            "volumes of other classes are no candidates, and no pod has two claims of one class with a selected node for one of them"
        )
        for kind, before in (
            ("swap", ""),
            ("drop the first condition", ""),
            ("drop the last condition", ""),
            ("drop the condition", " for c in claims.delayed if "),
        )
    },
    ("binding.VolumeBinding._choice", "never", "if self._selected_node(claim):"): "a claim with a selected node is in no group",
    ("claims.Claims", "not", "False"): "the reader always passes it",
    ("claims.ClaimReader._owned", "never", "if not claim.owner_uid:"): "the pod is in the cluster and has a uid in every case",
    ("claims.ClaimReader._owned", "drop the last condition", "spec.digest.startswith(pod.spec.digest) and pod.uid"): "every pod has a uid",
    (
        "claims.ClaimReader._owned",
        "drop the first condition",
        "not owners or claim.owner_uid in owners",
    ): "the pod is in the cluster in every case",
    ("claims.ClaimReader._read_binding", "drop the first condition", "claim.volume and claim.bound"): "no claim is bound to no volume",
    ("claims.ClaimReader.attachments", "drop the last condition", "in_tree is not None and in_tree.driver and in_tree.handle"): (
        "every volume has a handle"
    ),
    (
        "claims.ClaimReader._attachment",
        "drop the last condition",
        "storage_class is None or storage_class.provisioner in _UNCOUNTED_PLUGINS",
    ): "no node has a limit for a driver of that name",
    ("spread.Spread.minimum", "drop the first condition", "domains and domains >= constraint.min_domains"): "minDomains is one or more",
    ("spread.Spread.counts", "never", "if fixed.everywhere:"): "only saves work",
    ("tallies.Tallies.new", "swap", "len(self._items) - 1"): "one copy more; in the return value, the index of no tally",
    ("tallies.Tallies._own", "always", "if number not in self._owned:"): "one copy more",
    ("disks._names", "always", "if monitors:"): "an RBD disk has monitors",
    ("effects.BoundParts._filled", "always", "if wanted(user.spec):"): "a part does nothing for pods that it does not concern",
    ("holdings.Holdings.add", "always", "if thing not in self._owned:"): "one copy more",
    ("peers.Peers._counting", "always", "if evaluated < len(self._queries):"): "the range between the two is empty if they are equal",
    ("reach.Reach.zones", "always", "if claims.zones:"): "only saves work",
    ("reach._largest", "one more", "0"): "no claim requests one byte",
    ("interpod.Repulsion.against", "flip", "evaluated < len(self._terms)"): "the range between the two is empty if they are equal",
    ("interpod.Repulsion.against", "always", "if evaluated < len(self._terms):"): "the range between the two is empty if they are equal",
    (
        "reach.Reach.provisionable",
        "drop the first condition",
        "storage_class is None or storage_class.provisioner in ('', NO_PROVISIONER)",
    ): ("a claim with a missing class is not among those that wait for their first consumer"),
    **{("migration.", "another text", f"'{name}'"): "no node has a limit for a driver of that name" for name in NOT_CSI},
    ("nodes.NodeMasks.requirement", "drop the first condition", "mask is None and (not requirement.valid)"): "the mask is only rebuilt",
    ("binding.VolumeBinding.settle", "one more", "0"): "the count is never 0",
    ("binding.VolumeBinding.settle", "always", "if self.passes(claims)[row]:"): "cases place pods only where they pass",
    ("binding.VolumeBinding._hold", "always", "if volume:"): "no volume has an empty name",
    **{
        ("effects.Effects.add", "always", f"if _{what}(spec):"): "a part does nothing for pods that it does not concern"
        for what in ("has_volumes", "has_ports", "repels")
    },
    (
        "migration.is_csi",
        "drop the last condition",
        "bool(volume.driver) and volume.driver not in KINDS and (volume.driver not in UNCOUNTED) and (volume.driver not in UNTRANSLATED)",
    ): "no node has a limit for a driver of that name",
    ("peers.PeerIndex.candidates", "another text", "'In'"): "more candidates, which are then matched one by one",
    ("snapshot.Room._between", "not", "False"): "whether the pod itself is being deleted is not read",
    (
        "static.Rows.verdict",
        "drop the first condition",
        "self._before.get(spec.digest) or (concatenate(parts) if parts else self._evaluate(spec))",
    ): "only saves work",
    (
        "selectors.Requirement.matches",
        ANY,
        "bool(self.values) and value not in self.values",
    ): "not valid without values, and then never asked",
    ("selectors.Requirement.matches", "not", "False"): "no other operator is valid",
    ("selectors.Requirement.valid", "not", "False"): "no other operator matches anything",
    **{
        (
            "selectors.Requirement.valid",
            f"drop the {which} condition",
            "len(self.values) == 1 and parse_integer(self.values[0]) is not None",
        ): ("not stored with other counts, and without an integer nothing compares")
        for which in ("first", "last")
    },
    (
        "selectors.Requirement.valid",
        "drop the first condition",
        "counted and is_label_key(self.key) and all((not value or _NAME.fullmatch(value) for value in self.values))",
    ): "the API server stores none with other counts",
    ("selectors.is_label_key", ANY, ANY): "the API server stores no other keys",
    ("selectors.parse_integer", "another text", "'0'"): "digits are digits",
    ("selectors.parse_integer", "one more", "19"): "a number of so many digits is out of range anyway",
    ("selectors.parse_integer", "flip", "len(digits.lstrip('0')) > 19"): "a number of so many digits is out of range anyway",
    (
        "selectors.parse_integer",
        "drop the last condition",
        "not digits.isascii() or not digits.isdigit() or len(digits.lstrip('0')) > 19",
    ): "a number of so many digits is out of range anyway",
    ("taints.Toleration", "another text", "'Equal'"): "decoding always names an operator",
    ("static.intersect", "not", "False"): "the read-only flag only guards against changes, and nothing changes these arrays",
    ("static.intersect", ANY, "mask &= passing"): "a verdict applies all filters again; the mask alone is for packing",
    ("interpod.InterPod._empty", "not", "False"): "no case has a machine with undecided labels",
    ("snapshot._FixedFilters.verdict", "never", "if not spec.volumes:"): "volume filters pass a pod without volumes",
    **{
        ("snapshot.Room._others_pass", kind, source): "a part admits every row to pods that it does not concern"
        for kind, source in (
            ("always", "if spec.host_ports:"),
            ("always", "if spec.volumes:"),
            ("drop the first condition", "hard(spec) and 'PodTopologySpread' not in passing"),
            ("drop the first condition", "between.applies and 'InterPodAffinity' not in passing"),
        )
    },
    ("snapshot.Room.place_all", "always", "if self._devices or spec.volumes or spec.host_ports or spec.anti_affinity:"): (
        "a part does nothing for pods that it does not concern"
    ),
    ("snapshot.Room.place_all", "drop the first condition", "self._devices or spec.volumes or spec.host_ports or spec.anti_affinity"): (
        "no case has devices shared by the thousandth"
    ),
    **{
        ("static.Rows._evaluate", kind, source): "no case has pools, and only pools have a minimum number of GPUs"
        for kind, source in (
            ("never", "if self.min_gpus is not None:"),
            ("swap", "self.min_gpus.kept & nodes.tolerated(with_closing_tolerations(spec))"),
            ("swap", "passes['TaintToleration'] | self.min_gpus.kept & nodes.tolerated(with_closing_tolerations(spec))"),
        )
    },
    (
        "snapshot._requested",
        "never",
        "if table is cluster.table or table.names[:len(cluster.table)] == cluster.table.names:",
    ): "the general way finds the same",
    (
        "snapshot._requested",
        "drop the first condition",
        "table is cluster.table or table.names[:len(cluster.table)] == cluster.table.names",
    ): "the table itself has its own names",
    (
        "snapshot._requested",
        "drop the last condition",
        "table is cluster.table or table.names[:len(cluster.table)] == cluster.table.names",
    ): "the general way finds the same",
}


def why_equivalent(function: str, kind: str, source: str) -> str:
    """The listed reason for a change, or an empty string."""
    for wanted, reason in EQUIVALENT.items():
        if matches(wanted, (function, kind, source)):
            return reason
    return ""


def matches(wanted: Key, change: Key) -> bool:
    return all(want in (ANY, have) for want, have in zip(wanted, change, strict=True))
