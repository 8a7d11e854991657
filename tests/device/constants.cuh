// constants.cuh -- the constants that the generator writes in front of a kernel (generator/constants.cpp), for tests
// that compile its modules for the host. These are a plain kernel's. A test declares those that its kernel has
// otherwise in a namespace of its own, in front of the modules.
constexpr int kHeadDim = 128, kValueDim = 128, kGroup = 1, kQLen = 1, kRowBlocks = 1, kRowBlocksInStep = 1;
constexpr unsigned kTilePositions = 1, kLightTilePositions = 1;
constexpr int kMostPasses = 1, kFewTokens = 0, kFirstBarrier = 0, kSharedBefore = 0;
constexpr unsigned kTicketsBefore = 0, kPartialsBefore = 0;
constexpr bool kTakesFew = false;
constexpr bool kLatent = false, kLse = false, kPdl = false;

constexpr int kTile = 64, kStepTokens = 64, kWarps = 1, kProducerWarps = 0, kStages = 2, kStageParts = 1,
              kStageReaders = 4, kPartProducers = 1;
constexpr bool kHasRoles = false, kRowsAreSplit = false, kAllTakeSteps = false, kContiguous = false,
               kColumnsInBlocks = false;
constexpr int kStateColumns = 1;

constexpr int kPageSize = 0, kPageRun = 1, kQueryMask = 0, kWindow = 0, kSinkTokens = 0, kStrideBytes = 2;
constexpr bool kRaggedQ = false, kSinkLogits = false, kAlibi = false, kAppend = false, kCopyEngineReads = false;
constexpr float kSoftCap = 0;
constexpr bool kBatchInvariant = false, kSecondCache = false;
constexpr int kSelectionBlock = 0, kSelectionQueries = 1, kContextRanks = 1, kInterleave = 0;
constexpr bool kSelectionInPool = false, kSelectionCausal = true;

constexpr int kKvBytes = 2, kGatherWarps = 0, kConvertingCtas = 1;
constexpr bool kGathers = false, kHasScales = false;
inline float score_expression(float score, int, int, int) { return score; }

// And what only kernels of one-byte caches have.
template <class... Of>
float k_scale_of(const Of&...) {
  return 1;
}
template <class... Of>
float output_scale(const Of&...) {
  return 1;
}
