// The two long lists of a BPE vocabulary in JSON, read in one pass: a tree of them would take most
// of the time in which a model starts. What is read here is well-formed; of anything else the
// reader of the whole text says what is wrong with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heed {

struct BpeLists {
  std::vector<std::pair<std::string, uint64_t>> vocab;      // spelled tokens and their ids
  std::vector<std::pair<std::string, std::string>> merges;  // spelled
};

// Fills `lists` from the object model.vocab and the list model.merges of `text`, and `rest` with
// the text in which these two are empty. False where they are not what they should be; a text that
// is no JSON elsewhere leaves a rest that is none.
bool CutOutLists(std::string_view text, BpeLists* lists, std::string* rest);

// Fills `vocab` from a text that is that object alone; false where it is not.
bool ReadVocab(std::string_view text, std::vector<std::pair<std::string, uint64_t>>* vocab);

// Two tokens from "left right"; false where one is empty.
bool SplitMerge(std::string_view text, std::pair<std::string, std::string>* merge);

}  // namespace heed
