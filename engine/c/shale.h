/* The C interface of Shale: jobs, plans, admission, checks, training, generation and export, for programs in C and for
 * bindings of other languages. Includes shale_admission.h and shale_weights.h; shale_model.h adds models of one's own.
 *
 *   shale_error error = SHALE_INIT(shale_error);
 *   shale_job job = 0;
 *   shale_trainer trainer = 0;
 *   if (shale_job_load("job.textproto", NULL, 0, 0, &job, &error) != SHALE_OK) return fail(error.message);
 *   if (shale_trainer_create(job, NULL, &trainer, &error) != SHALE_OK) return fail(error.message);
 *   shale_step_report report = SHALE_INIT(shale_step_report);
 *   while (shale_trainer_step(trainer, &report, &error) == SHALE_OK) printf("%f\n", report.loss);
 *   shale_trainer_free(trainer, NULL);
 *   shale_job_free(job, NULL);
 *
 * Errors. Every function that can fail returns a shale_code and describes an error in `error`, which may be NULL.
 * No function throws, ends the process, or writes to standard output. A wrong argument is an error: NULL where an
 * object is required, a handle that was freed or that is of another kind, a struct of an unknown size.
 *
 * Handles are numbers. 0 is no handle. A freed handle stays invalid for the life of the process.
 *
 * Structs that a caller fills in begin with `size`, which SHALE_INIT sets. So a program that was compiled with an
 * earlier header works with a later library. What a caller leaves out is 0, which means the default.
 *
 * Text is UTF-8 and ends with a NUL. A function that returns text takes a buffer of `capacity` bytes, and sets
 * `*needed` to the bytes of the whole text with its NUL. It returns SHALE_OUT_OF_RANGE if the buffer is smaller than
 * that. With a NULL buffer it only sets `*needed`.
 *
 * Threads. Any thread may call any function, but only one at a time may use a trainer, a generator or a builder: a call
 * beside another returns SHALE_UNAVAILABLE. Calls that may be made at any time say so. A callback must not use the
 * trainer that called it, except for such calls.
 *
 * Processes. A process that was forked from one that had used a trainer or a generator has none of their threads: there
 * every function that takes or makes one returns SHALE_FAILED_PRECONDITION, also those that free them.
 */
