/* The C interface of Shale: jobs, plans, admission, checks, training, generation and export, for programs in C and for
 * bindings of other languages. shale_model.h adds models of one's own.
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
#define SHALE_API_VERSION 6

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
  double flops_per_token;   /* What model FLOPs utilization counts. */
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

/* ---- Admission: whether a machine has room for a job, also for one that somebody else wrote ---- */

typedef uint64_t shale_admission;

enum { SHALE_CPU = 0, SHALE_CUDA = 1 };

/* The machine that a job would run on, which need not be this one, and what planning the job may take. */
typedef struct shale_admission_options {
  size_t size;
  int32_t device;            /* What the ranks run on: SHALE_CPU, SHALE_CUDA. */
  int64_t hardware_threads;  /* Of its CPUs, for all ranks together. 0: as many as this machine has. */
  int64_t most_ranks;        /* The ranks that it has room for. 0: any number. */
  int64_t budget_bytes;      /* What it has for the arena of one rank. 0: no limit. A job may set a smaller one. */
  int64_t host_budget_bytes; /* The same for what one rank offloads to host memory. */
  int64_t vocabulary;        /* Of the data, which are not read. 0: not known; then the job must say it. */
  double seconds;            /* Time that planning may take. 0: 10. */
  int64_t memory_bytes;      /* Memory that it may take. 0: 1 GiB. */
  int64_t job_bytes;         /* The longest job, overrides included. 0: 16 KiB. */
  shale_stop stop;           /* Ends the call. 0: nobody does. */
} shale_admission_options;

/* Plan a job within these limits, whatever the job is, and open no file and no device. `options` may be NULL. The first
 * takes the text of a job, or a binary one (proto/job.proto), of `job_bytes` bytes. The second takes a job of this
 * program, and `model` as shale_plan_create does; what model->build itself takes is not limited. Use the first for what
 * others wrote, because shale_job_parse has no limits and reads the files that a job names.
 *
 * A job that is invalid or does not fit has a verdict, too. SHALE_CANCELLED, SHALE_DEADLINE_EXCEEDED (the time limit)
 * and SHALE_RESOURCE_EXHAUSTED (the job is too long, or planning it could take too much memory) say that there is none.
 */
SHALE_API shale_code shale_admit(const char* job, size_t job_bytes, const char* const* overrides, size_t override_count,
                                 const shale_admission_options* options, shale_admission* admission,
                                 shale_error* error);
SHALE_API shale_code shale_admit_job(shale_job job, const struct shale_model* model,
                                     const shale_admission_options* options, shale_admission* admission,
                                     shale_error* error);

/* Verdicts, with the numbers of proto/plan.proto. */
enum { SHALE_FITS = 1, SHALE_DOES_NOT_FIT = 2, SHALE_INVALID = 3 };

/* Bytes are those of one rank. They are 0 if the job was not planned. */
typedef struct shale_admission_summary {
  size_t size;
  int32_t verdict;
  int64_t arena_bytes; /* What the job needs; if it does not fit, at least. */
  int64_t host_bytes;  /* What it offloads to host memory. */
  int64_t ways_out;    /* How many settings there are with which a job would fit that does not. */
  /* Not 0: the search for them reached the time limit. There may be more. */
  int32_t search_ended_early;
} shale_admission_summary;
SHALE_API shale_code shale_admission_get_summary(shale_admission admission, shale_admission_summary* summary,
                                                 shale_error* error);

/* The forms of a verdict. */
enum {
  SHALE_ADMISSION_TEXT = 0, /* For people. If the job is invalid, a line for each error. */
  SHALE_ADMISSION_JSON = 1, /* As `plan --json` writes it, without the program of a step. */
  SHALE_ADMISSION_PROTO = 2 /* The same as a binary shale.proto.Plan (proto/plan.proto), of *needed - 1 bytes. */
};
SHALE_API shale_code shale_admission_text(shale_admission admission, int32_t form, char* buffer, size_t capacity,
                                          size_t* needed, shale_error* error);

/* Settings with which a job would fit. The texts live until the admission is freed. */
typedef struct shale_way_out {
  size_t size;
  const char* const* overrides; /* As shale_job_load, shale_job_parse and shale_admit take them. */
  size_t override_count;
  int64_t arena_bytes; /* What one rank then needs. */
  int64_t host_bytes;
  double recompute_flops; /* What one rank then recomputes in one step. */
  const char* caveat;     /* What else changes: "the CPU updates". Empty: the training computes the same. */
} shale_way_out;
/* Describes way out `index`, 0 <= index < ways_out. */
SHALE_API shale_code shale_admission_get_way_out(shale_admission admission, int64_t index, shale_way_out* way_out,
                                                 shale_error* error);
SHALE_API shale_code shale_admission_free(shale_admission admission, shale_error* error);

/* ---- Checks of a job before a long run ---- */

typedef uint64_t shale_verification;

enum {
  SHALE_CHECK_HOLDS = 0,
  SHALE_CHECK_FAILS = 1,
  SHALE_CHECK_NOT_RUN = 2 /* The job has nothing that it could check, or this machine cannot run it. */
};

