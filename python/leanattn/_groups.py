"""_groups.py -- groups of the processes of torch.distributed, and of several engines of one process. The compiled half calls these functions."""
import sys

from ._leanattn import Group, engine as default_engine
from .errors import ArgumentError, GroupBroken


def from_process_group(process_group, problem, max_batch, engine):
    """Group.from_process_group. Every step that can fail on one rank ends with an exchange, so that all ranks raise and none waits for ever."""
    dist = _distributed(process_group)
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    group = None

    def make():
        nonlocal group
        _check(problem, size, f"the process group has {size} ranks")
        at = engine if engine is not None else default_engine(sys.modules["torch"].cuda.current_device())
        group = Group(at, rank, size, Group.bytes_for(problem, max_batch))
        return group.export()

    try:
        blobs = _together(process_group, size, make)
        _together(process_group, size, lambda: group.connect(blobs))
    except BaseException:
        if group is not None:
            group.close()  # no rank has launched anything
        raise
    group._process_group = process_group if process_group is not None else dist.group.WORLD
    return group


def of_engines(engines, problem, max_batch):
    """Group.of_engines."""
    engines = list(engines)
    _check(problem, len(engines), f"there are {len(engines)} engines")
    size = Group.bytes_for(problem, max_batch)
    groups = []
    try:
        for rank, of_rank in enumerate(engines):
            groups.append(Group(of_rank, rank, len(engines), size))
        blobs = [group.export() for group in groups]
        for group in groups:
            group.connect(blobs)
    except BaseException:
        for group in groups:
            group.close()
        raise
    return groups


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


def _together(process_group, size, step):
    """What step() has returned on each rank. Where it raised on some, all of them raise."""
    result = failure = None
    try:
        result = step()
    except Exception as error:  # also of the problem, or of torch: the other ranks must not wait for this one
        failure = error
    results = _exchange(process_group, size, (result, None if failure is None else f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    for rank, (_, reason) in enumerate(results):
        if reason is not None:
            raise GroupBroken(f"rank {rank} could not make its part of the group: {reason}", "group_broken", "Mend what it says, and call this on all ranks again.")
    return [value for value, _ in results]
