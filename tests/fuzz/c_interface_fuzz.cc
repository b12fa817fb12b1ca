// Fuzzes the C interface: the input is a list of calls, with right and wrong handles, structs, numbers and pointers, in
// any order, also from callbacks. Every call must return a code, and every error must have a message.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/c/shale.h"
#include "engine/c/shale_model.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr char kJob[] = R"(
batch { global_batch: 2 sequence_length: 4 }
lr_schedule { steps: 3 }
data { order: SEQUENTIAL }
runtime { threads_per_rank: 1 cpu_matmuls: ONEDNN generate: true }
memory { budget_bytes: 10000000 }
)";
constexpr char kModel[] = "model { mlp { vocabulary: 8 embedding: 2 hidden: 4 layers: 1 } }\n";
constexpr int kMostCalls = 60, kMostTrainers = 3, kMostVerifications = 1;
constexpr int64_t kRoom = 64;  // Values and tokens that the buffers have room for.

// The input, as numbers. Ends with zeros.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ == size_; }
  uint8_t Next() { return empty() ? 0 : data_[at_++]; }
  // Returns a number below `end`.
  int Below(int end) { return Next() % end; }
  bool OneIn(int n) { return Below(n) == n - 1; }
  // Returns a number, mostly a small one.
  int64_t Number() {
    const uint8_t byte = Next();
    if (byte < 200) return byte % 16;
    constexpr int64_t kOthers[] = {-1, -2, 64, 65, INT32_MAX, int64_t{1} << 40, INT64_MAX, INT64_MIN};
    return kOthers[byte % std::size(kOthers)];
  }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
};

class Caller {
 public:
  Caller(const uint8_t* data, size_t size) : bytes_(data, size) {}

  void Run() {
    for (int i = 0; i < kMostCalls && !bytes_.empty(); ++i) Call();
    for (const uint64_t handle : handles_) {
      shale_trainer_free(handle, nullptr);
      shale_plan_free(handle, nullptr);
      shale_admission_free(handle, nullptr);
      shale_verification_free(handle, nullptr);
      shale_stop_free(handle, nullptr);
      shale_job_free(handle, nullptr);
    }
  }

 private:
  // Checks what every call promises.
  void Expect(shale_code code) {
    SHALE_CHECK(code >= SHALE_OK && code <= SHALE_DATA_LOSS) << code;
    if (code == SHALE_OK || error_.size != sizeof(error_)) return;
    const size_t length = strnlen(error_.message, sizeof(error_.message));
    SHALE_CHECK(length > 0 && length < sizeof(error_.message));
    SHALE_CHECK(IsUtf8({error_.message, length})) << error_.message;
    error_.message[0] = '\0';
  }
  shale_error* Error() {
    error_.size = bytes_.OneIn(16) ? 0 : sizeof(error_);
    return &error_;
  }
  uint64_t Handle() {
    if (handles_.empty() || bytes_.OneIn(16)) return static_cast<uint64_t>(bytes_.Number()) << 16;
    return handles_[bytes_.Below(static_cast<int>(handles_.size()))];
  }
  // Takes the handle by reference, because a compiler may evaluate it before the call that sets it.
  void Keep(shale_code code, const uint64_t& handle) {
    Expect(code);
    if (code == SHALE_OK) handles_.push_back(handle);
  }
  size_t Size(size_t right) { return bytes_.OneIn(12) ? static_cast<size_t>(bytes_.Number()) : right; }
  const char* Name() {
    constexpr std::array<const char*, 6> kNames = {"head.weight", "hidden.0.weight", "m", "", "reward", nullptr};
    return kNames[bytes_.Below(kNames.size())];
  }

  static shale_code ReadData(void* user, int64_t sample, const shale_sample* out, shale_error*) {
    auto& self = *static_cast<Caller*>(user);
    if (out->inputs == nullptr || out->targets == nullptr) return SHALE_INVALID_ARGUMENT;
    for (int64_t i = 0; i < out->sequence_length; ++i) {
      out->inputs[i] = static_cast<int32_t>((sample + i) % 8);
      out->targets[i] = static_cast<int32_t>(sample % 8) - self.token_shift_;
    }
    return self.read_code_;
  }
  shale_data Data() {
    shale_data data = SHALE_INIT(shale_data);
    data.size = Size(data.size);
    data.name = bytes_.OneIn(16) ? nullptr : "data";
    data.samples = bytes_.Number();
    data.sequence_length = bytes_.OneIn(8) ? bytes_.Number() : 4;
    data.vocabulary = bytes_.OneIn(8) ? bytes_.Number() : 8;
    data.features = bytes_.OneIn(8) ? bytes_.Number() : 0;
    data.in_order = bytes_.OneIn(4);
    data.user = this;
    data.read = bytes_.OneIn(16) ? nullptr : ReadData;
    return data;
  }

