#include "cli/steps_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/options.h"
#include "tensor/shape.h"

namespace heed {
namespace {

constexpr int kMostDecimals = 6;
constexpr double kLeastShown = 5e-7;

// Whether the numbers need exponents: all but zeros too small for the decimals, or one too large
// for a column. Rounding noise beside ordinary numbers is shown as 0.
bool NeedExponents(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest > 0 && (largest < kLeastShown || largest >= 1e9);
}

// The fewest decimals at which no number changes by more than rounding to six does.
int Decimals(std::span<const double> values) {
  int decimals = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    while (decimals < kMostDecimals) {
      const double scale = std::pow(10.0, decimals);
      if (std::abs(value - std::round(value * scale) / scale) < kLeastShown) break;
      ++decimals;
    }
  }
  return decimals;
}

std::string Number(double value, int decimals, bool exponent) {
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (exponent) return value == 0 ? "0" : fmt::format("{:.1e}", value);
  std::string text = fmt::format("{:.{}f}", value, decimals);
  // A negative zero says nothing.
  if (text.find_first_not_of("-0.") == std::string::npos && text[0] == '-') text.erase(0, 1);
  return text;
}

std::string Heading(const Step& step, size_t width) {
  const std::string shape = step.shape.empty()
                                ? "one number"
                                : fmt::format("[{}] = {}", step.axes, ShapeText(step.shape));
  constexpr size_t kIndent = 13;
  const std::string left =
      fmt::format("{:<{}}{}", step.name, kIndent, Wrap(step.formula, width - kIndent, kIndent));
  // Beside the formula where it fits, else below.
  const size_t used = left.size() - (left.rfind('\n') + 1);
  const bool beside = used + 2 + shape.size() <= width;
  return left + (beside ? "" : "\n") +
         std::string(width - shape.size() - (beside ? used : 0), ' ') + shape + "\n";
}

std::string Table(const Step& step, size_t width) {
  const size_t columns = step.shape.empty() ? 1 : static_cast<size_t>(step.shape.back());
  const int decimals = Decimals(step.values);
  const bool exponents = NeedExponents(step.values);
  size_t label = 0, cell = 0;
  for (const std::string& name : step.rows) label = std::max(label, name.size());
  for (const std::string& name : step.columns) cell = std::max(cell, name.size());
  std::vector<std::string> numbers;
  for (const double value : step.values) {
    numbers.push_back(Number(value, decimals, exponents));
    cell = std::max(cell, numbers.back().size());
  }
  const size_t indent = 4 + label;
  const size_t fit = std::max<size_t>(1, (width - indent) / (cell + 2));
  std::vector<std::string> names = step.columns;
  // Columns that stand below others say which they are.
  if (names.empty() && columns > fit) {
    for (size_t c = 0; c < columns; ++c) names.push_back(fmt::format("c{}", c));
  }
  std::string text;
  for (size_t first = 0; first < columns; first += fit) {
    const size_t last = std::min(columns, first + fit);
    if (!names.empty()) {
      text += std::string(indent, ' ');
      for (size_t c = first; c < last; ++c) text += fmt::format("  {:>{}}", names[c], cell);
      text += "\n";
    }
    for (size_t r = 0; r * columns < numbers.size(); ++r) {
      text += fmt::format("    {:<{}}", step.rows.empty() ? "" : step.rows[r], label);
      for (size_t c = first; c < last; ++c) {
        text += fmt::format("  {:>{}}", numbers[r * columns + c], cell);
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace

std::string StepsText(std::span<const Step> steps, size_t width) {
  std::string text;
  for (const Step& step : steps) {
    text += (text.empty() ? "" : "\n") + Heading(step, width) + Table(step, width);
    if (!step.note.empty()) text += "    " + Wrap(step.note, width - 4, 4) + "\n";
  }
  return text;
}

nlohmann::ordered_json NestedJson(std::span<const int64_t> shape, std::span<const double> values) {
  if (shape.empty()) {
    return std::isfinite(values[0]) ? nlohmann::ordered_json(values[0]) : nullptr;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  const size_t inner = shape[0] == 0 ? 0 : values.size() / static_cast<size_t>(shape[0]);
  for (int64_t i = 0; i < shape[0]; ++i) {
    json.push_back(NestedJson(shape.subspan(1), values.subspan(i * inner, inner)));
  }
  return json;
}

nlohmann::ordered_json StepsJson(std::span<const Step> steps) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Step& step : steps) {
    nlohmann::ordered_json entry = {{"name", step.name},
                                    {"formula", step.formula},
                                    {"axes", step.axes},
                                    {"shape", step.shape},
                                    {"values", NestedJson(step.shape, step.values)}};
    if (!step.rows.empty()) entry["rows"] = step.rows;
    if (!step.columns.empty()) entry["columns"] = step.columns;
    if (!step.note.empty()) entry["note"] = step.note;
    json.push_back(std::move(entry));
  }
  return json;
}

}  // namespace heed
