// model_config_test.cpp -- every config.json gives the shapes that its layers have, or a refusal that names a field.
#include "cli/models/model_config.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "cli/models/model_catalogue.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
namespace {

ModelShapes read(const std::string& text) {
  const auto model = model_from_config(text, "config.json");
  EXPECT_TRUE(model.has_value()) << text << (model ? "" : model.error().message);
  return model ? *model : ModelShapes{.name = {}, .shapes = {LayerShape{}}};
}

LayerShape only_shape(const ModelShapes& model) {
  EXPECT_EQ(model.shapes.size(), 1u);
  return model.shapes.front();
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
    const LayerShape shape = only_shape(read(c.text));
    EXPECT_EQ(shape.q_heads, c.q_heads);
    EXPECT_EQ(shape.kv_heads, c.kv_heads);
    EXPECT_EQ(shape.head_dim, c.head_dim);
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
      {R"("model_type":"new","sliding_window":128,"layer_types":["sliding_attention","sliding_attention"])",
       {.window = 128}},
      {R"("model_type":"falcon","alibi":true)", {.alibi = true}},
      {R"("model_type":"mpt","attn_config":{"alibi":true,"kv_n_heads":32})", {.alibi = true}},
      {R"("model_type":"x","v_head_dim":64)", {.v_head_dim = 64}},
      {R"("model_type":"x","v_head_dim":128)", {}},
  };
  for (const auto& [fields, expected] : cases) {
    const LayerShape shape =
        only_shape(read(R"({"num_attention_heads":32,"hidden_size":4096,)" + std::string(fields) + "}"));
    EXPECT_EQ(shape.features, expected) << fields << " gives " << to_json(shape.features);
    EXPECT_TRUE(validate(shape.features).has_value()) << fields;
  }
}

TEST(ModelConfig, LayersWithAWindowAreAShapeOfTheirOwn) {
  const std::tuple<const char*, std::size_t, std::size_t, int> cases[] = {
      // the file, layers without a window, layers with one, the window
      {R"("model_type":"mistral","sliding_window":4096,"num_hidden_layers":3)", 0, 3, 4096},
      {R"("model_type":"gemma2","sliding_window":4096,"num_hidden_layers":26)", 13, 13, 4096},
      {R"("model_type":"gemma3_text","num_hidden_layers":26)", 4, 22, 4096},
      {R"("model_type":"gemma3_text","num_hidden_layers":26,"sliding_window_pattern":2)", 13, 13, 4096},
      {R"("model_type":"qwen2","sliding_window":4096,"use_sliding_window":true,"max_window_layers":20,"num_hidden_layers":28)",
       20, 8, 4096},
      {R"("model_type":"qwen2","sliding_window":4096,"use_sliding_window":false,"num_hidden_layers":28)", 28, 0, 0},
      {R"("model_type":"qwen3_moe","sliding_window":4096,"use_sliding_window":true,"max_window_layers":20,"num_hidden_layers":28)",
       0, 28, 4096},
      {R"("model_type":"moshi","sliding_window":3000,"num_hidden_layers":4)", 4, 0, 0},
      {R"("sliding_window":128,"layer_types":["sliding_attention","full_attention"])", 1, 1, 128},
      {R"("sliding_window":128,"layer_types":["sliding_attention"])", 0, 1, 128},
      {R"("sliding_window":128,"layer_types":["full_attention"])", 1, 0, 0},
  };
  for (const auto& [fields, full, windowed, window] : cases) {
    const ModelShapes model =
        read(R"({"num_attention_heads":32,"head_dim":128,"hidden_size":4096,)" + std::string(fields) + "}");
    std::size_t with = 0, without = 0;
    for (const LayerShape& shape : model.shapes) {
      (shape.features.window > 0 ? with : without) += shape.layers.size();
      if (shape.features.window > 0) EXPECT_EQ(shape.features.window, window) << fields;
    }
    EXPECT_EQ(without, full) << fields;
    EXPECT_EQ(with, windowed) << fields;
  }
}

