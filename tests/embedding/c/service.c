/* Trains a model of its own with Shale, through the C interface. Prints the loss of every step, saves a checkpoint at
 * the end, and exports it.
 *
 *   service JOB FOLDER    writes FOLDER/checkpoints and FOLDER/model.safetensors
 */
#include <shale_model.h>
#include <stdio.h>

enum { kEmbedding = 8, kHidden = 32, kLayers = 2 };

/* Concatenates the embeddings of a sequence and classifies the token that follows it. */
static shale_code build(void* user, shale_builder b, const shale_graph_options* options, shale_error* error) {
  (void)user, (void)error;
  const int64_t table_shape[] = {options->vocabulary, kEmbedding};
  const int32_t table = shale_builder_add_parameter(b, shale_builder_add_group(b, "embedding"), "embedding.weight",
                                                    table_shape, 2, SHALE_NORMAL, 0.02);
  shale_builder_begin_unit(b, "embedding", SHALE_NONE);
  shale_builder_end_unit(b, shale_layer_embedding(b, table, SHALE_NONE));

  int64_t width = options->sequence_length * kEmbedding;
  for (int i = 0; i < kLayers; ++i) {
    char unit[32], name[64];
    snprintf(unit, sizeof(unit), "hidden.%d", i);
    const int32_t group = shale_builder_add_group(b, unit);
    const int64_t weight_shape[] = {kHidden, width}, bias_shape[] = {kHidden};
    snprintf(name, sizeof(name), "%s.weight", unit);
    const int32_t weight = shale_builder_add_parameter(b, group, name, weight_shape, 2, SHALE_NORMAL, 0.02);
    snprintf(name, sizeof(name), "%s.bias", unit);
    const int32_t bias = shale_builder_add_parameter(b, group, name, bias_shape, 1, SHALE_ZEROS, 0);
    shale_builder_begin_unit(b, unit, i);
    const int64_t rows[] = {options->micro_batch, width};
    const int32_t x = shale_layer_reshape(b, shale_builder_unit_input(b), rows, 2);
    shale_builder_end_unit(b, shale_layer_gelu(b, shale_layer_linear(b, x, weight, bias, "up"), 1));
    width = kHidden;
  }

  const int32_t head = shale_builder_add_group(b, "head");
  const int64_t weight_shape[] = {options->vocabulary, width}, bias_shape[] = {options->vocabulary};
  const int32_t weight = shale_builder_add_parameter(b, head, "head.weight", weight_shape, 2, SHALE_NORMAL, 0.02);
  const int32_t bias = shale_builder_add_parameter(b, head, "head.bias", bias_shape, 1, SHALE_ZEROS, 0);
  shale_builder_begin_unit(b, "head", SHALE_NONE);
  shale_layer_linear_cross_entropy(b, shale_builder_unit_input(b), weight, bias);
  shale_builder_end_last_unit(b);
  return SHALE_OK;
}

static shale_code train(const char* job_file, const char* folder, shale_error* error) {
  char checkpoints[4096], weights[4096];
  snprintf(checkpoints, sizeof(checkpoints), "%s/checkpoints", folder);
  snprintf(weights, sizeof(weights), "%s/model.safetensors", folder);

  shale_model model = SHALE_INIT(shale_model);
  model.name = "classifier";
  model.digest = "embedding=8 hidden=32 layers=2";
  model.layers = kLayers;
  model.last_target_only = 1;
  model.build = build;
  shale_trainer_options options = SHALE_INIT(shale_trainer_options);
  options.model = &model;
  options.checkpoint_folder = checkpoints;

  shale_job job = 0;
  shale_trainer trainer = 0;
  shale_trainer_state state = SHALE_INIT(shale_trainer_state);
  shale_code code = shale_job_load(job_file, NULL, 0, SHALE_MODEL_FROM_PROGRAM, &job, error);
  if (code == SHALE_OK) code = shale_trainer_create(job, &options, &trainer, error);
  if (code == SHALE_OK) code = shale_trainer_get_state(trainer, &state, error);
  while (code == SHALE_OK && state.steps_done < state.total_steps) {
    shale_step_report report = SHALE_INIT(shale_step_report);
    code = shale_trainer_step(trainer, &report, error);
    if (code == SHALE_OK) printf("step %d: loss %.6f\n", (int)report.step, report.loss);
    state.steps_done = report.step;
  }
  if (code == SHALE_OK) code = shale_trainer_save(trainer, NULL, 0, NULL, error);
  shale_trainer_free(trainer, NULL);
  shale_job_free(job, NULL);
  return code == SHALE_OK ? shale_export_parameters(checkpoints, SHALE_F32, weights, error) : code;
}

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "service JOB FOLDER\n"), 2;
  shale_error error = SHALE_INIT(shale_error);
  if (train(argv[1], argv[2], &error) == SHALE_OK) return 0;
  fprintf(stderr, "service: %s\n", error.message);
  return 1;
}
