"""Random rules, series and questions, in the format of ``oracle/main.go``.

Templates are drawn from the part of Go's language that ours supports, since it refuses the rest: printf gets values that fit its verbs,
ranges are over lists and maps, numbers are whole and decimal. Therefore fields are drawn with ``$.``, which no ``with`` changes.
"""

import random
from typing import Any

import yaml

from gpuscaler.metrics.rules.resources import WELL_KNOWN

Json = dict[str, Any]

KNOWN = [
    {"Group": resource.group, "Plural": resource.plural, "Singular": resource.singular, "Namespaced": resource.namespaced}
    for resource in WELL_KNOWN
]
_PATTERNS = r"""
.* ^container_(.*)_seconds_total$ ^(.*)_total$ ^(?P<base>.*)_(?P<unit>bytes|total)$ nvidia_gpu_(.*) DCGM_FI_(DEV|PROF)_(.*) (a)|(b)
^http_requests_(.+?)_?(total)?$ [[:alpha:]]+ (?i)GPU \bgpu\b (?s).+ ^$ x*? (?:vllm:)(.+) \pL+_\d{1,3} ([a-z]+)_([a-z]+)_([a-z]+) (gpu)?(.*)
(?<n>gpu) \Qgpu_\E(.*) [^_]+$
""".split()
_BAD_PATTERNS = r"""
( [a (?P<x>a)(?P<x>b) a{1001} (?!a) (?<=a)b \1 \C a**
""".split()
_NAMES = r"""
$0 $1 ${1} ${1}_per_second $1_per_second ${1}x$2 $$1 $ ${ ${1 ${base} $base ${base}_$unit $01 $2 $10 ${}x a$b$c $1$1 fixed x-$1.y $é ${n}
$99999999999 ${1}_$$ $unit_$base $_ ${_}
""".split()
_SERIES = """
container_cpu_usage_seconds_total container_memory_bytes nvidia_gpu_duty_cycle nvidia_gpu_memory_used_bytes DCGM_FI_DEV_GPU_UTIL
DCGM_FI_PROF_SM_ACTIVE http_requests_total vllm:num_requests_waiting a b gpu GPU_1 kube_pod_info _ http_requests_latency_bytes
""".split()
_LABELS = """
pod namespace node instance exported_pod pod_name namespace_name node_name kube_pod kube_apps_deployment kube__pod kube_namespace
kube_batch_job deployment service job container uuid __tmp kube_storage_k8s_io_storageclass persistentvolume kube_node le ingress
""".split()
_RESOURCES = [
    *(
        {"resource": resource}
        for resource in "pod pods namespace namespaces node deployment jobs Pod persistentvolume ingress service".split()
    ),
    {"group": "apps", "resource": "deployment"},
    {"group": "batch", "resource": "cronjobs"},
    {"group": "storage", "resource": "storageclass"},
    {"group": "", "resource": "pod"},
    {"group": "networking.k8s.io", "resource": "ingresses"},
    {"group": "apps", "resource": "pod"},
]
_LABEL_TEMPLATES = """
<<.Resource>> kube_<<.Resource>> kube_<<.Group>>_<<.Resource>> <<.Resource>>_name
kube_<<.Resource>>_<<.Group>> <<.Resource>>+
""".split()
_SELECTORS = [
    "",
    "",
    "a=b",
    "a==b,c!=d",
    "a in (x,y)",
    "a notin (x,y,z)",
    "a,!b",
    "a>1",
    "app.kubernetes.io/name=x",
    "pod=x",
    "namespace in (q,r)",
    "a=",
]
_ASKED = [
    ("", "pods"),
    ("", "pods"),
    ("", "namespaces"),
    ("", "nodes"),
    ("apps", "deployments"),
    ("batch", "jobs"),
    ("storage.k8s.io", "storageclasses"),
]
_QUERIES = [
    "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
    "<<.Series>>{<<.LabelMatchers>>}",
    "ceil(avg_over_time(<<.Series>>{<<.LabelMatchers>>}[3m]))",
    '<<range $k, $v := .LabelValuesByName>><<if ne $k "namespace">><<$k>>=~"<<$v>>",<<end>><<end>>',
    '<<index .LabelValuesByName "namespace">>/<<index .LabelValuesByName "pod">>',
    "<<range $i, $v := .GroupBySlice>><<if $i>>,<<end>><<$v>><<end>>",
]
_WORDS = [" ", "a", "x{", "}", "\n", "  ", "sum(", ") by (", "é", ">", "<", "-", '"', ""]
#: Parts of a template that may be missing or repeated without making it one that only Go supports.
_MARKS = frozenset('<>()|:=."`')
_TEXTS = ["$.Series", "$.GroupBy", '"x"', "`%d`", '(index $.LabelValuesByName "pod")', "(print $.Series 1)", "(slice $.Series 0 1)"]
_WHOLE = ["0", "12", "(len $.Series)", "(len $.GroupBySlice)"]
_FIELDS = [".Series", ".LabelMatchers", ".GroupBy", ".LabelValuesByName", ".GroupBySlice"]


