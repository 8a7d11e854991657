// bounded_wait.cuh -- how long a thread waits for another one. Once the bound has passed, it reports a fault to the
// host and goes on without what it waited for, so that the kernel ends. Time is the sum of short naps, each of which
// counts a millisecond at most, so that it hardly grows while the GPU runs another process, or a debugger holds this
// one.
// ---
// The partial of another CTA never comes where the workspace was not all zero, where two launches used it at a time, or
// where CTAs read different context lengths. A stage of the ring of load path "tensor" never comes, or is never free,
// where the producer and its readers read different lengths. The next launch of the engine answers with an error.

constexpr u32 kQuickPolls = 1024;              // polls before the first nap: about a millisecond
constexpr u32 kNapNs = 50000;                  // how long a nap should be
constexpr u32 kLongestNapUs = 1000;            // what it counts at most
constexpr u32 kDefaultWaitBoundUs = 10000000;  // where the launch has no status block

// Reports to the host. A launch without a status block cannot, and must not seem to have succeeded: the store to null
// breaks its context. (With a `trap`, ptxas gives up the registers that setmaxnreg hands out.)
LEAN_DEVICE void report_fault(const LeanDecodeArgs& args, u32 fault) {
#if defined(LEAN_GROUP)
  const u64 where = (u64)(fault > kLeanWrongTicket ? args.group : args.tickets);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(&args.status->workspace), "l"(where) : "memory");
#else
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(&args.status->workspace), "l"((u64)args.tickets) : "memory");
#endif
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&args.status->fault), "r"(fault) : "memory");
}

// Whether to poll once more after a poll that has not found everything. waited: 0 at first; the polls so far and, once
// these are kQuickPolls, the microseconds of naps in addition. As soon as any thread has reported a fault, every other
// one stops at its next nap. missing: the fault to report where nobody has.
LEAN_DEVICE bool goes_on_waiting(const LeanDecodeArgs& args, u32& waited, u32 missing = kLeanWaitedInVain) {
  if (++waited < kQuickPolls) return true;
  u64 before, after;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(before)::"memory");
  __nanosleep(kNapNs);
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(after)::"memory");
  waited += min((u32)(after - before) >> 10, kLongestNapUs);
  const volatile LeanStatus* const status = args.status;
  const u32 fault = status != nullptr ? status->fault : 0,
            bound = status != nullptr ? status->wait_bound_us : kDefaultWaitBoundUs;
  if (fault == 0 && waited - kQuickPolls < bound) return true;
  if (fault == 0) report_fault(args, missing);
  return false;
}
