"""Who a cluster is made of, and which replica a process is."""

from __future__ import annotations

from events.memory_store import MemoryServer
from loomcycle.cluster import KEEP, Cluster, Member


def cluster_of(server: MemoryServer, process: str, replica: str) -> Cluster:
    store = server.connect(process)
    return Cluster(store, process, Member(slots=1, replica=replica), alone_at_boot=True)


async def test_the_replica_of_a_process_is_known_after_it_has_gone() -> None:
    server = MemoryServer()
    here, other = cluster_of(server, "p_1", "east"), cluster_of(server, "p_2", "west")
    await other.start()
    await here.start()
    assert [here.replica_of(process) for process in ("p_1", "p_2")] == ["east", "west"]
    await other.stop()
    assert "p_2" not in await here.look()
    assert here.replica_of("p_2") == "west"
    await here.stop()


async def test_a_process_that_was_never_seen_is_no_replica() -> None:
    server = MemoryServer()
    here = cluster_of(server, "p_1", "")
    await here.start()
    assert here.replica_of("p_1") == here.replica_of("p_0") == ""
    await here.stop()


async def test_of_those_who_are_gone_the_newest_are_remembered() -> None:
    server = MemoryServer()
    here = cluster_of(server, "p_here", "here")
    await here.start()
    for number in range(KEEP + 2):
        store = server.connect(f"p_{number}")
        other = Cluster(store, f"p_{number}", Member(slots=1, replica="r"), alone_at_boot=True)
        await other.start()
        await here.look()
        await other.stop()
    await here.look()
    known = [n for n in range(KEEP + 2) if here.replica_of(f"p_{n}")]
    assert known == list(range(2, KEEP + 2))
    assert here.replica_of("p_here") == "here"
    await here.stop()