/* One check. The texts live until the verification is freed; those that on_check gets, until it returns. */
typedef struct shale_check {
  size_t size;
  const char* name;    /* What was compared: "4 micro-batches". */
  const char* against; /* With what: "one batch of 16". */
  int32_t outcome;     /* SHALE_CHECK_HOLDS and those after it. */
  double difference;   /* The largest that was found. */
  double tolerance;    /* The largest that is allowed. 0: all bits must be the same. */
  const char* remark;  /* What is to blame, or why the check was not run, or what it covered. May be empty. */
} shale_check;

typedef struct shale_verify_options {
  size_t size;
  const struct shale_model* model; /* As in shale_trainer_options. */
  /* As in shale_trainer_options. Samples are read, twice unless the data are in_order: then they are no longer at their
   * start when the function returns. */
  const struct shale_data* data;
  double seconds;               /* About how long all checks may take. 0: 60. */
  const char* temporary_folder; /* Where a folder is made, and removed again. NULL: the system's for such files. */
  shale_stop stop;              /* Ends the call before the next step. 0: nobody does. */
  void (*on_check)(void* user, const shale_check* check); /* Called with each check as it ends. May be NULL. */
  void* on_check_user;
} shale_verify_options;

/* Runs small trials of the job with its own model, data and backend, and checks that gradients, divisions of a step,
 * saves, data and memory are what they should be. tools/manual/jobs.md lists the checks. Trains nothing, and writes
 * nothing into the folders of the job. A check that fails is no error: the verification says which, and what is to
 * blame. Errors are those of shale_trainer_create, and SHALE_CANCELLED. `options` may be NULL. */
SHALE_API shale_code shale_verify(shale_job job, const shale_verify_options* options, shale_verification* verification,
                                  shale_error* error);

typedef struct shale_verification_summary {
  size_t size;
  int32_t passed; /* Not 0: no check failed. */
  int64_t checks;
  int64_t failed;
  int64_t not_run;
  double seconds;
} shale_verification_summary;
SHALE_API shale_code shale_verification_get_summary(shale_verification verification,
                                                    shale_verification_summary* summary, shale_error* error);
/* Describes check `index`, 0 <= index < checks. */
SHALE_API shale_code shale_verification_get_check(shale_verification verification, int64_t index, shale_check* check,
                                                  shale_error* error);
/* Returns the table of all checks with their remarks, and what was made smaller than the job. */
SHALE_API shale_code shale_verification_text(shale_verification verification, char* buffer, size_t capacity,
                                             size_t* needed, shale_error* error);
SHALE_API shale_code shale_verification_free(shale_verification verification, shale_error* error);

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
/* Returns the names of the states that the optimizer keeps for each parameter, one on a line: "m" and "v" of AdamW. */
SHALE_API shale_code shale_trainer_optimizer_states(shale_trainer trainer, char* buffer, size_t capacity,
                                                    size_t* needed, shale_error* error);
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
  /* Since version 4. */
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

/* ---- Trained weights ---- */

typedef uint64_t shale_generator;

/* Loads a model. `folder` is a checkpoint, or a folder of checkpoints (shale_trainer_options.checkpoint_folder, or
 * checkpoints/ in the folder of a run), whose newest intact one is taken. `model` is the model of a run whose program
 * brought it; else NULL. */
SHALE_API shale_code shale_generator_create(const char* folder, const struct shale_model* model,
                                            shale_generator* generator, shale_error* error);
/* Does the same for a checkpoint that holds adapters alone and whose base was moved: reads the base from the Hugging
 * Face folder `base_folder`. NULL: from where the run had it. SHALE_FAILED_PRECONDITION says that the weights there are
 * not those on which the adapters were trained. Since version 6. */
SHALE_API shale_code shale_generator_create_with_base(const char* folder, const struct shale_model* model,
                                                      const char* base_folder, shale_generator* generator,
                                                      shale_error* error);
/* Makes tokens of text, and text of tokens, with the tokenizer.json in a folder from now on: a Hugging Face folder, or
 * hf/ in the folder of a run. Without one, each byte is a token, if the model was trained like that. Since version 5.
 */
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
 * with a token that the tokenizer's folder says ends a text; or early, if `on_text` does not return 0. Since version 5.
 */
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
/* Does the same with the base of adapters in another folder, as shale_generator_create_with_base does. Since version 6.
 */
SHALE_API shale_code shale_export_parameters_with_base(const char* folder, const char* base_folder, int32_t type,
                                                       const char* file, shale_error* error);
/* Writes the adapters of a checkpoint as a folder that PEFT loads on top of their base: adapter_config.json and
 * adapter_model.safetensors. The folder `out` must not exist, or be empty. Does not read the base. Since version 6. */
SHALE_API shale_code shale_export_adapter(const char* folder, int32_t type, const char* out, shale_error* error);

#ifdef __cplusplus
}
#endif

#endif /* SHALE_ENGINE_C_SHALE_H_ */