TEST(ModelConfig, AWindowOfAnUnknownTypeMustSayWhichLayersHaveIt) {
  const auto model = model_from_config(R"({"num_attention_heads":8,"hidden_size":512,"sliding_window":128})", "c.json");
  ASSERT_FALSE(model.has_value());
  EXPECT_NE(model.error().message.find("\"layer_types\" is missing"), std::string::npos) << model.error().message;
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
      {R"({"num_attention_heads":8,"hidden_size":512,"num_hidden_layers":1000000000})", "num_hidden_layers"},
      {R"({"num_attention_heads":8,"hidden_size":512,"swa_head_dim":64})", "\"swa_head_dim\" is not known"},
      {R"({"model_type":"novel","num_attention_heads":8,"hidden_size":512,"attention_sinks":4})",
       "model_type \"novel\""},
      {R"({"num_attention_heads":8,"hidden_size":512,"layer_types":["spiral"]})", "\"layer_types\" has \"spiral\""},
      {R"({"num_attention_heads":[8,4],"hidden_size":512,"num_hidden_layers":3})",
       "has 2 entries, and none for layer 2"},
      {R"({"num_attention_heads":8,"hidden_size":512,"per_layer_config":{"x":{}}})", "per_layer_config"},
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
  const LayerShape shape = only_shape(read(
      R"({"num_attention_heads":128,"num_key_value_heads":128,"hidden_size":7168,"kv_lora_rank":512,
          "qk_rope_head_dim":64,"v_head_dim":128,"torch_dtype":"bfloat16"})"));
  EXPECT_EQ(shape.q_heads, 128);
  EXPECT_EQ(shape.kv_heads, 1);
  EXPECT_EQ(shape.head_dim, 576);
  EXPECT_EQ(shape.features, (Features{.v_head_dim = 512, .latent = true}));

  // The head_dim of such a file is that of the rotated columns.
  const LayerShape glm = only_shape(read(
      R"({"model_type":"glm4_moe_lite","num_attention_heads":20,"num_key_value_heads":20,"hidden_size":2048,"head_dim":64,
          "kv_lora_rank":512,"qk_nope_head_dim":192,"qk_rope_head_dim":64,"v_head_dim":256,"dtype":"bfloat16"})"));
  EXPECT_EQ(glm.features, find_model("glm-4.7-flash")->features);
  EXPECT_EQ(glm.head_dim, 576);

  const LayerShape without = only_shape(read(R"({"num_attention_heads":8,"kv_lora_rank":256})"));
  EXPECT_EQ(without.head_dim, 256);
  EXPECT_EQ(without.features, Features{.latent = true});
  EXPECT_FALSE(model_from_config(R"({"num_attention_heads":8,"kv_lora_rank":"512"})", "x").has_value());
}

/// "64/8x128 w512 sinks (3)" for each shape, and "1 linear attention" for each kind of other layers.
std::vector<std::string> in_short(const ModelShapes& model) {
  std::vector<std::string> texts;
  for (const LayerShape& shape : model.shapes) {
    const Features& f = shape.features;
    std::string text =
        std::to_string(shape.q_heads) + "/" + std::to_string(shape.kv_heads) + "x" + std::to_string(shape.head_dim);
    if (f.v_head_dim > 0) text += " v" + std::to_string(f.v_head_dim);
    if (f.latent) text += " latent";
    if (f.window > 0) text += " w" + std::to_string(f.window);
    if (f.sink_logits) text += " sinks";
    if (f.alibi) text += " alibi";
    if (f.soft_cap > 0) text += " capped";
    if (shape.chunk > 0) text += " c" + std::to_string(shape.chunk);
    if (shape.selected > 0) text += " s" + std::to_string(shape.selected);
    if (shape.position_bias) text += " biased";
    texts.push_back(text + " (" + std::to_string(shape.layers.size()) + ")");
  }
  for (const OtherLayers& other : model.others) texts.push_back(std::to_string(other.layers) + " " + other.what);
  return texts;
}