  static shale_code BuildGraph(void* user, shale_builder b, const shale_graph_options*, shale_error*) {
    auto& self = *static_cast<Caller*>(user);
    // The same calls whenever the graph is built.
    Bytes bytes(self.graph_.data(), self.graph_.size());
    for (int i = 0; i < 40 && !bytes.empty(); ++i) self.Build(b, bytes);
    return SHALE_OK;
  }
  // Makes a call to the builder.
  static void Build(shale_builder b, Bytes& bytes) {
    const auto id = [&] { return static_cast<int32_t>(bytes.Number()); };
    const int64_t shape[] = {bytes.Number(), bytes.Number(), 1, 1};
    switch (bytes.Below(23)) {
      case 0: shale_builder_add_group(b, bytes.OneIn(8) ? nullptr : "group"); break;
      case 1: shale_builder_add_parameter(b, id(), "a", shape, 1 + bytes.Below(5), id(), 1); break;
      case 2: shale_builder_add_parameter(b, id(), "b", bytes.OneIn(8) ? nullptr : shape, 2, 0, 1); break;
      case 3: shale_builder_begin_unit(b, bytes.OneIn(2) ? "first" : "second", id()); break;
      case 4: shale_builder_unit_input(b); break;
      case 5: shale_builder_end_unit(b, id()); break;
      case 6: shale_builder_end_last_unit(b); break;
      case 7: shale_layer_embedding(b, id(), id()); break;
      case 8: shale_layer_features(b, bytes.Number()); break;
      case 9: shale_layer_linear(b, id(), id(), id(), "linear"); break;
      case 10: shale_layer_norm(b, id(), id(), id(), 1e-5, "norm"); break;
      case 11: shale_layer_group_norm(b, id(), bytes.Number(), id(), id(), 1e-5, "groups"); break;
      case 12: shale_layer_head_norm(b, id(), id(), 1e-5, id(), nullptr); break;
      case 13: shale_layer_reshape(b, id(), shape, bytes.Below(6)); break;
      case 14: shale_layer_slice(b, id(), id(), bytes.Number(), bytes.Number()); break;
      case 15: shale_layer_split_last(b, id(), bytes.Number()); break;
      case 16: shale_layer_split_first(b, id(), bytes.Number()); break;
      case 17: shale_layer_rope(b, id(), 10000); break;
      case 18: shale_layer_attention(b, id(), id(), id(), bytes.Number()); break;
      case 19: shale_layer_gelu(b, shale_layer_swiglu(b, id()), 1); break;
      case 20: shale_layer_mean_squared_error(b, shale_layer_add(b, id(), id(), "sum")); break;
      case 21: shale_layer_linear_cross_entropy(b, id(), id(), id()); break;
      case 22: shale_layer_bidirectional_attention(b, id(), id(), id()); break;
    }
  }
  shale_model Model() {
    graph_.clear();
    for (int i = bytes_.Next(); i > 0 && !bytes_.empty(); --i) graph_.push_back(bytes_.Next());
    shale_model model = SHALE_INIT(shale_model);
    model.size = Size(model.size);
    model.name = bytes_.OneIn(16) ? nullptr : "model";
    model.digest = "1";
    model.layers = bytes_.Number();
    model.user = this;
    model.build = bytes_.OneIn(16) ? nullptr : BuildGraph;
    return model;
  }

  void CreateTrainer() {
    shale_trainer_options options = SHALE_INIT(shale_trainer_options);
    options.size = Size(options.size);
    const shale_data data = Data();
    options.data = bytes_.OneIn(8) ? nullptr : &data;
    options.resume = bytes_.OneIn(8) ? static_cast<int32_t>(bytes_.Number()) : 0;
    const bool own = bytes_.OneIn(4);
    const shale_model model = own ? Model() : shale_model{};
    if (own) options.model = &model;
    if (trainers_ == kMostTrainers) return;
    shale_trainer trainer = 0;
    const shale_code code = shale_trainer_create(Handle(), &options, bytes_.OneIn(16) ? nullptr : &trainer, Error());
    if (code == SHALE_OK) ++trainers_;
    Keep(code, trainer);
  }

