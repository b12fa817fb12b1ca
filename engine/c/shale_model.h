/* Models of one's own through the C interface: a function that builds the graph of a model from layers.
 *
 *   static shale_code build(void* user, shale_builder b, const shale_graph_options* options, shale_error* error) {
 *     int32_t group = shale_builder_add_group(b, "head");
 *     int64_t shape[] = {10, 16};
 *     int32_t weight = shale_builder_add_parameter(b, group, "head.weight", shape, 2, SHALE_NORMAL, 0.02);
 *     shale_builder_begin_unit(b, "head", -1);
 *     shale_layer_linear_cross_entropy(b, shale_layer_features(b, 16), weight, SHALE_NONE);
 *     shale_builder_end_last_unit(b);
 *     return SHALE_OK;
 *   }
 *
 * Groups, parameters and tensors are numbers of one builder. SHALE_NONE stands for none. Functions that return a number
 * return SHALE_NONE after a misuse. The builder keeps the first misuse, with its name, and the call that wanted the
 * model (such as shale_plan_create or shale_trainer_create) returns it. So `build` need not check.
 *
 * T tokens (B sequences of S), C width, K inputs, N outputs, H query heads, G key/value heads, D head width, F inner
 * width or features, V vocabulary, P positions.
 */
#ifndef SHALE_ENGINE_C_SHALE_MODEL_H_
#define SHALE_ENGINE_C_SHALE_MODEL_H_

#include "shale.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHALE_NONE (-1)

/* Exists while `build` runs, on its thread. */
typedef uint64_t shale_builder;

typedef struct shale_graph_options {
  size_t size;
  int64_t micro_batch;     /* B */
  int64_t sequence_length; /* S */
  int64_t vocabulary;      /* V; 0: there is none, or it is not known. */
} shale_graph_options;

/* The library keeps a copy of this struct, but not of what `user` points to, which must outlive the plan, the trainer
 * or the generator, or the call of shale_admit_job or shale_verify. */
typedef struct shale_model {
  size_t size;
  const char* name; /* Names the model in plans and checkpoints: letters, digits, '.', '_' and '-', up to 128. */
  /* One line that differs if `build` builds another graph: "width=64 blocks=3". Checkpoints record it, and a run
   * resumes only with the same one. */
  const char* digest;
  int64_t layers;           /* Number of blocks: the units that begin_unit gives an index. */
  int32_t last_target_only; /* Not 0: only the last position of a sequence has a target. */
  int64_t vocabulary;       /* 0: that of the data. */
  void* user;
  /* Builds the graph. Called several times, with other options each time, on the threads that plan the job. For equal
   * options it must build equal graphs, and always the same parameters. */
  shale_code (*build)(void* user, shale_builder builder, const shale_graph_options* options, shale_error* error);
} shale_model;

/* How the values of a parameter begin. */
enum { SHALE_NORMAL = 0, SHALE_ONES = 1, SHALE_ZEROS = 2 };

/* Add a flat group, whose parameters are gathered and reduced together, and a parameter to a group. Names must be
 * unique. `standard_deviation` is that of SHALE_NORMAL. */
SHALE_API int32_t shale_builder_add_group(shale_builder builder, const char* name);
SHALE_API int32_t shale_builder_add_parameter(shale_builder builder, int32_t group, const char* name,
                                              const int64_t* shape, int32_t dimensions, int32_t initializer,
                                              double standard_deviation);

/* Begin and end units, in the order in which they run. `layer` is the index of a block, from 0, or SHALE_NONE. The last
 * unit has the loss and no output. */
SHALE_API void shale_builder_begin_unit(shale_builder builder, const char* name, int32_t layer);
SHALE_API int32_t shale_builder_unit_input(shale_builder builder); /* The output of the unit before. */
SHALE_API void shale_builder_end_unit(shale_builder builder, int32_t output);
SHALE_API void shale_builder_end_last_unit(shale_builder builder);

