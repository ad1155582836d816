#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quote.h"
#include "report/format.h"

namespace heed {
namespace {

constexpr size_t kGap = 2, kLeastColumn = 6;

std::string Padded(const std::string& text, size_t width, bool right) {
  const std::string room(width - std::min(width, TextWidth(text)), ' ');
  return right ? room + text : text + room;
}

// At most `width` characters, the last a full stop where something was cut.
std::string Shortened(std::string text, size_t width) {
  if (TextWidth(text) <= width) return text;
  while (TextWidth(text) >= width) {
    do {
      text.pop_back();
    } while (!text.empty() && (text.back() & 0x80) != 0 && (text.back() & 0xC0) == 0x80);
  }
  return text + ".";
}

bool IsFlushRight(const Table& table, size_t column) {
  return column > 0 && std::ranges::count(table.words, table.head[column]) == 0;
}

std::vector<size_t> NaturalWidths(const Table& table) {
  std::vector<size_t> widths;
  for (const std::string& head : table.head) widths.push_back(TextWidth(head));
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], TextWidth(row[i]));
  }
  return widths;
}

// How many of the columns fit side by side as they are: the names and one more at least.
size_t ColumnsThatFit(const Table& table, size_t most) {
  const std::vector<size_t> widths = NaturalWidths(table);
  size_t fit = 0;
  for (size_t sum = 0; fit < widths.size(); ++fit) {
    sum += widths[fit] + (fit > 0 ? kGap : 0);
    if (sum > most && fit >= 2) break;
  }
  return fit;
}

// The names, and the columns from `first` up to before `last`.
Table Part(const Table& table, size_t first, size_t last) {
  const auto cut = [&](const std::vector<std::string>& cells) {
    std::vector<std::string> part = {cells[0]};
    part.insert(part.end(), cells.begin() + static_cast<ptrdiff_t>(first),
                cells.begin() + static_cast<ptrdiff_t>(last));
    return part;
  };
  Table part{table.title, cut(table.head), {}, table.words};
  for (const auto& row : table.rows) part.rows.push_back(cut(row));
  return part;
}

// Widths that fit: the widest columns give way first.
std::vector<size_t> Widths(const Table& table, size_t most) {
  std::vector<size_t> widths = NaturalWidths(table);
  const size_t room = most - std::min(most, kGap * (widths.size() - 1));
  for (size_t sum = 0; true; sum = 0) {
    for (const size_t width : widths) sum += width;
    const auto widest = std::ranges::max_element(widths);
    if (sum <= room || *widest <= kLeastColumn) return widths;
    --*widest;
  }
}

std::string Escaped(std::string_view text, std::string_view special, std::string_view by) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += by;
    out += c;
  }
  return out;
}

}  // namespace

std::string TableText(const Table& table, size_t width) {
  const size_t columns = table.head.size(), fit = ColumnsThatFit(table, width);
  if (fit < columns) {
    return TableText(Part(table, 1, fit), width) + "\n" +
           TableText(Part(table, fit, columns), width);
  }
  const std::vector<size_t> widths = Widths(table, width);
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) text += std::string(kGap, ' ');
      text += Padded(Shortened(Printable(cells[i]), widths[i]), widths[i], IsFlushRight(table, i));
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line(table.head);
  for (const auto& row : table.rows) line(row);
  return out;
}

std::string TableMarkdown(const Table& table) {
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    out += "|";
    for (const std::string& cell : cells) {
      std::string text = Escaped(cell, "|\\`*_<", "\\");
      std::ranges::replace(text, '\n', ' ');
      out += " " + text + " |";
    }
    out += "\n";
  };
  line(table.head);
  out += "|";
  for (size_t i = 0; i < table.head.size(); ++i) {
    out += IsFlushRight(table, i) ? " ---: |" : " --- |";
  }
  out += "\n";
  for (const auto& row : table.rows) line(row);
  return out;
}

std::string TableCsv(const Table& table) {
  std::string out;
  const auto field = [](std::string_view text) { return "\"" + Escaped(text, "\"", "\"") + "\""; };
  for (const auto& row : table.rows) {
    for (size_t i = 1; i < row.size(); ++i) {
      out += field(table.title) + "," + field(row[0]) + "," + field(table.head[i]) + "," +
             field(row[i]) + "\r\n";
    }
  }
  return out;
}

std::string HtmlText(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string TableHtml(const Table& table) {
  bool numbers = false;
  for (size_t i = 0; i < table.head.size(); ++i) numbers = numbers || IsFlushRight(table, i);
  const auto kind = [&](size_t column) {
    return numbers && column > 0 && !IsFlushRight(table, column) ? " class=\"word\"" : "";
  };
  std::string out = fmt::format("<div class=\"scroll\"><table{}>\n<thead><tr>",
                                numbers ? " class=\"numbers\"" : "");
  for (size_t i = 0; i < table.head.size(); ++i) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", kind(i), HtmlText(table.head[i]));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr><th scope=\"row\">" + HtmlText(row[0]) + "</th>";
    for (size_t i = 1; i < row.size(); ++i) {
      out += fmt::format("<td{}>{}</td>", kind(i), HtmlText(row[i]));
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

bool OfALaterBlock(std::string_view name) {
  for (const std::string_view prefix : {"h.", "model.layers."}) {
    if (name.starts_with(prefix) && !name.substr(prefix.size()).starts_with("0.")) return true;
  }
  return false;
}

std::string LaterBlocksLine(int64_t n_layer) {
  if (n_layer < 2) return "";
  return n_layer == 2 ? "h.1 is like h.0\n"
                      : fmt::format("h.1 to h.{} are like h.0\n", n_layer - 1);
}

}  // namespace heed