  void Admit(uint64_t job) {
    shale_admission_options options = SHALE_INIT(shale_admission_options);
    options.size = Size(options.size);
    options.device = bytes_.OneIn(8) ? static_cast<int32_t>(bytes_.Number()) : SHALE_CPU;
    options.hardware_threads = bytes_.Number();
    options.most_ranks = bytes_.Number();
    options.budget_bytes = bytes_.OneIn(2) ? 0 : bytes_.Number() % 4096 * 256;
    options.host_budget_bytes = bytes_.OneIn(8) ? bytes_.Number() : 0;
    options.seconds = bytes_.OneIn(8) ? static_cast<double>(bytes_.Number()) / 1e6 : 0;
    options.memory_bytes = bytes_.OneIn(8) ? bytes_.Number() : 0;
    options.job_bytes = bytes_.OneIn(8) ? bytes_.Number() : 0;
    options.stop = bytes_.OneIn(4) ? Handle() : 0;
    const shale_admission_options* const given = bytes_.OneIn(8) ? nullptr : &options;
    shale_admission admission = 0;
    if (bytes_.OneIn(2)) {
      const bool own = bytes_.OneIn(2);
      const shale_model model = own ? Model() : shale_model{};
      return Keep(shale_admit_job(job, own ? &model : nullptr, given, &admission, Error()), admission);
    }
    const std::string text = std::string(kJob) + kModel;
    const char* const override = bytes_.OneIn(2) ? "sharding.ranks=2" : "memory.budget_bytes=100";
    const int64_t length = bytes_.OneIn(8) ? bytes_.Number() % 100 : std::ssize(text);
    Keep(shale_admit(bytes_.OneIn(16) ? nullptr : text.data(), static_cast<size_t>(std::max<int64_t>(length, 0)),
                     &override, bytes_.OneIn(4), given, bytes_.OneIn(16) ? nullptr : &admission, Error()),
         admission);
  }
  void ReadAdmission(uint64_t admission, char* text, size_t capacity) {
    size_t needed = 0;
    shale_admission_summary summary = {Size(sizeof(shale_admission_summary))};
    Expect(shale_admission_get_summary(admission, &summary, Error()));
    Expect(shale_admission_text(admission, static_cast<int32_t>(bytes_.Number()), text, capacity, &needed, Error()));
    shale_way_out way = {Size(sizeof(shale_way_out))};
    if (const shale_code code = shale_admission_get_way_out(admission, bytes_.Number(), &way, Error());
        code == SHALE_OK) {
      for (size_t i = 0; i < way.override_count; ++i) SHALE_CHECK(std::strchr(way.overrides[i], '=') != nullptr);
    } else {
      Expect(code);
    }
    if (bytes_.OneIn(4)) Expect(shale_admission_free(admission, Error()));
  }

