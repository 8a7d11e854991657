// model_catalogue_test.cpp -- built-in models and config.json files give the problem that their layers have.
#include "cli/flags/model_config.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <tuple>

#include "runtime/problem.hpp"

namespace leanattn {
namespace {

ModelShape read(const std::string& text) {
  const auto model = model_from_config(text, "config.json");
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
  return model.value_or(ModelShape{});
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
    ModelShape said = read(R"({"torch_dtype":"bfloat16",)" + std::string(fields) + "}");
    said.name = name;
    EXPECT_EQ(*find_model(name), said) << name;
  }
}

TEST(Catalogue, NamesIgnoreCaseAndUnknownOnesLeadToTheClosest) {
  EXPECT_EQ(find_model("Llama-3-8B")->kv_heads, 8);
  const auto unknown = find_model("llama-3");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("'llama-3'"), std::string::npos);
  EXPECT_NE(unknown.error().hint.find("Did you mean llama-3-8b?"), std::string::npos) << unknown.error().hint;
  EXPECT_NE(find_model("x").error().hint.find("leanattn models"), std::string::npos);
}

// The fields are those of published config.json files.
TEST(ModelConfig, ReadsTheNamesThatFamiliesUse) {
  struct Case {
    const char* family;
    const char* text;
    int q_heads, kv_heads, head_dim;
  };
  const Case cases[] = {
      {"llama 3", R"({"num_attention_heads":32,"num_key_value_heads":8,"hidden_size":4096,"torch_dtype":"bfloat16"})",
       32, 8, 128},
      {"gemma 2", R"({"num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,"hidden_size":3584})", 16, 8,
       256},
      {"opt", R"({"num_attention_heads":32,"hidden_size":2048,"word_embed_proj_dim":2048})", 32, 32, 64},
      {"head_dim null", R"({"num_attention_heads":32,"num_key_value_heads":null,"head_dim":null,"hidden_size":4096})",
       32, 32, 128},
      {"gpt2", R"({"n_head":12,"n_embd":768})", 12, 12, 64},
      {"gpt bigcode", R"({"n_head":48,"n_embd":6144,"multi_query":true})", 48, 1, 128},
      {"falcon 7b",
       R"({"num_attention_heads":71,"num_kv_heads":71,"multi_query":true,"new_decoder_architecture":false,"hidden_size":4544})",
       71, 1, 64},
      {"falcon 40b",
       R"({"num_attention_heads":128,"num_kv_heads":8,"multi_query":true,"new_decoder_architecture":true,"hidden_size":8192})",
       128, 8, 64},
      {"mpt", R"({"n_heads":64,"d_model":7168,"attn_config":{"kv_n_heads":8}})", 64, 8, 112},
      {"chatglm",
       R"({"num_attention_heads":32,"multi_query_attention":true,"multi_query_group_num":2,"kv_channels":128,"hidden_size":4096})",
       32, 2, 128},
      {"multimodal",
       R"({"vision_config":{"num_attention_heads":16},"text_config":{"num_attention_heads":28,"num_key_value_heads":4,"hidden_size":3584}})",
       28, 4, 128},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.family);
    const ModelShape model = read(c.text);
    EXPECT_EQ(model.q_heads, c.q_heads);
    EXPECT_EQ(model.kv_heads, c.kv_heads);
    EXPECT_EQ(model.head_dim, c.head_dim);
  }
}

TEST(ModelConfig, TheDtypeIsThatOfTheWeightsOrUnknown) {
  const std::string heads = R"("num_attention_heads":8,"hidden_size":512)";
  EXPECT_EQ(read("{" + heads + R"(,"torch_dtype":"float16"})").dtype, DType::fp16);
  EXPECT_EQ(read("{" + heads + R"(,"dtype":"bfloat16"})").dtype, DType::bf16);
  EXPECT_EQ(read("{" + heads + R"(,"torch_dtype":"float32"})").dtype, std::nullopt);
  EXPECT_EQ(read("{" + heads + R"(,"torch_dtype":"float32"})").other_dtype, "float32");
  EXPECT_EQ(read("{" + heads + R"(,"torch_dtype":"float16"})").other_dtype, "");
  EXPECT_EQ(read("{" + heads + "}").dtype, std::nullopt);
  EXPECT_EQ(read(R"({"dtype":"float16","text_config":{)" + heads + "}}").dtype, DType::fp16);
}

