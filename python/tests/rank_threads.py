"""rank_threads.py -- torch.distributed for tests: the ranks are threads of this process."""
import pickle
import threading
import types


class Ranks:
    """Stands in for the module torch.distributed. `exchanges` counts what ranks have told each other."""

    def __init__(self, size):
        self.size, self.mine, self.meeting, self.values = size, threading.local(), threading.Barrier(size, timeout=60), [None] * size
        self.exchanges = 0
        self.group = types.SimpleNamespace(WORLD="world")

    def init_process_group(self, backend):
        """Is there from the start."""

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def get_rank(self, process_group=None):
        return self.mine.rank

    def get_world_size(self, process_group=None):
        return self.size

    def barrier(self):
        self.meeting.wait()

    def all_gather_object(self, values, value, group=None):
        self.values[self.mine.rank] = pickle.dumps(value)
        self.meeting.wait()
        values[:] = [pickle.loads(each) for each in self.values]
        self.exchanges += self.mine.rank == 0
        self.meeting.wait()

    def run(self, work):
        """What work(rank) returned or raised on each rank."""
        results = [None] * self.size

        def of_rank(rank):
            self.mine.rank = rank
            try:
                results[rank] = work(rank)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results