// What the modelling code of Transformers runs for such files, seen at its attention functions.
TEST(ModelConfig, EveryKindOfLayerIsFound) {
  using Texts = std::vector<std::string>;
  const std::pair<const char*, Texts> cases[] =
      {
          // published: fields of the global layers
          {R"({"model_type":"gemma4","text_config":{"model_type":"gemma4_text","num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,"num_global_key_value_heads":2,"global_head_dim":512,"attention_k_eq_v":true,"hidden_size":2816,"sliding_window":1024,"num_hidden_layers":3,"layer_types":["sliding_attention","sliding_attention","full_attention"]}})",
           Texts{"16/2x512 (1)", "16/8x256 w1024 (2)"}},
          // the same as Transformers 5 saves it
          {R"({"model_type":"gemma4_text","num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,"sliding_window":1024,"num_hidden_layers":3,"layer_types":["sliding_attention","sliding_attention","full_attention"],"per_layer_config":{"02":{"head_dim":512,"num_key_value_heads":2}}})",
           Texts{"16/2x512 (1)", "16/8x256 w1024 (2)"}},
          // any type may have such fields
          {R"({"model_type":"llama","num_attention_heads":32,"num_key_value_heads":8,"hidden_size":4096,"num_hidden_layers":2,"per_layer_config":{"1":{"num_key_value_heads":4}}})",
           Texts{"32/8x128 (1)", "32/4x128 (1)"}},
          // latent layers with selections and with a window
          {R"({"model_type":"dots3_note_text","num_attention_heads":128,"num_key_value_heads":128,"kv_lora_rank":512,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"hidden_size":5120,"sliding_window":512,"index_topk":2048,"num_hidden_layers":2,"layer_types":["indexed_attention","sliding_attention"],"per_layer_config":{"1":{"kv_lora_rank":1024,"num_attention_heads":64,"num_key_value_heads":64,"qk_nope_head_dim":192}}})",
           Texts{"128/1x576 v512 latent s2048 (1)", "64/1x1088 v1024 latent w512 (1)"}},
          // groups, and settings of the other layers
          {R"({"model_type":"step3p5","num_attention_heads":64,"num_attention_groups":8,"head_dim":128,"hidden_size":4096,"sliding_window":512,"num_hidden_layers":4,"layer_types":["full_attention","sliding_attention","sliding_attention","sliding_attention"],"attention_other_setting":{"attention_type":"sliding_attention","num_attention_heads":96,"num_attention_groups":8,"head_dim":128}})",
           Texts{"64/8x128 (1)", "96/8x128 w512 (3)"}},
          // settings of every block
          {R"({"model_type":"nemotron-nas","num_attention_heads":64,"num_key_value_heads":null,"hidden_size":8192,"num_hidden_layers":2,"block_configs":[{"attention":{"n_heads_in_group":8,"no_op":false}},{"attention":{"n_heads_in_group":null,"no_op":true}}]})",
           Texts{"64/8x128 (1)", "1 without attention"}},
          // a list for the layers
          {R"({"model_type":"openelm","head_dim":64,"model_dim":2048,"num_kv_heads":[4,5,8],"num_query_heads":[16,20,32]})",
           Texts{"16/4x64 (1)", "20/5x64 (1)", "32/8x64 (1)"}},
          {R"({"model_type":"laguna","num_hidden_layers":2,"num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"hidden_size":2048,"sliding_window":512,"layer_types":["full_attention","sliding_attention"],"num_attention_heads_per_layer":[48,64]})",
           Texts{"48/8x128 (1)", "64/8x128 w512 (1)"}},
          // a window under another name
          {R"({"model_type":"inkling_text","num_attention_heads":64,"num_key_value_heads":8,"head_dim":128,"hidden_size":6144,"sliding_window_size":512,"swa_num_attention_heads":64,"swa_num_key_value_heads":16,"swa_head_dim":128,"num_hidden_layers":2,"layer_types":["hybrid_sliding","hybrid"]})",
           Texts{"64/8x128 biased (1)", "64/16x128 w512 biased (1)"}},
          // sinks
          {R"({"model_type":"granite_swa","num_attention_heads":20,"num_key_value_heads":4,"hidden_size":2560,"sliding_window":128,"num_hidden_layers":2,"layer_types":["full_attention","sliding_attention"]})",
           Texts{"20/4x128 sinks (1)", "20/4x128 w128 sinks (1)"}},
          {R"({"model_type":"gpt_oss","num_hidden_layers":2,"layer_types":["sliding_attention","full_attention"]})",
           Texts{"64/8x64 sinks (1)", "64/8x64 w128 sinks (1)"}},
          // one token more, KV heads that follow from others
          {R"({"model_type":"mimo_v2_flash","num_attention_heads":64,"num_key_value_heads":4,"swa_num_key_value_heads":16,"head_dim":192,"v_head_dim":128,"hidden_size":4096,"num_hidden_layers":2,"sliding_window_size":128,"layer_types":["full_attention","sliding_attention"]})",
           Texts{"64/4x192 v128 (1)", "64/8x192 v128 w129 sinks (1)"}},
          // K is V
          {R"({"model_type":"deepseek_v4","num_attention_heads":64,"num_key_value_heads":1,"head_dim":512,"qk_rope_head_dim":64,"sliding_window":128,"hidden_size":4096,"num_hidden_layers":4,"compress_ratios":[0,0,4,128]})",
           Texts{"64/1x512 latent w128 sinks (4)"}},
          // blocks that repeat
          {R"({"model_type":"recurrent_gemma","num_attention_heads":10,"num_key_value_heads":1,"hidden_size":2560,"attention_window_size":2048,"num_hidden_layers":5,"block_types":["recurrent","recurrent","attention"]})",
           Texts{"10/1x256 w2048 (1)", "4 linear attention"}},
          // chunks
          {R"({"model_type":"llama4","text_config":{"model_type":"llama4_text","num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"hidden_size":5120,"attention_chunk_size":8192,"num_hidden_layers":4,"no_rope_layers":[1,1,1,0]}})", Texts{"40/8x128 c8192 (3)",
                                                                                                                                                                                                                                                          "40/8x128 (1)"}},
          // a head size that is not in the file
          {R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":3840,"num_attention_heads":16,"num_hidden_layers":6,"num_key_value_heads":8,"sliding_window":1024}})",
           Texts{"16/8x256 (1)", "16/8x256 w1024 (5)"}},
          // KV heads and a window that are not in the file
          {R"({"model_type":"mistral","hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":1})",
           Texts{"32/8x128 w4096 (1)"}},
          // KV heads before a model copies them for its query heads
          {R"({"model_type":"jetmoe","num_key_value_heads":16,"num_experts_per_tok":4,"kv_channels":128,"num_hidden_layers":12})",
           Texts{"64/16x128 (12)"}},
          // a window that the class computes where a file leaves it out
          {R"({"model_type":"modernbert-decoder","num_attention_heads":12,"hidden_size":768,"num_hidden_layers":2})",
           Texts{"12/12x64 (1)", "12/12x64 w64 (1)"}},
          {R"({"model_type":"modernbert-decoder","num_attention_heads":12,"hidden_size":768,"num_hidden_layers":2,"sliding_window":32})",
           Texts{"12/12x64 (1)", "12/12x64 w32 (1)"}},
          // layers that run several times, and keep what they see each time; saved files have the number of times
          {R"({"model_type":"hrm_text","num_hidden_layers":4,"H_cycles":2,"L_cycles":3})", Texts{"12/12x128 (32)"}},
          {R"({"model_type":"hrm_text","num_hidden_layers":32,"num_layers_per_stack":4,"H_cycles":2,"L_cycles":3})",
           Texts{"12/12x128 (32)"}},
          // ALiBi that no field tells of
          {R"({"model_type":"bloom","n_embed":14336,"n_layer":70,"num_attention_heads":112})",
           Texts{"112/112x128 alibi (70)"}},
          // a bias by distance
          {R"({"model_type":"t5","d_kv":128,"d_model":1024,"num_heads":32,"num_layers":24})",
           Texts{"32/32x128 biased (24)"}},
          // a decoder beside an encoder
          {R"({"model_type":"t5gemma2","decoder":{"model_type":"t5gemma2_decoder","num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"num_hidden_layers":1,"layer_types":["full_attention"]}})",
           Texts{"8/4x256 (1)"}},
          {R"({"model_type":"bart","encoder_attention_heads":8,"decoder_attention_heads":16,"decoder_layers":6,"encoder_layers":12,"d_model":1024})",
           Texts{"16/16x64 (6)"}},
          {R"({"model_type":"clvp","text_config":{"model_type":"clvp_encoder","num_attention_heads":12,"hidden_size":768},"decoder_config":{"model_type":"clvp_decoder","num_attention_heads":16,"hidden_size":1024,"num_hidden_layers":3}})",
           Texts{"16/16x64 (3)"}},
          // two levels down, and a head size that the class does not declare
          {R"({"model_type":"qwen3_omni_moe","thinker_config":{"text_config":{"model_type":"qwen3_omni_moe_text","num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"hidden_size":2048,"num_hidden_layers":2}}})",
           Texts{"32/4x128 (2)"}},
          {R"({"model_type":"qwen2","num_attention_heads":16,"num_key_value_heads":8,"hidden_size":1024,"head_dim":128,"use_sliding_window":true,"sliding_window":64,"max_window_layers":1,"num_hidden_layers":2})",
           Texts{"16/8x128 (1)", "16/8x128 w64 (1)"}},
          // another name of a type that decodes
          {R"({"model_type":"EvollaModel","num_attention_heads":16,"num_key_value_heads":4,"hidden_size":2048,"num_hidden_layers":2})",
           Texts{"16/4x128 (2)"}},
          // no rotated columns
          {R"({"model_type":"glm5_next_text","num_attention_heads":64,"num_key_value_heads":64,"kv_lora_rank":512,"qk_nope_head_dim":256,"qk_rope_head_dim":0,"v_head_dim":256,"hidden_size":4096,"num_hidden_layers":8})",
           Texts{"64/1x512 latent s2048 (2)", "6 linear attention"}},
          {R"({"model_type":"qwen3_next","num_hidden_layers":4})", Texts{"16/2x256 (1)", "3 linear attention"}},
          // letters, and old names of kinds
          {R"({"model_type":"nemotron_h","num_attention_heads":32,"num_key_value_heads":2,"head_dim":128,"hidden_size":4096,"hybrid_override_pattern":"MEM*-","time_step_limit":[0.0,Infinity]})",
           Texts{"32/2x128 (1)", "2 linear attention", "1 experts", "1 MLPs"}},
          {R"({"model_type":"jamba","num_hidden_layers":8,"attn_layer_period":4,"attn_layer_offset":1})",
           Texts{"32/8x128 (2)", "6 linear attention"}},
          {R"({"model_type":"falcon","num_attention_heads":71,"hidden_size":4544,"multi_query":true,"num_hidden_layers":1,"alibi":true})",
           Texts{"71/1x64 alibi (1)"}},
          // a division that is floored
          {R"({"model_type":"glm4_moe","num_attention_heads":96,"num_key_value_heads":8,"hidden_size":4096,"num_hidden_layers":1})",
           Texts{"96/8x42 (1)"}},
      };
  for (const auto& [text, expected] : cases) EXPECT_EQ(in_short(read(text)), expected) << text;
}

