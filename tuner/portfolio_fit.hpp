// portfolio_fit.hpp -- portfolios (runtime/portfolio.hpp) from a database's trials. One thread, as the database.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cache/tuning_db.hpp"
#include "runtime/portfolio.hpp"
#include "tuner/model_fit.hpp"

namespace leanattn {
inline namespace v1 {

/// Most kernels of a portfolio: a look-up goes through all of them.
inline constexpr std::size_t kMostPortfolioKernels = 20;

/// Fits the model to the samples, chooses the kernels that together come closest to the best of every shape, and says
/// how well that does on shapes left out of it. Samples of one problem.
Portfolio fit_portfolio(const DeviceFacts& device, std::span<const ModelSample> samples,
                        std::span<const std::pair<std::int64_t, double>> read_limits);

/// Fits and keeps the portfolio of one problem. Nothing is kept where fewer than kFewestPortfolioShapes are measured.
/// Errors: of the database.
Result<void> refit(TuningDb& db, const DeviceFacts& device, const DecodeProblem& problem, const char* policy);

/// That of every problem that has a winner, on every device model of the database: after an import or a rebuild.
/// Returns how many portfolios there are now. Device models that this version knows nothing of are left out. Errors: of
/// the database.
Result<int> refit_all(TuningDb& db);

}  // namespace v1
}  // namespace leanattn
