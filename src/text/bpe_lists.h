// The two long lists of a BPE vocabulary in JSON, read in one pass: a tree of them would take most
// of the time in which a model starts. What is read here is well-formed; of anything else the
// reader of the whole text says what is wrong with it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heed {

// Views of the text that was read, and of `unescaped` where that is no token as it stands.
struct BpeLists {
  std::vector<std::pair<std::string_view, uint64_t>> vocab;           // spelled tokens, their ids
  std::vector<std::pair<std::string_view, std::string_view>> merges;  // spelled
  std::deque<std::string> unescaped;
};

// Fills `lists` from the object model.vocab and the list model.merges of `text`, and `rest` with
// the text in which these two are empty. False where they are not what they should be; a text that
// is no JSON elsewhere leaves a rest that is none.
bool CutOutLists(std::string_view text, BpeLists* lists, std::string* rest);

// Fills lists->vocab from a text that is that object alone; false where it is not.
bool ReadVocab(std::string_view text, BpeLists* lists);

// Two tokens from "left right"; false where one is empty.
bool SplitMerge(std::string_view text, std::pair<std::string_view, std::string_view>* merge);

}  // namespace heed
