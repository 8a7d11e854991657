/* choose.c -- says what the C interface would launch for a shape on this machine's first GPU. */
#include <leanattn/leanattn.h>
#include <stdio.h>

static int report(const char* what) {
  fprintf(stderr, "%s: %s\n%s\n", what, leanattn_last_error_message(), leanattn_last_error_hint());
  return leanattn_last_error_status() == LEANATTN_NO_DRIVER || leanattn_last_error_status() == LEANATTN_NO_DEVICE ? 3
                                                                                                                  : 1;
}

int main(void) {
  leanattn_engine* engine;
  if (leanattn_engine_create(NULL, &engine) != LEANATTN_OK) return report("engine");

  leanattn_problem problem;
  leanattn_problem_init(&problem);
  problem.q_heads = 32;
  problem.kv_heads = 8;
  problem.head_dim = 128;

  leanattn_shape shape;
  leanattn_shape_init(&shape);
  shape.batch = 16;
  shape.longest_context = 65536;

  leanattn_choice choice;
  leanattn_choice_init(&choice);
  int result = 0;
  if (leanattn_engine_lookup(engine, &problem, &shape, &choice) == LEANATTN_OK) {
    printf("%s, %lld CTAs, %lld bytes of workspace\n", choice.kernel_name, (long long)choice.grid,
           (long long)choice.workspace_bytes);
  } else {
    result = report("lookup");
  }
  leanattn_engine_destroy(engine);
  return result;
}
