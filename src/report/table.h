// Tables as text, Markdown, CSV and HTML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heed {

struct Table {
  std::string title;
  std::vector<std::string> head;               // the first names the rows, and is flush left
  std::vector<std::vector<std::string>> rows;  // as wide as head
  std::vector<std::string> words;  // heads of columns set flush left; others are flush right
};

// Lines of at most `width`: columns that do not fit stand below, behind the names once more; where
// not even one fits, the widest cells are cut.
std::string TableText(const Table& table, size_t width);
std::string TableMarkdown(const Table& table);
// Lines "table,row,column,value" (RFC 4180), a line for each value.
std::string TableCsv(const Table& table);
std::string TableHtml(const Table& table);

// Blocks are alike: a table of tensors shows the first one's. Whether a tensor is of another.
bool OfALaterBlock(std::string_view name);
// The line below such a table: "h.1 to h.3 are like h.0\n", nothing for one block or none.
std::string LaterBlocksLine(int64_t n_layer);

// Text as HTML: & < > and quotes.
std::string HtmlText(std::string_view text);

}  // namespace heed