TEST(ModelConfig, WhatDoesNotDecodeIsRefusedByItsType) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model_type":"vit","num_attention_heads":12,"hidden_size":768})", "model_type \"vit\" does not decode"},
      {R"({"model_type":"bert","num_attention_heads":12,"hidden_size":768})", "\"is_decoder\" is not true"},
      {R"({"model_type":"xlnet","d_model":1024,"n_head":16})", "in both directions over hidden states that are kept"},
      {R"({"model_type":"mamba2","num_heads":128,"head_dim":64,"hidden_size":4096})", "no layer is attention"},
  };
  for (const auto& [text, message] : cases) {
    const auto model = model_from_config(text, "config.json");
    ASSERT_FALSE(model.has_value()) << text;
    EXPECT_EQ(model.error().code, ErrorCode::unsupported);
    EXPECT_NE(model.error().message.find(message), std::string::npos) << model.error().message;
  }
  EXPECT_EQ(in_short(read(R"({"model_type":"bert","is_decoder":true,"num_hidden_layers":2})")),
            std::vector<std::string>{"12/12x64 (2)"});
}

TEST(ModelConfig, InfinityAndNanAreNoFault) {
  for (const char* number : {"Infinity", "-Infinity", "NaN", R"({"__float__": "Infinity"})"}) {
    const ModelShapes model =
        read(R"({"num_attention_heads":8,"hidden_size":512,"limit":[0.0,)" + std::string(number) + "]}");
    EXPECT_EQ(in_short(model), std::vector<std::string>{"8/8x64 (1)"}) << number;
  }
  const auto broken = model_from_config("{\"a\": Infinity,,}", "x");
  EXPECT_NE(broken.error().message.find("line 1, column 16"), std::string::npos) << broken.error().message;
  EXPECT_TRUE(read(R"({"num_attention_heads":8,"hidden_size":512,"note":"NaN, \"Infinity\""})").shapes.size() == 1);
}

