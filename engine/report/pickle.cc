#include "engine/report/pickle.h"

#include <utility>

namespace shale {
namespace {

// Opcodes of Python's pickletools.
constexpr char kProto[] = "\x80\x02";
constexpr char kEmptyDict = '}', kEmptyList = ']', kMark = '(', kSetItems = 'u', kAppends = 'e';
constexpr char kBinInt = 'J', kLong1 = '\x8a', kBinUnicode = 'X', kLongBinPut = 'r', kLongBinGet = 'j', kStop = '.';

// Items of one APPENDS. Readers may pass all of them as arguments of one call, so their number is limited.
constexpr int64_t kMostItems = 1000;

}  // namespace

PickleWriter::PickleWriter() : bytes_(kProto) {}

void PickleWriter::Little32(uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(value >> shift & 0xff);
}

void PickleWriter::Integer(int64_t value) {
  if (value == static_cast<int32_t>(value)) {
    bytes_ += kBinInt;
    Little32(static_cast<uint32_t>(value));
    return;
  }
  bytes_ += kLong1;
  bytes_ += '\x08';
  for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(static_cast<uint64_t>(value) >> shift & 0xff);
}

void PickleWriter::Text(absl::string_view utf8) {
  if (const auto found = texts_.find(utf8); found != texts_.end()) return Recall(found->second);
  bytes_ += kBinUnicode;
  Little32(static_cast<uint32_t>(utf8.size()));
  bytes_.append(utf8.data(), utf8.size());
  texts_.emplace(utf8, Remember());
}

void PickleWriter::BeginDict() {
  bytes_ += kEmptyDict;
  bytes_ += kMark;
}

void PickleWriter::EndDict() { bytes_ += kSetItems; }

void PickleWriter::BeginList() {
  bytes_ += kEmptyList;
  bytes_ += kMark;
  items_.push_back(0);
}

PickleWriter& PickleWriter::Item() {
  if (items_.back() == kMostItems) {
    bytes_ += kAppends;
    bytes_ += kMark;
    items_.back() = 0;
  }
  ++items_.back();
  return *this;
}

void PickleWriter::EndList() {
  bytes_ += kAppends;
  items_.pop_back();
}

uint32_t PickleWriter::Remember() {
  bytes_ += kLongBinPut;
  Little32(remembered_);
  return remembered_++;
}

void PickleWriter::Recall(uint32_t number) {
  bytes_ += kLongBinGet;
  Little32(number);
}

std::string PickleWriter::Finish() { return std::move(bytes_ += kStop); }

}  // namespace shale
