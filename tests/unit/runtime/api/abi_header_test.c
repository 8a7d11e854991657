/* abi_header_test.c -- leanattn.h as C11 sees it: it compiles, and its structs have the sizes that C++ sees. */
#include <leanattn/leanattn.h>
#include <leanattn/recurrent.h>

#if !defined(__STDC_VERSION__) || __STDC_VERSION__ < 201112L
#error "compile as C11 or newer"
#endif

size_t abi_c_size_of(int which) {
  const size_t sizes[] = {
      sizeof(leanattn_engine_options),  sizeof(leanattn_problem),       sizeof(leanattn_shape),
      sizeof(leanattn_choice),          sizeof(leanattn_plan_info),     sizeof(leanattn_decode_args),
      sizeof(leanattn_merge_args),      sizeof(leanattn_plan_options),  sizeof(leanattn_tune_options),
      sizeof(leanattn_tuned_shape),     sizeof(leanattn_group_options), sizeof(leanattn_nccl_options),
      sizeof(leanattn_recurrent_layer), sizeof(leanattn_recurrent_args)};
  return which >= 0 && (size_t)which < sizeof sizes / sizeof sizes[0] ? sizes[which] : 0;
}

/* Every initialiser, from C. Returns how many structs came out wrong. */
int abi_c_wrong_initialisers(void) {
  leanattn_engine_options options;
  leanattn_problem problem;
  leanattn_shape shape;
  leanattn_choice choice;
  leanattn_plan_info info;
  leanattn_decode_args args;
  leanattn_merge_args merge;
  leanattn_plan_options plan_options;
  leanattn_tune_options tune_options;
  leanattn_tuned_shape tuned;
  leanattn_group_options group;
  leanattn_nccl_options nccl;
  leanattn_recurrent_layer layer;
  leanattn_recurrent_args recurrent;
  int wrong = 0;
  memset(&options, 0xff, sizeof options);
  memset(&args, 0xff, sizeof args);
  leanattn_engine_options_init(&options);
  leanattn_problem_init(&problem);
  leanattn_shape_init(&shape);
  leanattn_choice_init(&choice);
  leanattn_plan_info_init(&info);
  leanattn_decode_args_init(&args);
  leanattn_merge_args_init(&merge);
  leanattn_plan_options_init(&plan_options);
  leanattn_tune_options_init(&tune_options);
  leanattn_tuned_shape_init(&tuned);
  leanattn_group_options_init(&group);
  leanattn_nccl_options_init(&nccl);
  leanattn_recurrent_layer_init(&layer);
  leanattn_recurrent_args_init(&recurrent);
  wrong += options.struct_size != sizeof options || options.device != 0 || options.cache_dir != NULL;
  wrong += problem.struct_size != sizeof problem || problem.q_heads != 0 || problem.pdl != 0;
  wrong += shape.struct_size != sizeof shape || shape.total_context != 0 || shape.query_tokens != 0;
  wrong += choice.struct_size != sizeof choice || choice.kernel_name[0] != 0;
  wrong += info.struct_size != sizeof info || info.kernel_name != NULL;
  wrong += args.struct_size != sizeof args || args.scale != 0 || args.o_stride_head != 0;
  wrong += merge.struct_size != sizeof merge || merge.parts != 0;
  wrong +=
      plan_options.struct_size != sizeof plan_options || plan_options.when_missing != LEANATTN_WHEN_MISSING_COMPILE;
  wrong += tune_options.struct_size != sizeof tune_options || tune_options.program != NULL || tune_options.retune != 0;
  wrong += tuned.struct_size != sizeof tuned || tuned.status != LEANATTN_OK || tuned.median_us != 0;
  wrong += group.struct_size != sizeof group || group.size != 0 || group.memory_bytes != 0 || group.peers != 0;
  wrong += nccl.struct_size != sizeof nccl || nccl.unique_id != NULL || nccl.comm != NULL;
  wrong += layer.struct_size != sizeof layer || layer.tokens != 0 || layer.flags != 0;
  wrong += recurrent.struct_size != sizeof recurrent || recurrent.q != NULL || recurrent.lower_bound != 0;
  return wrong;
}
