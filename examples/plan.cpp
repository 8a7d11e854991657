// plan.cpp -- opens an engine, makes a plan, and says what it would launch. The CMake projects beside it build this
// file.
#include <cstdio>
#include <leanattn/leanattn.hpp>

int main() {
  std::printf("leanattn %s\n", leanattn_version());
  const auto engine = leanattn::Engine::create();
  if (!engine) {
    std::printf("no engine: %s\n%s\n", engine.error().message.c_str(), engine.error().hint.c_str());
    return 0;
  }
  const auto plan = engine->plan(leanattn::Problem{}, leanattn::PlanShape{});
  if (!plan) {
    std::printf("no plan: %s\n", plan.error().message.c_str());
    return 1;
  }
  const leanattn_plan_info info = plan->info();
  std::printf("%s on %lld CTAs, %d registers\n", info.kernel_name, static_cast<long long>(info.grid), info.registers);
  return 0;
}
