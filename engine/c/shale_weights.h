/* Trained weights: generation and export. shale.h, which includes this header, says how errors, handles and texts work.
 */
#ifndef SHALE_ENGINE_C_SHALE_WEIGHTS_H_
#define SHALE_ENGINE_C_SHALE_WEIGHTS_H_

#include "shale.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t shale_generator;

/* Loads a model. `folder` is a checkpoint, or a folder of checkpoints (shale_trainer_options.checkpoint_folder, or
 * checkpoints/ in the folder of a run), whose newest intact one is taken. `model` is the model of a run whose program
 * brought it; else NULL. */
SHALE_API shale_code shale_generator_create(const char* folder, const struct shale_model* model,
                                            shale_generator* generator, shale_error* error);
/* Does the same for a checkpoint that holds adapters alone and whose base was moved: reads the base from the Hugging
 * Face folder `base_folder`. NULL: from where the run had it. SHALE_FAILED_PRECONDITION says that the weights there are
 * not those on which the adapters were trained. */
SHALE_API shale_code shale_generator_create_with_base(const char* folder, const struct shale_model* model,
                                                      const char* base_folder, shale_generator* generator,
                                                      shale_error* error);
/* Makes tokens of text, and text of tokens, with the tokenizer.json in a folder from now on: a Hugging Face folder, or
 * hf/ in the folder of a run. Without one, each byte is a token, if the model was trained like that. */
SHALE_API shale_code shale_generator_set_tokenizer(shale_generator generator, const char* folder, shale_error* error);
/* Returns the tokens of a text. Buffer, capacity and needed count tokens. */
SHALE_API shale_code shale_generator_encode(shale_generator generator, const char* text, int32_t* tokens,
                                            size_t capacity, size_t* needed, shale_error* error);
/* Does the same as shale_trainer_generate with these weights. */
SHALE_API shale_code shale_generator_generate(shale_generator generator, const int32_t* prompt, size_t prompt_tokens,
                                              int64_t count, const shale_sampling* sampling,
                                              int32_t (*on_token)(void* user, int32_t token), void* user,
                                              shale_error* error);
/* Continues a text: draws up to `count` tokens after `prompt`, and calls `on_text` with each piece of text as soon as
 * it is certain. A piece has `bytes` bytes and a NUL behind them, whole characters, and no special token. The text ends
 * where one of the `stop_count` texts in `stops` begins, of which nothing is shown however many tokens it comes in;
 * with a token that the tokenizer's folder says ends a text; or early, if `on_text` does not return 0. */
SHALE_API shale_code shale_generator_generate_text(shale_generator generator, const char* prompt, int64_t count,
                                                   const shale_sampling* sampling, const char* const* stops,
                                                   size_t stop_count,
                                                   int32_t (*on_text)(void* user, const char* text, size_t bytes),
                                                   void* user, shale_error* error);
SHALE_API shale_code shale_generator_free(shale_generator generator, shale_error* error);

/* The types of exported weights. */
enum { SHALE_F32 = 0, SHALE_BF16 = 1, SHALE_F16 = 2 };
/* Writes all parameters of a checkpoint to a safetensors file, under the engine's names. `folder` is as above. */
SHALE_API shale_code shale_export_parameters(const char* folder, int32_t type, const char* file, shale_error* error);
/* Does the same with the base of adapters in another folder, as shale_generator_create_with_base does. */
SHALE_API shale_code shale_export_parameters_with_base(const char* folder, const char* base_folder, int32_t type,
                                                       const char* file, shale_error* error);
/* Writes the adapters of a checkpoint as a folder that PEFT loads on top of their base: adapter_config.json and
 * adapter_model.safetensors. The folder `out` must not exist, or be empty. Does not read the base. */
SHALE_API shale_code shale_export_adapter(const char* folder, int32_t type, const char* out, shale_error* error);

#ifdef __cplusplus
}
#endif

#endif /* SHALE_ENGINE_C_SHALE_WEIGHTS_H_ */
