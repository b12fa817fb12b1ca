/* Checks a job before a long run, through the C interface. Prints the table of the checks.
 *
 *   verify JOB    ends with 1 if a check fails, or if the job cannot be checked
 */
#include <shale_admission.h>
#include <stdio.h>

static shale_code verify(shale_job job, int* passed, shale_error* error) {
  static char table[1 << 16];
  shale_verification checks = 0;
  shale_verification_summary found = SHALE_INIT(shale_verification_summary);
  shale_verify_options options = SHALE_INIT(shale_verify_options);
  options.seconds = 1; /* For the gradients. The other checks take the time that they need. */
  shale_code code = shale_verify(job, &options, &checks, error);
  if (code == SHALE_OK) code = shale_verification_get_summary(checks, &found, error);
  if (code == SHALE_OK) code = shale_verification_text(checks, table, sizeof(table), NULL, error);
  shale_verification_free(checks, NULL);
  fputs(table, stdout);
  *passed = found.passed;
  return code;
}

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "verify JOB\n"), 2;
  shale_error error = SHALE_INIT(shale_error);
  shale_job job = 0;
  int passed = 0;
  shale_code code = shale_job_load(argv[1], NULL, 0, 0, &job, &error);
  if (code == SHALE_OK) code = verify(job, &passed, &error);
  shale_job_free(job, NULL);
  if (code != SHALE_OK) fprintf(stderr, "verify: %s\n", error.message);
  return code == SHALE_OK && passed ? 0 : 1;
}
