/* What is known of a job before it runs: whether a machine has room for it, and whether short trials of it hold what a
 * run promises. shale.h, which includes this header, says how errors, handles and texts work. */
#ifndef SHALE_ENGINE_C_SHALE_ADMISSION_H_
#define SHALE_ENGINE_C_SHALE_ADMISSION_H_

#include "shale.h"

#ifdef __cplusplus
extern "C" {
#endif

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
  shale_stop stop;           /* Ends the call. 0: none. */
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
  shale_stop stop;              /* Ends the call before the next step. 0: none. */
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

#ifdef __cplusplus
}
#endif

#endif /* SHALE_ENGINE_C_SHALE_ADMISSION_H_ */
