// model_catalogue_test.cpp -- built-in models and config.json files give the problem that their layers have.
#include "cli/models/model_catalogue.hpp"

#include <gtest/gtest.h>

#include "cli/models/model_config.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
namespace {

/// Models without what only a file can tell: which layers are of which shape.
ModelShapes without_numbers(ModelShapes model) {
  model.layers = 0;
  model.model_type.clear();
  for (LayerShape& shape : model.shapes) shape.layers.clear(), shape.kind.clear();
  return model;
}

TEST(Catalogue, EveryModelIsAProblemThatTheKernelsServe) {
  EXPECT_GE(model_catalogue().size(), 20u);
  for (const ModelShape& model : model_catalogue()) {
    DecodeProblem problem{.q_heads = model.q_heads,
                          .kv_heads = model.kv_heads,
                          .head_dim = model.head_dim,
                          .dtype = model.dtype.value_or(DType::bf16),
                          .features = model.features};
    EXPECT_TRUE(validate(problem).has_value()) << model.name;
    problem.features.window = model.layer_window;
    EXPECT_TRUE(validate(problem).has_value()) << model.name;
    EXPECT_EQ(*find_model(model.name), model);  // No name is there twice.
  }
}

// What the models' config.json files say of their attention layers, through the other way to the same problem.
TEST(Catalogue, SaysWhatTheModelsConfigFilesSay) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama-3.1-8b", R"("num_attention_heads":32,"num_key_value_heads":8,"hidden_size":4096)"},
      {"llama-3.1-70b", R"("num_attention_heads":64,"num_key_value_heads":8,"hidden_size":8192)"},
      {"llama-3.1-405b", R"("num_attention_heads":128,"num_key_value_heads":8,"hidden_size":16384)"},
      {"qwen3-0.6b", R"("num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"hidden_size":1024,
                        "sliding_window":null,"use_sliding_window":false)"},
      {"qwen3-8b", R"("num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"hidden_size":4096)"},
      {"qwen3-30b-a3b", R"("num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"hidden_size":2048)"},
      {"gemma-2-9b", R"("model_type":"gemma2","num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,
                        "sliding_window":4096,"attn_logit_softcapping":50.0)"},
      {"gemma-3-1b", R"("model_type":"gemma3_text","num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,
                        "sliding_window":512,"sliding_window_pattern":6,"attn_logit_softcapping":null)"},
      {"gemma-3-27b", R"("model_type":"gemma3_text","num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,
                         "sliding_window":1024)"},
      {"gpt-oss-20b", R"("model_type":"gpt_oss","num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,
                         "sliding_window":128,"layer_types":["sliding_attention","full_attention"])"},
  };
  for (const auto& [name, fields] : cases) {
    const auto said = model_from_config(R"({"torch_dtype":"bfloat16",)" + std::string(fields) + "}", name);
    ASSERT_TRUE(said.has_value()) << said.error().message;
    EXPECT_EQ(shapes_of(*find_model(name)), without_numbers(*said)) << name;
  }
}

TEST(Catalogue, NamesIgnoreCaseAndUnknownOnesLeadToTheClosest) {
  EXPECT_EQ(find_model("Llama-3-8B")->kv_heads, 8);
  const auto unknown = find_model("llama-3");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("'llama-3'"), std::string::npos);
  EXPECT_NE(unknown.error().hint.find("Did you mean llama-3-8b?"), std::string::npos) << unknown.error().hint;
  EXPECT_NE(find_model("x").error().hint.find("leanattn models"), std::string::npos);
  const auto recurrent = find_model("Qwen3.5-27B");
  ASSERT_FALSE(recurrent.has_value());
  EXPECT_EQ(recurrent.error().message, "--model 'Qwen3.5-27B' is built in for its layers with a recurrent state alone");
}

TEST(RecurrentCatalogue, EveryModelIsAProblemWithKernels) {
  for (const RecurrentModel& model : recurrent_catalogue()) {
    EXPECT_TRUE(validate(model.problem).has_value()) << model.name;
    EXPECT_EQ(*find_recurrent_model(model.name), model.problem);  // No name is there twice.
  }
  EXPECT_EQ(find_recurrent_model("Kimi-K3")->v_heads, 96);
  const auto misspelt = find_recurrent_model("qwen3.5-27");
  ASSERT_FALSE(misspelt);
  EXPECT_NE(misspelt.error().hint.find("Did you mean qwen3.5-27b?"), std::string::npos) << misspelt.error().hint;
}

TEST(RecurrentCatalogue, SaysWhatTheModelsConfigFilesSay) {
  const std::pair<const char*, const char*> cases[] = {
      {"qwen3-next-80b-a3b", R"({"model_type":"qwen3_next"})"},
      {"qwen3.5-27b", R"({"model_type":"qwen3_5_text","linear_num_value_heads":48})"},
      {"kimi-linear-48b-a3b", R"({"model_type":"kimi_linear","layer_types":["linear_attention","full_attention"]})"},
      {"glm-5.3-flash", R"({"model_type":"glm5_next_text"})"},
      {"mamba-codestral-7b", R"({"model_type":"mamba2"})"},
      {"nemotron-h-8b", R"({"model_type":"nemotron_h"})"},
      {"minimax-text-01", R"({"model_type":"minimax","num_attention_heads":64,"head_dim":128})"},
  };
  for (const auto& [name, text] : cases)
    EXPECT_EQ(recurrent_from_config(text, name).value(), *find_recurrent_model(name)) << name;
}

}  // namespace
}  // namespace leanattn