TEST(ModelConfig, FeaturesAreThoseOfEveryLayer) {
  const std::pair<const char*, Features> cases[] = {
      {R"("model_type":"llama")", {}},
      {R"("model_type":"mistral","sliding_window":4096)", {.window = 4096}},
      {R"("model_type":"mistral","sliding_window":null)", {}},
      {R"("model_type":"phi3","sliding_window":2047)", {.window = 2047}},
      {R"("model_type":"qwen2","sliding_window":131072,"use_sliding_window":false,"max_window_layers":28)", {}},
      // Only some layers have the window, and nothing says which of the two problems is meant.
      {R"("model_type":"qwen2","sliding_window":4096,"use_sliding_window":true,"max_window_layers":28)", {}},
      {R"("model_type":"gemma2","sliding_window":4096,"attn_logit_softcapping":50.0,"query_pre_attn_scalar":256)",
       {.soft_cap = 50}},
      {R"("model_type":"gemma3_text","sliding_window":512,"attn_logit_softcapping":null)", {}},
      {R"("model_type":"gpt_oss","sliding_window":128,"layer_types":["sliding_attention","full_attention"])",
       {.sink_logits = true}},
      {R"("model_type":"new","sliding_window":128,"layer_types":["sliding_attention","sliding_attention"])",
       {.window = 128}},
      {R"("model_type":"falcon","alibi":true)", {.alibi = true}},
      {R"("model_type":"mpt","attn_config":{"alibi":true,"kv_n_heads":32})", {.alibi = true}},
      {R"("model_type":"x","v_head_dim":64)", {.v_head_dim = 64}},
      {R"("model_type":"x","v_head_dim":128)", {}},
  };
  for (const auto& [fields, expected] : cases) {
    const ModelShape model = read(R"({"num_attention_heads":32,"hidden_size":4096,)" + std::string(fields) + "}");
    EXPECT_EQ(model.features, expected) << fields << " gives " << to_json(model.features);
    EXPECT_TRUE(validate(model.features).has_value()) << fields;
  }
}

TEST(ModelConfig, AWindowOfSomeLayersIsKeptApart) {
  const std::tuple<const char*, int, int> cases[] = {
      {R"("model_type":"mistral","sliding_window":4096)", 4096, 0},
      {R"("model_type":"gemma2","sliding_window":4096)", 0, 4096},
      {R"("model_type":"qwen2","sliding_window":4096,"use_sliding_window":true)", 0, 4096},
      {R"("model_type":"qwen2","sliding_window":4096,"use_sliding_window":false)", 0, 0},
      {R"("sliding_window":128,"layer_types":["sliding_attention","full_attention"])", 0, 128},
      {R"("sliding_window":128,"layer_types":["sliding_attention"])", 128, 0},
      {R"("sliding_window":128,"layer_types":["full_attention"])", 0, 0},
      {R"("sliding_window":128,"layer_types":[])", 0, 0},
  };
  for (const auto& [fields, every, some] : cases) {
    const ModelShape model = read(R"({"num_attention_heads":32,"hidden_size":4096,)" + std::string(fields) + "}");
    EXPECT_EQ(model.features.window, every) << fields;
    EXPECT_EQ(model.layer_window, some) << fields;
  }
}

TEST(ModelConfig, BrokenJsonIsLocated) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "line 1, column 1: "},
      {"{\"a\": 1,,}", "line 1, column 9: "},
      {"{\n \"a\": tru\n}", "line 2, column 10: "},
      {"{\n\n\n", "line 4, column 1: "},
      {"{\"layers\": 2,\n \"hidden_size\": 41e308544}", "line 2, column 17: number overflow parsing '41e308544'"},
  };
  for (const auto& [text, where] : cases) {
    const auto model = model_from_config(text, "config.json");
    ASSERT_FALSE(model.has_value());
    EXPECT_NE(model.error().message.find(std::string("not valid JSON: ") + where), std::string::npos)
        << model.error().message;
  }
  const auto deep = model_from_config("\n" + std::string(1000, '['), "config.json");
  EXPECT_NE(deep.error().message.find("line 2, column 65: it is nested too deeply"), std::string::npos)
      << deep.error().message;
}

