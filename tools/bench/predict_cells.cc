#include "tools/bench/predict_cells.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/job.h"
#include "kernels/check.h"

namespace shale {
namespace {

struct Setting {
  const char* name;
  std::vector<std::string> overrides;
  bool processes = false;  // As Cell::processes.
};
using Settings = std::vector<Setting>;

const Settings kPrecisions = {{"fp32", {"precision.compute=FP32"}}, {"bf16", {"precision.compute=BF16"}}};
const Settings kRanks = {{"W1", {"sharding.ranks=1"}},
                         {"W2", {"sharding.ranks=2"}},
                         {"W2 processes", {"sharding.ranks=2"}, /*processes=*/true}};
const Settings kAccumulations = {{"K1", {}},
                                 {"K2 SHARDED", {"sharding.accumulation=SHARDED"}},
                                 {"K2 NO_SYNC", {"sharding.accumulation=NO_SYNC"}},
                                 {"K2 LAYERED", {"sharding.accumulation=LAYERED"}}};
const Settings kPresets = {{"NONE", {"activation_checkpointing.preset=NONE"}},
                           {"BLOCK", {"activation_checkpointing.preset=BLOCK"}}};
// An update in backward cannot wait for the norm of all gradients, nor for whether all are finite.
const Settings kUpdates = {
    {"", {}},
    {"in backward", {"optimizer.update=IN_BACKWARD", "optimizer.max_gradient_norm=0", "optimizer.non_finite=SKIP"}}};

// Returns the batch of a cell: one micro-batch of each rank, or two.
std::vector<std::string> BatchOf(const Job& job, int64_t ranks, bool one) {
  const int64_t micro_batch = job.batch.micro_batch;
  return {absl::StrCat("batch.micro_batch=", micro_batch),
          absl::StrCat("batch.global_batch=", micro_batch * ranks * (one ? 1 : 2))};
}

absl::Status AddCells(const std::string& path, const std::vector<std::string>& set, std::vector<Cell>& cells) {
  SHALE_ASSIGN_OR_RETURN(const Job model, LoadJob(path, set));
  for (const Setting& precision : kPrecisions) {
    for (const Setting& ranks : kRanks) {
      for (const Setting& accumulation : kAccumulations) {
        for (const Setting& preset : kPresets) {
          for (const Setting& update : kUpdates) {
            const bool one = &accumulation == kAccumulations.data();
            std::vector<std::string> overrides = set;
            for (std::string& size : BatchOf(model, &ranks == kRanks.data() ? 1 : 2, one)) {
              overrides.push_back(std::move(size));
            }
            for (const Setting* setting : {&precision, &ranks, &accumulation, &preset, &update}) {
              overrides.insert(overrides.end(), setting->overrides.begin(), setting->overrides.end());
            }
            const std::string model_in = absl::StrCat(model.name, " ", precision.name, " ");
            const std::string shape = absl::StrCat(model_in, ranks.processes ? kRanks[1].name : ranks.name);
            const std::string places = absl::StrCat(model_in, ranks.name);
            std::string name = absl::StrCat(places, " ", accumulation.name, " ", preset.name);
            if (*update.name != 0) absl::StrAppend(&name, " ", update.name);
            absl::StatusOr<Job> job = LoadJob(path, overrides);
            if (!job.ok()) {  // Settings that exclude each other.
              LeaveOut(name, job.status());
              continue;
            }
            job->data = {.order = DataOrder::kSequential};
            job->lr_schedule.steps = 1000;
            cells.push_back({.name = std::move(name),
                             .model = model.name,
                             .shape = shape,
                             .alternatives = absl::StrCat(places, one ? " K1" : " K2"),
                             .job = *std::move(job),
                             .processes = ranks.processes});
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

void LeaveOut(const std::string& name, const absl::Status& why) {
  std::fprintf(stderr, "%s: left out: %s\n", name.c_str(), std::string(why.message()).c_str());
}

absl::StatusOr<std::vector<Cell>> CellsOf(const std::vector<std::string>& models, const std::vector<std::string>& set,
                                          int64_t most) {
  std::vector<Cell> all, cells;
  for (const std::string& path : models) SHALE_RETURN_IF_ERROR(AddCells(path, set, all));
  // Every n-th would have every n-th setting alone.
  std::vector<size_t> chosen(all.size());
  std::iota(chosen.begin(), chosen.end(), 0);
  std::mt19937 random;
  for (size_t left = chosen.size(); left > 1; --left) std::swap(chosen[left - 1], chosen[random() % left]);
  chosen.resize(std::min(chosen.size(), static_cast<size_t>(most)));
  std::sort(chosen.begin(), chosen.end());
  for (const size_t i : chosen) cells.push_back(std::move(all[i]));
  return cells;
}

}  // namespace shale
