#include "engine/tokenize/template_date.h"

#include <ctime>

#include "absl/strings/match.h"
#include "absl/time/civil_time.h"
#include "engine/text/quote.h"
#include "engine/tokenize/template_value.h"

namespace shale {

absl::StatusOr<std::string> FormatTemplateDate(const std::string& date, absl::string_view format) {
  if (date.empty()) {
    return TemplateError(
        "the template writes today's date (strftime_now), which would make other text on every day; set data.date to "
        "the day that it should write, such as \"2026-11-28\"");
  }
  absl::CivilDay day;
  if (!absl::ParseCivilTime(date, &day)) return TemplateError("the date ", Quoted(date), " is no day");
  std::tm tm = {.tm_mday = day.day(), .tm_mon = day.month() - 1, .tm_year = static_cast<int>(day.year()) - 1900};
  tm.tm_wday = (static_cast<int>(absl::GetWeekday(day)) + 1) % 7;  // absl begins a week with Monday, C with Sunday.
  tm.tm_yday = absl::GetYearDay(day) - 1;
  constexpr size_t kMostBytes = 1000;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    const bool bare = ++i < format.size() && format[i] == '-';  // %-d is %d without zeros.
    if (bare) ++i;
    const absl::string_view known = bare ? "dmyHIMSj" : "aAbBdeHIjmMpSUwWyYFT%";
    if (i >= format.size() || !absl::StrContains(known, format.substr(i, 1))) {
      return TemplateError("strftime_now: the format ", Quoted(format), " is not supported");
    }
  }
  if (format.size() > kMostBytes || absl::StrContains(format, absl::string_view("\0", 1))) {
    return TemplateError("strftime_now: the format is too long, or has a zero");
  }
  char buffer[16 * kMostBytes];
  const size_t size = std::strftime(buffer, sizeof(buffer), std::string(format).c_str(), &tm);
  return std::string(buffer, size);
}

}  // namespace shale
