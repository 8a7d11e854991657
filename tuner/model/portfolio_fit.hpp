// portfolio_fit.hpp -- fits portfolios (runtime/lookup/portfolio.hpp) to the trials of a database. One thread, as the
// database.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cache/tuning/tuning_db.hpp"
#include "runtime/lookup/portfolio.hpp"
#include "tuner/model/cost_model_fit.hpp"

namespace leanattn {
inline namespace v1 {

/// The largest number of kernels in a portfolio. A look-up goes through all of them.
inline constexpr std::size_t kMostPortfolioKernels = 20;

/// Fits the model to the samples, chooses the kernels that together come closest to the best of every shape, and says
/// how well this does for shapes that are left out of the fit. All samples are of one problem.
Portfolio fit_portfolio(const DeviceFacts& device, std::span<const ModelSample> samples,
                        std::span<const std::pair<std::int64_t, double>> read_limits);

/// Fits the portfolio of one problem and stores it, if at least kFewestPortfolioShapes shapes are measured.
/// Errors: of the database.
Result<void> refit(TuningDb& db, const DeviceFacts& device, const DecodeProblem& problem, std::string_view policy);

/// Does this for every problem that has a winner, on every device model of the database: after an import or a rebuild.
/// Returns how many portfolios there are now. Device models that this version does not know are left out. Errors: of
/// the database.
Result<int> refit_all(TuningDb& db);

}  // namespace v1
}  // namespace leanattn