  void Verify(uint64_t job) {
    shale_verify_options options = SHALE_INIT(shale_verify_options);
    options.size = Size(options.size);
    const shale_data data = Data();
    options.data = bytes_.OneIn(8) ? nullptr : &data;
    const bool own = bytes_.OneIn(4);
    const shale_model model = own ? Model() : shale_model{};
    if (own) options.model = &model;
    options.seconds = bytes_.OneIn(8) ? static_cast<double>(bytes_.Number()) : 1e-6;
    options.temporary_folder = bytes_.OneIn(16) ? "/nowhere" : nullptr;
    options.stop = bytes_.OneIn(4) ? Handle() : 0;
    options.on_check_user = this;
    if (bytes_.OneIn(2)) options.on_check = OnCheck;
    token_shift_ = 0;
    read_code_ = bytes_.OneIn(16) ? static_cast<shale_code>(bytes_.Number()) : SHALE_OK;
    if (verifications_ == kMostVerifications) return;
    shale_verification verification = 0;
    const shale_code code = shale_verify(job, &options, bytes_.OneIn(16) ? nullptr : &verification, Error());
    if (code == SHALE_OK) ++verifications_;
    Keep(code, verification);
  }
  void ReadVerification(uint64_t verification, char* text, size_t capacity) {
    size_t needed = 0;
    shale_verification_summary summary = {Size(sizeof(shale_verification_summary))};
    Expect(shale_verification_get_summary(verification, &summary, Error()));
    Expect(shale_verification_text(verification, text, capacity, &needed, Error()));
    shale_check check = {Size(sizeof(shale_check))};
    if (const shale_code code = shale_verification_get_check(verification, bytes_.Number(), &check, Error());
        code == SHALE_OK) {
      SHALE_CHECK(std::strlen(check.name) > 0 && IsUtf8(check.remark));
    } else {
      Expect(code);
    }
    if (bytes_.OneIn(4)) Expect(shale_verification_free(verification, Error()));
  }
  static void OnCheck(void* user, const shale_check*) {
    auto& self = *static_cast<Caller*>(user);
    for (const uint64_t handle : self.handles_) shale_stop_request(handle, nullptr);
  }
  void Stop(uint64_t stop) {
    if (bytes_.OneIn(2)) {
      shale_stop created = 0;
      Keep(shale_stop_create(bytes_.OneIn(16) ? nullptr : &created, Error()), created);
    } else {
      Expect(bytes_.OneIn(2) ? shale_stop_request(stop, Error()) : shale_stop_free(stop, Error()));
    }
  }

  static int32_t OnStep(void* user, const shale_step_report*) {
    auto& self = *static_cast<Caller*>(user);
    for (const uint64_t handle : self.handles_) {
      shale_trainer_step(handle, nullptr, nullptr);
      shale_trainer_request_stop(handle, nullptr);
    }
    return 0;
  }
  static int32_t OnToken(void*, int32_t) { return 0; }

  void ParseJob() {
    const bool own = bytes_.OneIn(3);
    const std::string job = own ? kJob : std::string(kJob) + kModel;
    const char* const override = bytes_.OneIn(4) ? "sharding.ranks=2" : "optimizer.kind=9";
    shale_job parsed = 0;
    Keep(shale_job_parse(job.c_str(), nullptr, &override, bytes_.OneIn(4), own ? SHALE_MODEL_FROM_PROGRAM : 0, &parsed,
                         Error()),
         parsed);
  }
  void CreatePlan(uint64_t job) {
    const bool own = bytes_.OneIn(2);
    const shale_model model = own ? Model() : shale_model{};
    shale_plan plan = 0;
    Keep(shale_plan_create(job, own ? &model : nullptr, &plan, Error()), plan);
  }
  void SummarizePlan(uint64_t plan) {
    shale_plan_summary summary = {Size(sizeof(shale_plan_summary))};
    Expect(shale_plan_get_summary(plan, bytes_.OneIn(8) ? nullptr : &summary, Error()));
  }
  void Step(uint64_t trainer) {
    shale_step_report report = {Size(sizeof(shale_step_report))};
    token_shift_ = bytes_.OneIn(16) ? static_cast<int32_t>(bytes_.Number()) : 0;
    read_code_ = bytes_.OneIn(16) ? static_cast<shale_code>(bytes_.Number()) : SHALE_OK;
    Expect(shale_trainer_step(trainer, bytes_.OneIn(4) ? nullptr : &report, Error()));
  }
  void Evaluate(uint64_t trainer) {
    shale_evaluation_report report = SHALE_INIT(shale_evaluation_report);
    Expect(shale_trainer_evaluate(trainer, bytes_.Number(), &report, Error()));
  }
  void DescribeParameter(uint64_t trainer) {
    shale_parameter parameter = SHALE_INIT(shale_parameter);
    Expect(shale_trainer_get_parameter(trainer, bytes_.Number(), &parameter, Error()));
  }
  void ReadParameterWriteState(uint64_t trainer) {
    const int64_t begin = bytes_.Number(), count = std::min(bytes_.Number(), kRoom);
    Expect(shale_trainer_read_parameter(trainer, Name(), begin, values_, count, Error()));
    Expect(shale_trainer_write_optimizer_state(trainer, Name(), Name(), begin, values_, count, Error()));
  }
  void WriteParameterReadState(uint64_t trainer) {
    const int64_t begin = bytes_.Number(), count = std::min(bytes_.Number(), kRoom);
    Expect(shale_trainer_write_parameter(trainer, Name(), begin, values_, count, Error()));
    Expect(shale_trainer_read_optimizer_state(trainer, Name(), Name(), begin, values_, count, Error()));
  }
  void SetRateAddMetric(uint64_t trainer) {
    const double rate = static_cast<double>(bytes_.Number()) / 16;
    Expect(shale_trainer_set_learning_rate(trainer, bytes_.OneIn(4) ? nullptr : &rate, Error()));
    Expect(shale_trainer_add_metric(trainer, Name(), rate, Error()));
  }
  void SetData(uint64_t trainer) {
    const shale_data data = Data();
    Expect(shale_trainer_set_data(trainer, &data, Error()));
  }
  void Generate(uint64_t trainer) {
    shale_sampling sampling = {Size(sizeof(shale_sampling)), static_cast<double>(bytes_.Number()), bytes_.Number()};
    for (int32_t& token : tokens_) token = static_cast<int32_t>(bytes_.Number());
    Expect(shale_trainer_generate(trainer, tokens_, bytes_.Below(kRoom), std::min<int64_t>(bytes_.Number(), 4),
                                  bytes_.OneIn(4) ? nullptr : &sampling, OnToken, this, Error()));
  }
  void ReadState(uint64_t trainer, char* text, size_t capacity) {
    size_t needed = 0;
    Expect(shale_trainer_request_stop(trainer, Error()));
    Expect(shale_trainer_optimizer_states(trainer, text, capacity, &needed, Error()));
    shale_trainer_state state = {Size(sizeof(shale_trainer_state))};
    Expect(shale_trainer_get_state(trainer, &state, Error()));
  }
  void FreeTrainer(uint64_t trainer) {
    const shale_code code = shale_trainer_free(trainer, Error());
    Expect(code);
    if (code == SHALE_OK && trainer != 0) --trainers_;
  }

