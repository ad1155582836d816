#include "io/metrics.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/fields_text.h"
#include "base/mapped_file.h"

namespace heed {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Result<std::optional<double>> Number(const nlohmann::json& object, const char* key,
                                     const std::string& where) {
  const auto at = object.find(key);
  if (at == object.end()) return std::nullopt;
  if (at->is_null()) return kNaN;
  if (!at->is_number()) {
    return Fail(ErrorKind::kFormat, where + ": " + key, std::string(at->type_name()), "a number");
  }
  return at->get<double>();
}

Result<int64_t> Count(const nlohmann::json& object, const char* key, const std::string& where) {
  const auto at = object.find(key);
  if (at == object.end()) {
    return Fail(ErrorKind::kFormat, where + ": " + key, "nothing", "a count");
  }
  const bool fits = at->is_number_unsigned() &&
                    at->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  if (!fits) {
    return Fail(ErrorKind::kFormat, where + ": " + key,
                at->is_number() ? at->dump() : at->type_name(), "a count");
  }
  return at->get<int64_t>();
}

Result<MetricsRow> Row(const nlohmann::json& object, const std::string& where) {
  MetricsRow row;
  HEED_ASSIGN(row.iter, Count(object, "iter", where));
  if (object.contains("tokens")) {
    HEED_ASSIGN(row.tokens, Count(object, "tokens", where));
  }
  HEED_ASSIGN(const std::optional<double> loss, Number(object, "train_loss", where));
  if (!loss) return Fail(ErrorKind::kFormat, where + ": train_loss", "nothing", "a number");
  row.train_loss = *loss;
  HEED_ASSIGN(const std::optional<double> perplexity, Number(object, "perplexity", where));
  row.perplexity = perplexity.value_or(std::exp(*loss));
  HEED_ASSIGN(row.val_loss, Number(object, "val_loss", where));
  HEED_ASSIGN(row.val_perplexity, Number(object, "val_perplexity", where));
  if (row.val_loss && !row.val_perplexity) row.val_perplexity = std::exp(*row.val_loss);
  HEED_ASSIGN(row.val_bits_per_byte, Number(object, "val_bits_per_byte", where));
  HEED_ASSIGN(row.val_floor, Number(object, "val_floor", where));
  const std::pair<const char*, double*> others[] = {{"lr", &row.lr},
                                                    {"grad_norm", &row.grad_norm},
                                                    {"tokens_per_second", &row.tokens_per_second},
                                                    {"elapsed_s", &row.elapsed_s}};
  for (const auto& [key, value] : others) {
    HEED_ASSIGN(const std::optional<double> number, Number(object, key, where));
    *value = number.value_or(kNaN);
  }
  return row;
}

}  // namespace

std::string MetricsLine(const MetricsRow& row) {
  std::string line = "{\"iter\":" + JsonText(row.iter) + ",\"tokens\":" + JsonText(row.tokens);
  const auto add = [&](const char* key, double value) {
    line += std::string(",\"") + key + "\":" + JsonText(value);
  };
  add("train_loss", row.train_loss);
  add("perplexity", row.perplexity);
  if (row.val_loss) add("val_loss", *row.val_loss);
  if (row.val_perplexity) add("val_perplexity", *row.val_perplexity);
  if (row.val_bits_per_byte) add("val_bits_per_byte", *row.val_bits_per_byte);
  if (row.val_floor) add("val_floor", *row.val_floor);
  add("lr", row.lr);
  add("grad_norm", row.grad_norm);
  add("tokens_per_second", row.tokens_per_second);
  add("elapsed_s", row.elapsed_s);
  return line + "}\n";
}

Result<std::vector<MetricsRow>> ParseMetrics(std::string_view text, const std::string& name) {
  std::vector<MetricsRow> rows;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(whole ? end + 1 : text.size());
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    const std::string where = name + ":" + std::to_string(number);
    if (!object.is_object()) {
      if (!whole) break;
      return Fail(ErrorKind::kFormat, where, "a broken line", "one JSON object", "remove the line");
    }
    HEED_ASSIGN(const MetricsRow row, Row(object, where));
    while (!rows.empty() && rows.back().iter >= row.iter) rows.pop_back();
    rows.push_back(row);
  }
  return rows;
}

Result<std::vector<MetricsRow>> ReadMetrics(const std::string& path) {
  HEED_ASSIGN(const MappedFile file, MappedFile::Open(path));
  return ParseMetrics(file.text(), path);
}

}  // namespace heed
