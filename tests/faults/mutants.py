"""For each case the smallest change of the source that removes what handles it: the case's test must fail then."""

from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src" / "gpuscaler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """``old``, which the file ``path`` below the package contains once, becomes ``new``; ``removes`` says what is gone then."""

    case: int
    path: str
    old: str
    new: str
    removes: str

    @property
    def module(self) -> str:
        """The dotted name of what is changed."""
        return ".".join(("gpuscaler", *Path(self.path).with_suffix("").parts))

    @property
    def source(self) -> str:
        """The changed source. Raises ValueError where ``old`` is not there exactly once."""
        text = (SOURCES / self.path).read_text()
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"the mutant of F{self.case}: saw its old text {found} times in src/gpuscaler/{self.path}, expected it once")
        return text.replace(self.old, self.new)


MUTANTS = (
    Mutant(
        case=85,
        path="planning/planner.py",
        old="        room.place_all(placed.spec, placed.labels, np.array(rows, dtype=np.int64), np.array(counts, dtype=np.int64))\n",
        new="        assert len(rows) == len(counts)\n",
        removes="pods that run are moved into room that this plan has given to others",
    ),
    Mutant(
        case=1,
        path="control/controller.py",
        old="            await self._store.save(meant)\n",
        new="",
        removes="the intent is not written down before the call",
    ),
    Mutant(
        case=2,
        path="kube/leases.py",
        old="        if left <= timeout:\n",
        new="        if left <= float('-inf'):\n",
        removes="writes and calls begin without a look at what is left of the lease",
    ),
    Mutant(
        case=3,
        path="kube/leases.py",
        old="            self._changed_at = self._clock()\n",
        new='            self._changed_at = self._clock() - self._wall() + datetime.fromisoformat(spec["renewTime"]).timestamp()\n',
        removes="a lease is timed by what its holder's clock says, not from when it was seen to change",
    ),
    Mutant(
        case=4,
        path="control/cloud.py",
        old='                pause = max(min(2 * pause, LONGEST_PAUSE, 12 * every), getattr(error, "retry_after", 0.0))\n',
        new="",
        removes="lists that fail are asked for as often as others",
    ),
    Mutant(
        case=5,
        path="control/controller.py",
        old="and self._cloud.fresh(now, within=FRESH_LIST)",
        new="",
        removes="machines are removed while the cloud cannot be read",
    ),
    Mutant(
        case=6,
        path="control/cloud.py",
        old='                self._troubles[ask.__name__] = f"{self.provider.name}: {spoken(error)}"\n                pause',
        new="                self.inventory = Inventory(self._now())\n                pause",
        removes="a list that fails is taken for an empty one",
    ),
    Mutant(
        case=7,
        path="planning/arrivals.py",
        old="max(one.granted, self.waits.began) + self.waits.lag + SKEW_SECONDS:\n",
        new="max(one.granted, self.waits.began):\n",
        removes="a machine that is not on the list yet is taken for one that has died",
    ),
    Mutant(
        case=8,
        path="control/controller.py",
        old="seen=now - self._picture.stale_for(self._time()),",
        new="seen=now,",
        removes="a machine is given up for what nobody could see while the API server was away",
    ),
    Mutant(
        case=9,
        path="kube/reflector.py",
        old="    silence: float = 90.0\n",
        new="    silence: float = 90_000.0\n",
        removes="a watch may be silent for as long as it likes",
    ),
    Mutant(
        case=9,
        path="control/looking.py",
        old="        if pod.status.phase not in _FINISHED and pod.metadata.uid not in known:\n",
        new="        if not pod.metadata.uid:\n",
        removes="before a machine is ended, nobody asks the API server itself who is on it",
    ),
    Mutant(
        case=10,
        path="kube/reflector.py",
        old="            self._version = None\n        elif not isinstance(error, TooManyRequests",
        new="            pass\n        elif not isinstance(error, TooManyRequests",
        removes="a watch whose history is gone is begun again where it was",
    ),
    Mutant(
        case=11,
        path="planning/state/breakers.py",
        old='return everywhere if event.every_zone else replace(everywhere, zone=zone, region="")',
        new='return Target("", market)',
        removes="a lack of capacity of one type in one zone is taken for one of its whole market",
    ),
    Mutant(
        case=12,
        path="planning/state/breakers.py",
        old="HUNT_SECONDS, HUNT_QUIET = 5.0, 30.0",
        new="HUNT_SECONDS, HUNT_QUIET = 500.0, 1000.0",
        removes="whoever waits for spot waits until all of it was asked",
    ),
    Mutant(
        case=13,
        path="planning/state/breakers.py",
        old="    if one.until is None or now < one.until:\n        return True\n",
        new="    if one.until is None:\n        return True\n",
        removes="what was refused is asked again at once",
    ),
    Mutant(
        case=14,
        path="planning/state/breakers.py",
        old='        case events.QUOTA:\n            return Target("", market, event.bucket or (instance_type,), region=region_in(zone))\n',
        new="",
        removes="a quota is taken for a trouble of one offering",
    ),
    Mutant(
        case=15,
        path="planning/state/breakers.py",
        old="        case events.PRICE:\n            return Target(pool, market)\n",
        new="",
        removes="a price that is too low is taken for a trouble of one offering",
    ),
    Mutant(
        case=16,
        path="control/cloud.py",
        old="now, granted, bought.pending",
        new="now, granted, order.count - len(granted)",
        removes="what an answer lacks is waited for",
    ),
    Mutant(
        case=17,
        path="planning/arrivals.py",
        old='                self.fates.append(events.Failed(one.key, self.now, "it ended before it opened"))\n',
        new="",
        removes="a machine that dies before it opens says nothing of its offering",
    ),
    Mutant(
        case=18,
        path="planning/state/breakers.py",
        old="ABSENT: 3}",
        new="ABSENT: 1_000_000}",
        removes="a pool whose machines never join is bought from without end",
    ),
    Mutant(
        case=19,
        path="planning/arrivals.py",
        old="            elif one.node and then >= one.registered + self.waits.ready:\n",
        new="            elif one.node and then >= one.registered + 1e9:\n",
        removes="a node that never shows its devices is waited for without end",
    ),
    Mutant(
        case=20,
        path="planning/state/learned.py",
        old="amount if name in ACCELERATORS else min(",
        new="min(",
        removes="the devices that one node lacks are not expected of the next",
    ),
    Mutant(
        case=20,
        path="control/records/findings.py",
        old="            if 0 < shown.get(device, 0) < most:\n",
        new="            if shown.get(device, 0) > most:\n",
        removes="nobody is told of a node with fewer devices than it was sold with",
    ),
    Mutant(
        case=21,
        path="planning/leaving/going.py",
        old="        if not (one.forced or node.ready):\n",
        new="        if not (one.forced or node.name):\n",
        removes="the removal of a node that stops to answer goes on",
    ),
    Mutant(
        case=22,
        path="planning/scale_down/blockers.py",
        old="    if unready <= 3 or unready <= 0.45 * len(settled):\n",
        new="    if unready <= 3 or unready <= len(settled):\n",
        removes="removals go on whatever share of the nodes is not Ready",
    ),
    Mutant(
        case=23,
        path="planning/leaving/evicting.py",
        old="left if one.ends and left < pod.spec.grace_seconds else None)",
        new="None)",
        removes="pods get the time they ask for, whatever the machine has left",
    ),
    Mutant(
        case=24,
        path="control/cloud.py",
        old="LIST_SECONDS, NOTICE_SECONDS = 10.0, 2.0",
        new="LIST_SECONDS, NOTICE_SECONDS = 10.0, 10.0",
        removes="notices are asked for no more often than lists",
    ),
    Mutant(
        case=25,
        path="planning/reclaiming.py",
        old="    return tuple(events.Reclaimed(one.key, now) for one in gone if one.market == SPOT)\n",
        new="    return ()\n",
        removes="a machine that vanishes says nothing of its market",
    ),
    Mutant(
        case=25,
        path="planning/reclaiming.py",
        old="    if not over:\n",
        new="    if now:\n",
        removes="the Node of a machine that vanished stays where nobody else deletes it",
    ),
    Mutant(
        case=26,
        path="control/cloud.py",
        old=" and (one.instance, one.kind) not in self._announced]",
        new="]",
        removes="a notice that is repeated is a new one",
    ),
    Mutant(
        case=27,
        path="planning/memory.py",
        old="(*wanted(machine), *keys)",
        new="(*(wanted(machine) * (1 + len(groups))), *keys)",
        removes="each machine is an order of its own",
    ),
    Mutant(
        case=28,
        path="planning/scale_down/blockers.py",
        old="if budget.selector is not None and budget.selector.matches(one.labels))",
        new="if budget.selector is None)",
        removes="no PodDisruptionBudget is looked at before a machine is chosen",
    ),
    Mutant(
        case=29,
        path="planning/leaving/evicting.py",
        old="    pause = FIRST_PAUSE if one.ends else min(FIRST_PAUSE * 2.0 ** min(entry.tries, 10), LONGEST_PAUSE)\n",
        new="    pause = FIRST_PAUSE\n",
        removes="evictions that are refused are tried as often as ever",
    ),
    Mutant(
        case=29,
        path="planning/leaving/going.py",
        old="        elif effort.idle and self.overdue(one, effort.idle):\n",
        new="        elif effort.idle and one.at > self.now:\n",
        removes="a removal that does not get on is never undone",
    ),
    Mutant(
        case=30,
        path="planning/leaving/objecting.py",
        old="        new = [pod.key for pod in found.missed if pod.key not in one.pods]\n",
        new="        new: list[str] = []\n",
        removes="nobody looks who came to a closed node",
    ),
    Mutant(
        case=31,
        path="planning/leaving/residents.py",
        old="        if 0 < pod.deleted < now - STUCK_AFTER:\n",
        new="        if 0 < pod.deleted < now - 1e9:\n",
        removes="a pod that never ends is waited for",
    ),
    Mutant(
        case=32,
        path="planning/leaving/going.py",
        old="            if node.name not in under_way and node.name not in self.roll.unlisted:\n",
        new="            if node.name in self.book.past:\n",
        removes="our own taint is not recognised where its removal was forgotten",
    ),
    Mutant(
        case=80,
        path="clouds/aws/pools.py",
        old="        names_zone=names_zone,\n",
        new="",
        removes="a group of several types and zones is one set, whose zone the cloud chooses",
    ),
    Mutant(
        case=80,
        path="planning/alternatives.py",
        old="        return () if bound else other_zones(",
        new="        return () and other_zones(",
        removes="the sets of other zones are not asked for behind a zone that is dry",
    ),
    Mutant(
        case=33,
        path="planning/steering.py",
        old='                self.acts.append(Lift(name, "it is ready, and no plan waits for it"))\n',
        new="                continue\n",
        removes="machines that somebody else adds stay closed",
    ),
    Mutant(
        case=33,
        path="control/records/happening.py",
        old='    NOTICED: Told("MachineNoticed", "Look", "node", warning=True),\n',
        new="",
        removes="there is no Event of a machine that is gone",
    ),
    Mutant(
        case=34,
        path="planning/reclaiming.py",
        old="    return tuple(one for one in vanished if one.id not in known)\n",
        new="    return ()\n",
        removes="nobody is told of a machine that is gone without a word",
    ),
    Mutant(
        case=35,
        path="planning/state/breakers.py",
        old="        case events.CONFIGURATION | events.UNAUTHORISED:\n            return Target(pool)\n",
        new="",
        removes="a pool that is gone is taken for a trouble of one offering",
    ),
    Mutant(
        case=36,
        path="control/controller.py",
        old=", unlisted=theirs)",
        new=")",
        removes="nodes are removed whose machines the cloud does not list",
    ),
    Mutant(
        case=36,
        path="planning/memory.py",
        old="(act for act in discourage(cluster, policy) if act.node not in roll.unlisted)",
        new="discourage(cluster, policy)",
        removes="nodes get our taints whose machines the cloud does not list",
    ),
    Mutant(
        case=36,
        path="planning/memory.py",
        old="        unpooled=roll.unpooled(policy),\n",
        new="",
        removes="nobody is told of machines that are listed for a pool that is not ours",
    ),
    Mutant(
        case=37,
        path="settings/offerings.py",
        old="positive=not free)",
        new="positive=False)",
        removes="a price of nothing is taken as it stands",
    ),
    Mutant(
        case=38,
        path="planning/memory.py",
        old="bought_last_minute=sum(many for at, many in book.bought if at > now - 60.0),",
        new="bought_last_minute=0,",
        removes="what was bought in the last minute does not count",
    ),
    Mutant(
        case=39,
        path="planning/memory.py",
        old="        upcoming=ledger.upcoming(book),\n",
        new="",
        removes="what is on its way is nobody's room",
    ),
    Mutant(
        case=40,
        path="control/records/records.py",
        old="            self._told[one.pod] = why\n",
        new="",
        removes="why a pod cannot be served is told with every plan",
    ),
    Mutant(
        case=41,
        path="metrics/answers.py",
        old="        if cell.age + passed > self._timing.stale:\n",
        new="        if cell.age + passed > float('inf'):\n",
        removes="a sample is served however old it is",
    ),
    Mutant(
        case=41,
        path="metrics/evaluating.py",
        old='    return "negative" if number < 0 else ""\n',
        new='    return ""\n',
        removes="a negative number is one to scale by",
    ),
    Mutant(
        case=41,
        path="metrics/evaluating.py",
        old="        return table if table is not None and self._clock() - table.at <= self.timing.good else None\n",
        new="        return table\n",
        removes="what was evaluated last is relied on for ever",
    ),
    Mutant(
        case=42,
        path="metrics/source.py",
        old="        if not self.discoverer.looked:\n",
        new="        if False:\n",
        removes="it says that it is ready before it knows what there is",
    ),
    Mutant(
        case=43,
        path="kube/credentials.py",
        old="        return self._presented if self._presented and self._presented.headers != refused.headers else None\n",
        new="        return None\n",
        removes="a token that was refused is not read again",
    ),
    Mutant(
        case=44,
        path="control/acting.py",
        old="            if rest is not None and now < rest.until:\n",
        new="            if rest is None and self._resting is None:\n",
        removes="what is forbidden is tried as often as anything else",
    ),
    Mutant(
        case=44,
        path="planning/state/breakers.py",
        old="        case events.CONFIGURATION | events.UNAUTHORISED:\n            return Target(pool)\n",
        new="",
        removes="a missing permission is taken for a trouble of one offering",
    ),
    Mutant(
        case=45,
        path="control/steady.py",
        old="        if abs(told - steady) > JUMP_SECONDS:\n            return steady\n",
        new="",
        removes="the time of day is followed wherever it jumps",
    ),
    Mutant(
        case=46,
        path="control/settings_file.py",
        old="        except SettingsError as error:\n            self.trouble = str(error)\n            return False\n",
        new="        except FileNotFoundError:\n            return False\n",
        removes="a file that makes no sense ends the process",
    ),
    Mutant(
        case=47,
        path="planning/memory.py",
        old="class Memory(Struct, frozen=True, gc=False):",
        new="class Memory(Struct, frozen=True, gc=False, forbid_unknown_fields=True):",
        removes="a memory with more in it than we know is refused",
    ),
    Mutant(
        case=48,
        path="control/acting.py",
        old='{"resourceVersion": found.metadata.version, **patch.get("metadata", {})}',
        new='patch.get("metadata", {})',
        removes="taints are written over whatever others wrote meanwhile",
    ),
    Mutant(
        case=49,
        path="control/alarm.py",
        old="    inline: int = 2_000\n",
        new="    inline: int = 2_000_000_000\n",
        removes="plans for a large cluster are made on the event loop",
    ),
    Mutant(
        case=50,
        path="control/records/service.py",
        old=", write_timeout=TELL_SECONDS)",
        new=", write_timeout=1e9)",
        removes="who is told may take as long as it likes",
    ),
    Mutant(
        case=90,
        path="model/requests.py",
        old="        if amount > LARGEST:\n",
        new="        if amount > float('inf'):\n",
        removes="the sum of what the containers of a pod ask for has no bound",
    ),
    Mutant(
        case=90,
        path="model/cluster.py",
        old="min(int(array[row]) + amount, FULL)",
        new="int(array[row]) + amount",
        removes="the sum of what the pods of a node ask for has no bound",
    ),
    Mutant(
        case=91,
        path="planning/rows.py",
        old="packed((*self.parts, *more.parts), merged)",
        new="(self, more)",
        removes="rows that are joined one after the other are nested in each other",
    ),
    Mutant(
        case=92,
        path="clouds/aws/notices.py",
        old="(msgspec.DecodeError, UnicodeError, RecursionError)",
        new="(msgspec.DecodeError, UnicodeError)",
        removes="a message that is nested too deeply is no message that makes no sense",
    ),
    Mutant(
        case=92,
        path="clouds/aws/inbox.py",
        old='            self._senseless.append(message["ReceiptHandle"])\n',
        new='            self._done.append(message["ReceiptHandle"])\n',
        removes="a message that makes no sense stays in the queue until the next call",
    ),
)