  void Call() {
    size_t needed = 0;
    const uint64_t handle = Handle();
    char* const text = bytes_.OneIn(2) ? text_ : nullptr;
    const size_t capacity = static_cast<size_t>(bytes_.Next());
    switch (bytes_.Below(30)) {
      case 0:
      case 1: ParseJob(); break;
      case 2: Expect(shale_job_text(handle, text, capacity, &needed, Error())); break;
      case 3: Expect(shale_job_free(handle, Error())); break;
      case 4: CreatePlan(handle); break;
      case 5: SummarizePlan(handle); break;
      case 6:
        Expect(shale_plan_text(handle, static_cast<int32_t>(bytes_.Number()), text, capacity, &needed, Error()));
        break;
      case 7: Expect(shale_plan_free(handle, Error())); break;
      case 8:
      case 9:
      case 10: CreateTrainer(); break;
      case 11:
      case 12: Step(handle); break;
      case 13: Expect(shale_trainer_run(handle, bytes_.OneIn(2) ? OnStep : nullptr, this, Error())); break;
      case 14: Evaluate(handle); break;
      case 15: Expect(shale_trainer_save(handle, text, capacity, &needed, Error())); break;
      case 16: DescribeParameter(handle); break;
      case 17: ReadParameterWriteState(handle); break;
      case 18: WriteParameterReadState(handle); break;
      case 19: SetRateAddMetric(handle); break;
      case 20: SetData(handle); break;
      case 21: Generate(handle); break;
      case 22: ReadState(handle, text, capacity); break;
      case 23: FreeTrainer(handle); break;
      case 24:
      case 25: Admit(handle); break;
      case 26: ReadAdmission(handle, text, capacity); break;
      case 27: Verify(handle); break;
      case 28: ReadVerification(handle, text, capacity); break;
      case 29: Stop(handle); break;
    }
  }

  Bytes bytes_;
  std::vector<uint64_t> handles_;  // Also freed ones.
  std::vector<uint8_t> graph_;
  shale_error error_ = SHALE_INIT(shale_error);
  int trainers_ = 0, verifications_ = 0;
  int32_t token_shift_ = 0;
  shale_code read_code_ = SHALE_OK;
  char text_[256] = {};
  float values_[kRoom] = {};
  int32_t tokens_[kRoom] = {};
};

}  // namespace
}  // namespace shale

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::Caller(data, size).Run();
  return 0;
}