/* Layers. Each returns a new tensor of the current unit. `name` is its name in the unit, which patterns of jobs match.
 * engine/api/layers.h says more about each. */

/* weight[inputs[t]] + positions[t mod S]: [T, C]. */
SHALE_API int32_t shale_layer_embedding(shale_builder builder, int32_t weight_VC, int32_t positions_PC);
/* The features of the data: [T, F]. */
SHALE_API int32_t shale_layer_features(shale_builder builder, int64_t features);
/* x W^T + bias: [T, N]. */
SHALE_API int32_t shale_layer_linear(shale_builder builder, int32_t x_TK, int32_t weight_NK, int32_t bias_N,
                                     const char* name);
/* LayerNorm if there is a bias, else RMSNorm: [T, C]. */
SHALE_API int32_t shale_layer_norm(shale_builder builder, int32_t x_TC, int32_t weight_C, int32_t bias_C,
                                   double epsilon, const char* name);
/* A LayerNorm of each of `groups` groups of adjacent columns: [T, C]. */
SHALE_API int32_t shale_layer_group_norm(shale_builder builder, int32_t x_TC, int64_t groups, int32_t weight_C,
                                         int32_t bias_C, double epsilon, const char* name);
/* RMSNorm of each head, from the view x to the view y of another tensor. */
SHALE_API void shale_layer_head_norm(shale_builder builder, int32_t x_THD, int32_t weight_D, double epsilon,
                                     int32_t y_THD, const char* name);
/* Views: the same elements in another shape of 1 to 4 dimensions; `count` rows (axis 0) or columns (axis 1) from
 * `begin` on; the last or the first dimension divided into [count, the rest]. */
SHALE_API int32_t shale_layer_reshape(shale_builder builder, int32_t x, const int64_t* shape, int32_t dimensions);
SHALE_API int32_t shale_layer_slice(shale_builder builder, int32_t x, int32_t axis, int64_t begin, int64_t count);
SHALE_API int32_t shale_layer_split_last(shale_builder builder, int32_t x, int64_t count);
SHALE_API int32_t shale_layer_split_first(shale_builder builder, int32_t x, int64_t count);
/* Rotates the view in place (RoPE). Layers that are added later read it rotated. */
SHALE_API void shale_layer_rope(shale_builder builder, int32_t x_BSHD, double theta);
/* Causal attention: [T, H * D]. `window` is the number of tokens that a query sees, itself included; 0: all. */
SHALE_API int32_t shale_layer_attention(shale_builder builder, int32_t q_BSHD, int32_t k_BSGD, int32_t v_BSGD,
                                        int64_t window);
/* Attention in both directions: [T, H * D]. A query sees all tokens of its sequence. Such a model cannot generate. */
SHALE_API int32_t shale_layer_bidirectional_attention(shale_builder builder, int32_t q_BSHD, int32_t k_BSGD,
                                                      int32_t v_BSGD);
/* silu(gate) * up: [T, 2F], gate columns first, -> [T, F]. */
SHALE_API int32_t shale_layer_swiglu(shale_builder builder, int32_t gate_up_T2F);
/* gelu(x): [T, F]; `tanh` not 0: by the formula with tanh. */
SHALE_API int32_t shale_layer_gelu(shale_builder builder, int32_t x_TF, int32_t tanh);
/* a + b. */
SHALE_API int32_t shale_layer_add(shale_builder builder, int32_t a_TC, int32_t b_TC, const char* name);
/* Losses: next token or class, and the mean squared error against the target values of the data. x has a row for every
 * position, or one for every sequence. */
SHALE_API void shale_layer_linear_cross_entropy(shale_builder builder, int32_t x_RC, int32_t weight_VC, int32_t bias_V);
SHALE_API void shale_layer_mean_squared_error(shale_builder builder, int32_t x_RD);

#ifdef __cplusplus
}
#endif

#endif /* SHALE_ENGINE_C_SHALE_MODEL_H_ */
