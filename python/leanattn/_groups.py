"""_groups.py -- groups of the processes of torch.distributed, and of several engines of one process. The compiled half calls these functions."""
import pathlib
import socket
import sys

from ._leanattn import Group, engine as default_engine
from .errors import ArgumentError, GroupBroken, Unsupported


TRANSPORTS = ("auto", "peers", "nccl", "two_level")


def from_process_group(process_group, problem, max_batch, engine, transport):
    """Group.from_process_group. Every step that can fail on one rank ends with an exchange, so that all ranks raise and none waits for ever."""
    _check_transport(transport, TRANSPORTS)
    dist = _distributed(process_group)
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    group = unreached = None

    def look():
        _check(problem, size, f"the process group has {size} ranks")
        return _host()

    def make(peers):
        nonlocal group
        at = engine if engine is not None else default_engine(sys.modules["torch"].cuda.current_device())
        group = Group(at, rank, size, Group.bytes_for(problem, max_batch), peers)
        return group.export() if peers != 1 else None

    try:
        peers = _peers_for(transport, _together(process_group, size, look), problem)
        blobs = _together(process_group, size, lambda: make(peers))
        if peers > 1:
            first = rank // peers * peers
            failures, own = _attempt(process_group, size, lambda: group.connect(blobs[first:first + peers]))
            if transport == "auto" and failures and all(unsupported for _, unsupported in failures.values()):
                unreached = Unsupported(f"not all ranks can be peers: {next(iter(failures.values()))[0]}", "unsupported")
                group.close()
                peers = 1
                _together(process_group, size, lambda: make(peers))
            else:
                _raise(failures, own)
        if peers < size:
            ids = _together(process_group, size, lambda: Group.nccl_id() if rank < peers else None)
            _together(process_group, size, lambda: group.connect_nccl(ids[rank % peers]))
    except BaseException as error:
        if group is not None:
            group.close()  # no rank has launched anything
        if unreached is not None:
            raise error from unreached
        raise
    group._process_group = process_group if process_group is not None else dist.group.WORLD
    return group


def of_engines(engines, problem, max_batch, transport):
    """Group.of_engines."""
    _check_transport(transport, TRANSPORTS[:3])
    engines = list(engines)
    _check(problem, len(engines), f"there are {len(engines)} engines")
    if transport == "nccl":
        return _all_of(engines, problem, max_batch, 1)
    try:
        return _all_of(engines, problem, max_batch, 0)
    except Unsupported:
        if transport == "peers":
            raise
        return _all_of(engines, problem, max_batch, 1)  # an error of this has the first one as its context


def _all_of(engines, problem, max_batch, peers):
    """The groups of all engines, whose ranks are all peers (0), or none is (1)."""
    size = Group.bytes_for(problem, max_batch)
    groups = []
    try:
        for rank, of_rank in enumerate(engines):
            groups.append(Group(of_rank, rank, len(engines), size, peers))
        ready = [group.export() for group in groups] if peers == 0 else Group.nccl_id()
        for group in groups:
            group.connect(ready) if peers == 0 else group.connect_nccl(ready)
    except BaseException:
        for group in groups:
            group.close()
        raise
    return groups


def _peers_for(transport, hosts, problem):
    """How many ranks merge inside their kernels, by the machine of every rank."""
    machines = len(set(hosts))
    if transport == "nccl":
        return 1
    if transport == "peers" or transport == "auto" and machines == 1:
        return len(hosts)
    peers = peers_of(hosts)
    if transport == "auto":
        return peers if _has_two_levels(problem) else 1
    if not 1 < peers < len(hosts):
        raise ArgumentError(f"transport is 'two_level', and the ranks are on {machines} machines in this way: {_numbered(hosts)}", "invalid_argument",
                            "It needs several machines, with the same number of ranks above 1, which follow each other. Take 'auto'.")
    return peers


def peers_of(hosts):
    """How many ranks of each machine follow each other, by the machine of every rank; 1 where that is not the same everywhere."""
    size = len(hosts)
    each = size // len(set(hosts)) if size % len(set(hosts)) == 0 else 1
    return each if all(len(set(hosts[first:first + each])) == 1 for first in range(0, size, each)) else 1


def _has_two_levels(problem):
    """Whether kernels of peers know where the tokens of a rank lie, where that matters."""
    return problem.context_interleave == 0 or problem.q_len == 1 or problem.mask == "full"


def _host():
    """A name of this machine that others do not have."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _numbered(hosts):
    """The machines of the ranks as numbers, in the order in which they come."""
    names = list(dict.fromkeys(hosts))
    return ", ".join(str(names.index(host)) for host in hosts)


def _check_transport(transport, known):
    if transport not in known:
        raise ArgumentError(f"transport is {transport!r}", "invalid_argument", f"Give one of {', '.join(map(repr, known))}.")


def barrier(process_group):
    """Waits until all ranks have come here. It is an exchange of objects, because NCCL's own barrier may leave the host running ahead."""
    _exchange(process_group, sys.modules["torch"].distributed.get_world_size(process_group), None)


def _distributed(process_group):
    from torch import distributed

    if not distributed.is_available():
        raise ArgumentError("process_group cannot be used: this PyTorch is built without torch.distributed", "invalid_argument",
                            "Send Group.export() to the other ranks by another way, and call connect().")
    if process_group is None and not distributed.is_initialized():
        raise ArgumentError("process_group is None, and torch.distributed has no default process group", "invalid_argument",
                            "Call torch.distributed.init_process_group() first; torchrun sets the environment that it reads.")
    return distributed


def _check(problem, size, what):
    if problem.context_parallel != size:
        raise ArgumentError(f"problem has context_parallel {problem.context_parallel}, and {what}", "invalid_argument",
                            f"Make it with Problem(..., context_parallel={size}).")


def _exchange(process_group, size, value):
    """The values of all ranks."""
    values = [None] * size
    sys.modules["torch"].distributed.all_gather_object(values, value, group=process_group)
    return values


def _attempt(process_group, size, step):
    """What step() raised: {rank: (reason, whether it is Unsupported)}, and this rank's own error or None."""
    own = None
    try:
        step()
    except Exception as error:
        own = error
    told = _exchange(process_group, size, None if own is None else (f"{type(own).__name__}: {own}", isinstance(own, Unsupported)))
    return {rank: reason for rank, reason in enumerate(told) if reason is not None}, own


def _raise(failures, own):
    """Raises on all ranks where some have failed."""
    if own is not None:
        raise own
    for rank, (reason, _) in failures.items():
        raise GroupBroken(f"rank {rank} could not make its part of the group: {reason}", "group_broken", "Mend what it says, and call this on all ranks again.")


def _together(process_group, size, step):
    """What step() has returned on each rank. Where it raised on some, all of them raise."""
    result = failure = None
    try:
        result = step()
    except Exception as error:  # also of the problem, or of torch: the other ranks must not wait for this one
        failure = error
    results = _exchange(process_group, size, (result, None if failure is None else (f"{type(failure).__name__}: {failure}", False)))
    _raise({rank: reason for rank, (_, reason) in enumerate(results) if reason is not None}, failure)
    return [value for value, _ in results]