TEST(ModelConfig, AFileThatCannotBeReadIsNamed) {
  const auto model = model_from_config_file("/nonexistent/config.json");
  ASSERT_FALSE(model.has_value());
  EXPECT_NE(model.error().message.find("/nonexistent/config.json"), std::string::npos);
  EXPECT_FALSE(model_from_config_file("/").has_value());
}

/// "gated_delta 16/32 x 128 x 128 softplus silu": heads of q and k, and of v, K, V, gates, output gate, and heads that
/// are normalised together.
std::string state_of(const std::string& text) {
  const auto problem = recurrent_from_config(text, "config.json");
  if (!problem) return problem.error().message;
  std::string state{to_string(problem->kind)};
  state += " " + std::to_string(problem->qk_heads) + "/" + std::to_string(problem->v_heads);
  state += " x " + std::to_string(problem->key_dim) + " x " + std::to_string(problem->value_dim);
  state += " " + std::string(to_string(problem->gates)) + " " + std::string(to_string(problem->output_gate));
  return problem->norm_heads == 1 ? state : state + " of " + std::to_string(problem->norm_heads);
}

// What the modelling code of Transformers 5.24 makes of such files.
TEST(ModelConfig, LayersThatKeepAStateSayWhichOne) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model_type":"qwen3_next","num_hidden_layers":4})", "gated_delta 16/32 x 128 x 128 softplus silu"},
      {R"({"model_type":"qwen3_5","text_config":{"model_type":"qwen3_5_text","num_hidden_layers":64,"linear_num_key_heads":16,"linear_num_value_heads":48,"linear_key_head_dim":128,"linear_value_head_dim":128}})",
       "gated_delta 16/48 x 128 x 128 softplus silu"},
      {R"({"model_type":"kimi_linear","num_hidden_layers":4,"linear_attn_config":{"full_attn_layers":[4],"kda_layers":[1,2,3],"head_dim":64,"num_heads":48,"short_conv_kernel_size":4}})",
       "kda 48/48 x 64 x 64 softplus sigmoid"},
      {R"({"model_type":"kimi_linear","layer_types":["linear_attention","full_attention"],"linear_num_heads":24})",
       "kda 24/24 x 128 x 128 softplus sigmoid"},
      {R"({"model_type":"glm5_next_text","num_attention_heads":64,"kv_lora_rank":512,"qk_rope_head_dim":0,"v_head_dim":256})",
       "kda 64/64 x 128 x 128 bounded sigmoid"},
      {R"({"model_type":"bailing_hybrid","num_attention_heads":16})", "kda 16/16 x 128 x 128 bounded sigmoid"},
      {R"({"model_type":"bailing_hybrid","kda_safe_gate":false,"head_dim":64,"linear_head_dim":96})",
       "kda 32/32 x 96 x 96 softplus sigmoid"},
      // half of the weights of an update are above 1, which sigmoid(b) is not
      {R"({"model_type":"olmo_hybrid","hidden_size":2048,"num_attention_heads":16})",
       "gated_delta 16/16 x 96 x 192 given silu"},
      {R"({"model_type":"olmo_hybrid","linear_key_head_dim":64,"linear_allow_neg_eigval":false})",
       "gated_delta 30/30 x 64 x 128 softplus silu"},
      {R"({"model_type":"mamba2","num_heads":80,"head_dim":64,"state_size":128,"n_groups":1})",
       "mamba2 1/80 x 128 x 64 softplus silu_first of 80"},
      {R"({"model_type":"mamba2","num_heads":128,"head_dim":64,"hidden_size":4096})",
       "mamba2 8/128 x 128 x 64 softplus silu_first of 16"},
      {R"({"model_type":"nemotron_h","hybrid_override_pattern":"M*-M","mamba_num_heads":64})",
       "mamba2 8/64 x 128 x 64 softplus silu_first of 8"},
      {R"({"model_type":"bamba","mamba_d_head":"auto","hidden_size":2048,"mamba_n_heads":64,"attn_layer_indices":[3]})",
       "mamba2 1/64 x 256 x 64 softplus silu_first of 64"},
      {R"({"model_type":"granitemoehybrid","mamba_n_heads":48,"mamba_d_state":128,"hidden_size":1536,"layer_types":["mamba"]})",
       "mamba2 1/48 x 128 x 64 softplus silu_first of 48"},
      {R"({"model_type":"zamba2","n_mamba_heads":112,"mamba_ngroups":2,"hidden_size":3584,"num_attention_heads":32})",
       "mamba2 2/112 x 64 x 64 softplus silu_first of 56"},
      {R"({"model_type":"falcon_h1","mamba_d_ssm":1536,"mamba_n_heads":24,"mamba_d_head":64,"mamba_d_state":128})",
       "mamba2 1/24 x 128 x 64 softplus none"},
      // one with a norm behind which it gates, and one with a norm that is of the gated output
      {R"({"model_type":"falcon_h1","mamba_d_ssm":1024,"mamba_n_heads":16,"mamba_rms_norm":true})",
       "mamba2 1/16 x 256 x 64 softplus none"},
      {R"({"model_type":"falcon_h1","mamba_d_ssm":2048,"mamba_n_heads":32,"mamba_n_groups":2,"mamba_rms_norm":true,"mamba_norm_before_gate":false})",
       "mamba2 2/32 x 256 x 64 softplus silu_first of 16"},
      {R"({"model_type":"minimax","num_attention_heads":64,"head_dim":128,"hidden_size":6144})",
       "lightning 64/64 x 128 x 128 constant none"},
      {R"({"model_type":"llama","num_attention_heads":32,"hidden_size":4096})",
       "config.json: all of its layers are attention to a KV cache"},
      {R"({"model_type":"recurrent_gemma","num_hidden_layers":3,"block_types":["recurrent","recurrent","attention"]})",
       "config.json: which recurrent state its layers have is not known; 2 of 3 are linear attention"},
      {R"({"model_type":"mamba2","num_heads":0})", "config.json: \"num_heads\" is 0, which is out of range"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(state_of(text), expected) << text;
}

TEST(ModelConfig, AStateHasTheTypeOfTheWeightsAndItsLayers) {
  const ModelShapes model = read(R"({"model_type":"qwen3_next","num_hidden_layers":8,"torch_dtype":"float16"})");
  ASSERT_EQ(model.recurrent.size(), 1u);
  EXPECT_EQ(model.recurrent[0].layers, (std::vector<int>{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(model.recurrent[0].problem.dtype, DType::fp16);
  EXPECT_TRUE(read(R"({"num_attention_heads":32,"hidden_size":4096})").recurrent.empty());
}

TEST(ModelConfig, AFieldThatIsNoNumberIsNamed) {
  const auto refused = recurrent_from_config(R"({"model_type":"qwen3_next","linear_num_key_heads":"16"})", "x");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "x: \"linear_num_key_heads\" is \"16\", not a whole number");
  EXPECT_EQ(
      refused.error().hint,
      "Give a config.json as Hugging Face transformers writes it, or --kind, --qk-heads, --v-heads, --key-dim and "
      "--value-dim where it has such a state.");
}

}  // namespace
}  // namespace leanattn