TEST(ModelConfig, AFaultyFieldIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON"},
      {"{\"num_attention_heads\": 32,", "not valid JSON"},
      {"[1]", "not a JSON object"},
      {"{}", "num_attention_heads"},
      {R"({"num_attention_heads":0,"hidden_size":64})", "out of range"},
      {R"({"num_attention_heads":-4,"hidden_size":64})", "out of range"},
      {R"({"num_attention_heads":18446744073709551615,"hidden_size":64})", "out of range"},
      {R"({"num_attention_heads":4.5,"hidden_size":64})", "4.5"},
      {R"({"num_attention_heads":"8","hidden_size":64})", "not a whole number"},
      {R"({"num_attention_heads":8})", "hidden_size"},
      {R"({"num_attention_heads":7,"hidden_size":64})", "not a multiple"},
      {R"({"num_attention_heads":8,"num_key_value_heads":3,"hidden_size":64})", "not a multiple of 3"},
      {R"({"num_attention_heads":8,"hidden_size":512,"sliding_window":"all"})", "sliding_window"},
      {R"({"num_attention_heads":8,"hidden_size":512,"attn_logit_softcapping":true})", "attn_logit_softcapping"},
  };
  for (const auto& [text, named] : cases) {
    const auto model = model_from_config(text, "config.json");
    ASSERT_FALSE(model.has_value()) << text;
    EXPECT_EQ(model.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(model.error().message.find(named), std::string::npos) << model.error().message;
    EXPECT_NE(model.error().message.find("config.json"), std::string::npos) << model.error().message;
  }
}

TEST(ModelConfig, LatentAttentionIsOneKvHeadWithAbsorbedProjections) {
  const auto model = model_from_config(
      R"({"num_attention_heads":128,"num_key_value_heads":128,"hidden_size":7168,"kv_lora_rank":512,
          "qk_rope_head_dim":64,"v_head_dim":128,"torch_dtype":"bfloat16"})",
      "x");
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto known = find_model("deepseek-v3");
  ASSERT_TRUE(known.has_value());
  ModelShape expected = *known;
  expected.name = "x";
  EXPECT_EQ(*model, expected);
  EXPECT_EQ(model->q_heads, 128);
  EXPECT_EQ(model->kv_heads, 1);
  EXPECT_EQ(model->head_dim, 576);
  EXPECT_EQ(model->features, (Features{.v_head_dim = 512, .latent = true}));

  // The head_dim of such a file is that of the rotated columns.
  const auto glm = model_from_config(
      R"({"model_type":"glm4_moe_lite","num_attention_heads":20,"num_key_value_heads":20,"hidden_size":2048,"head_dim":64,
          "kv_lora_rank":512,"qk_nope_head_dim":192,"qk_rope_head_dim":64,"v_head_dim":256,"dtype":"bfloat16"})",
      "glm-4.7-flash");
  ASSERT_TRUE(glm.has_value()) << glm.error().message;
  EXPECT_EQ(*glm, find_model("glm-4.7-flash").value());

  const auto without = model_from_config(R"({"num_attention_heads":8,"kv_lora_rank":256})", "x");
  ASSERT_TRUE(without.has_value());
  EXPECT_EQ(without->head_dim, 256);
  EXPECT_EQ(without->features, Features{.latent = true});
  EXPECT_FALSE(model_from_config(R"({"num_attention_heads":8,"kv_lora_rank":"512"})", "x").has_value());
}

TEST(ModelConfig, AFileThatCannotBeReadIsNamed) {
  const auto model = model_from_config_file("/nonexistent/config.json");
  ASSERT_FALSE(model.has_value());
  EXPECT_NE(model.error().message.find("/nonexistent/config.json"), std::string::npos);
  EXPECT_FALSE(model_from_config_file("/").has_value());
}

}  // namespace
}  // namespace leanattn