def draw_case(seed: int, number: int) -> Json:
    """The same case every time."""
    return _Drawing(random.Random(f"{seed}/{number}")).case()


class _Drawing:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def case(self) -> Json:
        key = self._rng.choice(["rules", "externalRules"])
        config = yaml.safe_dump({key: [self._rule()]}, sort_keys=False, allow_unicode=True)
        return {"Known": KNOWN, "Config": config, "Series": self._series(), "Asks": [self._ask() for _ in range(4)]}

    def _rule(self) -> Json:
        rule: Json = {"seriesQuery": '{__name__=~"^x"}', "metricsQuery": self._query()}
        if self._chance(0.3):
            rule["seriesFilters"] = [self._filter() for _ in range(self._rng.randint(0, 2))]
        if self._chance(0.8):
            rule["resources"] = self._resources()
        if self._chance(0.7):
            rule["name"] = {"matches": self._pattern()}
            if self._chance(0.75):
                rule["name"]["as"] = self._rng.choice(_NAMES)
        if self._chance(0.02):
            rule[self._rng.choice(["metricQuery", "name ", "seriesFilter"])] = "x"
        return rule

    def _filter(self) -> Json:
        kinds = self._rng.choice([["is"], ["isNot"], ["is"], ["isNot"], ["is"], ["isNot"], ["is", "isNot"], []])
        return {kind: self._pattern() for kind in kinds}

    def _pattern(self) -> str:
        return self._rng.choice(_PATTERNS if self._chance(0.96) else [*_BAD_PATTERNS, ""])

    def _resources(self) -> Json:
        resources: Json = {}
        if self._chance(0.7):
            resources["overrides"] = {"pod": {"resource": "pod"}, "namespace": {"resource": "namespace"}}
            if self._chance(0.5):
                # Each resource has one label: of two, prometheus-adapter picks one at random.
                label, resource = (
                    self._rng.choice(_LABELS[2:]),
                    self._rng.choice([*_RESOURCES * 9, {"resource": "turbine"}, {"group": "apps"}]),
                )
                if str(resource.get("resource")).lower().rstrip("s") not in ("pod", "namespace"):
                    resources["overrides"][label] = resource
        if self._chance(0.4):
            resources["template"] = self._rng.choice(
                [*_LABEL_TEMPLATES * 9, "<<.Group>>", "x", "<<.Kind>>", "<<.Resource", "<<if .Group>>g_<<end>><<.Resource>>"]
            )
        if self._chance(0.3):
            resources["namespaced"] = self._chance(0.5)
        return resources

    def _series(self) -> list[Json]:
        drawn = []
        for _ in range(5):
            labels = self._rng.sample(_LABELS, self._rng.randint(0, 6))
            drawn.append({"Name": self._rng.choice(_SERIES), "Labels": dict.fromkeys(labels, "v")})
        return drawn

    def _ask(self) -> Json:
        group, resource = self._rng.choice(_ASKED)
        return {
            "Series": self._rng.choice(_SERIES),
            "Group": group,
            "Resource": resource,
            "Namespace": self._rng.choice(["", "default", "ns-1"]),
            "Selector": self._rng.choice(_SELECTORS),
            "Names": self._rng.choice([["p"], ["p", "q-0.x"], ["a", "b", "c"]]),
            "External": self._chance(0.3),
        }

    def _query(self) -> str:
        if self._chance(0.3):
            return self._rng.choice(_QUERIES)
        # An empty query is replaced by the default query here.
        text = self._body(0) or "x"
        marks = [place for place, char in enumerate(text) if char in _MARKS]
        if self._chance(0.05) and marks:
            place = self._rng.choice(marks)
            return (text[:place] + self._rng.choice(["", text[place] * 2, "<<", ">>", ")"]) + text[place + 1 :]) or "x"
        return text

    def _body(self, depth: int) -> str:
        return "".join(self._part(depth) for _ in range(self._rng.randint(1, 4)))

    def _part(self, depth: int) -> str:
        draw = self._rng.random()
        if draw < 0.35 or depth > 2:
            return self._rng.choice(_WORDS)
        if draw < 0.7:
            return self._action(self._pipeline(depth))
        if draw < 0.75:
            return self._action("/* a word */") if self._chance(0.5) else f"<<{'- ' if self._chance(0.5) else ''}/* words */ ->>"
        if draw < 0.8:
            return self._action(
                f"$v{'' if self._chance(0.9) else 'x'} {self._rng.choice([':=', ':=', '='])} {self._pipeline(depth)}"
            ) + self._action("$v")
        return self._branch(depth)

    def _branch(self, depth: int) -> str:
        keyword = self._rng.choice(["if", "with", "range"])
        head = self._pipeline(depth)
        if keyword == "range":
            target = self._rng.choice(["", "$v := ", "$k, $v := ", "$k,$v:="])
            head = target + self._rng.choice(["$.LabelValuesByName", "$.GroupBySlice", "$.GroupBySlice", "$.Series"])
        body = self._body(depth + 1)
        if keyword == "range" and self._chance(0.5):
            body += self._action(self._rng.choice([".", "$v", "$k", "$.Series", "break", "continue"]))
        text = self._action(f"{keyword} {head}") + body
        if self._chance(0.2):
            text += self._action(f"else {keyword} {self._pipeline(depth)}") + self._body(depth + 1)
        if self._chance(0.4):
            text += self._action("else") + self._body(depth + 1)
        return text + (self._action("end") if self._chance(0.98) else "")

    def _action(self, inside: str) -> str:
        before = "- " if self._chance(0.15) else self._rng.choice(["", " "])
        after = " -" if self._chance(0.15) else self._rng.choice(["", " "])
        return f"<<{before}{inside}{after}>>"

    def _pipeline(self, depth: int) -> str:
        text = self._command(depth)
        while self._chance(0.2):
            text += self._rng.choice([" | ", "|"]) + self._rng.choice(
                ["len", "not", 'printf "%v"', "printf `%d%v` 1", "print", "eq 1", 'ne "x"', "index .GroupBySlice", "5"]
            )
        return text

    def _command(self, depth: int) -> str:
        draw = self._rng.random()
        if draw < 0.4 or depth > 3:
            return self._value(depth)
        name = self._rng.choice(
            "and or not len index slice print printf eq ne lt le gt ge nothing".split()[: 14 if self._chance(0.97) else 15]
        )
        if name == "printf":
            verbs = self._rng.choices(["%s", "%q", "%d", "%v", "%%", "x"], k=self._rng.randint(1, 4))
            return " ".join(["printf", f'"{"".join(verbs)}"', *(self._for_verb(verb, depth) for verb in verbs if verb not in ("%%", "x"))])
        if name == "index":
            return self._rng.choice(
                [
                    'index .LabelValuesByName "pod"',
                    "index .GroupBySlice 0",
                    'index .LabelValuesByName "none"',
                    "index .GroupBySlice 7",
                ]
            )
        if name == "slice":
            return f"slice {self._rng.choice(_TEXTS)} {self._rng.choice(['0', '1', '1 2', '0 3', '3 1', '99', '`x`'])}"
        return f"{name} {' '.join(self._value(depth) for _ in range(self._rng.choice([1, 2, 2, 2, 3])))}"

    def _for_verb(self, verb: str, depth: int) -> str:
        return self._value(depth) if verb == "%v" else self._rng.choice(_WHOLE if verb == "%d" else _TEXTS)

    def _value(self, depth: int) -> str:
        draw = self._rng.random()
        if draw < 0.35:
            return self._rng.choice(_FIELDS[:3])
        if draw < 0.45:
            return self._rng.choice(
                [*_FIELDS[3:], "$.LabelValuesByName.pod", "$.LabelValuesByName.none", "$.Series"] + [".None"] * self._chance(0.1)
            )
        if draw < 0.8:
            return self._rng.choice(
                [
                    '"x"',
                    '"nvidia_gpu_duty_cycle"',
                    "`raw`",
                    "0",
                    "1",
                    "2",
                    "120",
                    "true",
                    "false",
                    r'"\t\"é\\"',
                ]
            )
        if draw < 0.81:
            return self._rng.choice(["$v", "$k", "$.GroupBy", "$none"])
        return f"({self._pipeline(depth + 1)})" if self._chance(0.95) else "($.LabelValuesByName).pod"