#ifndef SHALE_ENGINE_C_SHALE_H_
#define SHALE_ENGINE_C_SHALE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SHALE_INIT(type) (type{sizeof(type)})
extern "C" {
#else
#define SHALE_INIT(type) \
  { .size = sizeof(type) }
#endif

#define SHALE_API __attribute__((visibility("default")))

/* The version of this header. It grows when functions, or members of structs, are added. */
#define SHALE_API_VERSION 1

/* Returns the SHALE_API_VERSION of the library. A program needs a library of at least its own version. */
SHALE_API int32_t shale_api_version(void);

/* The values are those of gRPC and Abseil. */
typedef int32_t shale_code;
enum {
  SHALE_OK = 0,
  SHALE_CANCELLED = 1,
  SHALE_UNKNOWN = 2,
  SHALE_INVALID_ARGUMENT = 3,
  SHALE_DEADLINE_EXCEEDED = 4,
  SHALE_NOT_FOUND = 5,
  SHALE_ALREADY_EXISTS = 6,
  SHALE_PERMISSION_DENIED = 7,
  SHALE_RESOURCE_EXHAUSTED = 8, /* It does not fit: the message names what would. */
  SHALE_FAILED_PRECONDITION = 9,
  SHALE_ABORTED = 10,
  SHALE_OUT_OF_RANGE = 11,
  SHALE_UNIMPLEMENTED = 12,
  SHALE_INTERNAL = 13,
  SHALE_UNAVAILABLE = 14, /* Another thread uses the handle. */
  SHALE_DATA_LOSS = 15
};

/* An error, in memory of the caller. A longer message is cut at the end of a character. */
typedef struct shale_error {
  size_t size;
  shale_code code;
  char message[8192];
} shale_error;

/* ---- Jobs: the settings of a run (proto/job.proto). A job never changes. ---- */

typedef uint64_t shale_job;

/* Says that the program brings the model, so that the job must not describe one (shale_trainer_options.model). */
#define SHALE_MODEL_FROM_PROGRAM 1u

/* Reads and checks the job file at `path`. Each of the `override_count` overrides sets a field, as in
 * "optimizer.learning_rate=1e-3". `flags` is 0 or SHALE_MODEL_FROM_PROGRAM. SHALE_INVALID_ARGUMENT lists all errors of
 * the job. */
SHALE_API shale_code shale_job_load(const char* path, const char* const* overrides, size_t override_count,
                                    uint32_t flags, shale_job* job, shale_error* error);
/* Does the same for a text in memory. `name` stands for it in messages, and relative paths in it start at the folder of
 * `name`; NULL: "job", and the working directory. */
SHALE_API shale_code shale_job_parse(const char* text, const char* name, const char* const* overrides,
                                     size_t override_count, uint32_t flags, shale_job* job, shale_error* error);
/* Returns the job as text, every default written out. */
SHALE_API shale_code shale_job_text(shale_job job, char* buffer, size_t capacity, size_t* needed, shale_error* error);
/* Frees the handle. Trainers and plans that were made of the job keep what they need. */
SHALE_API shale_code shale_job_free(shale_job job, shale_error* error);

/* ---- Stops: how any thread ends a call of another that takes long ---- */

typedef uint64_t shale_stop;

SHALE_API shale_code shale_stop_create(shale_stop* stop, shale_error* error);
/* Makes the calls that were given this stop, and those that will be, return SHALE_CANCELLED soon. It cannot be taken
 * back. May be called at any time, by any thread, but not by a signal handler. */
SHALE_API shale_code shale_stop_request(shale_stop stop, shale_error* error);
/* Frees the handle. Calls that were given this stop go on. */
SHALE_API shale_code shale_stop_free(shale_stop stop, shale_error* error);

/* ---- Data of a program ---- */

/* Where a program writes one sample of S positions, each with F features or D target values. The memory is the
 * library's. A part that samples do not have is NULL. */
typedef struct shale_sample {
  size_t size;
  int64_t sequence_length; /* S */
  int32_t* inputs;         /* [S] tokens. */
  float* features;         /* [S, F] */
  int32_t* targets;        /* [S] tokens or classes; -1, and no other number below 0, where there is none. */
  float* target_values;    /* [S, D] */
  float* weights;          /* [S], of any sign, finite. */
  /* [S] The position of each token in its document: 0 where one begins, and otherwise one more than before. No token
   * sees those of another document. Padding costs least as documents of one token each. */
  int32_t* position_ids;
} shale_sample;

/* Data that a program brings. The library keeps a copy of this struct, but not of what `user` points to, which must
 * outlive the trainer, or the call of shale_verify. The functions are called by one thread at a time, not always the
 * same one, and ahead of the step that needs the data. They return SHALE_OK or another code, with a message in `error`.
 */
typedef struct shale_data {
  size_t size;
  const char* name;        /* Tells this data from other data, in messages and checkpoints. Required. */
  int64_t samples;         /* In an epoch. 0: without an end. */
  int64_t sequence_length; /* S, as in the job. */
  int64_t vocabulary;      /* Every token, target and class is below it. 0: not known. */
  int64_t features;        /* F. 0: the inputs are tokens. */
  int64_t target_values;   /* D. 0: the targets are tokens or classes. */
  int32_t has_weights;     /* Not 0: every target has a weight. */
  /* Not 0: samples can only be read in order, each once. `sample` is then not to be relied on, and SHALE_OUT_OF_RANGE
   * says that there is no further sample. The job must say data { order: SEQUENTIAL }. */
  int32_t in_order;
  void* user;
  /* Writes sample `sample`, 0 <= sample < samples. Unless in_order is set, it must depend on nothing but its number: a
   * run resumes with the same samples, and has the same ones for any number of ranks. Required. */
  shale_code (*read)(void* user, int64_t sample, const shale_sample* out, shale_error* error);
  /* Only for in_order, and required there of a run that saves or resumes. `save` writes the state from which `restore`
   * goes on behind the last sample that was read, at most `capacity` bytes (1 MiB), and sets `*used`. */
  shale_code (*save)(void* user, char* state, size_t capacity, size_t* used, shale_error* error);
  shale_code (*restore)(void* user, const char* state, size_t state_bytes, shale_error* error);
  int32_t has_position_ids; /* Not 0: samples hold several documents. The job must say data { packing: PACK }. */
} shale_data;

/* ---- Plans ---- */

struct shale_model; /* shale_model.h */

typedef uint64_t shale_plan;

/* Bytes are those of one rank. */
typedef struct shale_plan_summary {
  size_t size;
  int64_t ranks;
  int64_t micro_batches;    /* Per step and rank. */
  int64_t parameters;       /* Of the whole model. */
  int64_t arena_bytes;      /* Device memory, allocated once. */
  int64_t peak_bytes;       /* What a step uses of it at its peak. */
  int64_t persistent_bytes; /* What lives between steps. */
  int64_t host_bytes;       /* Pinned host memory. */
  int64_t budget_bytes;     /* 0: no limit. */
  int64_t sent_bytes;       /* Sent to other ranks in one step. */
  double flops_per_token;   /* What model FLOPs utilization counts, if every sequence is one document. */
} shale_plan_summary;

/* Plans the job for this machine without allocating anything. `model` is NULL, or the model of a job without one. The
 * data need not exist if the job gives the vocabulary. SHALE_RESOURCE_EXHAUSTED says by how much the job does not fit,
 * and with which overrides it would. */
SHALE_API shale_code shale_plan_create(shale_job job, const struct shale_model* model, shale_plan* plan,
                                       shale_error* error);
SHALE_API shale_code shale_plan_get_summary(shale_plan plan, shale_plan_summary* summary, shale_error* error);

/* The forms of a plan. */
enum {
  SHALE_PLAN_TEXT = 0,    /* As `train` prints it. */
  SHALE_PLAN_JSON = 1,    /* As `plan --json` writes it. */
  SHALE_PLAN_EXPLAIN = 2, /* What each choice of the job costs, and what others would. */
  SHALE_PLAN_PROGRAM = 3, /* The program of a step, instruction by instruction. */
  SHALE_PLAN_HTML = 4     /* The memory of a step as a page. */
};
SHALE_API shale_code shale_plan_text(shale_plan plan, int32_t form, char* buffer, size_t capacity, size_t* needed,
                                     shale_error* error);
SHALE_API shale_code shale_plan_free(shale_plan plan, shale_error* error);

/* ---- Training ---- */

typedef uint64_t shale_trainer;

/* What to do with checkpoints that are already in the folder. */
enum {
  SHALE_RESUME_NOTHING = 0,         /* Start from scratch; refuse a folder that has checkpoints. */
  SHALE_RESUME_LATEST = 1,          /* Resume from the newest intact one; there must be one. */
  SHALE_RESUME_LATEST_OR_START = 2, /* Do so if there is one, and otherwise start from scratch. */
  SHALE_RESUME_PATH = 3             /* Resume from resume_path. */
};

typedef struct shale_trainer_options {
  size_t size;
  const char* checkpoint_folder; /* NULL: nothing is saved. */
  int32_t resume;
  const char* resume_path;
  const struct shale_model* model;          /* The model, if the job has none. Used as `data` is. */
  const struct shale_data* data;            /* The data, if the job has no data.path. */
  const struct shale_data* evaluation_data; /* Read at any position, so not in_order. */
  /* Besides what follows, events go where the job says (telemetry.sinks), whose paths must be absolute. */
  /* Takes every event of the run (proto/events.proto) as one line of JSON without a newline. Runs on a thread of the
   * library, so that a slow function does not slow the run; then events are dropped. Must not be called again after
   * shale_trainer_free returned, which waits for it up to 5 seconds. */
  void (*on_event)(void* user, const char* json);
  void* on_event_user;
  /* Not 0: the same lines, with newlines, go to this file descriptor, which stays the caller's. */
  int32_t event_descriptor;
} shale_trainer_options;

typedef struct shale_step_report {
  size_t size;
  int64_t step;   /* Counted from 1. */
  int64_t tokens; /* Target tokens so far, over all ranks and steps. */
  int64_t step_tokens;
  double loss;
  double step_weight;   /* The sum of |weight|; 0 without weights. */
  double gradient_norm; /* Before clipping. */
  double learning_rate;
  int32_t updated; /* 0: the step was skipped, because there was nothing to learn or the loss was not finite. */
  double seconds;
  double tokens_per_second;
  int64_t peak_bytes_planned; /* Per rank. */
  int64_t peak_bytes_measured;
  double loss_scale; /* Of the next step; 0 without loss scaling (precision.compute FP16). */
  int64_t skips;     /* Steps that loss scaling skipped in a row, up to this one. */
} shale_step_report;

typedef struct shale_evaluation_report {
  size_t size;
  int64_t step; /* Steps done. */
  double loss;
  int64_t tokens;
} shale_evaluation_report;

/* Plans the job, allocates, and sets the state: restores a checkpoint, or initializes the weights. `options` may be
 * NULL. */
SHALE_API shale_code shale_trainer_create(shale_job job, const shale_trainer_options* options, shale_trainer* trainer,
                                          shale_error* error);
/* Runs one optimizer step. SHALE_FAILED_PRECONDITION if all steps are done or a stop was requested. `report` may be
 * NULL. */
SHALE_API shale_code shale_trainer_step(shale_trainer trainer, shale_step_report* report, shale_error* error);
/* Computes the loss on the first `sequences` sequences of the evaluation data. */
SHALE_API shale_code shale_trainer_evaluate(shale_trainer trainer, int64_t sequences, shale_evaluation_report* report,
                                            shale_error* error);
/* Runs all steps, with the evaluations and checkpoints that the job asks for. Calls `on_step` after each step, unless
 * it is NULL; if it does not return 0, the run stops there. Whatever ends the run, it saves a last checkpoint if there
 * is a folder. */
SHALE_API shale_code shale_trainer_run(shale_trainer trainer,
                                       int32_t (*on_step)(void* user, const shale_step_report* report), void* user,
                                       shale_error* error);
/* Saves a checkpoint and returns its folder. The checkpoint is complete when the function returns, also if the buffer
 * is too small. */
SHALE_API shale_code shale_trainer_save(shale_trainer trainer, char* buffer, size_t capacity, size_t* needed,
                                        shale_error* error);
/* Ends the run after the step that runs now. May be called at any time, by any thread. */
SHALE_API shale_code shale_trainer_request_stop(shale_trainer trainer, shale_error* error);

typedef struct shale_trainer_state {
  size_t size;
  int64_t steps_done;
  int64_t total_steps;
  int32_t done; /* All steps are done, or a stop was requested. */
  int32_t has_evaluation_data;
  int64_t resumed_from_step; /* -1: the run started from scratch. */
  int64_t parameter_count;   /* Number of parameter tensors. */
} shale_trainer_state;
SHALE_API shale_code shale_trainer_get_state(shale_trainer trainer, shale_trainer_state* state, shale_error* error);
/* Returns the resolved job as text: vocabulary, accumulation, threads and every other default are decided. */
SHALE_API shale_code shale_trainer_job_text(shale_trainer trainer, char* buffer, size_t capacity, size_t* needed,
                                            shale_error* error);
/* Returns the plan of the run, in one of the forms above. */
SHALE_API shale_code shale_trainer_plan_text(shale_trainer trainer, int32_t form, char* buffer, size_t capacity,
                                             size_t* needed, shale_error* error);

#define SHALE_MAX_DIMENSIONS 8
typedef struct shale_parameter {
  size_t size;
  char name[256];
  int64_t elements;
  int32_t dimensions;
  int64_t shape[SHALE_MAX_DIMENSIONS];
} shale_parameter;
/* Describes parameter `index`, 0 <= index < parameter_count. */
SHALE_API shale_code shale_trainer_get_parameter(shale_trainer trainer, int64_t index, shale_parameter* parameter,
                                                 shale_error* error);
/* Read and write `count` values of a parameter, row by row, from value `begin` on. The next step uses what was written.
 */
SHALE_API shale_code shale_trainer_read_parameter(shale_trainer trainer, const char* name, int64_t begin, float* values,
                                                  int64_t count, shale_error* error);
SHALE_API shale_code shale_trainer_write_parameter(shale_trainer trainer, const char* name, int64_t begin,
                                                   const float* values, int64_t count, shale_error* error);
/* Returns the names of the states that the optimizer keeps for each parameter, one on a line: "m" and "v" of AdamW. A
 * parameter has those of the rule that updates it; for another one the functions below return SHALE_NOT_FOUND. */
SHALE_API shale_code shale_trainer_optimizer_states(shale_trainer trainer, char* buffer, size_t capacity,
                                                    size_t* needed, shale_error* error);
/* Returns how many values a state has of a parameter: as many as the parameter, but "row_moments" and "column_moments"
 * of ADAFACTOR as many as its matrix has rows or columns. */
SHALE_API shale_code shale_trainer_optimizer_state_count(shale_trainer trainer, const char* state,
                                                         const char* parameter, int64_t* count, shale_error* error);
/* Read and write values of such a state. */
SHALE_API shale_code shale_trainer_read_optimizer_state(shale_trainer trainer, const char* state, const char* parameter,
                                                        int64_t begin, float* values, int64_t count,
                                                        shale_error* error);
SHALE_API shale_code shale_trainer_write_optimizer_state(shale_trainer trainer, const char* state,
                                                         const char* parameter, int64_t begin, const float* values,
                                                         int64_t count, shale_error* error);

/* Sets the learning rate of the next step and of all later ones; NULL: goes back to the job's schedule. A run that
 * resumes goes on with the schedule. */
SHALE_API shale_code shale_trainer_set_learning_rate(shale_trainer trainer, const double* rate, shale_error* error);
/* Takes the samples of the next step and of all later ones from other data of the program, from sample 0 on. */
SHALE_API shale_code shale_trainer_set_data(shale_trainer trainer, const shale_data* data, shale_error* error);
/* Adds a value of the program's own to the report of the next step, which its event and metrics show. */
SHALE_API shale_code shale_trainer_add_metric(shale_trainer trainer, const char* name, double value,
                                              shale_error* error);

typedef struct shale_sampling {
  size_t size;
  double temperature; /* Divides the logits. 0: always the most likely token. */
  int64_t top_k;      /* 0: among all tokens. */
  uint64_t seed;
  double repetition_penalty; /* Above 1, tokens that the text has already become less likely. 0 and 1: no penalty. */
  double top_p;              /* Draws among the most likely tokens whose probabilities sum to p. 0 and 1: among all. */
  double min_p;              /* Draws among tokens at least p times as likely as the most likely. 0: among all. */
} shale_sampling;

/* Draws up to `count` tokens after the prompt with the weights as they are now, without a copy of them. The job must
 * plan for it (runtime.generate). Calls `on_token` with each token as it is drawn, and ends early if that does not
 * return 0. `sampling` NULL: temperature 0.8, top_k 40, seed 1. */
SHALE_API shale_code shale_trainer_generate(shale_trainer trainer, const int32_t* prompt, size_t prompt_tokens,
                                            int64_t count, const shale_sampling* sampling,
                                            int32_t (*on_token)(void* user, int32_t token), void* user,
                                            shale_error* error);

/* Frees the trainer. Does not save. SHALE_DATA_LOSS says which places of telemetry.sinks missed events. */
SHALE_API shale_code shale_trainer_free(shale_trainer trainer, shale_error* error);

#ifdef __cplusplus
}
#endif

#include "shale_admission.h"
#include "shale_weights.h"

#endif /* SHALE_ENGINE_C_SHALE_H_ */
