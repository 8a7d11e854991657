// merge/no_pairs.cuh -- with tickets the last contributor merges, however many there are (compare
// merge/wait_counted.cuh).

LEAN_DEVICE bool completes_pair(const LeanDecodeArgs&, const FixUp&, Attention&) { return false; }
